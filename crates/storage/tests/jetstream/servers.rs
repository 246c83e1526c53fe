//! NATS servers that run for as long as a test needs them.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// The program, which `cargo xtask services` finds.
const PROGRAM: &str = "FOREBAY_TEST_NATS";
const STARTS_WITHIN: Duration = Duration::from_secs(60);

pub(crate) struct Servers {
    folder: PathBuf,
    servers: Vec<Server>,
}

struct Server {
    configuration: PathBuf,
    port: u16,
    monitor: u16,
    child: Mutex<Child>,
}

/// The servers that are shared, while a test uses them.
static SHARED: [Mutex<Weak<Servers>>; 2] = [Mutex::new(Weak::new()), Mutex::new(Weak::new())];

impl Servers {
    /// Servers for all tests that need as many and do not stop any. `None` without the program.
    pub(crate) fn shared(count: usize) -> Option<Arc<Servers>> {
        let mut shared =
            SHARED[usize::from(count > 1)].lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(servers) = shared.upgrade() {
            return Some(servers);
        }
        let servers = Arc::new(Servers::start(count, "sync_interval: always")?);
        *shared = Arc::downgrade(&servers);
        Some(servers)
    }

    pub(crate) fn start(count: usize, sync: &str) -> Option<Servers> {
        Servers::start_with(count, sync, "")
    }

    pub(crate) fn start_with(count: usize, sync: &str, more: &str) -> Option<Servers> {
        let program = program()?;
        let folder = std::env::temp_dir().join(format!("forebay-nats-{}-{:x}", std::process::id(), random()));
        std::fs::create_dir_all(&folder).expect("a folder for the servers");
        let ports: Vec<[u16; 3]> = (0..count).map(|_| free_ports()).collect();
        let routes: Vec<String> =
            ports.iter().map(|[_, _, route]| format!("nats://127.0.0.1:{route}")).collect();
        let servers = ports.iter().enumerate().map(|(index, [port, monitor, route])| {
            let data = folder.join(format!("n{index}"));
            let mut text = format!(
                "server_name: n{index}\nlisten: 127.0.0.1:{port}\nhttp: 127.0.0.1:{monitor}\n{more}\n\
                 jetstream {{ store_dir: \"{}\", {sync} }}\n",
                data.display()
            );
            if count > 1 {
                text += &format!(
                    "cluster {{ name: test, listen: 127.0.0.1:{route}, routes: [{}] }}\n",
                    routes.join(", ")
                );
            }
            let configuration = folder.join(format!("n{index}.conf"));
            std::fs::write(&configuration, text).expect("the configuration is written");
            let child = Mutex::new(spawn(&program, &configuration));
            Server { configuration, port: *port, monitor: *monitor, child }
        });
        let servers = Servers { servers: servers.collect(), folder };
        servers.wait();
        Some(servers)
    }

    /// Waits until every server answers and, in a cluster, JetStream has a leader.
    fn wait(&self) {
        let since = tokio::time::Instant::now();
        for server in &self.servers {
            while !is_healthy(server.monitor) {
                assert!(since.elapsed() < STARTS_WITHIN, "a NATS server does not start");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.servers.len()
    }

    pub(crate) fn addresses(&self) -> Vec<String> {
        self.servers.iter().map(|server| format!("nats://127.0.0.1:{}", server.port)).collect()
    }

    pub(crate) fn monitors(&self) -> Vec<String> {
        self.servers.iter().map(|server| format!("http://127.0.0.1:{}", server.monitor)).collect()
    }

    pub(crate) fn kill(&self, index: usize) {
        let mut child = self.servers[index].child.lock().expect("no test panics with it");
        child.kill().expect("the server is killed");
        child.wait().expect("the server is gone");
    }

    pub(crate) fn restart(&self, index: usize) {
        let server = &self.servers[index];
        let program = program().expect("it was there before");
        *server.child.lock().expect("no test panics with it") = spawn(&program, &server.configuration);
        self.wait();
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for server in &self.servers {
            let mut child = server.child.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// The program, or `None` after a word that the test is skipped.
#[allow(clippy::print_stderr)]
pub(crate) fn program() -> Option<PathBuf> {
    let program = std::env::var_os(PROGRAM).filter(|program| !program.is_empty()).map(PathBuf::from);
    if program.is_none() {
        let test = std::thread::current().name().unwrap_or("a test").to_owned();
        assert!(
            std::env::var_os("CI").is_none(),
            "{test} needs {PROGRAM}, and nothing is skipped where CI is set"
        );
        eprintln!(
            "SKIPPED: {test} needs {PROGRAM}; `cargo xtask services -- cargo test` finds what it names"
        );
    }
    program
}

fn spawn(program: &PathBuf, configuration: &PathBuf) -> Child {
    let mut command = Command::new(program);
    command.arg("-c").arg(configuration).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().expect("the NATS server starts")
}

fn is_healthy(port: u16) -> bool {
    use std::io::{Read as _, Write as _};
    let Ok(mut stream) = std::net::TcpStream::connect(("127.0.0.1", port)) else { return false };
    let _ = stream.set_read_timeout(Some(Duration::from_secs(2)));
    let request = b"GET /healthz HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n";
    let mut answer = String::new();
    stream.write_all(request).is_ok()
        && stream.read_to_string(&mut answer).is_ok()
        && answer.contains(" 200 OK")
}

/// Three ports that are free now.
fn free_ports() -> [u16; 3] {
    let listeners = [0; 3].map(|_| TcpListener::bind(("127.0.0.1", 0)).expect("a free port"));
    listeners.map(|listener| listener.local_addr().expect("an address").port())
}

pub(crate) fn random() -> u64 {
    use std::hash::{BuildHasher as _, Hasher as _};
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

/// A name that no other test has.
pub(crate) fn unique() -> String {
    format!("t{:016x}", random())
}
