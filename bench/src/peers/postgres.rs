//! PostgreSQL as a queue: a table for each queue, and consumers that skip what others have locked.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};

use super::connection::{Connection, Stop, arrived};
use super::contender::{About, Consumer, Contender, Failure, Message, Producer, Running, Shape, Step};
use super::process::{self, Process};

const PROGRAMS: &str = "FOREBAY_PEER_POSTGRES";

/// How long a consumer sleeps that found nothing.
const POLL_EVERY: Duration = Duration::from_millis(1);
/// The type of bytes, as the server numbers it.
const BYTEA: i32 = 17;

pub(crate) fn contenders() -> Result<Vec<Box<dyn Contender>>, Failure> {
    let Some(programs) = std::env::var_os(PROGRAMS).map(PathBuf::from) else { return Ok(Vec::new()) };
    let said = process::output(&programs.join("postgres"), &["--version"])?;
    let version = said.split_whitespace().nth(2).unwrap_or(&said).to_owned();
    let about = About {
        id: "postgres",
        name: "PostgreSQL, SKIP LOCKED".to_owned(),
        version,
        settings: "all defaults: fsync on, synchronous_commit on, shared_buffers 128MB; \
                   one INSERT from an array for all that the window lets through, one at a time for each producer; \
                   consumers DELETE ... RETURNING up to the prefetch with FOR UPDATE SKIP LOCKED, by ctid, in a \
                   transaction that the ack commits, with sequential scans and sorts off (a plan made while the \
                   table was empty would stay), and look again after 1 ms when there is nothing"
            .to_owned(),
        survives_power_loss: true,
        acks_each: true,
    };
    Ok(vec![Box::new(Postgres { programs, about })])
}

struct Postgres {
    programs: PathBuf,
    about: About,
}

impl Contender for Postgres {
    fn about(&self) -> &About {
        &self.about
    }

    fn lacks(&self, shape: &Shape) -> Option<&'static str> {
        if shape.is_ordered {
            return Some("no order by key: SKIP LOCKED goes past what is locked");
        }
        (shape.groups > 1).then_some("no groups: every group would need its own table")
    }

    fn start<'a>(&'a self, folder: &'a Path) -> Step<'a, Box<dyn Running>> {
        Box::pin(async move {
            let data = folder.join("data");
            if !data.join("PG_VERSION").exists() {
                let mut command = process::command(&self.programs.join("initdb"), folder)?;
                command.args(["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C"]);
                command.arg("--pgdata").arg(&data);
                process::run(command, folder)?;
            }
            let command = |port: u16| {
                let mut command = process::command(&self.programs.join("postgres"), folder)?;
                command.arg("-D").arg(&data).arg("-p").arg(port.to_string());
                // Reached by loopback alone: a socket would need a folder that everybody finds.
                command.args(["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]);
                command.env_remove("PGDATA");
                Ok(command)
            };
            let (process, port) = Process::start(folder, command, |port| Box::pin(answers(port))).await?;
            Ok(Box::new(Server { process, port }) as Box<dyn Running>)
        })
    }
}

/// While it recovers from having been killed, it answers with an error.
async fn answers(port: u16) -> Result<(), Failure> {
    Session::open(port).await?;
    Ok(())
}

struct Server {
    process: Process,
    port: u16,
}

impl Running for Server {
    fn processes(&self) -> Vec<u32> {
        vec![self.process.id()]
    }

    fn prepare<'a>(&'a self, shape: &'a Shape) -> Step<'a, ()> {
        Box::pin(async move {
            let queue = &shape.queue;
            let columns = "id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, body bytea NOT NULL";
            let mut session = Session::open(self.port).await?;
            session.run(&format!("CREATE TABLE IF NOT EXISTS \"{queue}\" ({columns})")).await
        })
    }

    fn producer<'a>(&'a self, shape: &'a Shape) -> Step<'a, Box<dyn Producer>> {
        Box::pin(async move {
            let mut session = Session::open(self.port).await?;
            let insert = format!("INSERT INTO \"{}\" (body) SELECT unnest($1::bytea[])", shape.queue);
            session.prepare(&[("i", &insert)]).await?;
            let (waiting, is_under_way, confirmed) = (Vec::new(), false, 0);
            Ok(Box::new(Publisher { session, waiting, is_under_way, confirmed }) as Box<dyn Producer>)
        })
    }

    fn consumer<'a>(
        &'a self,
        shape: &'a Shape,
        _group: usize,
        prefetch: usize,
    ) -> Step<'a, Box<dyn Consumer>> {
        Box::pin(async move {
            let mut session = Session::open(self.port).await?;
            // The plan is made once and kept, and the table may be empty then.
            session.run("SET enable_seqscan = off; SET enable_sort = off").await?;
            let queue = &shape.queue;
            let first =
                format!("SELECT ctid FROM \"{queue}\" ORDER BY id LIMIT {prefetch} FOR UPDATE SKIP LOCKED");
            let delete = format!("DELETE FROM \"{queue}\" WHERE ctid = ANY (ARRAY({first})) RETURNING body");
            session.prepare(&[("b", "BEGIN"), ("d", &delete), ("c", "COMMIT")]).await?;
            Ok(Box::new(Subscriber {
                session,
                is_begun: false,
                is_asked: false,
                commits_missing: 0,
                rows: Vec::new(),
                is_complete: false,
            }) as Box<dyn Consumer>)
        })
    }
}

/// A producer with a single INSERT in flight: messages sent meanwhile go into the next one, so a commit takes as
/// many as there are.
struct Publisher {
    session: Session,
    waiting: Vec<Message>,
    is_under_way: bool,
    /// Confirmed and not told yet.
    confirmed: usize,
}

impl Publisher {
    fn insert(&mut self) -> Result<(), Failure> {
        if !self.is_under_way && !self.waiting.is_empty() {
            put_insert(&mut self.session.connection.output, &self.waiting)?;
            put_sync(&mut self.session.connection.output);
            self.waiting.clear();
            self.is_under_way = true;
        }
        Ok(())
    }
}

impl Producer for Publisher {
    fn send<'a>(&'a mut self, messages: &'a [Message]) -> Step<'a, ()> {
        Box::pin(async move {
            self.waiting.extend_from_slice(messages);
            self.insert()?;
            self.session.connection.flush().await
        })
    }

    fn confirmed(&mut self) -> Step<'_, usize> {
        Box::pin(async move {
            loop {
                while let Some(reply) = self.session.take()? {
                    if let Reply::Complete(tag) = reply {
                        self.confirmed += inserted(&tag)?;
                        self.is_under_way = false;
                    }
                }
                self.insert()?;
                self.session.connection.flush().await?;
                if self.confirmed > 0 {
                    return Ok(std::mem::take(&mut self.confirmed));
                }
                self.session.connection.fill().await?;
            }
        })
    }
}

/// How many rows the tag of a command says, such as `INSERT 0 12`.
fn inserted(tag: &[u8]) -> Result<usize, Failure> {
    let tag = std::str::from_utf8(tag)?;
    let count = tag.strip_prefix("INSERT ").and_then(|rest| rest.rsplit(' ').next()?.parse().ok());
    count.ok_or_else(|| format!("not inserted: {tag}").into())
}

/// One that takes a batch in a transaction, and commits it with the ack. The commit leaves together with the
/// next batch's transaction.
struct Subscriber {
    session: Session,
    is_begun: bool,
    /// A batch was asked for and its end did not arrive.
    is_asked: bool,
    commits_missing: usize,
    /// What came of the batch.
    rows: Vec<Bytes>,
    /// All of it.
    is_complete: bool,
}

impl Subscriber {
    fn ask(&mut self) {
        let output = &mut self.session.connection.output;
        if !self.is_begun {
            put_execute(output, "b");
        }
        put_execute(output, "d");
        put_sync(output);
        (self.is_begun, self.is_asked) = (true, true);
    }

    fn parse(&mut self) -> Result<(), Failure> {
        while let Some(reply) = self.session.take()? {
            match reply {
                Reply::Row(body) => self.rows.push(body),
                Reply::Complete(tag) if tag.starts_with(b"DELETE") => {
                    (self.is_asked, self.is_complete) = (false, true);
                }
                Reply::Complete(tag) if tag.starts_with(b"COMMIT") => self.commits_missing -= 1,
                // The transaction was given up: what the ack said is not so.
                Reply::Complete(tag) if tag.starts_with(b"ROLLBACK") => {
                    return Err("an ack was refused".into());
                }
                Reply::Complete(_) | Reply::Ready | Reply::Other => {}
            }
        }
        Ok(())
    }
}

impl Consumer for Subscriber {
    fn receive(&mut self) -> Step<'_, Vec<Bytes>> {
        Box::pin(async move {
            loop {
                self.parse()?;
                if std::mem::take(&mut self.is_complete) {
                    if !self.rows.is_empty() {
                        return Ok(std::mem::take(&mut self.rows));
                    }
                    tokio::time::sleep(POLL_EVERY).await;
                }
                if !self.is_asked {
                    self.ask();
                }
                self.session.connection.flush().await?;
                self.session.connection.fill().await?;
            }
        })
    }

    fn ack(&mut self) -> Step<'_, ()> {
        Box::pin(async move {
            put_execute(&mut self.session.connection.output, "c");
            self.commits_missing += 1;
            self.is_begun = false;
            Ok(())
        })
    }

    fn settle(&mut self) -> Step<'_, ()> {
        Box::pin(async move {
            if !self.session.connection.output.is_empty() {
                put_sync(&mut self.session.connection.output);
            }
            while self.commits_missing > 0 {
                self.session.connection.flush().await?;
                self.session.connection.fill().await?;
                self.parse()?;
            }
            Ok(())
        })
    }
}

struct Session {
    connection: Connection,
}

impl Session {
    async fn open(port: u16) -> Result<Session, Failure> {
        const VERSION_3: i32 = 3 << 16;
        let mut session = Session { connection: Connection::open(port).await? };
        let terms = b"user\0postgres\0database\0postgres\0\0";
        let output = &mut session.connection.output;
        output.put_i32(length(terms.len() + 8)?);
        output.put_i32(VERSION_3);
        output.put_slice(terms);
        session.wait_until_ready().await?;
        Ok(session)
    }

    /// Commands without parameters, whose rows are ignored.
    async fn run(&mut self, commands: &str) -> Result<(), Failure> {
        let output = &mut self.connection.output;
        output.put_u8(b'Q');
        output.put_i32(length(commands.len() + 5)?);
        output.put_slice(commands.as_bytes());
        output.put_u8(0);
        self.wait_until_ready().await
    }

    /// Prepares statements under these names.
    async fn prepare(&mut self, statements: &[(&str, &str)]) -> Result<(), Failure> {
        for (name, statement) in statements {
            let output = &mut self.connection.output;
            output.put_u8(b'P');
            output.put_i32(length(name.len() + statement.len() + 8)?);
            output.put_slice(name.as_bytes());
            output.put_u8(0);
            output.put_slice(statement.as_bytes());
            output.put_u8(0);
            // The server finds the types of the parameters out.
            output.put_i16(0);
        }
        put_sync(&mut self.connection.output);
        self.wait_until_ready().await
    }

    async fn wait_until_ready(&mut self) -> Result<(), Failure> {
        self.connection.flush().await?;
        loop {
            while let Some(reply) = self.take()? {
                if matches!(reply, Reply::Ready) {
                    return Ok(());
                }
            }
            self.connection.fill().await?;
        }
    }

    /// The next reply, if all of it arrived.
    fn take(&mut self) -> Result<Option<Reply>, Failure> {
        let Some((kind, length)) = arrived(head(&self.connection.input))? else { return Ok(None) };
        let mut reply = self.connection.input.split_to(length).freeze();
        reply.advance(HEAD);
        reply_of(kind, reply).map(Some)
    }
}

/// What the server sends, as far as it matters here.
enum Reply {
    /// The one column of a row.
    Row(Bytes),
    /// The tag of a command that is done.
    Complete(Bytes),
    Ready,
    Other,
}

/// A reply begins with a byte that says what it is, and its length without that byte.
const HEAD: usize = 5;

/// The kind of the reply that the input begins with, and its length.
fn head(mut input: &[u8]) -> Result<(u8, usize), Stop> {
    if input.len() < HEAD {
        return Err(Stop::More);
    }
    let arrived = input.len();
    let kind = input.get_u8();
    let length = 1 + usize::try_from(input.get_i32()).map_err(Stop::wrong)?;
    if length < HEAD {
        return Err(Stop::wrong("a reply shorter than its head"));
    }
    if arrived < length { Err(Stop::More) } else { Ok((kind, length)) }
}

fn reply_of(kind: u8, mut reply: Bytes) -> Result<Reply, Failure> {
    const IS_TRUSTED: &[u8] = &[0; 4];
    match kind {
        b'D' => {
            let columns = reply.try_get_u16()?;
            let length = usize::try_from(reply.try_get_i32()?)?;
            if columns != 1 || reply.len() != length {
                return Err("not a row of one column".into());
            }
            Ok(Reply::Row(reply))
        }
        b'C' => Ok(Reply::Complete(reply.slice(..reply.len().saturating_sub(1)))),
        b'Z' => Ok(Reply::Ready),
        b'E' => {
            // Fields that each begin with a letter and end with a zero.
            let field =
                |letter: u8| reply.split(|&byte| byte == 0).find(|field| field.first() == Some(&letter));
            let text = String::from_utf8_lossy(&field(b'M').unwrap_or(&reply)[1..]).into_owned();
            Err(format!("the server says: {text}").into())
        }
        b'R' if *reply != *IS_TRUSTED => Err("the server wants a password".into()),
        _ => Ok(Reply::Other),
    }
}

fn length(bytes: usize) -> Result<i32, Failure> {
    Ok(i32::try_from(bytes)?)
}

fn put_sync(output: &mut BytesMut) {
    output.put_slice(b"S\0\0\0\x04");
}

/// Runs a prepared statement without parameters, with its columns as they are and not as text.
fn put_execute(output: &mut BytesMut, name: &'static str) {
    output.put_u8(b'B');
    output.put_i32(4 + 1 + name.len() as i32 + 1 + 2 + 2 + 4);
    output.put_u8(0);
    output.put_slice(name.as_bytes());
    output.put_u8(0);
    // Of parameters and their formats there are none; all columns have one format.
    output.put_slice(&[0, 0, 0, 0, 0, 1, 0, 1]);
    output.put_slice(b"E\0\0\0\x09\0\0\0\0\0");
}

/// Runs the statement that inserts, with the bodies as an array.
fn put_insert(output: &mut BytesMut, messages: &[Message]) -> Result<(), Failure> {
    let bodies: usize = messages.iter().map(|message| 4 + message.body.len()).sum();
    let array = 20 + bodies;
    output.reserve(array + 64);
    output.put_u8(b'B');
    output.put_i32(length(4 + 3 + 4 + 2 + 4 + array + 2)?);
    output.put_slice(b"\0i\0");
    // One parameter, in binary.
    output.put_slice(&[0, 1, 0, 1, 0, 1]);
    output.put_i32(length(array)?);
    // One dimension, no nulls, the type, how many, and from which number on they are counted.
    for number in [1, 0, BYTEA, length(messages.len())?, 1] {
        output.put_i32(number);
    }
    for message in messages {
        output.put_i32(length(message.body.len())?);
        output.put_slice(&message.body);
    }
    output.put_i16(0);
    output.put_slice(b"E\0\0\0\x09\0\0\0\0\0");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::trial;

    #[test]
    fn a_reply_is_taken_when_all_of_it_is_there() {
        let row = b"D\0\0\0\x0c\0\x01\0\0\0\x02ok";
        assert_eq!(head(row).expect("a row"), (b'D', row.len()));
        for cut in 0..row.len() {
            assert!(matches!(head(&row[..cut]), Err(Stop::More)), "cut at {cut}");
        }
        let row = reply_of(b'D', Bytes::from_static(&row[HEAD..])).expect("a row");
        assert!(matches!(row, Reply::Row(body) if body == "ok"));
        assert!(matches!(head(b"D\0\0\0\x01.."), Err(Stop::Wrong(_))));
    }

    #[test]
    fn an_error_is_a_failure_that_says_why() {
        let error = reply_of(b'E', Bytes::from_static(b"SFATAL\0Mstarting up\0\0"));
        assert_eq!(error.err().expect("a failure").to_string(), "the server says: starting up");
        assert_eq!(inserted(b"INSERT 0 12").expect("a count"), 12);
        assert!(inserted(b"DELETE 1").is_err());
    }

    #[tokio::test]
    async fn postgres_does_what_the_load_relies_on() {
        trial::all(contenders(), PROGRAMS).await;
    }
}
