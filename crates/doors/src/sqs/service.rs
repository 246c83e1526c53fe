//! The actions: translated from SQS to the broker and back.
//!
//! | Module | Actions |
//! | --- | --- |
//! | `queues` | Create, delete, find, list; attributes, tags, permissions; purge. |
//! | `send` | Sending, one or a batch. |
//! | `receive` | Receiving. |
//! | `settle` | Deleting and visibility, one or a batch. |
//! | `moves` | Message move tasks. |

mod moves;
mod queues;
mod receive;
mod send;
mod settle;

use std::sync::{Arc, Mutex, PoisonError};

use forebay_broker::api::{CallError, Caller, Entrance, Hold, Share};
use forebay_core::types::{Seq, StreamId, Timestamp};

use super::attempts::Attempts;
use super::failure;
use super::queue::{Queue, QueueId};
use super::registry::{LoadError, Registry};
use super::wire::address::{Locality, QueueAddress, UrlBase};
use super::wire::error::{ErrorKind, SqsError};
use super::wire::policy;
use super::wire::protocol::Action;
use super::wire::request::Request;
use super::wire::response::{Response, uuid};

/// Who asks, and how they call the server.
pub(super) struct Asker {
    pub(super) caller: Caller,
    pub(super) locality: Locality,
    pub(super) urls: UrlBase,
    /// Whether the client has authenticated. If the server does not require that, an account means nothing.
    pub(super) is_known: bool,
    /// Room for replies of the client's connection.
    pub(super) share: Share,
    /// The room that the reply has, once it is known to have contents in it.
    pub(super) room: Arc<Mutex<Option<Hold>>>,
}

impl Asker {
    fn url(&self, id: &QueueId) -> String {
        self.urls.queue_url(&id.account, &id.name)
    }

    /// The reply has this room, until all of it has left.
    fn keep(&self, hold: Hold) {
        *self.room.lock().unwrap_or_else(PoisonError::into_inner) = Some(hold);
    }

    /// Whether the asker may know of a queue. To other askers the queue does not exist.
    fn sees(&self, queue: &Queue) -> bool {
        self.caller.sees_group(&queue.stream, &queue.group())
    }

    fn own(&self, name: &str) -> QueueId {
        QueueId::new(&self.locality.account, name)
    }
}

pub(super) struct Service {
    broker: Entrance,
    registry: Registry,
    attempts: Attempts,
    /// Whether a name, and a purge, have to wait for a minute.
    waits: bool,
}

impl Service {
    pub(super) async fn open(broker: Entrance, own: Caller, waits: bool) -> Result<Service, LoadError> {
        let registry = Registry::load(own).await?;
        Ok(Service { broker, registry, attempts: Attempts::default(), waits })
    }

    pub(super) async fn answer(&self, asker: &Asker, request: Request) -> Result<Response, SqsError> {
        match request {
            Request::AddPermission(request) => self.add_permission(asker, request).await,
            Request::CancelMessageMoveTask(request) => self.cancel_move(asker, &request).await,
            Request::ChangeMessageVisibility(request) => self.change_visibility(asker, request).await,
            Request::ChangeMessageVisibilityBatch(request) => self.change_visibilities(asker, request).await,
            Request::CreateQueue(request) => self.create(asker, request).await,
            Request::DeleteMessage(request) => self.delete_message(asker, request).await,
            Request::DeleteMessageBatch(request) => self.delete_messages(asker, request).await,
            Request::DeleteQueue(request) => self.delete(asker, &request).await,
            Request::GetQueueAttributes(request) => self.attributes(asker, &request).await,
            Request::GetQueueUrl(request) => self.queue_url(asker, &request),
            Request::ListDeadLetterSourceQueues(request) => self.list_sources(asker, &request),
            Request::ListMessageMoveTasks(request) => self.list_moves(asker, &request).await,
            Request::ListQueueTags(request) => self.tags(asker, &request),
            Request::ListQueues(request) => self.list(asker, &request),
            Request::PurgeQueue(request) => self.purge(asker, &request).await,
            Request::ReceiveMessage(request) => self.receive(asker, &request).await,
            Request::RemovePermission(request) => self.remove_permission(asker, &request).await,
            Request::SendMessage(request) => self.send(asker, request).await,
            Request::SendMessageBatch(request) => self.send_batch(asker, request).await,
            Request::SetQueueAttributes(request) => self.set_attributes(asker, &request).await,
            Request::StartMessageMoveTask(request) => self.start_move(asker, &request).await,
            Request::TagQueue(request) => self.tag(asker, &request).await,
            Request::UntagQueue(request) => self.untag(asker, &request).await,
        }
    }

    fn now(&self) -> Timestamp {
        self.broker.clock().now()
    }

    /// The queue that a URL names, if the asker may perform the action on it.
    fn find(&self, asker: &Asker, url: &str, action: Action) -> Result<Arc<Queue>, SqsError> {
        let address = QueueAddress::parse(url).ok_or_else(SqsError::no_such_queue)?;
        let queue = self.look_up(asker, address.account.as_deref(), &address.name);
        let queue = queue.ok_or_else(SqsError::no_such_queue)?;
        self.admit(asker, &queue, action)?;
        Ok(queue)
    }

    /// A queue of the named account, or of the asker's own. If the server does not require authentication,
    /// the asker's own will do too.
    fn look_up(&self, asker: &Asker, account: Option<&str>, name: &str) -> Option<Arc<Queue>> {
        let own = || self.registry.get(&asker.own(name));
        let found = match account {
            Some(account) => {
                let named = self.registry.get(&QueueId::new(account, name));
                named.or_else(|| own().filter(|_| !asker.is_known))
            }
            None => own(),
        };
        found.filter(|queue| asker.sees(queue))
    }

    /// Another account's queue needs a policy that says so.
    fn admit(&self, asker: &Asker, queue: &Queue, action: Action) -> Result<(), SqsError> {
        let account = &asker.locality.account;
        if !asker.is_known || *account == queue.id.account {
            return Ok(());
        }
        let arn = queue.id.arn(&asker.locality.region);
        let policy = queue.about.settings.policy.as_deref();
        if policy.is_some_and(|policy| policy::allows(policy, account, action, &arn)) {
            return Ok(());
        }
        let action = action.name().to_ascii_lowercase();
        let message = format!(
            "User: arn:{}:iam::{account}:root is not authorized to perform: sqs:{action} on resource: {arn} \
             because no resource-based policy allows the sqs:{action} action",
            arn.partition
        );
        Err(SqsError::new(ErrorKind::AccessDenied, message))
    }

    /// The SQS error for an error of the broker about a queue. A queue whose stream is gone is forgotten.
    async fn failed(&self, queue: &Queue, error: &CallError) -> SqsError {
        if matches!(
            error,
            CallError::NoSuchStream { .. }
                | CallError::NoSuchGroup { .. }
                | CallError::StreamGone
                | CallError::GroupGone
        ) {
            self.registry.forget(queue).await;
        }
        failure::of_call(error)
    }

    /// The id that a message of a queue keeps for its life, given by where it was stored first.
    fn message_id(&self, queue: &Queue, stream: StreamId, seq: Seq) -> String {
        uuid(self.broker.message_name(&queue.stream, stream, seq))
    }
}
