//! A certificate that is replaced under load: no request fails, on connections that stay and on new ones.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_client::Client;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::commands::tls::certificate;
use crate::rig::{Folder, Process, address_after, sized};

/// Long enough for anything that happens at all.
const PATIENCE: Duration = Duration::from_secs(60);

/// The load: whether it is over, and how many requests there were.
#[derive(Clone, Default)]
struct Load {
    is_over: Arc<AtomicBool>,
    requests: Arc<AtomicU64>,
}

impl Load {
    fn goes_on(&self) -> bool {
        !self.is_over.load(Ordering::Relaxed)
    }

    fn count(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }
}

type Line = StreamOwned<ClientConnection, TcpStream>;

fn connect(address: &str, config: &Arc<ClientConfig>) -> Line {
    let socket = TcpStream::connect(address).expect("it listens");
    socket.set_read_timeout(Some(PATIENCE)).expect("a socket");
    let name = ServerName::try_from("localhost").expect("a name");
    StreamOwned::new(ClientConnection::new(config.clone(), name).expect("a connection"), socket)
}

/// Sends a request and reads the answer, which must be good.
fn ask(line: &mut Line, request: &str) {
    line.write_all(request.as_bytes()).expect("it is taken");
    let mut answer = Vec::new();
    loop {
        let mut bytes = [0; 4_096];
        let count = line.read(&mut bytes).expect("an answer");
        assert!(count > 0, "the connection ended");
        answer.extend_from_slice(&bytes[..count]);
        let text = String::from_utf8_lossy(&answer);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.expect("a length").parse().expect("a number");
        if body.len() >= length {
            assert!(head.starts_with("HTTP/1.1 20"), "{text}");
            return;
        }
    }
}

fn over_http(address: &str) -> String {
    let body = r#"{"messages":[{"body":"x"}]}"#;
    format!(
        "POST /streams/work/messages HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn over_sqs(address: &str) -> String {
    let body = r#"{"QueueName":"queue"}"#;
    format!(
        "POST / HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/x-amz-json-1.0\r\n\
         x-amz-target: AmazonSQS.CreateQueue\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Requests on one connection, and on a new one each time.
fn load_over_http1(load: &Load, address: &str, request: &str, config: &Arc<ClientConfig>) {
    let mut stays = connect(address, config);
    while load.goes_on() {
        ask(&mut stays, request);
        ask(&mut connect(address, config), request);
        load.count();
    }
}

/// The same over gRPC, with a call that the SDK does not try again.
async fn load_over_grpc(load: Load, address: String, authorities: Vec<u8>) {
    let connect = async || {
        let client = Client::builder(format!("https://{address}")).ca_certificate(authorities.clone());
        client.connect().await.expect("it answers")
    };
    let stays = connect().await;
    while load.goes_on() {
        stays.streams_after(None).await.expect("a list");
        connect().await.streams_after(None).await.expect("a list");
        load.count();
    }
}

/// The certificate that a new connection is shown.
fn shown(address: &str, config: &Arc<ClientConfig>) -> Vec<u8> {
    let mut line = connect(address, config);
    line.flush().expect("a handshake");
    line.conn.peer_certificates().expect("a certificate")[0].to_vec()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_is_replaced_under_load_and_no_request_fails() {
    let folder = Folder::made("under-load");
    let names = ["one", "two"];
    for name in names {
        certificate(&folder, name);
    }
    let read = |file: &str| std::fs::read(folder.file(file)).expect("a file");
    let install = |name: &str| {
        for kind in ["key", "pem"] {
            let (from, to) = (folder.file(&format!("{name}.{kind}")), folder.file(&format!("server.{kind}")));
            let next = format!("{to}.next");
            std::fs::copy(from, &next).expect("it can be copied");
            std::fs::rename(next, to).expect("it can be replaced");
        }
    };
    install("one");
    let (cert, key) = (folder.file("server.pem"), folder.file("server.key"));
    let words = ["--memory", "--log", "text", "--listen", "127.0.0.1:0", "--sqs", "127.0.0.1:0"];
    let words = [&words[..], &["--tls-cert", &cert, "--tls-key", &key]].concat();
    let (process, (address, sqs)) = Process::serve(&words, |line| {
        Some((address_after("listening on ", line)?, address_after("SQS on ", line)?))
    });
    let authorities = [read("one.pem"), read("two.pem")].concat();
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&authorities) {
        roots.add(certificate.expect("a certificate")).expect("an authority");
    }
    let mut config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let (config, load) = (Arc::new(config), Load::default());
    let of_http = [(address.clone(), over_http(&address)), (sqs.clone(), over_sqs(&sqs))];
    let clients: Vec<_> = of_http
        .into_iter()
        .map(|(address, request)| {
            let (load, config) = (load.clone(), config.clone());
            std::thread::spawn(move || load_over_http1(&load, &address, &request, &config))
        })
        .collect();
    let grpc = tokio::spawn(load_over_grpc(load.clone(), address.clone(), authorities));
    for n in 0..sized(3, 20) {
        let name = names[(n + 1) % 2];
        let before = load.requests.load(Ordering::Relaxed);
        install(name);
        let expected = CertificateDer::from_pem_slice(&read(&format!("{name}.pem"))).expect("a certificate");
        let begun = Instant::now();
        let is_there = || [&address, &sqs].iter().all(|port| shown(port, &config) == expected.to_vec());
        while !is_there() || load.requests.load(Ordering::Relaxed) < before + 20 {
            assert!(begun.elapsed() < PATIENCE, "the certificate is not replaced");
            assert!(
                !grpc.is_finished() && clients.iter().all(|client| !client.is_finished()),
                "a request failed"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    load.is_over.store(true, Ordering::Relaxed);
    grpc.await.expect("no request over gRPC failed");
    for client in clients {
        client.join().expect("no request over HTTP/1 failed");
    }
    println!(
        "a certificate replaced under load: {} rounds of requests",
        load.requests.load(Ordering::Relaxed)
    );
    process.stop();
}
