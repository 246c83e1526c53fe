//! NATS JetStream: published messages go to a stream on disk, and each group of the shape is a durable
//! consumer of it that is pulled from.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::{BufMut as _, Bytes, BytesMut};
use serde_json::{Value, json};

use super::connection::{Connection, Stop, arrived, line, number, put_number};
use super::contender::{About, Consumer, Contender, Failure, Message, Producer, Running, Shape, Step};
use super::process::{self, Process};

const PROGRAM: &str = "FOREBAY_PEER_NATS";

/// More than all consumers of a group ever hold together.
const UNACKED_MAX: u32 = 100_000;
/// How long the server keeps a wish for messages, in nanoseconds.
const WISH_EXPIRES: u64 = 60_000_000_000;

pub(crate) fn contenders() -> Result<Vec<Box<dyn Contender>>, Failure> {
    let Some(program) = std::env::var_os(PROGRAM).map(PathBuf::from) else { return Ok(Vec::new()) };
    let said = process::output(&program, &["--version"])?;
    let version = said.rsplit(' ').next().unwrap_or(&said).trim_start_matches('v').to_owned();
    let contender = |id, syncs: &'static str, sync_interval, survives_power_loss| {
        let settings = format!(
            "{}file storage, retention by limits: what was acked stays in the stream; publish acks awaited, \
             durable pull consumers with explicit acks, wishes kept outstanding up to the prefetch, \
             max_ack_pending {UNACKED_MAX}",
            if sync_interval == Some("always") {
                "sync_interval always; "
            } else {
                "sync_interval 2m (default); "
            },
        );
        let name = format!("NATS JetStream, {syncs}");
        let version = version.clone();
        let about = About { id, name, version, settings, survives_power_loss, acks_each: true };
        Box::new(Nats { program: program.clone(), sync_interval, about }) as Box<dyn Contender>
    };
    Ok(vec![
        contender("nats-always", "sync always", Some("always"), true),
        contender("nats", "sync every 2 minutes", None, false),
    ])
}

struct Nats {
    program: PathBuf,
    sync_interval: Option<&'static str>,
    about: About,
}

impl Contender for Nats {
    fn about(&self) -> &About {
        &self.about
    }

    fn lacks(&self, shape: &Shape) -> Option<&'static str> {
        shape.is_ordered.then_some("no order by key: a consumer's messages go to whoever pulls next")
    }

    fn start<'a>(&'a self, folder: &'a Path) -> Step<'a, Box<dyn Running>> {
        Box::pin(async move {
            let command = |port: u16| {
                let mut command = process::own_command(&self.program, folder)?;
                let settings = folder.join("nats.conf");
                let mut jetstream = json!({ "store_dir": folder });
                if let Some(interval) = self.sync_interval {
                    jetstream["sync_interval"] = interval.into();
                }
                // Its settings are a superset of JSON.
                let listen = format!("127.0.0.1:{port}");
                std::fs::write(&settings, json!({ "listen": listen, "jetstream": jetstream }).to_string())?;
                command.arg("--config").arg(settings);
                Ok(command)
            };
            let (process, port) = Process::start(folder, command, |port| Box::pin(answers(port))).await?;
            Ok(Box::new(Server { process, port, inboxes: AtomicU32::new(0) }) as Box<dyn Running>)
        })
    }
}

async fn answers(port: u16) -> Result<(), Failure> {
    Session::open(port, "_INBOX.answers".to_owned()).await?.call("INFO", &json!({})).await?;
    Ok(())
}

struct Server {
    process: Process,
    port: u16,
    inboxes: AtomicU32,
}

impl Server {
    /// A connection with an inbox of its own.
    async fn session(&self) -> Result<Session, Failure> {
        let inbox = format!("_INBOX.{}", self.inboxes.fetch_add(1, Ordering::Relaxed));
        Session::open(self.port, inbox).await
    }
}

impl Running for Server {
    fn processes(&self) -> Vec<u32> {
        vec![self.process.id()]
    }

    fn prepare<'a>(&'a self, shape: &'a Shape) -> Step<'a, ()> {
        Box::pin(async move {
            let mut session = self.session().await?;
            let queue = &shape.queue;
            let stream =
                json!({ "name": queue, "subjects": [queue], "storage": "file", "retention": "limits" });
            session.call(&format!("STREAM.CREATE.{queue}"), &stream).await?;
            for group in 0..shape.groups {
                let name = group_name(group);
                let config = json!({
                    "durable_name": name, "ack_policy": "explicit", "deliver_policy": "all",
                    "max_ack_pending": UNACKED_MAX,
                });
                let request = json!({ "stream_name": queue, "config": config });
                session.call(&format!("CONSUMER.DURABLE.CREATE.{queue}.{name}"), &request).await?;
            }
            Ok(())
        })
    }

    fn producer<'a>(&'a self, shape: &'a Shape) -> Step<'a, Box<dyn Producer>> {
        Box::pin(async move {
            let session = self.session().await?;
            let before = format!("PUB {} {} ", shape.queue, session.inbox).into();
            Ok(Box::new(Publisher { session, before }) as Box<dyn Producer>)
        })
    }

    fn consumer<'a>(
        &'a self,
        shape: &'a Shape,
        group: usize,
        prefetch: usize,
    ) -> Step<'a, Box<dyn Consumer>> {
        Box::pin(async move {
            let session = self.session().await?;
            let next = format!("$JS.API.CONSUMER.MSG.NEXT.{}.{}", shape.queue, group_name(group));
            let wish = format!("PUB {next} {} ", session.inbox).into();
            let (ready, acks, held, wished) = (Vec::new(), BytesMut::new(), 0, 0);
            Ok(Box::new(Subscriber { session, prefetch, wish, wished, ready, acks, held })
                as Box<dyn Consumer>)
        })
    }
}

fn group_name(group: usize) -> String {
    format!("g{group}")
}

struct Publisher {
    session: Session,
    /// The beginning of the command that publishes.
    before: Bytes,
}

impl Producer for Publisher {
    fn send<'a>(&'a mut self, messages: &'a [Message]) -> Step<'a, ()> {
        Box::pin(async move {
            let output = &mut self.session.connection.output;
            for message in messages {
                put_publish(output, &self.before, &message.body);
            }
            self.session.connection.flush().await
        })
    }

    fn confirmed(&mut self) -> Step<'_, usize> {
        Box::pin(async move {
            loop {
                let acks = self.session.take()?;
                acks.iter().try_for_each(check)?;
                if !acks.is_empty() {
                    return Ok(acks.len());
                }
                self.session.wait().await?;
            }
        })
    }
}

/// A publish ack is a piece of JSON that names the stream, or an error.
fn check(ack: &Arrived) -> Result<(), Failure> {
    if ack.headers.is_empty() && ack.body.starts_with(b"{\"stream\":") {
        return Ok(());
    }
    Err(format!("not confirmed: {} {}", ack.headers.escape_ascii(), ack.body.escape_ascii()).into())
}

struct Subscriber {
    session: Session,
    prefetch: usize,
    /// The beginning of the command that wishes for more messages.
    wish: Bytes,
    /// How many messages were wished for and did not come.
    wished: usize,
    /// Came and were not given yet.
    ready: Vec<Arrived>,
    /// The commands that ack the messages that were received last.
    acks: BytesMut,
    /// How many were given and not acked.
    held: usize,
}

impl Subscriber {
    /// Wishes for as many as the prefetch leaves room for, unless those are so few that it is not worth it.
    fn wish(&mut self) {
        let room = self.prefetch.saturating_sub(self.held + self.ready.len() + self.wished);
        if room >= (self.prefetch / 4).max(1) {
            let wish = format!("{{\"batch\":{room},\"expires\":{WISH_EXPIRES}}}");
            put_publish(&mut self.session.connection.output, &self.wish, wish.as_bytes());
            self.wished += room;
        }
    }

    fn parse(&mut self) -> Result<(), Failure> {
        for arrived in self.session.take()? {
            if arrived.reply.is_empty() {
                self.wished = self.wished.saturating_sub(unfulfilled(&arrived)?);
            } else {
                self.wished = self.wished.saturating_sub(1);
                self.ready.push(arrived);
            }
        }
        Ok(())
    }
}

/// How many of the messages that were wished for will not come, for the wish is over.
fn unfulfilled(status: &Arrived) -> Result<usize, Failure> {
    let headers = String::from_utf8_lossy(&status.headers);
    let count =
        headers.lines().find_map(|line| line.strip_prefix("Nats-Pending-Messages:")?.trim().parse().ok());
    count.ok_or_else(|| format!("the server says: {}", headers.trim()).into())
}

impl Consumer for Subscriber {
    fn receive(&mut self) -> Step<'_, Vec<Bytes>> {
        Box::pin(async move {
            loop {
                self.parse()?;
                if !self.ready.is_empty() {
                    for arrived in &self.ready {
                        self.acks.put_slice(b"PUB ");
                        self.acks.put_slice(&arrived.reply);
                        self.acks.put_slice(b" 4\r\n+ACK\r\n");
                    }
                    self.held += self.ready.len();
                    return Ok(self.ready.drain(..).map(|arrived| arrived.body).collect());
                }
                self.wish();
                self.session.wait().await?;
            }
        })
    }

    fn ack(&mut self) -> Step<'_, ()> {
        Box::pin(async move {
            self.session.connection.output.put_slice(&self.acks);
            self.acks.clear();
            self.held = 0;
            self.wish();
            self.session.connection.flush().await
        })
    }

    /// The server has seen the acks when it answers what came after them.
    fn settle(&mut self) -> Step<'_, ()> {
        Box::pin(async move {
            self.session.ping();
            while self.session.pongs_missing > 0 {
                self.session.wait().await?;
                self.parse()?;
            }
            Ok(())
        })
    }
}

struct Session {
    connection: Connection,
    inbox: String,
    pongs_missing: usize,
}

impl Session {
    async fn open(port: u16, inbox: String) -> Result<Session, Failure> {
        let mut session = Session { connection: Connection::open(port).await?, inbox, pongs_missing: 0 };
        let terms = json!({ "verbose": false, "pedantic": false, "headers": true, "no_responders": true });
        let words = format!("CONNECT {terms}\r\nSUB {} 1\r\n", session.inbox);
        session.connection.output.put_slice(words.as_bytes());
        session.ping();
        while session.pongs_missing > 0 {
            session.wait().await?;
            session.take()?;
        }
        Ok(session)
    }

    /// A question whose answer means that the server has seen everything before it.
    fn ping(&mut self) {
        self.connection.output.put_slice(b"PING\r\n");
        self.pongs_missing += 1;
    }

    async fn wait(&mut self) -> Result<(), Failure> {
        self.connection.flush().await?;
        self.connection.fill().await
    }

    /// A request to the API of JetStream.
    async fn call(&mut self, request: &str, terms: &Value) -> Result<(), Failure> {
        let before = format!("PUB $JS.API.{request} {} ", self.inbox);
        put_publish(&mut self.connection.output, before.as_bytes(), terms.to_string().as_bytes());
        loop {
            self.wait().await?;
            if let Some(answer) = self.take()?.pop() {
                let is_error = match serde_json::from_slice::<Value>(&answer.body) {
                    Ok(said) => said.get("error").is_some(),
                    Err(_) => true,
                };
                let said = if answer.body.is_empty() { answer.headers } else { answer.body };
                return if is_error {
                    Err(format!("{request}: {}", said.escape_ascii()).into())
                } else {
                    Ok(())
                };
            }
        }
    }

    /// The messages that have arrived whole.
    fn take(&mut self) -> Result<Vec<Arrived>, Failure> {
        let mut messages = Vec::new();
        let mut at = 0;
        while let Some((command, end)) = arrived(command(&self.connection.input, at))? {
            at = end;
            match command {
                Command::Message(message) => messages.push(message),
                Command::Ping => self.connection.output.put_slice(b"PONG\r\n"),
                Command::Pong => self.pongs_missing = self.pongs_missing.saturating_sub(1),
                Command::Nothing => {}
            }
        }
        let whole = self.connection.input.split_to(at).freeze();
        Ok(messages.into_iter().map(|message| message.of(&whole)).collect())
    }
}

/// A message that arrived. A missing part is empty.
struct Arrived {
    reply: Bytes,
    headers: Bytes,
    body: Bytes,
}

/// What the server sends.
#[derive(Debug, PartialEq)]
enum Command {
    Message(Place),
    Ping,
    Pong,
    Nothing,
}

/// Where the parts of a message are in the input.
#[derive(Debug, PartialEq)]
struct Place {
    reply: Range<usize>,
    headers: Range<usize>,
    body: Range<usize>,
}

impl Place {
    fn of(self, input: &Bytes) -> Arrived {
        let [reply, headers, body] = [self.reply, self.headers, self.body].map(|range| input.slice(range));
        Arrived { reply, headers, body }
    }
}

/// The command that begins here, and where the next one begins.
fn command(input: &[u8], at: usize) -> Result<(Command, usize), Stop> {
    let (line, next) = line(input, at)?;
    let kind = line.split(|&byte| byte == b' ').next().unwrap_or_default();
    let has_headers = match kind {
        b"MSG" => false,
        b"HMSG" => true,
        b"PING" => return Ok((Command::Ping, next)),
        b"PONG" => return Ok((Command::Pong, next)),
        b"INFO" | b"+OK" => return Ok((Command::Nothing, next)),
        _ => return Err(Stop::wrong(format!("the server says: {}", line.escape_ascii()))),
    };
    // MSG subject subscription [reply] length, and with headers: HMSG ... length-of-headers length
    let mut fields = line.rsplit(|&byte| byte == b' ');
    let mut length = || {
        let digits = fields.next().ok_or_else(|| Stop::wrong("a message without a length"))?;
        usize::try_from(number(digits)?).map_err(Stop::wrong)
    };
    let total = length()?;
    let headers = if has_headers { length()? } else { 0 };
    let rest: usize = fields.clone().map(|field| field.len() + 1).sum();
    let reply = match fields.clone().count() {
        4 => at + rest - 1 - fields.next().map_or(0, <[u8]>::len)..at + rest - 1,
        3 => at..at,
        _ => return Err(Stop::wrong(format!("not a message: {}", line.escape_ascii()))),
    };
    if headers > total {
        return Err(Stop::wrong("headers longer than the message"));
    }
    let end = next + total + 2;
    if input.len() < end {
        return Err(Stop::More);
    }
    let place = Place { reply, headers: next..next + headers, body: next + headers..next + total };
    Ok((Command::Message(place), end))
}

/// A command that publishes, of which this is the beginning.
fn put_publish(output: &mut BytesMut, before: &[u8], body: &[u8]) {
    output.reserve(before.len() + body.len() + 32);
    output.put_slice(before);
    put_number(output, body.len());
    output.put_slice(b"\r\n");
    output.put_slice(body);
    output.put_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::trial;

    #[test]
    fn a_message_is_taken_apart_when_all_of_it_is_there() {
        let whole = b"MSG queue 1 $JS.ACK.q.1 5\r\nhe\r\no\r\nMSG queue 1 2\r\nok\r\n";
        let (first, at) = command(whole, 0).expect("a message");
        let Command::Message(first) = first else { panic!("not a message: {first:?}") };
        let first = first.of(&Bytes::from_static(whole));
        assert_eq!(
            (&first.reply[..], &first.headers[..], &first.body[..]),
            (&b"$JS.ACK.q.1"[..], &b""[..], &b"he\r\no"[..])
        );
        let (second, end) = command(whole, at).expect("a message");
        let Command::Message(second) = second else { panic!("not a message: {second:?}") };
        let second = second.of(&Bytes::from_static(whole));
        assert_eq!((&second.reply[..], &second.body[..], end), (&b""[..], &b"ok"[..], whole.len()));
        for cut in 0..at {
            assert!(matches!(command(&whole[..cut], 0), Err(Stop::More)), "cut at {cut}");
        }
    }

    #[test]
    fn a_wish_that_is_over_says_what_will_not_come() {
        let headers = "NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 12\r\n\r\n";
        let whole = format!("HMSG _INBOX.1 1 {} {}\r\n{headers}\r\n", headers.len(), headers.len());
        let (status, end) = command(whole.as_bytes(), 0).expect("a status");
        assert_eq!(end, whole.len());
        let Command::Message(status) = status else { panic!("not a message: {status:?}") };
        let status = status.of(&Bytes::from(whole));
        assert!(status.reply.is_empty() && status.body.is_empty());
        assert_eq!(unfulfilled(&status).expect("a count"), 12);
    }

    #[test]
    fn an_error_is_a_failure() {
        assert!(matches!(command(b"-ERR 'Authorization Violation'\r\n", 0), Err(Stop::Wrong(_))));
        let refused = Bytes::from_static(b"{\"error\":{\"code\":400},\"stream\":\"q\"}");
        assert!(check(&Arrived { reply: Bytes::new(), headers: Bytes::new(), body: refused }).is_err());
    }

    #[tokio::test]
    async fn nats_does_what_the_load_relies_on() {
        trial::all(contenders(), PROGRAM).await;
    }
}
