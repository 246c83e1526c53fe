//! Sends notifications of alerts to webhooks: one at a time to each, in order, again and again until it is taken or
//! too old. A body is signed as [Standard Webhooks](https://www.standardwebhooks.com) describes.

use std::io::Read as _;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use forebay_broker::clock::Clock;
use forebay_core::types::Timestamp;
use forebay_doors::native::alerts::{Alerts, Receiver};
use forebay_wire::alert::{Notification, Rules};
use hmac::{Hmac, KeyInit as _, Mac as _};
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HeaderValue, USER_AGENT};
use hyper::{Method, Request, Uri};
use sha2::Sha256;
use tokio::task::JoinSet;

use crate::exit::Exit;
use crate::post::{AGENT, Poster, client, post};
use crate::safe::printable;
use crate::settings::Settings;

/// The pause after the first failure. It doubles up to the other.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// A notification that is older is given up.
const AGE_MAX: Duration = Duration::from_secs(24 * 3_600);
/// The limits of a secret.
const SECRET_CHARS_MIN: usize = 24;
const SECRET_BYTES_MAX: u64 = 4 << 10;
const SECRET_PREFIX: &str = "whsec_";

/// The form of a notification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Json,
    Slack,
}

/// Where notifications go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Webhook {
    form: Form,
    target: Uri,
}

impl Webhook {
    /// `https://…`, or `slack+https://…`.
    pub(crate) fn parse(text: &str) -> Result<Webhook, String> {
        let (form, url) = match text.strip_prefix("slack+") {
            Some(url) => (Form::Slack, url),
            None => (Form::Json, text),
        };
        let expected = || {
            "expected addresses such as https://example.com/hook or slack+https://hooks.slack.com/…"
                .to_owned()
        };
        let target: Uri = url.parse().map_err(|_| expected())?;
        let is_http = matches!(target.scheme_str(), Some("http" | "https"));
        match target.authority().filter(|of| is_http && !of.host().is_empty()) {
            Some(authority) if authority.as_str().contains('@') => {
                Err("a webhook must not have a user or a password in its address".to_owned())
            }
            Some(_) => Ok(Webhook { form, target }),
            None => Err(expected()),
        }
    }

    /// Without its path, which is a secret for many services.
    fn shown(&self) -> String {
        let host = self.target.authority().map_or("", |of| of.as_str());
        match self.form {
            Form::Json => host.to_owned(),
            Form::Slack => format!("{host} (Slack)"),
        }
    }
}

/// The key of signatures.
#[derive(Clone)]
struct Secret(Vec<u8>);

impl Secret {
    fn read(path: &Path) -> anyhow::Result<Secret> {
        let shown = printable(&path.display().to_string());
        let mut text = String::new();
        std::fs::File::open(path)
            .and_then(|file| file.take(SECRET_BYTES_MAX + 1).read_to_string(&mut text))
            .with_context(|| format!("cannot read the secret of alerts in {shown}"))
            .context(Exit::NotUnderstood)?;
        Secret::parse(text.trim()).map_err(|wrong| {
            anyhow::anyhow!(Exit::NotUnderstood).context(format!("{wrong}. alert_secret_file=`{shown}`"))
        })
    }

    fn parse(text: &str) -> Result<Secret, String> {
        if text.chars().count() < SECRET_CHARS_MIN || text.len() as u64 > SECRET_BYTES_MAX {
            return Err(format!("the secret must be one line of at least {SECRET_CHARS_MIN} characters"));
        }
        if text.chars().any(char::is_whitespace) {
            return Err("the secret must be one line without spaces".to_owned());
        }
        match text.strip_prefix(SECRET_PREFIX) {
            Some(encoded) => BASE64_STANDARD
                .decode(encoded)
                .map(Secret)
                .map_err(|_| format!("the secret after {SECRET_PREFIX} must be base64")),
            None => Ok(Secret(text.as_bytes().to_vec())),
        }
    }

    /// The value of the header `webhook-signature`.
    fn sign(&self, id: &str, seconds: u64, body: &str) -> String {
        let mut mac: Hmac<Sha256> = Hmac::new_from_slice(&self.0).expect("a key of any length will do");
        mac.update(format!("{id}.{seconds}.{body}").as_bytes());
        format!("v1,{}", BASE64_STANDARD.encode(mac.finalize().into_bytes()))
    }
}

/// Alerts as the settings want them, with the files read that they name.
#[derive(Clone)]
pub(super) struct Plan {
    server: String,
    rules: Rules,
    hold: Duration,
    webhooks: Vec<Webhook>,
    secret: Option<Secret>,
}

/// The plan of these settings. `None`: there is no webhook.
pub(super) fn read(settings: &Settings) -> anyhow::Result<Option<Plan>> {
    let secret = settings.alert_secret_file.as_deref().map(Secret::read).transpose()?;
    if settings.alert_webhooks.is_empty() {
        return Ok(None);
    }
    let (rules, hold) = (settings.alert_rules.clone(), settings.alert_hold);
    Ok(Some(Plan {
        server: settings.server_name(),
        rules,
        hold,
        webhooks: settings.alert_webhooks.clone(),
        secret,
    }))
}

impl Plan {
    /// The alerts of a server that starts now, and the tasks that send them until they are dropped.
    pub(super) fn begin(self, clock: Clock) -> (Alerts, JoinSet<()>) {
        let names = self.webhooks.iter().map(Webhook::shown).collect();
        let alerts = Alerts::new(self.server, self.rules, self.hold, names);
        let mut senders = JoinSet::new();
        for (index, webhook) in self.webhooks.into_iter().enumerate() {
            let sender = Sender { webhook, secret: self.secret.clone(), client: client(), clock };
            let alerts = alerts.clone();
            senders.spawn(async move { sender.run(&alerts.receivers()[index]).await });
        }
        (alerts, senders)
    }
}

struct Sender {
    webhook: Webhook,
    secret: Option<Secret>,
    client: Poster,
    clock: Clock,
}

impl Sender {
    async fn run(&self, receiver: &Receiver) {
        let mut failures = 0;
        loop {
            let notification = receiver.next().await;
            if self.clock.now().since(Timestamp(notification.at.0)) > AGE_MAX {
                receiver.give_up(&notification.id);
                continue;
            }
            match post(&self.client, self.request(&notification)).await {
                Ok(()) => {
                    receiver.sent(self.clock.now(), &notification.id);
                    if std::mem::take(&mut failures) > 0 {
                        tracing::info!(receiver = receiver.name(), "alerts reach their receiver again");
                    }
                }
                Err(error) => {
                    if receiver.failed(self.clock.now(), &error) {
                        tracing::warn!(
                            receiver = receiver.name(),
                            error,
                            "an alert cannot be sent and is tried again"
                        );
                    }
                    tokio::time::sleep(pause(failures)).await;
                    failures += 1;
                }
            }
        }
    }

    fn request(&self, notification: &Notification) -> Request<Full<Bytes>> {
        let body = match self.webhook.form {
            Form::Json => notification.json(),
            Form::Slack => notification.slack(),
        };
        let seconds = self.clock.now().0 / 1_000_000;
        let signature = self.secret.as_ref().map(|secret| secret.sign(&notification.id, seconds, &body));
        let mut request = Request::new(Full::new(Bytes::from(body)));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.webhook.target.clone();
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(USER_AGENT, AGENT);
        let text = |text: &str| HeaderValue::from_str(text).expect("it is letters and digits");
        headers.insert("webhook-id", text(&notification.id));
        headers.insert("webhook-timestamp", HeaderValue::from(seconds));
        if let Some(signature) = signature {
            headers.insert("webhook-signature", text(&signature));
        }
        request
    }
}

/// The pause after so many failures before this one.
fn pause(failures: u32) -> Duration {
    PAUSE_MIN.saturating_mul(1 << failures.min(16)).min(PAUSE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_webhook_is_an_address_and_a_form_and_hides_its_path() {
        let slack =
            Webhook::parse("slack+https://hooks.slack.com/services/T0/B0/secret").expect("it is sound");
        assert_eq!((slack.form, slack.shown()), (Form::Slack, "hooks.slack.com (Slack)".to_owned()));
        let plain = Webhook::parse("http://127.0.0.1:9000/hook?key=secret").expect("it is sound");
        assert_eq!((plain.form, plain.shown()), (Form::Json, "127.0.0.1:9000".to_owned()));
        for wrong in ["", "example.com", "ftp://a/b", "slack+", "https://", "https://u:p@host/x", "/hook"] {
            assert!(Webhook::parse(wrong).is_err(), "{wrong}");
        }
    }

    /// The example of the specification.
    #[test]
    fn a_signature_is_that_of_standard_webhooks() {
        let secret =
            Secret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").map_err(|_| "wrong").expect("a secret");
        let signature = secret.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, r#"{"test": 2432232314}"#);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn a_secret_is_long_and_on_one_line() {
        for wrong in ["short", "whsec_!!!!!!!!!!!!!!!!!!!!!!!!", "with a space in the middle of it"] {
            assert!(Secret::parse(wrong).is_err(), "{wrong}");
        }
        assert!(Secret::parse("0123456789abcdef01234567").is_ok());
    }

    #[test]
    fn pauses_double_up_to_a_minute() {
        let seconds: Vec<u64> = [0, 1, 2, 5, 6, 1_000].map(|failures| pause(failures).as_secs()).to_vec();
        assert_eq!(seconds, [1, 2, 4, 32, 60, 60]);
    }
}
