//! The client of NATS as a [`Wire`].

use std::time::Duration;

use async_nats::connection::State;
use async_nats::{Client, ConnectOptions, HeaderMap, Message, Subscriber};
use futures_util::StreamExt as _;

use crate::engine::BoxFuture;
use crate::jetstream::JetStreamConfig;
use crate::jetstream::link::ANSWERS_WITHIN;
use crate::jetstream::wire::{About, Letter, Letters, SEQUENCE, STAMP, Wire};

/// A server that takes longer to answer a new connection is passed by. An owner must find one that answers before a
/// standby takes it for dead.
const CONNECTS_WITHIN: Duration = Duration::from_secs(1);

pub(crate) struct Nats(Client);

impl Nats {
    /// Connects, or fails if no server answers.
    pub(crate) async fn connect(config: &JetStreamConfig) -> Result<Nats, String> {
        let mut options = ConnectOptions::new()
            .name(format!("forebay {}", config.claimant.node))
            .ping_interval(Duration::from_secs(1))
            .connection_timeout(CONNECTS_WITHIN)
            .request_timeout(Some(ANSWERS_WITHIN))
            .max_reconnects(None)
            .reconnect_delay_callback(|tries| Duration::from_millis(50 * (tries as u64).min(10)));
        if let Some(file) = &config.root_certificates {
            options = options.add_root_certificates(file.clone()).require_tls(true);
        }
        if let Some((user, password)) = &config.user {
            options = options.user_and_password(user.clone(), password.clone());
        }
        let servers: Result<Vec<async_nats::ServerAddr>, _> =
            config.servers.iter().map(|server| server.parse()).collect();
        let servers = servers.map_err(|error| error.to_string())?;
        let client = async_nats::connect_with_options(servers, options).await;
        client.map(Nats).map_err(|error| error.to_string())
    }
}

impl Wire for Nats {
    fn send(&self, letter: Letter) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async move {
            let headers = headers_of(&letter);
            let Letter { subject, reply, payload, .. } = letter;
            let sent = match (reply, headers) {
                (Some(reply), Some(headers)) => {
                    self.0.publish_with_reply_and_headers(subject, reply, headers, payload).await
                }
                (Some(reply), None) => self.0.publish_with_reply(subject, reply, payload).await,
                (None, Some(headers)) => self.0.publish_with_headers(subject, headers, payload).await,
                (None, None) => self.0.publish(subject, payload).await,
            };
            sent.map_err(|error| error.to_string())
        })
    }

    fn request(&self, letter: Letter) -> BoxFuture<'_, Result<Letter, String>> {
        Box::pin(async move {
            let headers = headers_of(&letter);
            let Letter { subject, payload, .. } = letter;
            let answer = match headers {
                Some(headers) => self.0.request_with_headers(subject, headers, payload).await,
                None => self.0.request(subject, payload).await,
            };
            answer.map(letter_of).map_err(|error| error.to_string())
        })
    }

    fn listen(&self, subject: String) -> BoxFuture<'_, Result<Box<dyn Letters>, String>> {
        Box::pin(async move {
            let heard = self.0.subscribe(subject).await.map_err(|error| error.to_string())?;
            Ok(Box::new(Heard(heard)) as Box<dyn Letters>)
        })
    }

    fn inbox(&self) -> String {
        self.0.new_inbox()
    }

    fn flush(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            // Letters that cannot leave are lost, as any letter may be.
            let _ = self.0.flush().await;
        })
    }

    fn change_server(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            if self.0.connection_state() == State::Connected {
                // A client that has ended finds that out with the next letter.
                let _ = self.0.force_reconnect().await;
            }
        })
    }

    fn about(&self) -> About {
        let about = self.0.server_info();
        About {
            name: about.server_name,
            version: about.version,
            has_jetstream: about.jetstream,
            payload_max: about.max_payload,
        }
    }
}

struct Heard(Subscriber);

impl Letters for Heard {
    fn next(&mut self) -> BoxFuture<'_, Option<Letter>> {
        Box::pin(async move { self.0.next().await.map(letter_of) })
    }
}

fn headers_of(letter: &Letter) -> Option<HeaderMap> {
    if letter.headers.is_empty() {
        return None;
    }
    let mut headers = HeaderMap::new();
    for (name, value) in &letter.headers {
        headers.insert(*name, value.as_str());
    }
    Some(headers)
}

fn letter_of(message: Message) -> Letter {
    let known = [SEQUENCE, STAMP].into_iter().filter_map(|name| {
        let value = message.headers.as_ref()?.get(name)?;
        Some((name, value.as_str().to_owned()))
    });
    Letter {
        headers: known.collect(),
        subject: message.subject.to_string(),
        reply: message.reply.map(|reply| reply.to_string()),
        status: message.status.map(|status| status.as_u16()),
        description: message.description,
        payload: message.payload,
    }
}
