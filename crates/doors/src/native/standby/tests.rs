use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;

const REASON: &str = "this node is a standby: node b owns the log";

fn standing(owner: Option<&str>) -> Standing {
    let owner = owner.map(|address| Owner {
        node: "b".to_owned(),
        address: address.to_owned(),
        others: vec![("sqs".to_owned(), address.to_owned())],
    });
    Standing { reason: REASON.to_owned(), owner }
}

fn port(api: Option<&'static str>) -> StandbyPort {
    StandbyPort { api, tls: None, connections_max: 4, cluster: None }
}

async fn ask_for(path: &str, media_type: &str, standing: &Standing) -> Response<Body> {
    let request = Request::builder().uri(path).header(header::CONTENT_TYPE, media_type).body(());
    answer(&request.expect("a request"), standing, REASON, None).await
}

#[tokio::test]
async fn without_an_owner_a_standby_lives_is_not_ready_and_refuses() {
    let alone = standing(None);
    assert_eq!(ask_for("/livez", "text/plain", &alone).await.status(), 200);
    for (path, kind) in [("/readyz", Kind::NotReady), ("/streams", Kind::NotOwner), ("/", Kind::NotOwner)] {
        let answer = ask_for(path, "application/json", &alone).await;
        assert_eq!(answer.status(), 503, "{path}");
        assert_eq!(answer.headers()[header::CONTENT_TYPE], MEDIA_TYPE);
        let body = axum::body::to_bytes(answer.into_body(), 1 << 16).await.expect("a body");
        let problem: Problem = serde_json::from_slice(&body).expect("a problem");
        assert_eq!(problem, Problem::new(kind, REASON), "{path}");
    }
    let answer = ask_for("/forebay.v1.Forebay/PublishOnce", "application/grpc", &alone).await;
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()["grpc-status"], "14");
    assert_eq!(answer.headers()["forebay-problem"], "not-owner");
    assert_eq!(answer.headers()["forebay-retry"], "later");
}

#[test]
fn the_first_bytes_tell_a_question_to_the_node_itself() {
    for (bytes, told) in [
        (&b"GET /livez HTTP/1.1"[..], Some(true)),
        (b"GET /readyz?x", Some(true)),
        (b"HEAD /readyz ", Some(true)),
        (b"GET /readyzz ", Some(false)),
        (b"GET /streams", Some(false)),
        (b"POST /livez ", Some(false)),
        (b"PRI * HTTP/2.0", Some(false)),
        (b"GET /", None),
        (b"GET /livez", None),
        (b"H", None),
    ] {
        assert_eq!(tells(bytes, false), told, "{}", String::from_utf8_lossy(bytes));
    }
    for path in ["cluster", "metrics"] {
        let bytes = format!("GET /{path} HTTP");
        assert_eq!(tells(bytes.as_bytes(), false), Some(false), "the owner knows credentials");
        assert_eq!(tells(bytes.as_bytes(), true), Some(true));
    }
}

/// A standby, and a socket that plays the owner.
struct Scene {
    address: SocketAddr,
    owner: TcpListener,
    standing: watch::Sender<Standing>,
    _standby: tokio::task::JoinSet<Infallible>,
}

impl Scene {
    async fn new(api: Option<&'static str>) -> Scene {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let owner = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let known = owner.local_addr().expect("an address").to_string();
        let (sender, receiver) = watch::channel(standing(Some(&known)));
        let mut standby = tokio::task::JoinSet::new();
        standby.spawn(async move { stand_by(&listener, port(api), receiver).await });
        Scene { address, owner, standing: sender, _standby: standby }
    }

    async fn send(&self, request: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.expect("a connection");
        stream.write_all(request).await.expect("it is sent");
        stream
    }

    async fn ask(&self, request: &[u8]) -> String {
        let mut answer = String::new();
        self.send(request).await.read_to_string(&mut answer).await.expect("it is answered and closed");
        answer
    }
}

#[tokio::test]
async fn a_standby_carries_connections_to_the_owner_and_cuts_them_when_it_changes() {
    let scene = Scene::new(None).await;
    let mut client = scene.send(b"GET /streams HTTP/1.1\r\n\r\n").await;
    let (mut at_owner, _) = scene.owner.accept().await.expect("the standby connects");
    let mut asked = [0; 25];
    at_owner.read_exact(&mut asked).await.expect("the request arrives as it was sent");
    assert_eq!(&asked, b"GET /streams HTTP/1.1\r\n\r\n");
    at_owner.write_all(b"anything").await.expect("it is sent");
    let mut answer = [0; 8];
    client.read_exact(&mut answer).await.expect("the answer arrives");
    assert_eq!(&answer, b"anything");

    scene.standing.send_replace(standing(Some("127.0.0.1:1")));
    assert_eq!(client.read(&mut answer).await.unwrap_or_default(), 0, "the client connects again");
    assert_eq!(at_owner.read(&mut answer).await.unwrap_or_default(), 0);
}

#[tokio::test]
async fn other_ports_are_carried_to_the_same_api_of_the_owner() {
    let scene = Scene::new(Some("sqs")).await;
    let _client = scene.send(b"GET /readyz HTTP/1.1\r\n\r\n").await;
    let (mut at_owner, _) = scene.owner.accept().await.expect("only the native port is the node's own");
    assert_eq!(at_owner.read_u8().await.expect("it arrives"), b'G');
    let other = Scene::new(Some("kurrent")).await;
    let answer = other.ask(b"GET /streams HTTP/1.1\r\nHost: x\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("/problems/not-owner"), "{answer}");
}

#[tokio::test]
async fn a_standby_is_ready_if_it_reaches_the_owner() {
    let scene = Scene::new(None).await;
    let ready = b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n";
    let answer = scene.ask(ready).await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("ready: node b at "), "{answer}");
    scene.standing.send_replace(standing(Some("127.0.0.1:1")));
    let answer = scene.ask(ready).await;
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("/problems/not-ready"), "{answer}");
    let answer = scene.ask(b"GET /streams HTTP/1.1\r\nHost: x\r\n\r\n").await;
    assert!(answer.contains("/problems/not-owner") && answer.contains("cannot be reached"), "{answer}");
}

#[tokio::test]
async fn connections_beyond_the_limit_wait() {
    let scene = Scene::new(None).await;
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push((
            scene.send(b"PRI * HTTP/2.0").await,
            scene.owner.accept().await.expect("it is carried on"),
        ));
    }
    let mut fifth = scene.send(b"PRI * HTTP/2.0").await;
    drop(held.pop());
    let (mut at_owner, _) = scene.owner.accept().await.expect("another has ended");
    at_owner.write_all(b"!").await.expect("it is sent");
    assert_eq!(fifth.read_u8().await.expect("it is answered"), b'!');
}

#[tokio::test]
async fn a_standby_without_credentials_reports_for_itself() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let (_sender, receiver) = watch::channel(standing(None));
    let reporter = ClusterReporter::new(async || forebay_wire::json::ClusterReport {
        node: Some("a".to_owned()),
        ..Default::default()
    });
    let port = StandbyPort { cluster: Some(reporter), ..port(None) };
    let ask = async |path: &str| {
        let mut stream = TcpStream::connect(address).await.expect("a connection");
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("it is sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("it is answered and closed");
        answer
    };
    let asked = async { (ask("/cluster").await, ask("/metrics").await) };
    let (cluster, metrics) = tokio::select! {
        asked = asked => asked,
        never = stand_by(&listener, port, receiver) => match never {},
    };
    assert!(cluster.starts_with("HTTP/1.1 200 ") && cluster.contains(r#""node":"a""#), "{cluster}");
    assert!(metrics.ends_with("forebay_ready 0\n"), "{metrics}");
}
