//! The floor: what a server can do at most here that syncs before it answers, and its client.
//!
//! A program of its own, run from this one. What it does not do is the point: there are no retries, no
//! deadlines and no order, nothing is looked up, and what waits stays in memory. What other servers need
//! beyond this is what their features cost.

pub(crate) mod journal;
mod server;
mod wire;

use std::path::{Path, PathBuf};

use bytes::{Buf as _, Bytes, BytesMut};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::contender::{About, Consumer, Contender, Failure, Message, Producer, Running, Shape, Step};
use crate::arguments::Arguments;
use crate::server::Server;
use wire::{FRAME, Kind};

/// The name under which this program runs as the floor.
pub(crate) const CHILD: &str = "peers-floor";

/// Room for what one read may bring.
const READ_BYTES: usize = 256 << 10;

pub(crate) fn run_child(mut arguments: Arguments) -> Result<(), Box<dyn std::error::Error>> {
    let folder = arguments.folder()?;
    arguments.finish()?;
    server::serve(&folder)
}

pub(crate) struct Floor {
    about: About,
}

pub(crate) fn contenders() -> Result<Vec<Box<dyn Contender>>, Failure> {
    let about = About {
        id: "floor",
        name: "bare floor".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        settings: "one thread, a tiny protocol, one log; a sync before every confirmation and delivery; no \
                   queue logic, what waits is in memory"
            .to_owned(),
        survives_power_loss: true,
        acks_each: true,
    };
    Ok(vec![Box::new(Floor { about })])
}

impl Contender for Floor {
    fn about(&self) -> &About {
        &self.about
    }

    fn lacks(&self, shape: &Shape) -> Option<&'static str> {
        shape.is_ordered.then_some("knows no keys")
    }

    fn skips(&self, workload: &str) -> Option<&'static str> {
        (workload == "restart").then_some("has no recovery")
    }

    fn segments(&self, folder: &Path) -> Option<PathBuf> {
        Some(folder.to_owned())
    }

    fn start<'a>(&'a self, folder: &'a Path) -> Step<'a, Box<dyn Running>> {
        Box::pin(async move {
            let own = std::env::current_exe()?;
            let folder = folder.to_str().ok_or("the folder's name is not text")?;
            let server = Server::start(&own, &[CHILD, "--dir", folder]).map_err(|error| error.to_string())?;
            Ok(Box::new(Up { server }) as Box<dyn Running>)
        })
    }
}

struct Up {
    server: Server,
}

impl Up {
    /// A connection whose first request was answered.
    async fn open(&self, kind: Kind, number: u32, rest: &[u8]) -> Result<Connection, Failure> {
        let socket = TcpStream::connect(&self.server.address).await?;
        socket.set_nodelay(true)?;
        let mut connection = Connection { socket, input: BytesMut::new(), output: Vec::new() };
        wire::write_frame(&mut connection.output, kind, number, rest);
        connection.flush().await?;
        loop {
            match connection.frame()? {
                Some((Kind::Done, _, _)) => return Ok(connection),
                Some(_) => return Err("the floor answered with something else".into()),
                None => connection.read().await?,
            }
        }
    }
}

impl Running for Up {
    fn processes(&self) -> Vec<u32> {
        vec![self.server.id()]
    }

    fn prepare<'a>(&'a self, shape: &'a Shape) -> Step<'a, ()> {
        Box::pin(async {
            self.open(Kind::Prepare, shape.groups as u32, shape.queue.as_bytes()).await.map(drop)
        })
    }

    fn producer<'a>(&'a self, shape: &'a Shape) -> Step<'a, Box<dyn Producer>> {
        Box::pin(async {
            let connection = self.open(Kind::Produce, 0, shape.queue.as_bytes()).await?;
            Ok(Box::new(connection) as Box<dyn Producer>)
        })
    }

    fn consumer<'a>(
        &'a self,
        shape: &'a Shape,
        group: usize,
        prefetch: usize,
    ) -> Step<'a, Box<dyn Consumer>> {
        Box::pin(async move {
            let rest = [&(prefetch as u32).to_le_bytes(), shape.queue.as_bytes()].concat();
            let connection = self.open(Kind::Consume, group as u32, &rest).await?;
            let consumer = Consuming { connection, early: Vec::new(), unacked: 0 };
            Ok(Box::new(consumer) as Box<dyn Consumer>)
        })
    }
}

struct Connection {
    socket: TcpStream,
    input: BytesMut,
    output: Vec<u8>,
}

impl Connection {
    async fn flush(&mut self) -> Result<(), Failure> {
        self.socket.write_all(&self.output).await?;
        self.output.clear();
        Ok(())
    }

    async fn read(&mut self) -> Result<(), Failure> {
        self.input.reserve(READ_BYTES);
        match self.socket.read_buf(&mut self.input).await? {
            0 => Err("the floor closed the connection".into()),
            _ => Ok(()),
        }
    }

    /// Takes the next frame that is there as a whole.
    fn frame(&mut self) -> Result<Option<(Kind, u32, Bytes)>, Failure> {
        let Some((kind, number, rest)) = wire::frame(&self.input)? else { return Ok(None) };
        let len = rest.len();
        self.input.advance(FRAME);
        Ok(Some((kind, number, self.input.split_to(len).freeze())))
    }
}

impl Producer for Connection {
    fn send<'a>(&'a mut self, messages: &'a [Message]) -> Step<'a, ()> {
        Box::pin(async move {
            let len = messages.iter().map(|message| 4 + message.body.len()).sum();
            wire::write_head(&mut self.output, Kind::Publish, messages.len() as u32, len);
            for message in messages {
                self.output.extend_from_slice(&(message.body.len() as u32).to_le_bytes());
                self.output.extend_from_slice(&message.body);
            }
            self.flush().await
        })
    }

    fn confirmed(&mut self) -> Step<'_, usize> {
        Box::pin(async {
            let mut count = 0;
            loop {
                while let Some((kind, number, _)) = self.frame()? {
                    match kind {
                        Kind::Confirm => count += number as usize,
                        _ => return Err("the floor sent a producer something else".into()),
                    }
                }
                if count > 0 {
                    return Ok(count);
                }
                self.read().await?;
            }
        })
    }
}

struct Consuming {
    connection: Connection,
    /// Came while something else was waited for.
    early: Vec<Bytes>,
    unacked: u32,
}

impl Consuming {
    /// Takes all events that are there. Returns whether `Done` was among them.
    fn take(&mut self) -> Result<bool, Failure> {
        let mut is_done = false;
        while let Some((kind, number, mut rest)) = self.connection.frame()? {
            match kind {
                Kind::Done => is_done = true,
                Kind::Deliver => {
                    self.early.reserve(number as usize);
                    while let Some(len) = wire::body_len(&rest) {
                        rest.advance(4);
                        self.early.push(rest.split_to(len));
                    }
                }
                _ => return Err("the floor sent a consumer something else".into()),
            }
        }
        Ok(is_done)
    }
}

impl Consumer for Consuming {
    fn receive(&mut self) -> Step<'_, Vec<Bytes>> {
        Box::pin(async {
            loop {
                self.take()?;
                if !self.early.is_empty() {
                    self.unacked += self.early.len() as u32;
                    return Ok(std::mem::take(&mut self.early));
                }
                self.connection.read().await?;
            }
        })
    }

    fn ack(&mut self) -> Step<'_, ()> {
        Box::pin(async {
            let count = std::mem::take(&mut self.unacked);
            wire::write_frame(&mut self.connection.output, Kind::Ack, count, &[]);
            self.connection.flush().await
        })
    }

    fn settle(&mut self) -> Step<'_, ()> {
        Box::pin(async {
            wire::write_frame(&mut self.connection.output, Kind::Settle, 0, &[]);
            self.connection.flush().await?;
            while !self.take()? {
                self.connection.read().await?;
            }
            Ok(())
        })
    }
}
