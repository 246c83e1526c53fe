//! Servers for the tests: one that they share, and others that they kill.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use uuid::Uuid;

const STARTS_WITHIN: Duration = Duration::from_secs(60);

/// A server with a data folder. It keeps its addresses when it is started again.
pub struct Server {
    folder: PathBuf,
    native: SocketAddr,
    address: SocketAddr,
    process: Child,
}

static SHARED: Mutex<Weak<Server>> = Mutex::new(Weak::new());

impl Server {
    /// The server of all tests that do not disturb it. It goes when the last of them is done.
    pub fn shared() -> Arc<Server> {
        let mut shared = SHARED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        shared.upgrade().unwrap_or_else(|| {
            let server = Arc::new(Server::start());
            *shared = Arc::downgrade(&server);
            server
        })
    }

    pub fn start() -> Server {
        let name = format!("kurrent-{}", Uuid::new_v4().simple());
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        let (native, address) = (free_address(), free_address());
        let process = spawn(&folder, native, address);
        Server { folder, native, address, process }
    }

    /// Stops it without a warning and starts it again.
    pub fn kill_and_start(&mut self) {
        self.kill();
        self.process = spawn(&self.folder, self.native, self.address);
    }

    pub fn url(&self) -> String {
        format!("kurrentdb://{}?tls=false", self.address)
    }

    /// With the address taken from the server's gossip.
    pub fn discovered_url(&self) -> String {
        format!("esdb+discover://{}?tls=false", self.address)
    }

    fn kill(&mut self) {
        self.process.kill().expect("killed");
        self.process.wait().expect("gone");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        // A folder that stays is in the folder of builds, and harms no other test.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn free_address() -> SocketAddr {
    let probe = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    probe.local_addr().expect("an address")
}

fn spawn(folder: &PathBuf, native: SocketAddr, address: SocketAddr) -> Child {
    let program = std::env::var_os("FOREBAY_BIN").expect("FOREBAY_BIN names the server's program");
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("FOREBAY_")) {
        command.env_remove(name);
    }
    command.arg("serve").arg("--data").arg(folder).args(["--sqs", "none"]);
    command.args(["--listen", &native.to_string(), "--kurrent", &address.to_string()]);
    let mut process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the server starts");
    let deadline = Instant::now() + STARTS_WITHIN;
    while !is_live(address) {
        let ended = process.try_wait().expect("a state");
        assert!(ended.is_none() && Instant::now() < deadline, "the server does not answer");
        std::thread::sleep(Duration::from_millis(20));
    }
    process
}

fn is_live(address: SocketAddr) -> bool {
    let ask = || -> std::io::Result<String> {
        let mut connection = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
        write!(connection, "GET /health/live HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n")?;
        let mut answer = String::new();
        connection.read_to_string(&mut answer)?;
        Ok(answer)
    };
    ask().is_ok_and(|answer| answer.starts_with("HTTP/1.1 2"))
}
