//! The real binary, from outside: it is started, used over gRPC, killed and started again.

mod admin;
pub(crate) mod rig;
mod verbs;

use std::time::Duration;

use forebay_wire::v1;
use forebay_wire::v1::outcome_run::Outcome;
use forebay_wire::v1::problem::Code;
use tonic::Code as Status;

use crate::grpc::rig::{Server, Session, publish};
use crate::rig::{Folder, forebay};

/// Longer than a frame stays unwritten that no reply waits for.
const ACKS_ARE_SYNCED: Duration = Duration::from_millis(250);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acked_stays_done_and_what_was_not_comes_again_after_a_kill() {
    let folder = Folder::new("kill");
    let server = Server::start(&folder).await;
    server.create_group("work", "team").await;
    let stored = publish(&server, "work", (1..=10).map(|n| n.to_string()), 5).await;
    assert_eq!(stored, [(1, 5), (6, 5)]);

    let mut alice = Session::open(&server, "work", "team", 10).await;
    let got = alice.receive(10).await;
    assert_eq!(got.seqs(), (1..=10).collect::<Vec<_>>());
    assert!(got.messages.iter().all(|message| message.attempt == 1));
    assert_eq!(got.messages[6].body, "7");
    let outcomes = alice.ack(&got, 1..=4).await;
    assert_eq!(outcomes, [(Outcome::Acked, 4)]);
    let outcomes = alice.ack(&got, 3..=5).await;
    assert_eq!(outcomes, [(Outcome::NotYours, 2), (Outcome::Acked, 1)]);
    tokio::time::sleep(ACKS_ARE_SYNCED).await;
    server.kill();

    let server = Server::start(&folder).await;
    let mut bob = Session::open(&server, "work", "team", 10).await;
    let again = bob.receive(5).await;
    assert_eq!(again.seqs(), [6, 7, 8, 9, 10]);
    assert!(again.messages.iter().all(|message| message.attempt == 2), "{again:?}");
    assert!(again.epoch > got.epoch);
    // Leases of the dead server have ended.
    let outcomes = bob.settle_as(got.epoch, &got, 6..=7).await;
    assert_eq!(outcomes, [(Outcome::NotYours, 2)]);
    assert_eq!(bob.ack(&again, 6..=10).await, [(Outcome::Acked, 5)]);
    let figures = server.figures("work", "team").await.expect("the group is there");
    assert_eq!((figures.checkpoint_seq, figures.lag, figures.consumers), (10, 0, 1));
    server.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_consumer_has_tried_and_one_that_says_goodbye_has_not() {
    let folder = Folder::new("goodbye");
    let server = Server::start(&folder).await;
    server.create_group("work", "team").await;
    publish(&server, "work", ["a", "b"], 2).await;

    let mut first = Session::open(&server, "work", "team", 2).await;
    assert_eq!(first.receive(2).await.attempts(), [1, 1]);
    drop(first);
    let mut second = Session::open(&server, "work", "team", 2).await;
    let got = second.receive(2).await;
    assert_eq!(got.attempts(), [2, 2]);
    second.goodbye().await;
    let mut third = Session::open(&server, "work", "team", 2).await;
    assert_eq!(third.receive(2).await.attempts(), [2, 2], "a goodbye undoes the count");
    server.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_comes_again_after_its_delay_and_credit_says_how_much_comes() {
    let folder = Folder::new("retry");
    let server = Server::start(&folder).await;
    server.create_group("work", "team").await;
    publish(&server, "work", (1..=5).map(|n| n.to_string()), 5).await;
    let mut consumer = Session::open(&server, "work", "team", 2).await;
    let got = consumer.receive(2).await;
    assert_eq!(got.seqs(), [1, 2]);
    assert!(consumer.nothing_comes().await, "two are held, and more are not wanted");
    assert_eq!(consumer.retry(&got, 1..=1, 50).await, [(Outcome::Retrying, 1)]);
    let next = consumer.receive(1).await;
    assert_eq!(next.seqs(), [3]);
    consumer.credit(5).await;
    let rest = consumer.receive(3).await;
    let mut seqs = rest.seqs();
    seqs.sort_unstable();
    assert_eq!(seqs, [1, 4, 5]);
    let retried = rest.messages.iter().find(|message| message.seq == 1).expect("1 came again");
    assert_eq!(retried.attempt, 2);
    server.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_keeps_its_fields_and_its_id_is_stored_once() {
    let folder = Folder::new("fields");
    let server = Server::start(&folder).await;
    server.create_group("work", "team").await;
    let message = v1::Message {
        id: "email-17".to_owned(),
        key: "user-4".to_owned(),
        r#type: "email.send".to_owned(),
        schema: Some(3),
        headers: vec![v1::Header { name: "trace".to_owned(), value: "abc".to_owned(), ..Default::default() }],
        body: "hello".into(),
        ..v1::Message::default()
    };
    let twice =
        [message.clone(), v1::Message { body: "new".into(), ..v1::Message::default() }, message.clone()];
    let confirmed = rig::publish_one(&server, "work", twice.to_vec()).await;
    assert_eq!((confirmed.first_seq, confirmed.count), (1, 2));
    assert_eq!(confirmed.duplicates, [v1::Duplicate { index: 2, seq: 1 }]);
    let mut consumer = Session::open(&server, "work", "team", 10).await;
    let got = consumer.receive(2).await;
    let first = &got.raw[0];
    assert!(first.published_at_us > 0);
    assert_eq!(v1::Message { published_at_us: 0, ..first.clone() }, message);
    server.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clean_stop_keeps_everything_and_ends_calls() {
    let folder = Folder::new("stop");
    let server = Server::start(&folder).await;
    server.create_group("work", "team").await;
    publish(&server, "work", (1..=100).map(|n| n.to_string()), 10).await;
    let mut consumer = Session::open(&server, "work", "team", 100).await;
    let got = consumer.receive(100).await;
    consumer.ack(&got, 1..=60).await;
    server.stop();
    assert_eq!(consumer.ended().await, Some(Status::Unavailable));

    let server = Server::start(&folder).await;
    let figures = server.figures("work", "team").await.expect("the group is there");
    assert_eq!((figures.checkpoint_seq, figures.lag), (60, 40));
    assert_eq!(figures.last_processed_seq, 60, "a restart does not forget what was processed");
    server.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_requests_are_refused_with_a_reason() {
    let server = Server::start_in_memory().await;
    server.create_group("work", "team").await;
    for (stream, group, credit, code, text) in [
        ("nothing", "team", 1, Status::NotFound, "no such stream"),
        ("work", "nobody", 1, Status::NotFound, "no such group"),
        ("work", "team", 1_000_000, Status::InvalidArgument, "credit must be at most"),
        ("$work", "team", 1, Status::InvalidArgument, "stream must not begin with `$`"),
        ("", "team", 1, Status::InvalidArgument, "at least one byte"),
    ] {
        let refused = Session::try_open(&server, stream, group, credit).await.err();
        let refused = refused.unwrap_or_else(|| panic!("{stream}/{group} was opened"));
        assert_eq!(refused.code(), code, "{stream}/{group}: {refused:?}");
        assert!(refused.message().contains(text), "{stream}/{group}: {}", refused.message());
        let advice = refused.metadata().get("forebay-retry").map(|advice| advice.as_bytes().to_vec());
        assert_eq!(advice.as_deref(), Some(&b"never"[..]));
    }
    let figures = server.figures("nothing", "team").await;
    assert_eq!(figures.map_err(|error| error.code()), Err(Status::NotFound));

    let message = |body: usize| v1::Message { body: vec![b'x'; body].into(), ..v1::Message::default() };
    for (stream, messages, code) in [
        ("work", vec![message((1 << 20) + (512 << 10))], Code::TooLarge),
        ("work", vec![message(1 << 20); 9], Code::TooLarge),
        ("work", vec![message(1); 10_001], Code::TooLarge),
        ("work", vec![], Code::Invalid),
        ("$work", vec![message(1)], Code::Invalid),
        ("work", vec![v1::Message { priority: 10, ..message(1) }], Code::Invalid),
        ("work", vec![v1::Message { priority: 256, ..message(1) }], Code::Invalid),
        ("work", vec![v1::Message { delay_ms: 5, deliver_at_us: 1, ..message(1) }], Code::Invalid),
    ] {
        let count = messages.len();
        let confirmed = rig::publish_one(&server, stream, messages).await;
        let problem = confirmed.problem.unwrap_or_else(|| panic!("{count} messages were stored in {stream}"));
        assert_eq!((problem.code(), problem.retry()), (code, v1::Retry::Never), "{}", problem.detail);
        assert!(!problem.detail.is_empty());
    }
    let mut consumer = Session::open(&server, "work", "team", 10).await;
    assert!(consumer.nothing_comes().await, "nothing that was refused was stored");

    let different = server.create_group_with_timeout("work", "team", 5_000).await;
    assert_eq!(different.map_err(|error| error.code()), Err(Status::AlreadyExists));
    server.create_group("work", "team").await;
    server.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_cannot_start_says_why_and_with_which_code() {
    let folder = Folder::new("start");
    let server = Server::start(&folder).await;
    let elsewhere = Folder::new("start-elsewhere");

    let taken = forebay(&["serve", "--listen", &server.address, "--data", elsewhere.path()], "");
    assert_eq!(taken.code, 5, "{}", taken.said);
    let port = server.address.rsplit(':').next().expect("an address has a port");
    assert!(taken.said.contains(port) && taken.said.contains("--listen"), "{}", taken.said);

    let in_use = forebay(&["serve", "--listen", "127.0.0.1:0", "--data", folder.path()], "");
    assert_eq!(in_use.code, 3, "{}", in_use.said);
    assert!(in_use.said.contains("in use"), "{}", in_use.said);

    let open = forebay(&["serve", "--listen", "0.0.0.0:0", "--memory"], "");
    assert_eq!(open.code, 2);
    assert!(open.said.contains("authentication"), "{}", open.said);
    server.stop();

    let format = folder.file("FORMAT");
    let mut bytes = std::fs::read(&format).expect("there is a FORMAT file");
    bytes[20] ^= 1;
    std::fs::write(format, bytes).expect("FORMAT can be written");
    let damaged = forebay(&["serve", "--listen", "127.0.0.1:0", "--data", folder.path()], "");
    assert_eq!(damaged.code, 4, "{}", damaged.said);

    let nobody = forebay(&["pub", "work", "x", "--server", "127.0.0.1:1"], "");
    assert_eq!(nobody.code, 7, "{}", nobody.said);
    assert_eq!(forebay(&["serve", "--listen", "somewhere"], "").code, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_person_can_see_a_message_go_through() {
    let server = Server::start_in_memory().await;
    let address = server.address.clone();
    let run = move |words: &[&str], input: &str| {
        let mut words = words.to_vec();
        words.extend(["--server", &address]);
        forebay(&words, input)
    };
    tokio::task::spawn_blocking(move || {
        let published = run(&["pub", "emails", "hello", "world"], "");
        assert_eq!(
            (published.code, published.said.trim()),
            (0, "stored 2 messages in the new stream emails, which has no group yet")
        );
        assert_eq!(run(&["pub", "emails"], "from\nstdin\n").code, 0);
        let looked = run(&["sub", "emails/senders", "--create", "--max", "1"], "");
        assert_eq!((looked.code, &looked.printed[..]), (0, "1\t#1\thello\n"));
        let settled = run(&["sub", "emails/senders", "--ack", "--max", "3"], "");
        assert_eq!((settled.code, &settled.printed[..]), (0, "1\t#1\thello\n2\t#1\tworld\n3\t#1\tfrom\n"));
        let rest = run(&["sub", "emails/senders", "--ack", "--max", "1"], "");
        assert_eq!(rest.printed, "4\t#1\tstdin\n");
        let terms = ["--priority", "9", "--key", "user-4", "--ttl", "1h"];
        assert_eq!(run(&[&["pub", "emails", "soon"][..], &terms[..]].concat(), "").code, 0);
        assert_eq!(run(&["pub", "emails", "later", "--delay", "100ms"], "").code, 0);
        let named = run(&["sub", "emails/senders", "--ack", "--max", "2", "--name", "laptop"], "");
        assert_eq!(named.printed, "5\t#1\tsoon\n6\t#1\tlater\n");
        assert_eq!(run(&["pub", "emails", "x", "--delay", "5"], "").code, 2);
        assert_eq!(run(&["pub", "emails", "x", "--priority", "10"], "").code, 2);
        let wrong = run(&["sub", "emails", "--max", "1"], "");
        assert!(wrong.code == 2 && wrong.said.contains("STREAM/GROUP"), "{}", wrong.said);
    })
    .await
    .expect("the commands ran");
    server.stop();
}
