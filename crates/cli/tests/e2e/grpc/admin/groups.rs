//! Groups: settings, monitoring, and what operators do to them.

use forebay_wire::v1;
use forebay_wire::v1::get_group_reply::Status;
use forebay_wire::v1::group_settings::{Fairness, Strategy};
use forebay_wire::v1::outcome_run::Outcome;
use forebay_wire::v1::settlement::Action;
use forebay_wire::v1::start::At;
use tonic::Code;

use super::{answer, is_refused, of_group};
use crate::grpc::rig::{Server, Session, publish};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_is_changed_field_by_field_while_consumers_stay() {
    let server = Server::start_in_memory().await;
    let mut client = server.client();
    server.create_group("work", "team").await;
    let mut consumer = Session::open(&server, "work", "team", 1).await;
    let backoff = Some(v1::Backoff { max_ms: Some(50), ..Default::default() });
    let rate = Some(v1::Rate { per_second: 50.0, burst: 5 });
    let settings = v1::GroupSettings { message_timeout_ms: Some(5_000), rate, ..Default::default() };
    let update = of_group!(UpdateGroupRequest, "work", "team", settings: Some(settings));
    answer(client.update_group(update).await);
    let settings = server.figures("work", "team").await.expect("it is there").settings.expect("settings");
    assert_eq!(
        (settings.message_timeout_ms, settings.rate, settings.window_max),
        (Some(5_000), rate, Some(100_000))
    );

    // A change that contradicts the present settings is refused whole.
    let settings = v1::GroupSettings { backoff, key_batch: Some(9), ..Default::default() };
    let update = of_group!(UpdateGroupRequest, "work", "team", settings: Some(settings));
    let refused = client.update_group(update).await;
    is_refused(refused, Code::InvalidArgument, "invalid-field", "backoff.min_ms must be at most ");
    let settings = v1::GroupSettings {
        strategy: Strategy::Pinned.into(),
        fairness: Fairness::Key.into(),
        ..Default::default()
    };
    let update = of_group!(UpdateGroupRequest, "work", "team", settings: Some(settings));
    is_refused(
        client.update_group(update).await,
        Code::InvalidArgument,
        "invalid-field",
        "fairness must be ",
    );
    let settings = server.figures("work", "team").await.expect("it is there").settings.expect("settings");
    assert_eq!(settings.key_batch, Some(1), "nothing of what was refused was done");

    let clear = ["rate", "message_timeout_ms"].map(str::to_owned).to_vec();
    answer(client.update_group(of_group!(UpdateGroupRequest, "work", "team", clear: clear)).await);
    let settings = server.figures("work", "team").await.expect("it is there").settings.expect("settings");
    assert_eq!((settings.message_timeout_ms, settings.rate), (Some(30_000), None));
    publish(&server, "work", ["x"], 1).await;
    assert_eq!(consumer.receive(1).await.seqs(), [1], "the consumer is still a member");

    let absent = client.update_group(of_group!(UpdateGroupRequest, "work", "nobody")).await;
    is_refused(absent, Code::NotFound, "no-such-group", "no such group");
    let wrong = of_group!(UpdateGroupRequest, "work", "team", clear: vec!["speed".to_owned()]);
    is_refused(client.update_group(wrong).await, Code::InvalidArgument, "invalid-field", "clear must name ");
    let own = v1::OnExhausted { then: Some(v1::on_exhausted::Then::MoveTo("work".to_owned())) };
    let settings = v1::GroupSettings { on_exhausted: Some(own), ..Default::default() };
    let create = of_group!(CreateGroupRequest, "work", "other", settings: Some(settings));
    let refused = client.create_group(create).await;
    is_refused(refused, Code::InvalidArgument, "invalid-field", "on_exhausted.move_to must be ");
    drop(consumer);
    server.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_says_how_it_does_and_who_works_for_it() {
    let server = Server::start_in_memory().await;
    let mut client = server.client();
    server.create_group("work", "team").await;
    let idle = server.figures("work", "team").await.expect("it is there");
    assert_eq!((idle.status(), idle.consumers, idle.catch_up_seconds), (Status::Idle, 0, Some(0.0)));
    assert_eq!(idle.processing_time, Some(v1::ProcessingTime::default()), "nothing was answered yet");
    publish(&server, "work", (1..=10).map(|n| n.to_string()), 10).await;
    let mut consumer = Session::open(&server, "work", "team", 10).await;
    let got = consumer.receive(10).await;
    consumer.ack(&got, 1..=6).await;
    assert_eq!(consumer.settle_one(&got, 7, Action::Retry, Some(60_000)).await, Outcome::Retrying);
    let busy = server.figures("work", "team").await.expect("it is there");
    assert_eq!((busy.status(), busy.lag, busy.in_flight, busy.waiting), (Status::Live, 4, 3, 1));
    assert_eq!(busy.last_processed_seq, 6);
    assert!(busy.throughput.is_some_and(|of| of.settled.is_some() && of.dropped.is_some()));
    assert!(busy.arrivals.is_some());
    assert!(busy.processing_time.is_some_and(|of| of.count == 7 && of.max_us >= of.p50_us));
    let [member] = &busy.members[..] else { panic!("one consumer: {:?}", busy.members) };
    assert_eq!((&member.name[..], member.connected, busy.consumers), ("test", true, 1));
    assert_eq!((member.in_flight, member.credit, member.acked, member.failed), (3, 10, 6, 1));
    assert!(member.address.starts_with("127.0.0.1:") && member.joined_at_us > 0);
    assert!(member.processing_time.is_some());

    let scaling = of_group!(GetScalingRequest, "work", "team", min: 2, max: Some(5));
    let scaling = answer(client.get_scaling(scaling).await);
    assert_eq!((scaling.backlog, scaling.in_flight, scaling.consumers), (1, 3, 1));
    assert!((2..=5).contains(&scaling.desired_consumers), "{scaling:?}");
    let wrong = of_group!(GetScalingRequest, "work", "team", min: 5, max: Some(2));
    is_refused(
        client.get_scaling(wrong).await,
        Code::InvalidArgument,
        "invalid-field",
        "min must not be above max",
    );
    let absent = client.get_scaling(of_group!(GetScalingRequest, "work", "nobody")).await;
    is_refused(absent, Code::NotFound, "no-such-group", "no such group");
    drop(consumer);
    server.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn groups_are_listed_in_pages_of_one_stream_or_of_all() {
    let server = Server::start_in_memory().await;
    let mut client = server.client();
    for (stream, group) in [("a", "x"), ("a", "y"), ("b", "x"), ("b", "z"), ("c", "x")] {
        server.create_group(stream, group).await;
    }
    let mut seen = Vec::new();
    let mut request = v1::ListGroupsRequest { limit: 2, ..Default::default() };
    loop {
        let page = answer(client.list_groups(request.clone()).await);
        assert!(page.groups.len() <= 2);
        seen.extend(page.groups.into_iter().map(|group| format!("{}/{}", group.stream, group.group)));
        if page.next.is_none() {
            break;
        }
        request.after = page.next;
    }
    assert_eq!(seen, ["a/x", "a/y", "b/x", "b/z", "c/x"]);
    let one = v1::ListGroupsRequest { stream: "b".to_owned(), ..Default::default() };
    let one = answer(client.list_groups(one).await);
    let names: Vec<&str> = one.groups.iter().map(|group| &group.group[..]).collect();
    assert_eq!((names, one.next), (vec!["x", "z"], None));

    let absent = v1::ListGroupsRequest { stream: "nothing".to_owned(), ..Default::default() };
    is_refused(client.list_groups(absent).await, Code::NotFound, "no-such-stream", "no such stream");
    let after = Some(v1::GroupCursor { stream: "a".to_owned(), group: String::new() });
    let wrong = v1::ListGroupsRequest { after, ..Default::default() };
    is_refused(client.list_groups(wrong).await, Code::InvalidArgument, "invalid-name", "after.group must");
    let wrong = v1::ListGroupsRequest { limit: 5_000, ..Default::default() };
    is_refused(client.list_groups(wrong).await, Code::InvalidArgument, "invalid-field", "limit must");
    server.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_pause_resume_reset_and_delete_a_group() {
    let server = Server::start_in_memory().await;
    let mut client = server.client();
    let settings = v1::StreamSettings {
        retention: Some(v1::Retention { kept: Some(v1::retention::Kept::Log(Default::default())) }),
        ..Default::default()
    };
    let create = v1::CreateStreamRequest { stream: "work".to_owned(), settings: Some(settings) };
    answer(client.create_stream(create).await);
    server.create_group("work", "team").await;
    answer(client.pause_group(of_group!(PauseGroupRequest, "work", "team")).await);
    publish(&server, "work", ["1", "2", "3"], 3).await;
    let mut consumer = Session::open(&server, "work", "team", 10).await;
    assert!(consumer.nothing_comes().await, "the group is paused");
    assert_eq!(server.figures("work", "team").await.expect("it is there").status(), Status::Paused);
    answer(client.resume_group(of_group!(ResumeGroupRequest, "work", "team")).await);
    let got = consumer.receive(3).await;
    assert_eq!(consumer.ack(&got, 1..=3).await, [(Outcome::Acked, 3)]);

    let to = |at| Some(v1::Start { at: Some(at) });
    let reset = of_group!(ResetGroupRequest, "work", "team", to: to(At::Seq(3)));
    assert_eq!(answer(client.reset_group(reset).await).checkpoint_seq, 2);
    assert_eq!(consumer.receive(1).await.seqs(), [3]);
    let reset = of_group!(ResetGroupRequest, "work", "team", to: to(At::Beginning(true)));
    assert_eq!(answer(client.reset_group(reset).await).checkpoint_seq, 0);
    let mut again = consumer.receive(3).await.seqs();
    again.sort_unstable();
    assert_eq!(again, [1, 2, 3]);
    let reset = of_group!(ResetGroupRequest, "work", "team", to: to(At::End(true)));
    assert_eq!(answer(client.reset_group(reset).await).checkpoint_seq, 3);
    let nowhere = client.reset_group(of_group!(ResetGroupRequest, "work", "team")).await;
    is_refused(nowhere, Code::InvalidArgument, "invalid-field", "to must");
    let beyond = of_group!(ResetGroupRequest, "work", "team", to: to(At::Seq(1_000)));
    let text = "the position lies beyond the end of the stream. position=`1000` last=`3`";
    is_refused(client.reset_group(beyond).await, Code::OutOfRange, "no-such-position", text);

    for absent in ["", "nobody"] {
        let (code, kind, text) = match absent {
            "" => (Code::InvalidArgument, "invalid-name", "group must"),
            _ => (Code::NotFound, "no-such-group", "no such group"),
        };
        let pause = client.pause_group(of_group!(PauseGroupRequest, "work", absent)).await;
        is_refused(pause, code, kind, text);
        let resume = client.resume_group(of_group!(ResumeGroupRequest, "work", absent)).await;
        is_refused(resume, code, kind, text);
        let delete = client.delete_group(of_group!(DeleteGroupRequest, "work", absent)).await;
        is_refused(delete, code, kind, text);
        let reset = of_group!(ResetGroupRequest, "work", absent, to: to(At::End(true)));
        is_refused(client.reset_group(reset).await, code, kind, text);
        is_refused(client.get_group(of_group!(GetGroupRequest, "work", absent)).await, code, kind, text);
    }
    answer(client.delete_group(of_group!(DeleteGroupRequest, "work", "team")).await);
    assert_eq!(consumer.ended().await, Some(Code::NotFound), "its consumers are told");
    server.stop();
}
