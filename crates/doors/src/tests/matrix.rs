//! Every call of every door, with every kind of credential: allowed or refused as one table says, and a call that is
//! refused changes nothing.
//!
//! | Credential | The answer |
//! | --- | --- |
//! | none, a wrong one, an expired one, a revoked one | the client is not known |
//! | one with the same right on another stream | denied; a list leaves the stream out |
//! | one with the right that the table names, and no other | done, or refused for another reason |
//!
//! The table is held complete against the router, the services, and the actions and routes of the other doors.

mod client;
mod jwt;
mod kurrent;
mod limits;
mod native;
#[cfg(feature = "dashboard")]
mod pages;
mod sqs;
mod users;

use std::sync::Arc;
use std::time::Duration;

use forebay_broker::api::{
    Broker, BrokerConfig, Caller, Clock, CredentialKind, CredentialTerms, NewCredential, Principal,
};
use forebay_core::types::{GroupName, StreamName};
use forebay_storage::memory::{MemoryEngine, MemoryLog};

/// The right that a call needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needs {
    /// No credential.
    Nothing,
    /// Any credential.
    Known,
    /// Any credential; the answer has only what it may see.
    Seen,
    /// A credential with these grants.
    Grants(&'static str),
}

use Needs::{Grants, Known, Nothing, Seen};

const TRIAGE: Needs = Grants("triage:work/team");
const CONSUME: Needs = Grants("consume:work/team");
const OPERATE: Needs = Grants("operate:work/team");
const VIEW: Needs = Grants("view:work/team");
const TRANSACTION: Needs = Grants("consume:work/team,publish:work");
const RESUBMIT: Needs = Grants("triage:work/team,publish:work");
const MOVE_PARKED: Needs = Grants("triage:work/team,publish:other");
const KURRENT_DELETE: Needs = Grants("configure+operate:work,configure+publish+read:$$work");

/// Every call: over HTTP its method and path, over gRPC and SQS its name; and what it needs. The calls
/// of doors other than the native one have a word before them.
pub(crate) const TABLE: &[(&str, Needs)] = &[
    // HTTP.
    ("PUT /streams/{stream}", Grants("configure:work")),
    ("PATCH /streams/{stream}", Grants("configure:work")),
    ("GET /streams/{stream}", Grants("view:work")),
    ("DELETE /streams/{stream}", Grants("configure:work")),
    ("GET /streams", Seen),
    ("POST /streams/{stream}/messages", Grants("publish:work")),
    ("GET /streams/{stream}/messages", Grants("read:work")),
    ("GET /streams/{stream}/messages/{seq}/life", Grants("view:work")),
    ("POST /streams/{stream}/purge", Grants("operate:work")),
    ("POST /streams/{stream}/truncate", Grants("operate:work")),
    ("POST /transactions", TRANSACTION),
    ("GET /streams/{stream}/follow", Grants("read:work")),
    // Messages of streams that the credential may not read are left out.
    ("GET /log", Known),
    ("GET /log/follow", Known),
    ("PUT /streams/{stream}/groups/{group}", Grants("configure:work/*")),
    ("PATCH /streams/{stream}/groups/{group}", Grants("configure:work/team")),
    ("GET /streams/{stream}/groups/{group}", VIEW),
    ("DELETE /streams/{stream}/groups/{group}", Grants("configure:work/team")),
    ("GET /groups", Seen),
    ("GET /streams/{stream}/groups", VIEW),
    ("POST /streams/{stream}/groups/{group}/pause", OPERATE),
    ("POST /streams/{stream}/groups/{group}/resume", OPERATE),
    ("POST /streams/{stream}/groups/{group}/reset", OPERATE),
    ("GET /streams/{stream}/groups/{group}/scaling", VIEW),
    ("GET /streams/{stream}/groups/{group}/history", VIEW),
    ("POST /streams/{stream}/groups/{group}/receive", CONSUME),
    ("POST /streams/{stream}/groups/{group}/ack", CONSUME),
    ("POST /streams/{stream}/groups/{group}/nack", CONSUME),
    ("POST /streams/{stream}/groups/{group}/extend", CONSUME),
    ("GET /streams/{stream}/groups/{group}/parked", TRIAGE),
    ("GET /streams/{stream}/groups/{group}/parked/reasons", TRIAGE),
    ("GET /streams/{stream}/groups/{group}/parked/{seq}", TRIAGE),
    ("POST /streams/{stream}/groups/{group}/parked/replay", TRIAGE),
    ("POST /streams/{stream}/groups/{group}/parked/discard", TRIAGE),
    ("POST /streams/{stream}/groups/{group}/parked/move", MOVE_PARKED),
    ("POST /streams/{stream}/groups/{group}/parked/{seq}/resubmit", RESUBMIT),
    ("GET /streams/{stream}/groups/{group}/jobs", VIEW),
    ("GET /streams/{stream}/groups/{group}/jobs/{job}", VIEW),
    ("DELETE /streams/{stream}/groups/{group}/jobs/{job}", TRIAGE),
    ("POST /credentials", Grants("admin:*")),
    ("GET /credentials", Grants("admin:*")),
    ("PUT /credentials/{id}/password", Grants("admin:*")),
    ("DELETE /credentials/{id}", Grants("admin:*")),
    ("GET /connections", Grants("monitor:*")),
    ("DELETE /connections/{connection}", Grants("operate:*")),
    ("GET /livez", Nothing),
    ("GET /readyz", Nothing),
    ("GET /metrics", Grants("monitor:*")),
    ("GET /openapi.json", Known),
    ("GET /events", Grants("monitor:*")),
    ("GET /server", Grants("monitor:*")),
    ("GET /history", Grants("monitor:*")),
    ("GET /cluster", Grants("monitor:*")),
    ("GET /problems/{kind}", Nothing),
    ("GET /", Known),
    // gRPC.
    ("Publish", Grants("publish:work")),
    ("PublishOnce", Grants("publish:work")),
    ("Commit", TRANSACTION),
    ("Consume", CONSUME),
    ("Receive", CONSUME),
    ("Settle", CONSUME),
    ("CreateStream", Grants("configure:work")),
    ("UpdateStream", Grants("configure:work")),
    ("GetStream", Grants("view:work")),
    ("ListStreams", Seen),
    ("DeleteStream", Grants("configure:work")),
    ("PurgeStream", Grants("operate:work")),
    ("TruncateStream", Grants("operate:work")),
    ("ReadMessages", Grants("read:work")),
    ("FollowStream", Grants("read:work")),
    ("ReadLog", Known),
    ("FollowLog", Known),
    ("CreateGroup", Grants("configure:work/*")),
    ("UpdateGroup", Grants("configure:work/team")),
    ("GetGroup", VIEW),
    ("ListGroups", Seen),
    ("DeleteGroup", Grants("configure:work/team")),
    ("PauseGroup", OPERATE),
    ("ResumeGroup", OPERATE),
    ("ResetGroup", OPERATE),
    ("GetScaling", VIEW),
    ("ListParked", TRIAGE),
    ("GetParked", TRIAGE),
    ("ListParkedReasons", TRIAGE),
    ("ReplayParked", TRIAGE),
    ("DiscardParked", TRIAGE),
    ("MoveParked", MOVE_PARKED),
    ("ResubmitParked", RESUBMIT),
    ("ListJobs", VIEW),
    ("GetJob", VIEW),
    ("CancelJob", TRIAGE),
    ("CreateCredential", Grants("admin:*")),
    ("ListCredentials", Grants("admin:*")),
    ("ChangePassword", Grants("admin:*")),
    ("RevokeCredential", Grants("admin:*")),
    // SQS, on the queue `work`, whose group is `queue`.
    ("sqs AddPermission", Grants("configure:work")),
    ("sqs CancelMessageMoveTask", Grants("triage:work/queue")),
    ("sqs ChangeMessageVisibility", Grants("consume:work/queue")),
    ("sqs ChangeMessageVisibilityBatch", Grants("consume:work/queue")),
    ("sqs CreateQueue", Grants("configure:work")),
    ("sqs DeleteMessage", Grants("consume:work/queue")),
    ("sqs DeleteMessageBatch", Grants("consume:work/queue")),
    ("sqs DeleteQueue", Grants("configure:work")),
    ("sqs GetQueueAttributes", Grants("view:work/queue")),
    ("sqs GetQueueUrl", Grants("view:work/queue")),
    ("sqs ListDeadLetterSourceQueues", Grants("view:work/queue")),
    ("sqs ListMessageMoveTasks", Grants("view:work/queue")),
    ("sqs ListQueueTags", Grants("view:work/queue")),
    ("sqs ListQueues", Seen),
    ("sqs PurgeQueue", Grants("operate:work")),
    ("sqs ReceiveMessage", Grants("consume:work/queue")),
    ("sqs RemovePermission", Grants("configure:work")),
    ("sqs SendMessage", Grants("publish:work")),
    ("sqs SendMessageBatch", Grants("publish:work")),
    ("sqs SetQueueAttributes", Grants("configure:work")),
    ("sqs StartMessageMoveTask", Grants("triage:work/queue")),
    ("sqs TagQueue", Grants("configure:work")),
    ("sqs UntagQueue", Grants("configure:work")),
    // KEDA's scaler, on the native port.
    ("keda IsActive", VIEW),
    ("keda StreamIsActive", VIEW),
    ("keda GetMetricSpec", Known),
    ("keda GetMetrics", VIEW),
    // Kurrent over gRPC. Metadata of the stream `work` is a stream of its own, `$$work`.
    ("kurrent Streams.Read", Grants("read:work")),
    ("kurrent Streams.Append", Grants("publish:work")),
    ("kurrent Streams.BatchAppend", Grants("publish:work")),
    ("kurrent Streams.Delete", KURRENT_DELETE),
    ("kurrent Streams.Tombstone", Grants("configure:work,configure:$$work")),
    ("kurrent PersistentSubscriptions.Create", Grants("configure:work")),
    ("kurrent PersistentSubscriptions.Update", Grants("configure:work")),
    ("kurrent PersistentSubscriptions.Delete", Grants("configure:work/team")),
    ("kurrent PersistentSubscriptions.Read", CONSUME),
    ("kurrent PersistentSubscriptions.GetInfo", VIEW),
    ("kurrent PersistentSubscriptions.ReplayParked", TRIAGE),
    ("kurrent PersistentSubscriptions.List", Seen),
    ("kurrent PersistentSubscriptions.RestartSubsystem", Grants("monitor:*")),
    ("kurrent PersistentSubscriptions.TruncateParked", TRIAGE),
    ("kurrent ServerFeatures.GetSupportedMethods", Known),
    ("kurrent Gossip.Read", Known),
    // Kurrent over HTTP.
    ("kurrent GET /health/live", Known),
    ("kurrent POST /streams/{stream}", Grants("publish:work")),
    ("kurrent DELETE /streams/{stream}", KURRENT_DELETE),
    ("kurrent GET /subscriptions", Seen),
    ("kurrent GET /subscriptions/{stream}", Grants("view:work")),
    ("kurrent POST /subscriptions/restart", Grants("monitor:*")),
    ("kurrent PUT /subscriptions/{stream}/{group}", Grants("configure:work")),
    ("kurrent POST /subscriptions/{stream}/{group}", Grants("configure:work")),
    ("kurrent DELETE /subscriptions/{stream}/{group}", Grants("configure:work/team")),
    ("kurrent GET /subscriptions/{stream}/{group}/info", VIEW),
    ("kurrent GET /subscriptions/{stream}/{group}", CONSUME),
    ("kurrent GET /subscriptions/{stream}/{group}/{count}", CONSUME),
    ("kurrent POST /subscriptions/{stream}/{group}/ack", CONSUME),
    ("kurrent POST /subscriptions/{stream}/{group}/ack/{id}", CONSUME),
    ("kurrent POST /subscriptions/{stream}/{group}/nack", CONSUME),
    ("kurrent POST /subscriptions/{stream}/{group}/nack/{id}", CONSUME),
    ("kurrent POST /subscriptions/{stream}/{group}/replayParked", TRIAGE),
    ("kurrent POST /subscriptions/{stream}/{group}/truncateParked", TRIAGE),
    ("kurrent GET /subscriptions/viewparkedmessages/{stream}/{group}/{event}/backward/{count}", TRIAGE),
];

/// The words before the calls of other doors.
const OTHERS: [&str; 3] = ["sqs ", "keda ", "kurrent "];

/// Whether a row is of the native API.
fn is_native(call: &str) -> bool {
    !OTHERS.iter().any(|word| call.starts_with(word))
}

fn needs(call: &str) -> Needs {
    let mut rows = TABLE.iter().filter(|(name, _)| *name == call);
    let (_, needs) = rows.next().unwrap_or_else(|| panic!("the table has no row for {call}"));
    assert!(rows.next().is_none(), "the table has two rows for {call}");
    *needs
}

/// The credentials of the columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Credential {
    None,
    Wrong,
    Expired,
    Revoked,
    /// The same right on another stream.
    Elsewhere,
    Right,
}

impl Credential {
    /// In this order, so that a call is made with the right one last.
    const ALL: [Credential; 6] = [
        Credential::None,
        Credential::Wrong,
        Credential::Expired,
        Credential::Revoked,
        Credential::Elsewhere,
        Credential::Right,
    ];
}

/// What a call came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// The client is not known.
    Unknown,
    /// The client is known, and may not.
    Denied,
    /// Done, or refused for a reason that has nothing to do with the client.
    Allowed,
}

fn expected(needs: Needs, credential: Credential) -> Outcome {
    match (needs, credential) {
        (Nothing, _) => Outcome::Allowed,
        (_, Credential::None | Credential::Wrong | Credential::Expired | Credential::Revoked) => {
            Outcome::Unknown
        }
        (Grants(_), Credential::Elsewhere) => Outcome::Denied,
        _ => Outcome::Allowed,
    }
}

const HOUR: Duration = Duration::from_secs(3_600);

/// A server for one row.
struct Stage {
    broker: Broker,
    owner: Caller,
    kind: CredentialKind,
    right: NewCredential,
    elsewhere: NewCredential,
    expired: NewCredential,
    revoked: NewCredential,
}

impl Stage {
    async fn open(kind: CredentialKind, needs: Needs) -> Stage {
        let config = BrokerConfig::new([7; 32]);
        let engine = MemoryEngine::new(MemoryLog::new(config.driver.shard, 32 << 20));
        let clock = Clock::still();
        let (broker, _) = Broker::open(Arc::new(engine), clock, config).await.expect("a new log opens");
        let owner = broker.enter(Principal::owner(), None);
        let grants = match needs {
            Grants(grants) => grants,
            Nothing | Known | Seen => "view:work",
        };
        // A right on everything is less than that on one stream alone.
        let elsewhere = if grants.ends_with(":*") {
            grants.replace(":*", ":work")
        } else {
            grants.replace("work", "other")
        };
        let create = async |grants: &str, expires: Option<Duration>| {
            let terms = CredentialTerms {
                kind,
                name: "ci".to_owned(),
                grants: grants.parse().expect("grants"),
                expires: expires.map(|time| clock.now() + time),
                limits: None,
                account: None,
                password: None,
            };
            owner.create_credential(terms).await.expect("it is created")
        };
        let (right, elsewhere) = (create(grants, None).await, create(&elsewhere, None).await);
        let (expired, revoked) = (create("admin:*", Some(HOUR)).await, create("admin:*", None).await);
        broker.advance(2 * HOUR).await;
        owner.revoke_credential(&revoked.report.id).await.expect("it is revoked");
        Stage { broker, owner, kind, right, elsewhere, expired, revoked }
    }

    /// Id and secret of a credential.
    fn credential(&self, credential: Credential) -> Option<(String, String)> {
        let of = |new: &NewCredential| Some((new.report.id.to_string(), new.secret.reveal().to_owned()));
        match credential {
            Credential::None => None,
            Credential::Wrong => {
                let (id, secret) = of(&self.right)?;
                let last = if secret.ends_with('A') { "B" } else { "A" };
                Some((id, format!("{}{last}", &secret[..secret.len() - 1])))
            }
            Credential::Expired => of(&self.expired),
            Credential::Revoked => of(&self.revoked),
            Credential::Elsewhere => of(&self.elsewhere),
            Credential::Right => of(&self.right),
        }
    }

    /// Everything that a call could have changed.
    async fn state(&self) -> String {
        let streams = self.owner.streams(None, 1_000).await.expect("a list").items;
        let groups = self.owner.groups(None, None, 1_000).await.expect("a list").items;
        let mut text = String::new();
        for stream in &streams {
            text.push_str(&format!("{} {:?} {:?}\n", stream.name, stream.settings, stream.figures));
        }
        for group in &groups {
            let jobs = self.owner.jobs(group.stream.clone(), group.name.clone()).await.expect("a list");
            text.push_str(&format!(
                "{}/{} {:?} {:?}",
                group.stream, group.name, group.settings, group.figures
            ));
            text.push_str(&format!(" {} jobs, {} consumers\n", jobs.len(), group.consumers.len()));
        }
        for credential in self.owner.credentials(Some(self.kind)).expect("a list") {
            text.push_str(&format!("{} {}\n", credential.id, credential.grants));
        }
        text
    }
}

fn stream(name: &str) -> StreamName {
    StreamName::parse(name).expect("a name")
}

fn group(name: &str) -> GroupName {
    GroupName::parse(name).expect("a name")
}
