//! What the tests share: a real server inside the test, and a proxy in front of it that breaks connections.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use forebay_client::admin::streams::ReadQuery;
use forebay_client::{Client, StoredMessage};
use forebay_test::TestServer;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Long enough for anything that happens at all.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A server in this process, whose log is in memory.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    server: TestServer,
}

impl Server {
    pub(crate) async fn start() -> Server {
        let server = TestServer::start_in_real_time().await.expect("the server starts");
        Server { address: server.address(), server }
    }

    /// Stops, and starts again with the same log on the same port.
    pub(crate) async fn restart(mut self) -> Server {
        self.server.restart().await.expect("the port is free");
        self
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) async fn client(&self) -> Client {
        Client::connect(self.url()).await.expect("the server answers")
    }
}

/// Everything in a stream.
pub(crate) async fn read_all(client: &Client, stream: &str) -> Vec<StoredMessage> {
    let mut query = ReadQuery { limit: 1_000, ..ReadQuery::default() };
    let mut all = Vec::new();
    loop {
        let page = client.read_messages(stream, query.clone()).await.expect("it can be read");
        all.extend(page.messages);
        if page.next > page.last_seq {
            return all;
        }
        query.from = page.next;
    }
}

pub(crate) async fn bodies(client: &Client, stream: &str) -> Vec<String> {
    let text = |message: &StoredMessage| String::from_utf8(message.body().to_vec()).expect("text");
    read_all(client, stream).await.iter().map(text).collect()
}

/// Takes and acks messages until so many are done.
pub(crate) async fn drain(client: &Client, stream: &str, group: &str, count: usize) {
    let mut consumer = client.consumer(stream, group).name("drain").open().await.expect("it is there");
    let mut done = 0;
    while done < count {
        let batch = consumer.next_batch().await.expect("the call goes on").expect("the call goes on");
        consumer.ack(&batch).await.expect("it settles");
        done += batch.len();
    }
    consumer.close().await.expect("it leaves well");
}

/// What a proxy does to connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mood {
    Pass,
    /// Cuts each connection after a number of bytes, up to this many from the client, and fewer to it.
    Cut {
        within: u64,
    },
    /// Lets nothing through in either direction, and says nothing about it.
    Hold,
    /// Lets nothing come back.
    Mute,
    /// Accepts no connections.
    Refuse,
}

/// Stands between clients and a server.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    mood: watch::Sender<Mood>,
    pub(crate) counts: Arc<Counts>,
    accepting: JoinHandle<()>,
}

#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) connections: AtomicUsize,
    pub(crate) cuts: AtomicUsize,
    /// Bytes that came from clients.
    pub(crate) bytes: AtomicU64,
}

impl Proxy {
    pub(crate) async fn start(to: SocketAddr, mood: Mood) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("it has an address");
        let (mood, moods) = watch::channel(mood);
        let counts = Arc::new(Counts::default());
        let accepting = tokio::spawn(accept(listener, to, moods, counts.clone()));
        Proxy { address, mood, counts, accepting }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn set(&self, mood: Mood) {
        self.mood.send_replace(mood);
    }

    pub(crate) fn cuts(&self) -> usize {
        self.counts.cuts.load(Ordering::Relaxed)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.counts.bytes.load(Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, to: SocketAddr, moods: watch::Receiver<Mood>, counts: Arc<Counts>) {
    let dice = Arc::new(Mutex::new(Dice(counts_seed(to))));
    loop {
        let Ok((client, _)) = listener.accept().await else { continue };
        if *moods.borrow() == Mood::Refuse {
            continue;
        }
        counts.connections.fetch_add(1, Ordering::Relaxed);
        let Ok(server) = TcpStream::connect(to).await else { continue };
        let (client_in, client_out) = client.into_split();
        let (server_in, server_out) = server.into_split();
        let cut = roll_cut(&moods, &dice);
        let (up, down) = cut.unwrap_or((u64::MAX, u64::MAX));
        let (moods, counts) = (moods.clone(), counts.clone());
        tokio::spawn(async move {
            let upward = carry(client_in, server_out, up, moods.clone(), Some(counts.clone()), Mood::Hold);
            let downward = carry(server_in, client_out, down, moods.clone(), None, Mood::Mute);
            // Whichever ends takes the other with it, and both sockets.
            tokio::select! {
                () = upward => {}
                () = downward => {}
                () = refused(moods) => {}
            }
            if cut.is_some() {
                counts.cuts.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
}

/// After how many bytes, on the way up and down.
fn roll_cut(moods: &watch::Receiver<Mood>, dice: &Mutex<Dice>) -> Option<(u64, u64)> {
    let Mood::Cut { within } = *moods.borrow() else { return None };
    let mut dice = dice.lock().expect("nobody panics with it");
    // What comes back is much less than what goes out: some greetings, and then a few bytes for each batch.
    Some((1 + dice.roll(within), 250 + dice.roll(within / 50)))
}

async fn refused(mut moods: watch::Receiver<Mood>) {
    if moods.wait_for(|mood| *mood == Mood::Refuse).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Carries bytes until either side closes or the cut comes, which may be in the middle of a piece.
async fn carry(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut left: u64,
    mut moods: watch::Receiver<Mood>,
    counts: Option<Arc<Counts>>,
    stops_at: Mood,
) {
    let mut buffer = vec![0; 16 << 10];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        let held = moods.wait_for(|mood| *mood != stops_at && *mood != Mood::Hold).await.is_ok();
        if !held {
            return;
        }
        if let Some(counts) = &counts {
            counts.bytes.fetch_add(read as u64, Ordering::Relaxed);
        }
        let some = (read as u64).min(left) as usize;
        if to.write_all(&buffer[..some]).await.is_err() || some < read {
            return;
        }
        left -= some as u64;
    }
}

fn counts_seed(to: SocketAddr) -> u64 {
    u64::from(to.port())
}

/// A number from a seed, again and again.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % sides.max(1)
    }
}
