//! Redis Streams: published messages are added to a stream, and each group of the shape is a group of it.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::{BufMut as _, Bytes, BytesMut};

use super::connection::{Connection, Stop, arrived, line, number, put_number};
use super::contender::{About, Consumer, Contender, Failure, Message, Producer, Running, Shape, Step};
use super::process::{self, Process};

const PROGRAM: &str = "FOREBAY_PEER_REDIS";

pub(crate) fn contenders() -> Result<Vec<Box<dyn Contender>>, Failure> {
    let Some(program) = std::env::var_os(PROGRAM).map(PathBuf::from) else { return Ok(Vec::new()) };
    let said = process::output(&program, &["--version"])?;
    let version =
        said.split_whitespace().find_map(|word| word.strip_prefix("v=")).unwrap_or(&said).to_owned();
    let contender = |id, fsync, survives_power_loss| {
        let name = format!("Redis Streams, fsync {fsync}");
        let settings = format!(
            "appendonly yes, appendfsync {fsync}, save \"\"; XADD pipelined, XREADGROUP with COUNT prefetch, \
             XACK with all ids of a batch and no XDEL: what was acked stays in the stream"
        );
        let version = version.clone();
        let about = About { id, name, version, settings, survives_power_loss, acks_each: true };
        Box::new(Redis { program: program.clone(), fsync, about }) as Box<dyn Contender>
    };
    Ok(vec![contender("redis-always", "always", true), contender("redis-everysec", "everysec", false)])
}

struct Redis {
    program: PathBuf,
    fsync: &'static str,
    about: About,
}

impl Contender for Redis {
    fn about(&self) -> &About {
        &self.about
    }

    fn lacks(&self, shape: &Shape) -> Option<&'static str> {
        shape.is_ordered.then_some("no order by key: a stream's entries go to whoever asks next")
    }

    fn start<'a>(&'a self, folder: &'a Path) -> Step<'a, Box<dyn Running>> {
        Box::pin(async move {
            let command = |port: u16| {
                let mut command = process::command(&self.program, folder)?;
                command.args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--daemonize", "no"]);
                command.args(["--save", "", "--appendonly", "yes", "--appendfsync", self.fsync]);
                command.arg("--dir").arg(folder);
                Ok(command)
            };
            let (process, port) = Process::start(folder, command, |port| Box::pin(answers(port))).await?;
            let taken_over = Mutex::default();
            Ok(Box::new(Server { process, port, consumers: AtomicU32::new(0), taken_over })
                as Box<dyn Running>)
        })
    }
}

/// While it loads what an earlier run left, it answers with an error.
async fn answers(port: u16) -> Result<(), Failure> {
    Session::open(port).await?.call(&[b"PING"]).await?;
    Ok(())
}

struct Server {
    process: Process,
    port: u16,
    consumers: AtomicU32,
    /// Queues and groups whose first consumer took over what consumers of an earlier run still held.
    taken_over: Mutex<HashSet<(String, usize)>>,
}

impl Running for Server {
    fn processes(&self) -> Vec<u32> {
        vec![self.process.id()]
    }

    fn prepare<'a>(&'a self, shape: &'a Shape) -> Step<'a, ()> {
        Box::pin(async move {
            let mut session = Session::open(self.port).await?;
            for group in 0..shape.groups {
                let name = group_name(group);
                let words = ["XGROUP", "CREATE", &shape.queue, &name, "0", "MKSTREAM"].map(str::as_bytes);
                match session.call(&words).await {
                    Err(failure) if !failure.to_string().contains("BUSYGROUP") => return Err(failure),
                    _ => {}
                }
            }
            Ok(())
        })
    }

    fn producer<'a>(&'a self, shape: &'a Shape) -> Step<'a, Box<dyn Producer>> {
        Box::pin(async move {
            let session = Session::open(self.port).await?;
            let mut before = BytesMut::new();
            put_command(&mut before, 5, &[b"XADD", shape.queue.as_bytes(), b"*", b"b"]);
            Ok(Box::new(Publisher { session, before: before.freeze() }) as Box<dyn Producer>)
        })
    }

    fn consumer<'a>(
        &'a self,
        shape: &'a Shape,
        group: usize,
        prefetch: usize,
    ) -> Step<'a, Box<dyn Consumer>> {
        Box::pin(async move {
            let mut session = Session::open(self.port).await?;
            let queue = shape.queue.as_bytes();
            let group_name = group_name(group);
            let (name, count) =
                (format!("c{}", self.consumers.fetch_add(1, Ordering::Relaxed)), prefetch.to_string());
            let is_first = {
                let mut taken_over = self.taken_over.lock().map_err(|error| error.to_string())?;
                taken_over.insert((shape.queue.clone(), group))
            };
            let mut held = Vec::new();
            if is_first {
                held = held_by_others(&mut session, queue, group_name.as_bytes()).await?;
                held.reverse();
            }
            let (mut read, mut claim, mut ack) = (BytesMut::new(), BytesMut::new(), BytesMut::new());
            let (group, name) = (group_name.as_bytes(), name.as_bytes());
            let words = [&b"XREADGROUP"[..], b"GROUP", group, name, b"COUNT", count.as_bytes()];
            put_command(&mut read, 11, &words);
            [&b"BLOCK"[..], b"0", b"STREAMS", queue, b">"].iter().for_each(|word| put_word(&mut read, word));
            [&b"XCLAIM"[..], queue, group, name, b"0"].iter().for_each(|word| put_word(&mut claim, word));
            [&b"XACK"[..], queue, group].iter().for_each(|word| put_word(&mut ack, word));
            Ok(Box::new(Subscriber {
                session,
                prefetch,
                read: read.freeze(),
                claim: claim.freeze(),
                ack: ack.freeze(),
                held,
                asked: None,
                acks_unanswered: 0,
                skip: Skip::first(),
                ready: None,
                ids: BytesMut::new(),
                ids_count: 0,
            }) as Box<dyn Consumer>)
        })
    }
}

fn group_name(group: usize) -> String {
    format!("g{group}")
}

/// The ids that were handed out and not acked, each as the protocol writes it.
async fn held_by_others(session: &mut Session, queue: &[u8], group: &[u8]) -> Result<Vec<Bytes>, Failure> {
    const PAGE: &str = "10000";
    let mut held: Vec<Bytes> = Vec::new();
    let mut after = b"-".to_vec();
    loop {
        let words = [b"XPENDING", queue, group, &after, b"+", PAGE.as_bytes()];
        let reply = session.call(&words).await?;
        let (Ok((Head::Array(count), mut at)), mut found) = (head(&reply, 0), 0) else {
            return Err("XPENDING answers with a list".into());
        };
        while found < count {
            let (_, id) = arrived(head(&reply, at))?.ok_or("an entry is cut off")?;
            let end = arrived(skip(&reply, id))?.ok_or("an entry is cut off")?;
            held.push(reply.slice(id..end));
            at = arrived(skip(&reply, at))?.ok_or("an entry is cut off")?;
            found += 1;
        }
        match held.last() {
            Some(last) if found > 0 => {
                let (_, text) = arrived(head(last, 0))?.ok_or("an id is cut off")?;
                after = [b"(", &last[text..last.len() - 2]].concat();
            }
            _ => return Ok(held),
        }
    }
}

struct Publisher {
    session: Session,
    before: Bytes,
}

impl Producer for Publisher {
    fn send<'a>(&'a mut self, messages: &'a [Message]) -> Step<'a, ()> {
        Box::pin(async move {
            for message in messages {
                let output = &mut self.session.connection.output;
                output.put_slice(&self.before);
                put_word(output, &message.body);
            }
            self.session.connection.flush().await
        })
    }

    fn confirmed(&mut self) -> Step<'_, usize> {
        Box::pin(async move {
            loop {
                let input = &self.session.connection.input;
                let (mut at, mut count) = (0, 0);
                while let Some(end) = arrived(skip(input, at))? {
                    (at, count) = (end, count + 1);
                }
                if count > 0 {
                    let _ = self.session.connection.input.split_to(at);
                    return Ok(count);
                }
                self.session.connection.fill().await?;
            }
        })
    }
}

/// A batch of messages that were not delivered yet, or that consumers of an earlier run held.
#[derive(Clone, Copy)]
enum Asked {
    New,
    Held,
}

/// One that reads a batch, acks it, and reads the next. The acks leave together with the wish for the next
/// batch, so the server writes both down at once.
struct Subscriber {
    session: Session,
    prefetch: usize,
    /// The command that reads a batch.
    read: Bytes,
    /// The beginnings of two commands that end with ids.
    claim: Bytes,
    ack: Bytes,
    /// What consumers of an earlier run held: the last of these is next.
    held: Vec<Bytes>,
    /// The request that was not answered yet.
    asked: Option<Asked>,
    acks_unanswered: usize,
    skip: Skip,
    ready: Option<Vec<Bytes>>,
    /// The ids of the messages that were received last.
    ids: BytesMut,
    ids_count: usize,
}

impl Subscriber {
    fn ask(&mut self) {
        let output = &mut self.session.connection.output;
        if self.held.is_empty() {
            output.put_slice(&self.read);
            self.asked = Some(Asked::New);
        } else {
            let ids = self.held.split_off(self.held.len().saturating_sub(self.prefetch));
            put_count(output, 5 + ids.len());
            output.put_slice(&self.claim);
            ids.iter().rev().for_each(|id| output.put_slice(id));
            self.asked = Some(Asked::Held);
        }
    }

    /// Takes in the replies that arrived whole.
    fn parse(&mut self) -> Result<(), Failure> {
        while self.acks_unanswered > 0 || self.asked.is_some() {
            let Some(end) = arrived(self.skip.on(&self.session.connection.input))? else { return Ok(()) };
            self.skip = Skip::first();
            let reply = self.session.connection.input.split_to(end).freeze();
            if self.acks_unanswered > 0 {
                self.acks_unanswered -= 1;
                continue;
            }
            let Some(asked) = self.asked.take() else { return Ok(()) };
            let bodies = self.entries(asked, &reply).map_err(|stop| format!("not a batch: {stop:?}"))?;
            if !bodies.is_empty() {
                self.ready = Some(bodies);
            }
        }
        Ok(())
    }

    fn entries(&mut self, asked: Asked, reply: &Bytes) -> Result<Vec<Bytes>, Stop> {
        let (first, mut at) = match asked {
            Asked::Held => head(reply, 0)?,
            Asked::New => match head(reply, 0)? {
                // A list of one stream: its name, and its entries.
                (Head::Array(1), stream) => head(reply, skip(reply, head(reply, stream)?.1)?)?,
                other => other,
            },
        };
        let Head::Array(count) = first else { return Ok(Vec::new()) };
        let mut bodies = Vec::with_capacity(count);
        for _ in 0..count {
            let (Head::Array(2), id) = head(reply, at)? else {
                // An entry that was deleted meanwhile.
                at = skip(reply, at)?;
                continue;
            };
            let fields = skip(reply, id)?;
            self.ids.put_slice(&reply[id..fields]);
            self.ids_count += 1;
            let (Head::Array(2), field) = head(reply, fields)? else {
                return Err(Stop::wrong("an entry with other fields than ours"));
            };
            let (Head::Bulk(length), body) = head(reply, skip(reply, field)?)? else {
                return Err(Stop::wrong("an entry without a body"));
            };
            bodies.push(reply.slice(body..body + length));
            at = body + length + 2;
        }
        Ok(bodies)
    }
}

impl Consumer for Subscriber {
    fn receive(&mut self) -> Step<'_, Vec<Bytes>> {
        Box::pin(async move {
            loop {
                self.parse()?;
                if let Some(bodies) = self.ready.take() {
                    return Ok(bodies);
                }
                if self.asked.is_none() {
                    self.ask();
                }
                self.session.connection.flush().await?;
                self.session.connection.fill().await?;
            }
        })
    }

    fn ack(&mut self) -> Step<'_, ()> {
        Box::pin(async move {
            if self.ids_count > 0 {
                let output = &mut self.session.connection.output;
                put_count(output, 3 + self.ids_count);
                output.put_slice(&self.ack);
                output.put_slice(&self.ids);
                self.ids.clear();
                self.ids_count = 0;
                self.acks_unanswered += 1;
            }
            Ok(())
        })
    }

    fn settle(&mut self) -> Step<'_, ()> {
        Box::pin(async move {
            loop {
                self.session.connection.flush().await?;
                self.parse()?;
                if self.acks_unanswered == 0 {
                    return Ok(());
                }
                self.session.connection.fill().await?;
            }
        })
    }
}

struct Session {
    connection: Connection,
}

impl Session {
    async fn open(port: u16) -> Result<Session, Failure> {
        Ok(Session { connection: Connection::open(port).await? })
    }

    /// One command and its reply.
    async fn call(&mut self, words: &[&[u8]]) -> Result<Bytes, Failure> {
        put_command(&mut self.connection.output, words.len(), words);
        self.connection.flush().await?;
        loop {
            if let Some(end) = arrived(skip(&self.connection.input, 0))? {
                return Ok(self.connection.input.split_to(end).freeze());
            }
            self.connection.fill().await?;
        }
    }
}

fn put_count(output: &mut BytesMut, words: usize) {
    output.put_slice(format!("*{words}\r\n").as_bytes());
}

fn put_word(output: &mut BytesMut, word: &[u8]) {
    output.reserve(word.len() + 32);
    output.put_u8(b'$');
    put_number(output, word.len());
    output.put_slice(b"\r\n");
    output.put_slice(word);
    output.put_slice(b"\r\n");
}

/// A command of so many words, of which these are the first.
fn put_command(output: &mut BytesMut, count: usize, words: &[&[u8]]) {
    put_count(output, count);
    words.iter().for_each(|word| put_word(output, word));
}

/// How a value of the protocol begins.
#[derive(Debug, PartialEq)]
enum Head {
    Array(usize),
    Bulk(usize),
    /// All in its one line: a number, a word, or nothing at all.
    Line,
}

/// The head of the value that begins here, and where what follows it begins. An error that the server
/// reports is a failure.
fn head(input: &[u8], at: usize) -> Result<(Head, usize), Stop> {
    let (line, next) = line(input, at)?;
    let (&kind, rest) = line.split_first().ok_or_else(|| Stop::wrong("an empty line"))?;
    let head = match kind {
        b'-' => return Err(Stop::wrong(format!("the server says: {}", rest.escape_ascii()))),
        b'*' => usize::try_from(number(rest)?).map_or(Head::Line, Head::Array),
        b'$' => usize::try_from(number(rest)?).map_or(Head::Line, Head::Bulk),
        b':' | b'+' => Head::Line,
        other => return Err(Stop::wrong(format!("an unknown reply: {}", other.escape_ascii()))),
    };
    Ok((head, next))
}

/// Where the value that begins here ends.
fn skip(input: &[u8], at: usize) -> Result<usize, Stop> {
    Skip { at, values: 1 }.on(input)
}

/// On the way to the end of a value: a long one arrives in many pieces, and none is looked at twice.
struct Skip {
    at: usize,
    /// How many values are left to be skipped.
    values: usize,
}

impl Skip {
    fn first() -> Skip {
        Skip { at: 0, values: 1 }
    }

    /// Goes on, in what begins like the input of the last time.
    fn on(&mut self, input: &[u8]) -> Result<usize, Stop> {
        while self.values > 0 {
            let (head, next) = head(input, self.at)?;
            self.at = next;
            match head {
                Head::Array(count) => self.values += count,
                Head::Bulk(length) => self.at += length + 2,
                Head::Line => {}
            }
            self.values -= 1;
        }
        if self.at <= input.len() { Ok(self.at) } else { Err(Stop::More) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::trial;

    #[test]
    fn a_reply_ends_where_its_last_value_does() {
        let reply = b"*2\r\n$3\r\na\r\n\r\n*2\r\n:1\r\n*-1\r\n+OK\r\n";
        assert_eq!(skip(reply, 0).expect("a whole value"), reply.len() - 5);
        for cut in 0..reply.len() - 5 {
            let mut skip = Skip::first();
            assert!(matches!(skip.on(&reply[..cut]), Err(Stop::More)), "cut at {cut}");
            assert_eq!(skip.on(reply).expect("a whole value"), reply.len() - 5, "cut at {cut}");
        }
        assert!(matches!(skip(b"-ERR no\r\n", 0), Err(Stop::Wrong(_))));
    }

    #[test]
    fn a_command_is_a_list_of_words() {
        let mut output = BytesMut::new();
        put_command(&mut output, 2, &[b"XADD", b""]);
        assert_eq!(&output[..], b"*2\r\n$4\r\nXADD\r\n$0\r\n\r\n");
    }

    #[tokio::test]
    async fn redis_does_what_the_load_relies_on() {
        trial::all(contenders(), PROGRAM).await;
    }
}
