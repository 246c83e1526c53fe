//! Very many consumers that wait for very little: what an idle crowd costs the server.
//!
//! The clients are in a process of their own. Each is one connection with one long poll, spread over the
//! groups. Measured are the server's memory and processor time while nothing happens, first with polls that
//! outlast the measurement and then with polls that are renewed every 20 seconds. Then each group gets one
//! message, and exactly one of its consumers must get it.

use std::error::Error;
use std::io::{BufRead, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::arguments::Arguments;
use crate::server::{self, Server};

/// The name under which this program runs as the clients.
pub(crate) const CHILD: &str = "crowd-clients";
/// Time for the server to calm down after the crowd has come.
const SETTLE: Duration = Duration::from_secs(5);

pub(crate) fn run(mut arguments: Arguments) -> Result<(), Box<dyn Error>> {
    let consumers = arguments.number("consumers", 10_000)?;
    let groups = arguments.number("groups", 1_000)?;
    let seconds = arguments.seconds(20.0)?;
    let program = server::program(&mut arguments)?;
    let folder = arguments.folder()?;
    arguments.finish()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    println!(
        "{:>8} {:>8} {:>8} {:>12} {:>12} {:>10}",
        "groups", "polls", "renewed", "memory", "at most", "CPU"
    );
    for wait in ["5m", "20s"] {
        let _ = std::fs::remove_dir_all(&folder);
        let server = Server::serve(&program, &folder)?;
        runtime.block_on(create_groups(&server.address, groups))?;
        let empty = server.memory()?.resident;
        let mut clients = Clients::start(&server.address, consumers, groups, wait)?;
        std::thread::sleep(SETTLE);
        let (before, started) = (server.cpu_seconds(), Instant::now());
        std::thread::sleep(Duration::from_secs_f64(seconds));
        let cpu = (server.cpu_seconds() - before) / started.elapsed().as_secs_f64() * 100.0;
        let memory = server.memory()?;
        println!(
            "{groups:>8} {consumers:>8} {wait:>8} {:>12} {:>12} {:>10}",
            format!("{} MiB", memory.resident >> 10),
            format!("{} MiB", memory.peak >> 10),
            format!("{cpu:.2} %")
        );
        println!("         (with no consumers: {} MiB)", empty >> 10);
        let received = runtime.block_on(wake(&server.address, groups, &mut clients))?;
        if received != groups {
            return Err(format!("each group has one message. groups=`{groups}` received=`{received}`").into());
        }
        println!("         one message for each group, and one consumer of each got it");
    }
    let _ = std::fs::remove_dir_all(&folder);
    Ok(())
}

/// The crowd. It says how many messages it has got whenever that changes.
struct Clients {
    child: Child,
    said: BufReader<std::process::ChildStdout>,
}

impl Clients {
    fn start(address: &str, consumers: u64, groups: u64, wait: &str) -> Result<Clients, Box<dyn Error>> {
        let mut child = Command::new(std::env::current_exe()?)
            .args([CHILD, "--address", address, "--wait", wait])
            .args(["--consumers", &consumers.to_string(), "--groups", &groups.to_string()])
            .stdout(Stdio::piped())
            .spawn()?;
        let mut said = BufReader::new(child.stdout.take().ok_or("no pipe")?);
        let mut line = String::new();
        said.read_line(&mut line)?;
        if line.trim() != "ready" {
            return Err(format!("the clients did not come: {line}").into());
        }
        Ok(Clients { child, said })
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn create_groups(address: &str, groups: u64) -> Result<(), Box<dyn Error>> {
    let mut connection = TcpStream::connect(address).await?;
    for group in 0..groups {
        let path = format!("/subscriptions/crowd-{group}/team");
        request(&mut connection, "PUT", &path, "{}").await?;
    }
    Ok(())
}

/// Publishes one message for each group, and counts those that come.
async fn wake(address: &str, groups: u64, clients: &mut Clients) -> Result<u64, Box<dyn Error>> {
    let mut connection = TcpStream::connect(address).await?;
    for group in 0..groups {
        let path = format!("/streams/crowd-{group}/messages");
        request(&mut connection, "POST", &path, r#"{"messages":[{"body":"wake"}]}"#).await?;
    }
    let mut received = 0;
    let mut line = String::new();
    while received < groups {
        line.clear();
        if clients.said.read_line(&mut line)? == 0 {
            return Err("the clients have gone".into());
        }
        received += line.trim().parse::<u64>()?;
    }
    Ok(received)
}

/// One request, and the body of its answer.
async fn request(
    connection: &mut TcpStream,
    method: &str,
    path: &str,
    body: &str,
) -> Result<String, Box<dyn Error>> {
    send(connection, method, path, body).await?;
    let (status, body) = answer(connection).await?;
    if status >= 300 {
        return Err(format!("{method} {path}: {status} {body}").into());
    }
    Ok(body)
}

async fn send(connection: &mut TcpStream, method: &str, path: &str, body: &str) -> std::io::Result<()> {
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n\r\n{body}"
    );
    connection.write_all(request.as_bytes()).await
}

async fn answer(connection: &mut TcpStream) -> Result<(u16, String), Box<dyn Error>> {
    let mut bytes = Vec::new();
    let head = loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break end + 4;
        }
        if connection.read_buf(&mut bytes).await? == 0 {
            return Err("the server closed the connection".into());
        }
    };
    let text = String::from_utf8_lossy(&bytes[..head]).to_ascii_lowercase();
    let status = text.split(' ').nth(1).and_then(|text| text.parse().ok()).ok_or("no status")?;
    let length = text.lines().find_map(|line| line.strip_prefix("content-length:"));
    let length: usize = length.map_or(Ok(0), |length| length.trim().parse())?;
    while bytes.len() < head + length {
        if connection.read_buf(&mut bytes).await? == 0 {
            return Err("the server closed the connection".into());
        }
    }
    Ok((status, String::from_utf8_lossy(&bytes[head..]).into_owned()))
}

pub(crate) fn run_child(mut arguments: Arguments) -> Result<(), Box<dyn Error>> {
    let address: String = arguments.take("address")?.ok_or("no address")?;
    let wait: String = arguments.take("wait")?.ok_or("no wait")?;
    let consumers = arguments.number("consumers", 1)?;
    let groups = arguments.number("groups", 1)?;
    arguments.finish()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut polls = tokio::task::JoinSet::new();
        for n in 0..consumers {
            let mut connection = TcpStream::connect(&address).await?;
            let path = format!("/subscriptions/crowd-{}/team/receive", n % groups);
            let body = format!(r#"{{"max":1,"wait":"{wait}","consumer":"consumer-{n}"}}"#);
            send(&mut connection, "POST", &path, &body).await?;
            polls.spawn(async move {
                loop {
                    let answered = answer(&mut connection).await.map_err(|error| error.to_string());
                    match answered {
                        Ok((200, body)) if body.contains(r#""seq""#) => say("1"),
                        Ok((200, _)) => {}
                        Ok((status, body)) => eprintln!("crowd: {status} {body}"),
                        Err(error) => return eprintln!("crowd: {error}"),
                    }
                    if send(&mut connection, "POST", &path, &body).await.is_err() {
                        return;
                    }
                }
            });
        }
        say("ready");
        while polls.join_next().await.is_some() {}
        Ok(())
    })
}

fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{text}");
    let _ = out.flush();
}
