//! Parked messages and the jobs on them.

use std::time::Duration;

use forebay_wire::v1;
use forebay_wire::v1::job::{State, Work};
use forebay_wire::v1::parked_job_request::Select;
use forebay_wire::v1::settlement::Action;
use tonic::Code;

use super::{answer, is_refused, message, of_group};
use crate::grpc::rig::{Server, publish_one};

/// Publishes messages of these keys, and parks each for the reason beside it.
async fn park(server: &Server, messages: &[(&str, &str)]) {
    let mut client = server.client();
    server.create_group("work", "team").await;
    let of = |(key, _): &(&str, &str)| v1::Message {
        key: (*key).to_owned(),
        r#type: format!("of-{key}"),
        ..message(key)
    };
    publish_one(server, "work", messages.iter().map(of).collect()).await;
    let consumer = "clerk".to_owned();
    let max = messages.len() as u32;
    let request = of_group!(ReceiveRequest, "work", "team", max: max, wait_ms: 10_000, consumer: consumer);
    let got = answer(client.receive(request).await).messages;
    assert_eq!(got.len(), messages.len());
    for (one, (_, reason)) in got.iter().zip(messages) {
        let (leases, action, reason) = (vec![one.lease.clone()], Action::Park.into(), (*reason).to_owned());
        let settle = of_group!(SettleRequest, "work", "team", leases: leases, action: action, reason: reason);
        answer(client.settle(settle).await);
    }
}

const FIVE: [(&str, &str); 5] =
    [("k1", "bad address"), ("k2", "bad address"), ("k1", "too late"), ("k2", "bad address"), ("k1", "")];

fn seqs(parked: &[v1::Parked]) -> Vec<u64> {
    parked.iter().map(|one| one.seq).collect()
}

async fn parked(server: &Server) -> Vec<u64> {
    let all = answer(server.client().list_parked(of_group!(ListParkedRequest, "work", "team")).await);
    seqs(&all.parked)
}

async fn finished(server: &Server, job: u32) -> v1::Job {
    for _ in 0..500 {
        let of = answer(server.client().get_job(of_group!(GetJobRequest, "work", "team", job: job)).await);
        if of.state() != State::Running {
            return of;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the job does not end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_parked_can_be_seen() {
    let server = Server::start_in_memory().await;
    let mut client = server.client();
    park(&server, &FIVE).await;
    let first = answer(client.list_parked(of_group!(ListParkedRequest, "work", "team", limit: 2)).await);
    assert_eq!((seqs(&first.parked), first.next), (vec![1, 2], 2));
    let rest = of_group!(ListParkedRequest, "work", "team", after: first.next);
    let rest = answer(client.list_parked(rest).await);
    assert_eq!((seqs(&rest.parked), rest.next), (vec![3, 4, 5], 0));
    let filter = |reason: &str, key: &str, kind: &str| {
        Some(v1::ParkedFilter { reason: reason.to_owned(), key: key.to_owned(), r#type: kind.to_owned() })
    };
    for (filter, expected) in [
        (filter("bad address", "", ""), vec![1, 2, 4]),
        (filter("", "k1", ""), vec![1, 3, 5]),
        (filter("bad address", "", "of-k2"), vec![2, 4]),
        (filter("unheard of", "", ""), vec![]),
    ] {
        let some = of_group!(ListParkedRequest, "work", "team", filter: filter.clone());
        assert_eq!(seqs(&answer(client.list_parked(some).await).parked), expected, "{filter:?}");
    }
    let one = answer(client.get_parked(of_group!(GetParkedRequest, "work", "team", seq: 3)).await);
    assert_eq!((one.seq, one.attempts, &one.reason[..], &one.consumer[..]), (3, 1, "too late", "clerk"));
    assert!(one.parked_at_us > 0);
    assert_eq!(one.message.as_ref().map(|message| &message.key[..]), Some("k1"));
    let [failure] = &one.history[..] else { panic!("one failure: {:?}", one.history) };
    assert_eq!((failure.attempt, failure.cause()), (1, v1::failure::Cause::Nack));
    let reasons =
        answer(client.list_parked_reasons(of_group!(ListParkedReasonsRequest, "work", "team")).await);
    let reasons: Vec<(&str, u64)> = reasons.reasons.iter().map(|of| (&of.reason[..], of.count)).collect();
    assert_eq!(reasons, [("bad address", 3), ("(no reason given)", 1), ("too late", 1)]);

    let wrong = client.get_parked(of_group!(GetParkedRequest, "work", "team", seq: 99)).await;
    is_refused(wrong, Code::NotFound, "not-parked", "the message is not parked");
    let wrong = client.get_parked(of_group!(GetParkedRequest, "work", "team")).await;
    is_refused(wrong, Code::InvalidArgument, "invalid-field", "seq must");
    let wrong = client.list_parked(of_group!(ListParkedRequest, "work", "team", limit: 1_001)).await;
    is_refused(wrong, Code::InvalidArgument, "invalid-field", "limit must");
    let absent = client.list_parked(of_group!(ListParkedRequest, "work", "nobody")).await;
    is_refused(absent, Code::NotFound, "no-such-group", "no such group");
    let absent = client.list_parked_reasons(of_group!(ListParkedReasonsRequest, "work", "nobody")).await;
    is_refused(absent, Code::NotFound, "no-such-group", "no such group");
    server.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_parked_is_replayed_and_discarded_by_selection() {
    let server = Server::start_in_memory().await;
    let mut client = server.client();
    park(&server, &FIVE).await;
    let of = |select: Option<Select>| of_group!(ParkedJobRequest, "work", "team", select: select);
    let filter = |reason: &str, key: &str| {
        let (reason, key) = (reason.to_owned(), key.to_owned());
        Some(Select::Filter(v1::ParkedFilter { reason, key, ..Default::default() }))
    };
    let some = |seqs: &[u64]| Some(Select::Seqs(v1::Seqs { seqs: seqs.to_vec() }));
    for (select, expected) in [
        (filter("bad address", ""), 3),
        (filter("bad address", "k1"), 1),
        (some(&[1, 2, 99]), 2),
        (Some(Select::All(true)), 5),
    ] {
        let dry = v1::ParkedJobRequest { dry_run: true, ..of(select.clone()) };
        let counted = answer(client.replay_parked(dry).await);
        assert_eq!((counted.matched, counted.job), (expected, 0), "{select:?}");
    }
    assert_eq!(parked(&server).await.len(), 5, "a dry run does nothing");

    let started = answer(client.replay_parked(of(some(&[1]))).await);
    assert_eq!(started.matched, 1);
    let job = finished(&server, started.job).await;
    assert_eq!((job.state(), job.work(), job.matched, job.done), (State::Done, Work::Replay, 1, 1));
    assert!(job.started_at_us > 0 && job.ended_at_us >= job.started_at_us);
    let limited = v1::ParkedJobRequest { limit: 1, ..of(filter("bad address", "k2")) };
    let started = answer(client.discard_parked(limited).await);
    assert_eq!((started.matched, finished(&server, started.job).await.work()), (1, Work::Discard));
    assert_eq!(parked(&server).await, [3, 4, 5]);
    let request = of_group!(ReceiveRequest, "work", "team", max: 10, wait_ms: 10_000);
    let back = answer(client.receive(request).await).messages;
    assert_eq!((back.len(), back[0].seq), (1, 1), "what was replayed comes again");
    let nothing = answer(client.discard_parked(of(filter("unheard of", ""))).await);
    assert_eq!((nothing.matched, nothing.job), (0, 0));

    for empty in [None, some(&[]), Some(Select::All(false)), filter("", "")] {
        let refused = client.discard_parked(of(empty.clone())).await;
        is_refused(refused, Code::InvalidArgument, "empty-selection", "no message is selected");
        is_refused(
            client.replay_parked(of(empty)).await,
            Code::InvalidArgument,
            "empty-selection",
            "no message is selected",
        );
    }
    let rate = Some(v1::Rate { per_second: 0.0, burst: 1 });
    let wrong = v1::ParkedJobRequest { rate, ..of(Some(Select::All(true))) };
    let wrong = client.replay_parked(wrong).await;
    is_refused(wrong, Code::InvalidArgument, "invalid-field", "rate.per_second must be between ");
    let wrong = client.replay_parked(of(some(&vec![1; 10_001]))).await;
    is_refused(wrong, Code::InvalidArgument, "invalid-field", "seqs must");
    assert_eq!(parked(&server).await, [3, 4, 5]);
    server.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_is_watched_and_cancelled() {
    let server = Server::start_in_memory().await;
    let mut client = server.client();
    park(&server, &FIVE).await;
    let rate = Some(v1::Rate { per_second: 0.01, burst: 1 });
    let request = of_group!(ParkedJobRequest, "work", "team", select: Some(Select::All(true)), rate: rate);
    let job = answer(client.discard_parked(request).await).job;
    let jobs = answer(client.list_jobs(of_group!(ListJobsRequest, "work", "team")).await).jobs;
    assert_eq!(jobs.len(), 1);
    assert_eq!((jobs[0].job, jobs[0].state(), jobs[0].matched, jobs[0].rate), (job, State::Running, 5, rate));
    answer(client.cancel_job(of_group!(CancelJobRequest, "work", "team", job: job)).await);
    let over = finished(&server, job).await;
    assert_eq!(over.state(), State::Cancelled);
    assert!(over.done < 5 && parked(&server).await.len() as u64 == 5 - over.done);
    let again = client.cancel_job(of_group!(CancelJobRequest, "work", "team", job: job)).await;
    is_refused(again, Code::NotFound, "no-such-job", "no such job");
    let absent = client.get_job(of_group!(GetJobRequest, "work", "team", job: 99)).await;
    is_refused(absent, Code::NotFound, "no-such-job", "no such job");
    let absent = client.get_job(of_group!(GetJobRequest, "work", "team")).await;
    is_refused(absent, Code::InvalidArgument, "invalid-field", "job must");
    let absent = client.list_jobs(of_group!(ListJobsRequest, "work", "nobody")).await;
    is_refused(absent, Code::NotFound, "no-such-group", "no such group");
    server.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_edited_copy_takes_the_place_of_a_parked_message() {
    let server = Server::start_in_memory().await;
    let mut client = server.client();
    park(&server, &FIVE).await;
    let edited = Some(v1::Message { key: "k1".to_owned(), ..message("edited") });
    let request = of_group!(ResubmitParkedRequest, "work", "team", seq: 3, message: edited.clone());
    let resubmitted = answer(client.resubmit_parked(request.clone()).await);
    assert_eq!((resubmitted.seq, resubmitted.duplicate), (6, false));
    assert_eq!(parked(&server).await, [1, 2, 4, 5]);
    let receive = of_group!(ReceiveRequest, "work", "team", max: 10, wait_ms: 10_000);
    let got = answer(client.receive(receive).await).messages;
    assert_eq!(got.iter().map(|one| one.seq).collect::<Vec<_>>(), [6]);
    let copy = got[0].message.as_ref().expect("a message");
    assert_eq!((&copy.body[..], &copy.r#type[..]), (&b"edited"[..], "of-k1"), "the rest is as it was");
    let (empty, clear) = (Some(v1::Message::default()), vec!["key".to_owned()]);
    let cleared =
        of_group!(ResubmitParkedRequest, "work", "team", seq: 5, message: empty.clone(), clear: clear);
    answer(client.resubmit_parked(cleared).await);
    let receive = of_group!(ReceiveRequest, "work", "team", max: 10, wait_ms: 10_000);
    let got = answer(client.receive(receive).await).messages;
    let copy = got[0].message.as_ref().expect("a message");
    assert_eq!((&copy.body[..], &copy.key[..], &copy.r#type[..]), (&b"k1"[..], "", "of-k1"));
    let clear = vec!["colour".to_owned()];
    let wrong = of_group!(ResubmitParkedRequest, "work", "team", seq: 1, message: empty, clear: clear);
    is_refused(client.resubmit_parked(wrong).await, Code::InvalidArgument, "invalid-field", "clear must");

    is_refused(client.resubmit_parked(request).await, Code::NotFound, "not-parked", "the message is not");
    let none = of_group!(ResubmitParkedRequest, "work", "team", seq: 1);
    is_refused(client.resubmit_parked(none).await, Code::InvalidArgument, "invalid-field", "message must");
    let wrong = Some(v1::Message { priority: 10, ..message("x") });
    let wrong = of_group!(ResubmitParkedRequest, "work", "team", seq: 1, message: wrong);
    let text = "message.priority must";
    is_refused(client.resubmit_parked(wrong).await, Code::InvalidArgument, "invalid-field", text);
    let large = Some(message(&"x".repeat((1 << 20) + (512 << 10))));
    let large = of_group!(ResubmitParkedRequest, "work", "team", seq: 1, message: large);
    let refused = client.resubmit_parked(large).await;
    is_refused(refused, Code::InvalidArgument, "message-too-large", "message is too large");
    assert_eq!(parked(&server).await, [1, 2, 4], "what was refused changed nothing");
    server.stop();
}
