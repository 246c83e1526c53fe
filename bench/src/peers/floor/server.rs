//! The least that a server must do that syncs before it answers: one thread, a tiny protocol, one log.
//!
//! A turn reads whatever has arrived, hands messages to consumers with room, writes messages, leases and acks
//! with one write and one sync, and only then confirms and delivers. What arrives meanwhile waits in the
//! sockets for the next turn: the busier the server, the larger the batch. There is no other queue logic.

use std::collections::{BTreeMap, VecDeque};
use std::error::Error;
use std::io::Write as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::path::Path;

use bytes::Bytes;
use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::journal::Journal;
use super::wire::{self, FRAME, Kind};

const SEGMENT_BYTES: u64 = 64 << 20;
const READ_BYTES: usize = 256 << 10;
/// Acks alone do not cause a sync: they wait this long for a publish that a client waits for.
const ACKS_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };
/// Messages that one consumer gets before it is the next one's turn.
const TURN: u32 = 256;

/// What a record in the log is of.
const MESSAGES: u8 = 1;
const LEASE: u8 = 2;
const ACK: u8 = 3;

pub(super) fn serve(folder: &Path) -> Result<(), Box<dyn Error>> {
    let (mut server, address) = Server::bind(folder, SEGMENT_BYTES)?;
    eprintln!("listening on {address}");
    loop {
        server.turn()?;
    }
}

/// Consecutive messages as they came, each with its length before it.
struct Run {
    first: u64,
    count: u32,
    bytes: Bytes,
}

#[derive(Default)]
struct Group {
    ready: VecDeque<Run>,
    /// Connections in the order in which they get their next messages.
    consumers: VecDeque<u64>,
}

struct Connection {
    socket: TcpStream,
    input: Vec<u8>,
    output: Vec<u8>,
    queue: usize,
    group: usize,
    credit: u32,
    held: VecDeque<Run>,
    /// Messages of this batch that are to be confirmed.
    unconfirmed: u32,
    is_gone: bool,
}

/// What one turn writes.
#[derive(Default)]
struct Batch {
    messages: Vec<u8>,
    records: Vec<u8>,
    /// Queue, first message, how many, and where in `messages`.
    arrived: Vec<(usize, u64, u32, std::ops::Range<usize>)>,
    live: u64,
    is_awaited: bool,
}

struct Server {
    listener: TcpListener,
    journal: Journal,
    connections: BTreeMap<u64, Connection>,
    queues: Vec<Vec<Group>>,
    names: BTreeMap<Vec<u8>, usize>,
    opened: u64,
    /// The last message, counted over all queues.
    seq: u64,
    batch: Batch,
}

impl Server {
    fn bind(folder: &Path, segment_bytes: u64) -> std::io::Result<(Server, SocketAddr)> {
        let journal = Journal::open(folder, segment_bytes)?;
        let listener = TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let server = Server {
            listener,
            journal,
            connections: BTreeMap::new(),
            queues: Vec::new(),
            names: BTreeMap::new(),
            opened: 0,
            seq: 0,
            batch: Batch::default(),
        };
        Ok((server, address))
    }

    fn turn(&mut self) -> Result<(), Box<dyn Error>> {
        let acks_wait = !self.batch.records.is_empty();
        let (is_new, readable) = self.wait(acks_wait)?;
        if is_new {
            self.accept()?;
        }
        for id in &readable {
            self.read(*id)?;
        }
        let messages = self.dispatch();
        if self.batch.is_awaited || (acks_wait && readable.is_empty()) {
            self.commit(&messages)?;
        }
        self.flush();
        Ok(())
    }

    fn wait(&self, acks_wait: bool) -> Result<(bool, Vec<u64>), Errno> {
        let mut fds = vec![PollFd::new(&self.listener, PollFlags::IN)];
        for connection in self.connections.values() {
            let flags =
                if connection.output.is_empty() { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT };
            fds.push(PollFd::from_borrowed_fd(connection.socket.as_fd(), flags));
        }
        poll(&mut fds, acks_wait.then_some(&ACKS_WAIT))?;
        let is_ready =
            |fd: &PollFd<'_>| fd.revents().intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR);
        let ready = self.connections.keys().zip(&fds[1..]).filter(|(_, fd)| is_ready(fd));
        Ok((is_ready(&fds[0]), ready.map(|(id, _)| *id).collect()))
    }

    fn accept(&mut self) -> std::io::Result<()> {
        let (socket, _) = self.listener.accept()?;
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        self.opened += 1;
        let connection = Connection {
            socket,
            input: Vec::new(),
            output: Vec::new(),
            queue: 0,
            group: 0,
            credit: 0,
            held: VecDeque::new(),
            unconfirmed: 0,
            is_gone: false,
        };
        self.connections.insert(self.opened, connection);
        Ok(())
    }

    fn read(&mut self, id: u64) -> Result<(), Box<dyn Error>> {
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
        let mut input = std::mem::take(&mut connection.input);
        input.reserve(READ_BYTES);
        match rustix::io::read(&connection.socket, spare_capacity(&mut input)) {
            Ok(0) => connection.is_gone = true,
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => connection.is_gone = true,
            Ok(_) => {}
        }
        let mut at = 0;
        while let Some((kind, number, rest)) = wire::frame(&input[at..])? {
            at += FRAME + rest.len();
            self.on_frame(id, kind, number, rest)?;
        }
        input.drain(..at);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.input = input;
        }
        Ok(())
    }

    fn on_frame(&mut self, id: u64, kind: Kind, number: u32, rest: &[u8]) -> Result<(), Box<dyn Error>> {
        let connection = self.connections.get_mut(&id).expect("it was just read from");
        match kind {
            Kind::Prepare => {
                if !self.names.contains_key(rest) {
                    self.names.insert(rest.to_owned(), self.queues.len());
                    self.queues.push((0..number).map(|_| Group::default()).collect());
                }
                wire::write_frame(&mut connection.output, Kind::Done, 0, &[]);
            }
            Kind::Produce => {
                connection.queue = *self.names.get(rest).ok_or("no such queue")?;
                wire::write_frame(&mut connection.output, Kind::Done, 0, &[]);
            }
            Kind::Consume => {
                let (credit, name) = rest.split_first_chunk().ok_or("a frame without credit")?;
                connection.queue = *self.names.get(name).ok_or("no such queue")?;
                connection.group = number as usize;
                connection.credit = u32::from_le_bytes(*credit);
                self.queues[connection.queue][connection.group].consumers.push_back(id);
                wire::write_frame(&mut connection.output, Kind::Done, 0, &[]);
            }
            Kind::Publish => {
                let Batch { messages, arrived, .. } = &mut self.batch;
                let first = self.seq + 1;
                self.seq += u64::from(number);
                record(messages, MESSAGES, connection.queue as u64, first, number, rest);
                arrived.push((connection.queue, first, number, messages.len() - rest.len()..messages.len()));
                self.batch.live += u64::from(number) * self.queues[connection.queue].len() as u64;
                connection.unconfirmed += number;
                self.batch.is_awaited = true;
            }
            Kind::Ack => {
                connection.credit += number;
                let mut left = number;
                while left > 0 {
                    let run = take(&mut connection.held, left).ok_or("an ack of nothing")?;
                    record(&mut self.batch.records, ACK, id, run.first, run.count, &[]);
                    self.journal.release(run.first, u64::from(run.count));
                    left -= run.count;
                }
            }
            Kind::Settle => {
                self.batch.is_awaited = true;
                wire::write_frame(&mut connection.output, Kind::Done, 0, &[]);
            }
            Kind::Done | Kind::Confirm | Kind::Deliver => return Err("a frame that only servers send".into()),
        }
        Ok(())
    }

    /// Delivers ready messages, in turn, to consumers with credit. The frames go out after the commit.
    fn dispatch(&mut self) -> Bytes {
        self.let_go();
        let messages = Bytes::from(std::mem::take(&mut self.batch.messages));
        for (queue, first, count, range) in self.batch.arrived.drain(..) {
            for group in &mut self.queues[queue] {
                group.ready.push_back(Run { first, count, bytes: messages.slice(range.clone()) });
            }
        }
        for group in self.queues.iter_mut().flatten() {
            let mut without_room = 0;
            while without_room < group.consumers.len() && !group.ready.is_empty() {
                let id = group.consumers[0];
                group.consumers.rotate_left(1);
                let connection = self.connections.get_mut(&id).expect("who left was taken off the list");
                let Some(run) = take(&mut group.ready, connection.credit.min(TURN)) else {
                    without_room += 1;
                    continue;
                };
                without_room = 0;
                connection.credit -= run.count;
                record(&mut self.batch.records, LEASE, id, run.first, run.count, &[]);
                wire::write_frame(&mut connection.output, Kind::Deliver, run.count, &run.bytes);
                connection.held.push_back(run);
                self.batch.is_awaited = true;
            }
        }
        messages
    }

    /// What those held who have left goes to others.
    fn let_go(&mut self) {
        let queues = &mut self.queues;
        self.connections.retain(|id, connection| {
            if connection.is_gone && connection.queue < queues.len() {
                let group = &mut queues[connection.queue][connection.group];
                group.consumers.retain(|consumer| consumer != id);
                connection.held.drain(..).rev().for_each(|run| group.ready.push_front(run));
            }
            !connection.is_gone
        });
    }

    fn commit(&mut self, messages: &[u8]) -> std::io::Result<()> {
        self.journal.commit([messages, &self.batch.records], self.seq, self.batch.live)?;
        self.batch.records.clear();
        (self.batch.live, self.batch.is_awaited) = (0, false);
        for connection in self.connections.values_mut().filter(|connection| connection.unconfirmed > 0) {
            let confirmed = std::mem::take(&mut connection.unconfirmed);
            wire::write_frame(&mut connection.output, Kind::Confirm, confirmed, &[]);
        }
        Ok(())
    }

    fn flush(&mut self) {
        for connection in self.connections.values_mut().filter(|connection| !connection.output.is_empty()) {
            match connection.socket.write(&connection.output) {
                Ok(written) => drop(connection.output.drain(..written)),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => {
                    connection.is_gone = true;
                    connection.output.clear();
                }
            }
        }
    }
}

/// The first messages, of one run, up to so many.
fn take(runs: &mut VecDeque<Run>, count_max: u32) -> Option<Run> {
    let run = runs.front_mut()?;
    if count_max == 0 || run.count <= count_max {
        return if count_max == 0 { None } else { runs.pop_front() };
    }
    let bytes = run.bytes.split_to(wire::span(&run.bytes, count_max));
    let taken = Run { first: run.first, count: count_max, bytes };
    run.first += u64::from(count_max);
    run.count -= count_max;
    Some(taken)
}

/// `crc32c | length of what follows | kind | of | first | count | bytes`, little endian.
fn record(out: &mut Vec<u8>, kind: u8, of: u64, first: u64, count: u32, bytes: &[u8]) {
    let mut head = [0; 29];
    head[4..8].copy_from_slice(&(21 + bytes.len() as u32).to_le_bytes());
    head[8] = kind;
    head[9..17].copy_from_slice(&of.to_le_bytes());
    head[17..25].copy_from_slice(&first.to_le_bytes());
    head[25..29].copy_from_slice(&count.to_le_bytes());
    let crc = crc32c::crc32c_append(crc32c::crc32c(&head[4..]), bytes);
    head[..4].copy_from_slice(&crc.to_le_bytes());
    out.extend_from_slice(&head);
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    /// A client that says one thing after another, and waits for the answer if there is to be one.
    struct Client(TcpStream);

    impl Client {
        fn open(address: SocketAddr, kind: Kind, number: u32, rest: &[u8]) -> Client {
            let mut client = Client(TcpStream::connect(address).expect("a server"));
            client.say(kind, number, rest);
            assert_eq!(client.hear(), (Kind::Done, 0, Vec::new()));
            client
        }

        fn say(&mut self, kind: Kind, number: u32, rest: &[u8]) {
            let mut out = Vec::new();
            wire::write_frame(&mut out, kind, number, rest);
            self.0.write_all(&out).expect("written");
        }

        fn hear(&mut self) -> (Kind, u32, Vec<u8>) {
            let mut bytes = vec![0; 4];
            self.0.read_exact(&mut bytes).expect("a length");
            let len = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize;
            bytes.resize(4 + len, 0);
            self.0.read_exact(&mut bytes[4..]).expect("a frame");
            let (kind, number, rest) = wire::frame(&bytes).expect("a frame").expect("a whole one");
            (kind, number, rest.to_vec())
        }
    }

    fn messages(bodies: &[&[u8]]) -> Vec<u8> {
        bodies.iter().flat_map(|body| [&(body.len() as u32).to_le_bytes()[..], body].concat()).collect()
    }

    fn start(name: &str, segment_bytes: u64) -> (SocketAddr, std::path::PathBuf) {
        let folder = std::env::temp_dir().join(format!("forebay-floor-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        let (mut server, address) = Server::bind(&folder, segment_bytes).expect("a free port");
        std::thread::spawn(move || while server.turn().is_ok() {});
        (address, folder)
    }

    fn consume(address: SocketAddr, group: u32, credit: u32) -> Client {
        Client::open(address, Kind::Consume, group, &[&credit.to_le_bytes()[..], b"q"].concat())
    }

    #[test]
    fn every_group_gets_every_message_and_one_who_leaves_gives_back() {
        let (address, folder) = start("groups", 1 << 20);
        drop(Client::open(address, Kind::Prepare, 2, b"q"));
        let mut producer = Client::open(address, Kind::Produce, 0, b"q");
        producer.say(Kind::Publish, 3, &messages(&[b"one", b"two", b"three"]));
        assert_eq!(producer.hear(), (Kind::Confirm, 3, Vec::new()));
        let mut first = consume(address, 0, 2);
        assert_eq!(first.hear(), (Kind::Deliver, 2, messages(&[b"one", b"two"])));
        first.say(Kind::Ack, 1, &[]);
        assert_eq!(first.hear(), (Kind::Deliver, 1, messages(&[b"three"])));
        drop(first);
        let mut second = consume(address, 0, 1);
        assert_eq!(second.hear(), (Kind::Deliver, 1, messages(&[b"two"])));
        second.say(Kind::Ack, 1, &[]);
        assert_eq!(second.hear(), (Kind::Deliver, 1, messages(&[b"three"])));
        second.say(Kind::Settle, 0, &[]);
        assert_eq!(second.hear(), (Kind::Done, 0, Vec::new()));
        let mut other = consume(address, 1, 10);
        assert_eq!(other.hear(), (Kind::Deliver, 3, messages(&[b"one", b"two", b"three"])));
        let _ = std::fs::remove_dir_all(folder);
    }

    #[test]
    fn files_are_used_again_once_everything_in_them_is_acked() {
        let (address, folder) = start("files", 64 << 10);
        drop(Client::open(address, Kind::Prepare, 1, b"q"));
        let mut producer = Client::open(address, Kind::Produce, 0, b"q");
        let mut consumer = consume(address, 0, 1);
        let body = vec![7; 20_000];
        for _ in 0..60 {
            producer.say(Kind::Publish, 1, &messages(&[&body]));
            assert_eq!(consumer.hear(), (Kind::Deliver, 1, messages(&[&body])));
            consumer.say(Kind::Ack, 1, &[]);
            assert_eq!(producer.hear(), (Kind::Confirm, 1, Vec::new()));
        }
        let files = std::fs::read_dir(&folder).expect("a folder").count();
        assert!(files <= 6, "twenty times a file's content went through {files} files");
        let _ = std::fs::remove_dir_all(folder);
    }
}
