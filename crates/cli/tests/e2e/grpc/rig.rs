//! A server with a client of its gRPC API, and a consumer's session.

use std::ops::RangeInclusive;
use std::time::Duration;

use forebay_wire::v1;
use forebay_wire::v1::forebay_client::ForebayClient;
use forebay_wire::v1::outcome_run::Outcome;
use forebay_wire::v1::settlement::Action;
use tokio::sync::mpsc;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

use crate::rig::{Folder, Process, address_after};

/// Long enough for anything that happens at all.
const PATIENCE: Duration = Duration::from_secs(20);
/// Long enough to say that something does not happen.
const MOMENT: Duration = Duration::from_millis(200);

/// A running server. Killed if the test does not stop it.
pub(crate) struct Server {
    process: Process,
    pub(crate) address: String,
    channel: Channel,
    client: ForebayClient<Channel>,
}

impl Server {
    pub(crate) async fn start(folder: &Folder) -> Server {
        Server::start_with(&["--data", folder.path()]).await
    }

    pub(crate) async fn start_in_memory() -> Server {
        Server::start_with(&["--memory"]).await
    }

    async fn start_with(words: &[&str]) -> Server {
        let usual = ["--log", "text", "--drain-timeout", "2s", "--listen", "127.0.0.1:0"];
        let words = [&usual[..], words].concat();
        let (process, address) = Process::serve(&words, |line| address_after("listening on ", line));
        let endpoint = Channel::from_shared(format!("http://{address}")).expect("an address");
        let channel = endpoint.connect().await.expect("the server listens");
        let client = ForebayClient::new(channel.clone()).max_decoding_message_size(64 << 20);
        Server { process, address, channel, client }
    }

    pub(crate) fn client(&self) -> ForebayClient<Channel> {
        self.client.clone()
    }

    /// For clients of other services on the port.
    pub(crate) fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// As a power failure ends it, as far as the process is concerned.
    pub(crate) fn kill(self) {
        self.process.kill();
    }

    /// Stops it as an operator does, and sees that it stopped cleanly.
    pub(crate) fn stop(self) {
        self.process.stop();
    }

    /// Asks it to stop, and does not wait until it has.
    pub(crate) fn terminate(&self) {
        self.process.terminate();
    }

    /// Waits until it has ended, and says with which code.
    pub(crate) fn ended(self) -> Option<i32> {
        self.process.ended()
    }

    pub(crate) async fn create_group(&self, stream: &str, group: &str) {
        let request = v1::CreateGroupRequest {
            stream: stream.to_owned(),
            group: group.to_owned(),
            ..Default::default()
        };
        self.client().create_group(request).await.expect("the group is there");
    }

    pub(crate) async fn create_group_with_timeout(
        &self,
        stream: &str,
        group: &str,
        millis: u64,
    ) -> Result<(), Status> {
        let settings = v1::GroupSettings { message_timeout_ms: Some(millis), ..Default::default() };
        self.create_group_as(stream, group, settings).await
    }

    pub(crate) async fn create_group_as(
        &self,
        stream: &str,
        group: &str,
        settings: v1::GroupSettings,
    ) -> Result<(), Status> {
        let request = v1::CreateGroupRequest {
            stream: stream.to_owned(),
            group: group.to_owned(),
            settings: Some(settings),
            ..Default::default()
        };
        self.client().create_group(request).await.map(|_| ())
    }

    pub(crate) async fn figures(&self, stream: &str, group: &str) -> Result<v1::GetGroupReply, Status> {
        let request = v1::GetGroupRequest { stream: stream.to_owned(), group: group.to_owned() };
        self.client().get_group(request).await.map(tonic::Response::into_inner)
    }
}

/// Publishes in batches of `size`, all at once, and returns where each batch is.
pub(crate) async fn publish(
    server: &Server,
    stream: &str,
    bodies: impl IntoIterator<Item = impl Into<String>>,
    size: usize,
) -> Vec<(u64, u32)> {
    let messages: Vec<v1::Message> = bodies
        .into_iter()
        .map(|body| v1::Message { body: body.into().into(), ..v1::Message::default() })
        .collect();
    let requests: Vec<v1::PublishRequest> = messages
        .chunks(size)
        .zip(1..)
        .map(|(messages, ticket)| {
            // Only the first one names the stream.
            let stream = if ticket == 1 { stream.to_owned() } else { String::new() };
            v1::PublishRequest { stream, messages: messages.to_vec(), ticket, ..Default::default() }
        })
        .collect();
    let confirmations = send(server, requests).await;
    let tickets: Vec<u64> = confirmations.iter().map(|confirmation| confirmation.ticket).collect();
    assert_eq!(tickets, (1..=tickets.len() as u64).collect::<Vec<_>>(), "answers come in order");
    confirmations.iter().map(|confirmation| (confirmation.first_seq, confirmation.count)).collect()
}

pub(crate) async fn publish_one(
    server: &Server,
    stream: &str,
    messages: Vec<v1::Message>,
) -> v1::Confirmation {
    let request = v1::PublishRequest { stream: stream.to_owned(), messages, ticket: 1, ..Default::default() };
    send(server, vec![request]).await.remove(0)
}

pub(crate) async fn send(server: &Server, requests: Vec<v1::PublishRequest>) -> Vec<v1::Confirmation> {
    let mut replies =
        server.client().publish(tokio_stream::iter(requests)).await.expect("the call is open").into_inner();
    let mut confirmations = Vec::new();
    while let Some(reply) = replies.message().await.expect("the call goes on") {
        confirmations.extend(reply.confirmations);
    }
    confirmations
}

/// What came, one by one.
#[derive(Debug, Default)]
pub(crate) struct Received {
    pub(crate) epoch: u32,
    pub(crate) messages: Vec<ReceivedMessage>,
    pub(crate) raw: Vec<v1::Message>,
}

#[derive(Debug)]
pub(crate) struct ReceivedMessage {
    pub(crate) seq: u64,
    pub(crate) grant: u64,
    pub(crate) attempt: u32,
    /// How long its lease lasts, by the server's clock.
    pub(crate) left_us: u64,
    pub(crate) body: String,
}

impl Received {
    pub(crate) fn seqs(&self) -> Vec<u64> {
        self.messages.iter().map(|message| message.seq).collect()
    }

    pub(crate) fn attempts(&self) -> Vec<u32> {
        self.messages.iter().map(|message| message.attempt).collect()
    }

    fn extend(&mut self, deliveries: Option<v1::Deliveries>) {
        if let Some(deliveries) = deliveries {
            self.take(deliveries);
        }
    }

    fn take(&mut self, deliveries: v1::Deliveries) {
        self.epoch = deliveries.epoch;
        let mut bodies = deliveries.messages.into_iter();
        for run in &deliveries.runs {
            for n in 0..u64::from(run.count) {
                let message = bodies.next().expect("runs count messages");
                let body = String::from_utf8_lossy(&message.body).into_owned();
                let (seq, grant) = (run.first_seq + n, run.first_grant + n);
                let left_us = run.deadline_us.saturating_sub(deliveries.now_us);
                self.messages.push(ReceivedMessage { seq, grant, attempt: run.attempt, left_us, body });
                self.raw.push(message);
            }
        }
        assert!(bodies.next().is_none(), "every message is in a run");
    }
}

/// A consumer over one call.
pub(crate) struct Session {
    requests: mpsc::Sender<v1::ConsumeRequest>,
    replies: Streaming<v1::ConsumeReply>,
    early: Received,
}

impl Session {
    pub(crate) async fn open(server: &Server, stream: &str, group: &str, credit: u32) -> Session {
        Session::try_open(server, stream, group, credit).await.expect("the group lets it in")
    }

    pub(crate) async fn try_open(
        server: &Server,
        stream: &str,
        group: &str,
        credit: u32,
    ) -> Result<Session, Status> {
        Session::opened(server, stream, group, credit, None).await
    }

    /// With a limit in bytes as well.
    pub(crate) async fn open_within(
        server: &Server,
        stream: &str,
        group: &str,
        credit: u32,
        bytes: u64,
    ) -> Session {
        Session::opened(server, stream, group, credit, Some(bytes)).await.expect("the group lets it in")
    }

    async fn opened(
        server: &Server,
        stream: &str,
        group: &str,
        credit: u32,
        credit_bytes: Option<u64>,
    ) -> Result<Session, Status> {
        let (requests, sent) = mpsc::channel(64);
        let (stream, group) = (stream.to_owned(), group.to_owned());
        let open = v1::Open { stream, group, consumer: "test".to_owned(), credit, ..Default::default() };
        requests
            .try_send(v1::ConsumeRequest { open: Some(open), credit_bytes, ..Default::default() })
            .expect("the queue is empty");
        let sent = tokio_stream::wrappers::ReceiverStream::new(sent);
        let mut replies = server.client().consume(sent).await?.into_inner();
        let first = replies.message().await?.expect("a first reply");
        assert!(first.opened.is_some_and(|opened| opened.epoch > 0));
        let mut early = Received::default();
        if let Some(deliveries) = first.deliveries {
            early.take(deliveries);
        }
        Ok(Session { requests, replies, early })
    }

    async fn send(&self, request: v1::ConsumeRequest) {
        self.requests.send(request).await.expect("the call is open");
    }

    async fn reply(&mut self) -> Result<Option<v1::ConsumeReply>, Status> {
        tokio::time::timeout(PATIENCE, self.replies.message()).await.expect("something comes")
    }

    pub(crate) async fn receive(&mut self, count: usize) -> Received {
        let mut received = std::mem::take(&mut self.early);
        while received.messages.len() < count {
            let reply = self.reply().await.expect("the call goes on").expect("the call goes on");
            if let Some(deliveries) = reply.deliveries {
                received.take(deliveries);
            }
        }
        assert_eq!(received.messages.len(), count, "no more than that: {received:?}");
        received
    }

    pub(crate) async fn nothing_comes(&mut self) -> bool {
        self.early.messages.is_empty() && tokio::time::timeout(MOMENT, self.replies.message()).await.is_err()
    }

    /// Whether everything that has come was taken.
    pub(crate) fn early_is_empty(&self) -> bool {
        self.early.messages.is_empty()
    }

    pub(crate) async fn credit(&self, credit: u32) {
        self.send(v1::ConsumeRequest { credit: Some(credit), ..Default::default() }).await;
    }

    pub(crate) async fn ack(&mut self, of: &Received, seqs: RangeInclusive<u64>) -> Vec<(Outcome, u32)> {
        self.settle(of.epoch, of, seqs, Action::Ack, None).await
    }

    /// Settles one message, with a reason.
    pub(crate) async fn settle_one(
        &mut self,
        of: &Received,
        seq: u64,
        action: Action,
        delay_ms: Option<u64>,
    ) -> Outcome {
        let outcomes = self.settle(of.epoch, of, seq..=seq, action, delay_ms).await;
        assert_eq!(outcomes.len(), 1);
        outcomes[0].0
    }

    /// Gives a message back, and asks for a rest of the group.
    pub(crate) async fn rest(&mut self, of: &Received, seq: u64, rest_ms: u64) -> Vec<(Outcome, u32)> {
        let wish = v1::Settlement { rest_ms: Some(rest_ms), ..Default::default() };
        self.settle_with(of.epoch, of, seq..=seq, Action::Return, wish).await
    }

    pub(crate) async fn retry(
        &mut self,
        of: &Received,
        seqs: RangeInclusive<u64>,
        delay_ms: u64,
    ) -> Vec<(Outcome, u32)> {
        self.settle(of.epoch, of, seqs, Action::Retry, Some(delay_ms)).await
    }

    pub(crate) async fn settle_as(
        &mut self,
        epoch: u32,
        of: &Received,
        seqs: RangeInclusive<u64>,
    ) -> Vec<(Outcome, u32)> {
        self.settle(epoch, of, seqs, Action::Ack, None).await
    }

    async fn settle(
        &mut self,
        epoch: u32,
        of: &Received,
        seqs: RangeInclusive<u64>,
        action: Action,
        delay_ms: Option<u64>,
    ) -> Vec<(Outcome, u32)> {
        let wish = v1::Settlement { delay_ms, ..Default::default() };
        self.settle_with(epoch, of, seqs, action, wish).await
    }

    /// `wish`: what the settlement says beside what it is about.
    async fn settle_with(
        &mut self,
        epoch: u32,
        of: &Received,
        seqs: RangeInclusive<u64>,
        action: Action,
        wish: v1::Settlement,
    ) -> Vec<(Outcome, u32)> {
        let first = of.messages.iter().find(|message| message.seq == *seqs.start()).expect("it was received");
        let count = (seqs.end() - seqs.start() + 1) as u32;
        let leases = vec![v1::LeaseRun { first_seq: first.seq, first_grant: first.grant, count }];
        let settlement = v1::Settlement {
            ticket: first.seq,
            action: action.into(),
            epoch,
            leases,
            reason: "because".to_owned(),
            ..wish
        };
        self.send(v1::ConsumeRequest { settlements: vec![settlement], ..Default::default() }).await;
        loop {
            let reply = self.reply().await.expect("the call goes on").expect("the call goes on");
            if let Some(deliveries) = reply.deliveries {
                self.early.take(deliveries);
            }
            if let Some(settled) = reply.settled.first() {
                assert_eq!((settled.ticket, &settled.problem), (first.seq, &None));
                return settled.outcomes.iter().map(|run| (run.outcome(), run.count)).collect();
            }
        }
    }

    /// Sends one message to another stream.
    pub(crate) async fn move_one(&mut self, of: &Received, seq: u64, to: &str) -> Outcome {
        let lease = of.messages.iter().find(|message| message.seq == seq).expect("it was received");
        let leases = vec![v1::LeaseRun { first_seq: seq, first_grant: lease.grant, count: 1 }];
        let (epoch, action, move_to) = (of.epoch, Action::Move.into(), to.to_owned());
        let settlement = v1::Settlement { action, epoch, leases, move_to, ..Default::default() };
        self.send(v1::ConsumeRequest { settlements: vec![settlement], ..Default::default() }).await;
        let reply = self.reply().await.expect("the call goes on").expect("the call goes on");
        reply.settled[0].outcomes[0].outcome()
    }

    /// The error of a refused call.
    pub(crate) async fn refused(
        &mut self,
        of: &Received,
        seq: u64,
        action: i32,
        delay_ms: Option<u64>,
    ) -> v1::Problem {
        let lease = of.messages.iter().find(|message| message.seq == seq).expect("it was received");
        let leases = vec![v1::LeaseRun { first_seq: seq, first_grant: lease.grant, count: 1 }];
        let epoch = of.epoch;
        let settlement = v1::Settlement { action, epoch, leases, delay_ms, ..Default::default() };
        self.send(v1::ConsumeRequest { settlements: vec![settlement], ..Default::default() }).await;
        let reply = self.reply().await.expect("the call goes on").expect("the call goes on");
        let settled = reply.settled.first().cloned().expect("an answer");
        assert!(settled.outcomes.is_empty(), "nothing was changed");
        settled.problem.expect("a problem")
    }

    /// Works through everything that comes until the call breaks. Calls `came` for each message that comes,
    /// `done` for it just before its ack, and `acked` for each answered ack.
    pub(crate) async fn work(
        mut self,
        mut came: impl FnMut(&ReceivedMessage, &v1::Message),
        mut done: impl FnMut(&v1::Message),
        mut acked: impl FnMut(u64),
    ) {
        let mut received = std::mem::take(&mut self.early);
        loop {
            for (message, raw) in received.messages.iter().zip(&received.raw) {
                came(message, raw);
            }
            for (message, raw) in received.messages.iter().zip(&received.raw) {
                tokio::time::sleep(Duration::from_millis(1)).await;
                done(raw);
                let run = v1::LeaseRun { first_seq: message.seq, first_grant: message.grant, count: 1 };
                let settlement = v1::Settlement {
                    ticket: message.seq,
                    action: Action::Ack.into(),
                    epoch: received.epoch,
                    leases: vec![run],
                    ..Default::default()
                };
                let request = v1::ConsumeRequest { settlements: vec![settlement], ..Default::default() };
                if self.requests.send(request).await.is_err() {
                    return;
                }
            }
            received = Received::default();
            let Ok(Some(reply)) = self.replies.message().await else { return };
            for settled in &reply.settled {
                if settled.outcomes.iter().all(|run| run.outcome() == Outcome::Acked) {
                    acked(settled.ticket);
                }
            }
            if let Some(deliveries) = reply.deliveries {
                received.take(deliveries);
            }
        }
    }

    pub(crate) async fn goodbye(mut self) {
        self.send(v1::ConsumeRequest { goodbye: true, ..Default::default() }).await;
        while self.reply().await.expect("a goodbye ends well").is_some() {}
    }

    /// The status that the call ends with; `None` if it ends well.
    pub(crate) async fn ended(&mut self) -> Option<tonic::Code> {
        loop {
            match self.reply().await {
                Ok(Some(reply)) => self.early.extend(reply.deliveries),
                Ok(None) => return None,
                Err(status) => return Some(status.code()),
            }
        }
    }
}
