//! The largest numbers that fit into a field. Whatever they are answered with, the server goes on.

use forebay_wire::v1;
use forebay_wire::v1::parked_job_request::Select;
use forebay_wire::v1::settlement::Action;
use forebay_wire::v1::start::At;

use super::{answer, message, of_group, of_stream};
use crate::grpc::rig::{Server, publish_one, send};

const MAX: u64 = u64::MAX;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn numbers_at_the_edge_do_no_harm() {
    let server = Server::start_in_memory().await;
    let mut client = server.client();
    server.create_group("work", "team").await;
    publish_one(&server, "work", vec![message("1"), message("2"), message("3")]).await;
    let got = answer(client.receive(of_group!(ReceiveRequest, "work", "team", max: 1)).await).messages;
    let (leases, action) = (vec![got[0].lease.clone()], Action::Park.into());
    answer(client.settle(of_group!(SettleRequest, "work", "team", leases: leases, action: action)).await);

    for from in [MAX, MAX - 1] {
        let read = of_stream!(ReadMessagesRequest, "work", from: from);
        assert!(answer(client.read_messages(read).await).messages.is_empty());
        let key = "k".to_owned();
        let read = of_stream!(ReadMessagesRequest, "work", from: from, key: key);
        assert!(answer(client.read_messages(read).await).messages.is_empty());
        let follow = of_stream!(FollowStreamRequest, "work", from: from);
        drop(answer(client.follow_stream(follow).await));
        let list = of_group!(ListParkedRequest, "work", "team", after: from);
        assert!(answer(client.list_parked(list).await).parked.is_empty());
        let _ = client.get_parked(of_group!(GetParkedRequest, "work", "team", seq: from)).await;
        let edited = Some(message("x"));
        let resubmit = of_group!(ResubmitParkedRequest, "work", "team", seq: from, message: edited);
        client.resubmit_parked(resubmit).await.expect_err("it is not parked");
        for seqs in [vec![from], vec![0, 1, from], vec![MAX, MAX - 1, MAX]] {
            let select = Some(Select::Seqs(v1::Seqs { seqs }));
            let dry = of_group!(ParkedJobRequest, "work", "team", select: select, dry_run: true, limit: MAX);
            answer(client.replay_parked(dry).await);
        }
        let select = Some(Select::Seqs(v1::Seqs { seqs: vec![from] }));
        let none =
            answer(client.discard_parked(of_group!(ParkedJobRequest, "work", "team", select: select)).await);
        assert_eq!((none.matched, none.job), (0, 0));
        for at in [At::Seq(from), At::TimeUs(from), At::Seq(0), At::TimeUs(0)] {
            let to = Some(v1::Start { at: Some(at) });
            let _ = client.reset_group(of_group!(ResetGroupRequest, "work", "team", to: to)).await;
            let group = format!("{at:?}");
            let _ = client.create_group(of_group!(CreateGroupRequest, "work", group, start: to)).await;
        }
        let wait = of_group!(ReceiveRequest, "work", "team", wait_ms: from);
        client.receive(wait).await.expect_err("nobody waits that long");
        let timeout = of_group!(ReceiveRequest, "work", "team", timeout_ms: Some(from));
        client.receive(timeout).await.expect_err("no lease is that long");
        let scaling =
            of_group!(GetScalingRequest, "work", "team", target_drain_ms: from, max: Some(u32::MAX));
        let _ = client.get_scaling(scaling).await;

        let of = |message: v1::Message| of_stream!(PublishRequest, "work", messages: vec![message]);
        let stamp = v1::Producer { id: from, epoch: u32::MAX, counter: from };
        send(
            &server,
            vec![
                of(v1::Message { ttl_ms: from, ..message("x") }),
                of(v1::Message { delay_ms: from, ..message("x") }),
                of(v1::Message { deliver_at_us: from, ..message("x") }),
                of(v1::Message { schema: Some(from), ..message("x") }),
                v1::PublishRequest { expect_last_seq: Some(from), ..of(message("x")) },
                v1::PublishRequest { producer: Some(stamp), ..of(message("x")) },
            ],
        )
        .await;
    }
    let limits = v1::StreamLimits { max_messages: Some(MAX), max_bytes: Some(MAX), ..Default::default() };
    let settings = v1::StreamSettings { limits: Some(limits), ..Default::default() };
    let update = of_stream!(UpdateStreamRequest, "work", settings: Some(settings));
    let _ = client.update_stream(update).await;
    let settings = v1::GroupSettings {
        window_max: Some(u32::MAX),
        buffer: Some(u32::MAX),
        max_in_flight: Some(u32::MAX),
        key_batch: Some(u32::MAX),
        parked_max: Some(u32::MAX),
        max_retries: Some(v1::Retries { retries: Some(v1::retries::Retries::AtMost(u32::MAX)) }),
        rate: Some(v1::Rate { per_second: 1e7, burst: u32::MAX }),
        ..Default::default()
    };
    let update = of_group!(UpdateGroupRequest, "work", "team", settings: Some(settings));
    let _ = client.update_group(update).await;
    publish_one(&server, "work", vec![message("last")]).await;
    server.figures("work", "team").await.expect("the server goes on");
    server.stop();
}
