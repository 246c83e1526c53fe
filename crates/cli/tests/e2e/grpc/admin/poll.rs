//! Programs that poll, and what they say of what they got.

use forebay_wire::v1;
use forebay_wire::v1::outcome_run::Outcome;
use forebay_wire::v1::settlement::Action;
use tonic::Code;

use super::{answer, is_refused, message, of_group};
use crate::grpc::rig::{Server, Session, publish, publish_one};
use crate::rig::Folder;

async fn receive(server: &Server, max: u32) -> Vec<v1::Received> {
    let consumer = "poller".to_owned();
    let request = of_group!(ReceiveRequest, "work", "team", max: max, wait_ms: 10_000, consumer: consumer);
    answer(server.client().receive(request).await).messages
}

fn settle(of: &[&v1::Received], action: Action) -> v1::SettleRequest {
    let leases = of.iter().map(|received| received.lease.clone()).collect();
    let (action, reason) = (action.into(), "because".to_owned());
    of_group!(SettleRequest, "work", "team", leases: leases, action: action, reason: reason)
}

async fn settled(server: &Server, request: v1::SettleRequest) -> Vec<Outcome> {
    answer(server.client().settle(request).await).outcomes().collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_received_is_settled_in_every_way() {
    let server = Server::start_in_memory().await;
    server.create_group("work", "team").await;
    publish(&server, "work", (1..=8).map(|n| n.to_string()), 8).await;
    let got = receive(&server, 8).await;
    assert_eq!(got.iter().map(|one| one.seq).collect::<Vec<_>>(), (1..=8).collect::<Vec<_>>());
    let first = &got[0];
    assert!(!first.lease.is_empty() && first.deadline_us > 0 && first.attempt == 1);
    assert_eq!(first.message.as_ref().map(|message| &message.body[..]), Some(&b"1"[..]));
    let of = |seq: usize| &got[seq - 1];

    let outcomes = settled(&server, settle(&[of(1), of(2)], Action::Ack)).await;
    assert_eq!(outcomes, [Outcome::Acked, Outcome::Acked]);
    let outcomes = settled(&server, settle(&[of(2), of(3)], Action::Ack)).await;
    assert_eq!(outcomes, [Outcome::NotYours, Outcome::Acked], "an ack counts once");
    assert_eq!(settled(&server, settle(&[of(4)], Action::Park)).await, [Outcome::Parked]);
    assert_eq!(settled(&server, settle(&[of(5)], Action::Skip)).await, [Outcome::Skipped]);
    let extend = v1::SettleRequest { delay_ms: Some(60_000), ..settle(&[of(6)], Action::Extend) };
    assert_eq!(settled(&server, extend).await, [Outcome::Extended]);
    let forged = v1::SettleRequest { leases: vec!["forged".to_owned()], ..settle(&[], Action::Ack) };
    assert_eq!(settled(&server, forged).await, [Outcome::NotYours]);
    let moved = v1::SettleRequest { move_to: "elsewhere".to_owned(), ..settle(&[of(8)], Action::Move) };
    assert_eq!(settled(&server, moved).await, [Outcome::Moving]);

    assert_eq!(settled(&server, settle(&[of(7)], Action::Return)).await, [Outcome::Returned]);
    let again = receive(&server, 8).await;
    assert_eq!((again.len(), again[0].seq, again[0].attempt), (1, 7, 1), "giving back costs no attempt");
    let retry = v1::SettleRequest { delay_ms: Some(1), ..settle(&[&again[0]], Action::Retry) };
    assert_eq!(settled(&server, retry).await, [Outcome::Retrying]);
    let again = receive(&server, 8).await;
    assert_eq!((again.len(), again[0].seq, again[0].attempt), (1, 7, 2));
    assert_eq!(settled(&server, settle(&[&again[0]], Action::Auto)).await, [Outcome::Retrying]);

    let figures = server.figures("work", "team").await.expect("the group is there");
    assert_eq!((figures.parked, figures.in_flight), (1, 1));
    let [member] = &figures.members[..] else { panic!("one consumer: {:?}", figures.members) };
    assert_eq!((&member.name[..], member.connected), ("poller", false));
    server.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_by_the_clock_outlives_the_server() {
    let folder = Folder::new("poll");
    let server = Server::start(&folder).await;
    let settings = v1::GroupSettings { acks: v1::group_settings::Acks::Durable.into(), ..Default::default() };
    server.create_group_as("work", "team", settings).await.expect("a new group");
    publish(&server, "work", ["a", "b"], 2).await;
    let request = of_group!(ReceiveRequest, "work", "team", max: 1, timeout_ms: Some(300_000));
    let got = answer(server.client().receive(request).await).messages;
    assert_eq!(got.len(), 1);
    // The sync of another client's publish makes the lease durable.
    publish(&server, "work", ["c"], 1).await;
    server.kill();
    let server = Server::start(&folder).await;
    let mut consumer = Session::open(&server, "work", "team", 10).await;
    assert_eq!(consumer.receive(2).await.seqs(), [2, 3], "the first one is still leased");
    assert_eq!(settled(&server, settle(&[&got[0]], Action::Ack)).await, [Outcome::Acked]);
    drop(consumer);
    server.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receive_waits_as_long_as_it_says_and_takes_what_fits() {
    let server = Server::start_in_memory().await;
    server.create_group("work", "team").await;
    let none = answer(server.client().receive(of_group!(ReceiveRequest, "work", "team")).await);
    assert!(none.messages.is_empty());
    let waiting = tokio::spawn({
        let mut client = server.client();
        async move { client.receive(of_group!(ReceiveRequest, "work", "team", wait_ms: 20_000)).await }
    });
    publish(&server, "work", ["x"], 1).await;
    assert_eq!(answer(waiting.await.expect("it ends")).messages.len(), 1);

    let large = "x".repeat(1 << 20);
    for _ in 0..5 {
        publish_one(&server, "work", vec![message(&large)]).await;
    }
    // A client with the limits that clients have gets them all, some at a time, each at its first attempt.
    let mut client = v1::forebay_client::ForebayClient::new(server.channel());
    let mut seen = Vec::new();
    while seen.len() < 5 {
        let request = of_group!(ReceiveRequest, "work", "team", max: 100, wait_ms: 10_000);
        let got = answer(client.receive(request).await).messages;
        assert!(!got.is_empty() && got.len() < 5);
        seen.extend(got.iter().map(|one| (one.seq, one.attempt)));
    }
    seen.sort_unstable();
    assert_eq!(seen, [(2, 1), (3, 1), (4, 1), (5, 1), (6, 1)]);
    server.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_poller_cannot_ask_is_refused_by_field() {
    let server = Server::start_in_memory().await;
    server.create_group("work", "team").await;
    let mut client = server.client();
    let requests = [
        (of_group!(ReceiveRequest, "work", "team", max: 1_001), "max must"),
        (of_group!(ReceiveRequest, "work", "team", wait_ms: 600_001), "wait_ms must"),
        (of_group!(ReceiveRequest, "work", "team", timeout_ms: Some(0)), "timeout_ms must"),
        (of_group!(ReceiveRequest, "work", "team", consumer: "x".repeat(256)), "consumer must"),
    ];
    for (request, field) in requests {
        is_refused(client.receive(request).await, Code::InvalidArgument, "invalid-field", field);
    }
    let absent = client.receive(of_group!(ReceiveRequest, "work", "nobody")).await;
    is_refused(absent, Code::NotFound, "no-such-group", "no such group");

    let leases = vec!["x".to_owned()];
    let ack = i32::from(Action::Ack);
    let of =
        |leases: &[String]| of_group!(SettleRequest, "work", "team", leases: leases.to_vec(), action: ack);
    let requests = [
        (v1::SettleRequest { action: 0, ..of(&leases) }, "action must be given"),
        (of(&[]), "leases must"),
        (of(&vec!["x".to_owned(); 10_001]), "leases must"),
        (v1::SettleRequest { action: 99, ..of(&leases) }, "action must"),
        (v1::SettleRequest { action: Action::Extend.into(), ..of(&leases) }, "delay_ms must"),
        (v1::SettleRequest { action: Action::Move.into(), ..of(&leases) }, "move_to must"),
        (v1::SettleRequest { move_to: "there".to_owned(), ..of(&leases) }, "move_to must"),
        (v1::SettleRequest { rest_ms: Some(300_001), ..of(&leases) }, "rest_ms must"),
        (
            v1::SettleRequest {
                rest_ms: Some(1),
                delay_ms: Some(1),
                action: Action::Extend.into(),
                ..of(&leases)
            },
            "rest_ms must",
        ),
    ];
    for (request, field) in requests {
        is_refused(client.settle(request).await, Code::InvalidArgument, "invalid-field", field);
    }
    let absent = of_group!(SettleRequest, "nothing", "team", leases: leases, action: ack);
    is_refused(client.settle(absent).await, Code::NotFound, "no-such-stream", "no such stream");
    server.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_given_back_for_a_while_costs_no_attempt_and_outlives_a_restart() {
    let folder = Folder::new("given-back");
    let server = Server::start(&folder).await;
    server.create_group("work", "team").await;
    publish(&server, "work", ["a", "b"], 2).await;
    let mut consumer = Session::open(&server, "work", "team", 2).await;
    let got = consumer.receive(2).await;
    assert_eq!(consumer.settle_one(&got, 1, Action::Return, Some(50)).await, Outcome::Returned);
    let again = consumer.receive(1).await;
    assert_eq!((again.seqs(), again.attempts()), (vec![1], vec![1]), "it comes as if for the first time");
    assert_eq!(consumer.settle_one(&again, 1, Action::Return, Some(3_600_000)).await, Outcome::Returned);
    assert_eq!(consumer.ack(&got, 2..=2).await, [(Outcome::Acked, 1)]);
    drop(consumer);
    server.stop();

    let server = Server::start(&folder).await;
    let group = answer(server.client().get_group(of_group!(GetGroupRequest, "work", "team")).await);
    assert_eq!((group.waiting, group.ready, group.lag), (1, 0, 1));
    server.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connected_consumer_gives_back_and_moves() {
    let server = Server::start_in_memory().await;
    server.create_group("work", "team").await;
    publish(&server, "work", ["a"], 1).await;
    let mut consumer = Session::open(&server, "work", "team", 1).await;
    let got = consumer.receive(1).await;
    assert_eq!(consumer.settle_one(&got, 1, Action::Return, None).await, Outcome::Returned);
    let again = consumer.receive(1).await;
    assert_eq!(again.attempts(), [1], "giving back costs no attempt");
    let problem = consumer.refused(&again, 1, Action::Move.into(), None).await;
    assert!(problem.detail.starts_with("move_to must"), "{}", problem.detail);
    assert_eq!(consumer.move_one(&again, 1, "elsewhere").await, Outcome::Moving);
    let mut client = server.client();
    let read = v1::ReadMessagesRequest { stream: "elsewhere".to_owned(), ..Default::default() };
    let mut seen = 0;
    // It is on its way, in a turn or two.
    for _ in 0..100 {
        seen = client.read_messages(read.clone()).await.map_or(0, |page| page.into_inner().messages.len());
        if seen > 0 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert_eq!(seen, 1);
    drop(consumer);
    server.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credit_in_bytes_says_how_much_comes() {
    let server = Server::start_in_memory().await;
    server.create_group("work", "team").await;
    publish(&server, "work", (0..4).map(|_| "x".repeat(1_000)), 4).await;
    let mut consumer = Session::open_within(&server, "work", "team", 10, 2_500).await;
    let got = consumer.receive(2).await;
    assert_eq!(got.seqs(), [1, 2]);
    assert!(consumer.nothing_comes().await, "two fit into the limit");
    assert_eq!(consumer.ack(&got, 1..=1).await, [(Outcome::Acked, 1)]);
    assert_eq!(consumer.receive(1).await.seqs(), [3]);
    consumer.credit(10).await;
    assert_eq!(consumer.receive(1).await.seqs(), [4], "a credit without a limit has none");
    drop(consumer);
    server.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_can_tell_how_long_its_leases_last_whatever_its_own_clock_says() {
    let server = Server::start_in_memory().await;
    server.create_group_with_timeout("work", "team", 3_600_000).await.expect("the group is created");
    publish(&server, "work", ["a"], 1).await;
    let mut consumer = Session::open(&server, "work", "team", 1).await;
    let got = consumer.receive(1).await;
    let hour = 3_600_000_000;
    let left = got.messages[0].left_us;
    assert!((hour / 2..=hour).contains(&left), "an hour from when it was sent. left_us=`{left}`");
    drop(consumer);
    server.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_is_throttled_lets_the_whole_group_rest() {
    let server = Server::start_in_memory().await;
    server.create_group("work", "team").await;
    publish(&server, "work", (1..=5).map(|n| n.to_string()), 5).await;
    let mut throttled = Session::open(&server, "work", "team", 2).await;
    let got = throttled.receive(2).await;
    let rests = |figures: v1::GetGroupReply| figures.resting_ms;
    let figures = || server.figures("work", "team");

    let polled = receive(&server, 1).await;
    let stale = v1::SettleRequest { rest_ms: Some(60_000), ..settle(&[&polled[0]], Action::Ack) };
    let forged = v1::SettleRequest { leases: vec!["forged".to_owned()], ..stale.clone() };
    assert_eq!(settled(&server, forged).await, [Outcome::NotYours]);
    assert_eq!(rests(figures().await.expect("the group is there")), None, "a stranger stops nobody");

    assert_eq!(throttled.rest(&got, 1, 200).await, [(Outcome::Returned, 1)]);
    assert_eq!(throttled.ack(&got, 2..=2).await, [(Outcome::Acked, 1)], "what is held is settled");
    let again = throttled.receive(2).await;
    assert_eq!((again.seqs(), again.attempts()), (vec![1, 4], vec![1, 1]), "it goes on by itself");

    // A poller's request counts as much, and no messages are handed out.
    assert_eq!(settled(&server, stale).await, [Outcome::Acked]);
    let left = rests(figures().await.expect("the group is there")).expect("it rests");
    assert!((30_000..=60_000).contains(&left), "resting_ms=`{left}`");
    let nothing = of_group!(ReceiveRequest, "work", "team", max: 5);
    assert!(answer(server.client().receive(nothing).await).messages.is_empty());
    assert_eq!(throttled.ack(&again, 1..=1).await, [(Outcome::Acked, 1)]);
    assert!(throttled.early_is_empty() && throttled.nothing_comes().await);
    drop(throttled);
    server.stop();
}
