//! Queues: create, delete, find, list; attributes, tags, permissions; purge.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use forebay_broker::api::{Bundle, CallError, NoteRefusal, NoteWish, Purge, Right};

use super::{Asker, Service};
use crate::sqs::failure;
use crate::sqs::queue::{About, DOOR, Queue, QueueId, group};
use crate::sqs::wire::attributes::{QueueAttribute, QueueFacts, QueueSettings, RedriveAllowPolicy, Wanted};
use crate::sqs::wire::error::{ErrorKind, SqsError};
use crate::sqs::wire::protocol::Action;
use crate::sqs::wire::request::{
    AddPermission, CreateQueue, DeleteQueue, GetQueueAttributes, GetQueueUrl, LIST_MAX,
    ListDeadLetterSourceQueues, ListQueueTags, ListQueues, Page, PurgeQueue, RemovePermission,
    SetQueueAttributes, TagQueue, UntagQueue,
};
use crate::sqs::wire::response::Response;
use crate::sqs::wire::{policy, tags};

/// How long a name has to rest after its queue was deleted, and a queue after it was purged.
const REST: Duration = Duration::from_secs(60);

type Answer = Result<Response, SqsError>;

impl Service {
    pub(super) async fn create(&self, asker: &Asker, request: CreateQueue) -> Answer {
        let (name, settings) = QueueSettings::create(&request.queue_name, &request.attributes)?;
        let tags = tags::added(&BTreeMap::new(), &request.tags)?;
        let id = asker.own(name.as_str());
        let queue_url = asker.url(&id);
        if let Some(stream) = id.stream() {
            let may = asker.caller.check(Right::Create, &stream, &group());
            may.map_err(|error| failure::of_call(&error))?;
        }
        let changing = self.registry.change().await;
        let present = match self.registry.get(&id) {
            Some(queue) if !changing.forget_if_gone(&queue).await => Some(queue),
            _ => None,
        };
        if let Some(queue) = present {
            return match queue.about.settings.difference(&request.attributes)? {
                Some(attribute) => Err(QueueSettings::exists_with_another(attribute)),
                None => Ok(Response::CreateQueue { queue_url }),
            };
        }
        self.check_redrive(asker, &id, &settings)?;
        let caller = &asker.caller;
        let bad_name =
            || SqsError::value(name.as_str(), "QueueName", "The name is that of another account's queue.");
        let stream = id.stream().ok_or_else(bad_name)?;
        if self.waits {
            let deleted = caller.note(&stream, DOOR, id.deleted_key()).await;
            if deleted.map_err(|error| failure::of_call(&error))?.is_some() {
                let message = "You must wait 60 seconds after deleting a queue before you can create another with \
                               the same name.";
                return Err(SqsError::new(ErrorKind::QueueDeletedRecently, message));
            }
        }
        let is_there = match caller.stream(stream.clone()).await {
            Ok(_) => true,
            Err(CallError::NoSuchStream { .. }) => false,
            Err(error) => return Err(failure::of_call(&error)),
        };
        let now = self.now().0 / 1_000_000;
        let (is_fair, scope_before) = (false, None);
        let about = About { settings, tags, created: now, modified: now, is_fair, scope_before };
        let (of_stream, of_group) = (about.clone(), about.clone());
        let says = |attribute: QueueAttribute| request.attributes.contains_key(attribute.name());
        let says_retention = says(QueueAttribute::MessageRetentionPeriod);
        let says_delay = says(QueueAttribute::DelaySeconds);
        let bundle = Bundle::beside(stream.clone())
            .stream(stream.clone(), move |settings| {
                // A stream that was created through another door keeps its settings, except those that the
                // request names: a default of SQS must not make it drop its messages.
                if !is_there {
                    of_stream.shape_stream(settings);
                } else {
                    of_stream.shape_deduplication(settings);
                    if says_retention {
                        settings.limits.max_age = Some(of_stream.retention());
                    }
                    if says_delay {
                        settings.delay = of_stream.stream_delay();
                    }
                }
            })
            .group(stream.clone(), group(), move |settings| of_group.shape_group(&stream, settings));
        changing.put(caller, id, about, bundle).await?;
        Ok(Response::CreateQueue { queue_url })
    }

    /// A queue that takes what another could not process has to be there, be of the same kind, and want it.
    fn check_redrive(&self, asker: &Asker, id: &QueueId, settings: &QueueSettings) -> Result<(), SqsError> {
        let Some(redrive) = &settings.redrive else { return Ok(()) };
        let source = id.arn(&asker.locality.region);
        let target = &redrive.target;
        if (&target.account, &target.region) != (&source.account, &source.region) {
            return Err(
                redrive.refused("Dead letter target must be in the same account and region as the queue.")
            );
        }
        let admits = |policy: &RedriveAllowPolicy| policy.admits(&source);
        let denied = || redrive.refused("Dead letter target does not allow the queue to use it.");
        if target.queue == source.queue {
            // As on AWS. The queue may be about to be created.
            return if settings.redrive_allow.as_ref().is_none_or(admits) { Ok(()) } else { Err(denied()) };
        }
        let queue = self.registry.get(&QueueId::new(&target.account, &target.queue));
        let queue = queue.filter(|queue| asker.sees(queue)).ok_or_else(|| redrive.no_target())?;
        if queue.is_fifo() != settings.is_fifo {
            return Err(redrive.refused("Dead letter target must be of the same type as the queue."));
        }
        if !queue.about.settings.redrive_allow.as_ref().is_none_or(admits) {
            return Err(denied());
        }
        Ok(())
    }

    pub(super) async fn delete(&self, asker: &Asker, request: &DeleteQueue) -> Answer {
        let changing = self.registry.change().await;
        let queue = self.find(asker, &request.queue_url, Action::DeleteQueue)?;
        if changing.forget_if_gone(&queue).await {
            return Err(SqsError::no_such_queue());
        }
        let mut notes = vec![queue.id.gone()];
        if self.waits {
            notes.push(queue.id.deleted(self.now() + REST));
        }
        let bundle = |notes: Vec<NoteWish>| {
            let bundle = Bundle::beside(queue.stream()).delete(queue.stream());
            notes.into_iter().fold(bundle, Bundle::note)
        };
        let mut deleted = asker.caller.commit(bundle(notes)).await;
        if matches!(deleted, Err(CallError::Note(NoteRefusal::Full))) {
            // A deletion makes room, and is not refused for lack of it.
            deleted = asker.caller.commit(bundle(vec![queue.id.gone()])).await;
        }
        deleted.map_err(|error| failure::of_call(&error))?;
        changing.remove(&queue.id);
        Ok(Response::DeleteQueue)
    }

    pub(super) fn queue_url(&self, asker: &Asker, request: &GetQueueUrl) -> Answer {
        let account = request.owner.as_deref().filter(|owner| !owner.is_empty());
        let queue = self.look_up(asker, account, &request.queue_name).ok_or_else(SqsError::no_such_queue)?;
        self.admit(asker, &queue, Action::GetQueueUrl)?;
        Ok(Response::GetQueueUrl { queue_url: asker.url(&queue.id) })
    }

    pub(super) fn list(&self, asker: &Asker, request: &ListQueues) -> Answer {
        let account = &asker.locality.account;
        let (queue_urls, next_token) = self.page(asker, account, &request.prefix, &request.page, |_| true)?;
        Ok(Response::ListQueues { queue_urls, next_token })
    }

    pub(super) fn list_sources(&self, asker: &Asker, request: &ListDeadLetterSourceQueues) -> Answer {
        let target = self.find(asker, &request.queue_url, Action::ListDeadLetterSourceQueues)?;
        let is_source = |queue: &Queue| sends_dead_letters_to(queue, &target.id);
        let account = &target.id.account;
        let (queue_urls, next_token) = self.page(asker, account, "", &request.page, is_source)?;
        Ok(Response::ListDeadLetterSourceQueues { queue_urls, next_token })
    }

    /// A page of queue URLs, and the token of the next one. If the request asks for no pages, the list is one
    /// page without a token.
    fn page(
        &self,
        asker: &Asker,
        account: &str,
        prefix: &str,
        page: &Page,
        wanted: impl Fn(&Queue) -> bool,
    ) -> Result<(Vec<String>, Option<String>), SqsError> {
        let size = page.size()?;
        let after = page.next_token.as_deref().map(|token| {
            let name = BASE64.decode(token).ok().and_then(|bytes| String::from_utf8(bytes).ok());
            name.ok_or_else(|| page.bad_token())
        });
        let after = after.transpose()?;
        let limit = size.unwrap_or(LIST_MAX) as usize;
        let (ids, has_more) = self
            .registry
            .list(account, prefix, after.as_deref(), limit, |queue| asker.sees(queue) && wanted(queue));
        let last = ids.last().filter(|_| has_more && size.is_some());
        let next_token = last.map(|id| BASE64.encode(&id.name));
        Ok((ids.iter().map(|id| asker.url(id)).collect(), next_token))
    }

    pub(super) async fn attributes(&self, asker: &Asker, request: &GetQueueAttributes) -> Answer {
        let queue = self.find(asker, &request.queue_url, Action::GetQueueAttributes)?;
        let wanted = Wanted::of(&request.names)?;
        let figures = match asker.caller.figures(queue.stream(), queue.group()).await {
            Ok(figures) => figures,
            Err(error) => return Err(self.failed(&queue, &error).await),
        };
        let (of_stream, of_group) = figures;
        let hidden = of_group.in_flight + of_group.moving + of_stream.delayed;
        let facts = QueueFacts {
            arn: queue.id.arn(&asker.locality.region),
            created: queue.about.created,
            modified: queue.about.modified,
            visible: of_group.lag.saturating_sub(hidden),
            not_visible: of_group.in_flight,
            delayed: of_stream.delayed,
        };
        Ok(Response::GetQueueAttributes { attributes: wanted.list(&queue.about.settings, &facts) })
    }

    pub(super) async fn set_attributes(&self, asker: &Asker, request: &SetQueueAttributes) -> Answer {
        let says = |attribute: QueueAttribute| request.attributes.contains_key(attribute.name());
        let says_redrive = says(QueueAttribute::RedrivePolicy);
        let says_retention = says(QueueAttribute::MessageRetentionPeriod);
        let change = |about: &mut About, id: &QueueId| {
            about.set(self.now(), about.settings.changed(&request.attributes)?);
            if says_redrive {
                self.check_redrive(asker, id, &about.settings)?;
            }
            Ok(())
        };
        self.change_all(asker, &request.queue_url, Action::SetQueueAttributes, says_retention, change)
            .await?;
        Ok(Response::SetQueueAttributes)
    }

    /// Changes a queue's note, and its stream and group with it.
    pub(super) async fn change(
        &self,
        asker: &Asker,
        url: &str,
        action: Action,
        change: impl FnOnce(&mut About, &QueueId) -> Result<(), SqsError>,
    ) -> Result<Arc<Queue>, SqsError> {
        self.change_all(asker, url, action, false, change).await
    }

    /// As `change`. `says_retention`: the request names the retention period, so it applies even if the queue
    /// already had this value and its stream another one.
    async fn change_all(
        &self,
        asker: &Asker,
        url: &str,
        action: Action,
        says_retention: bool,
        change: impl FnOnce(&mut About, &QueueId) -> Result<(), SqsError>,
    ) -> Result<Arc<Queue>, SqsError> {
        let changing = self.registry.change().await;
        let queue = self.find(asker, url, action)?;
        if changing.forget_if_gone(&queue).await {
            return Err(SqsError::no_such_queue());
        }
        let before = &queue.about;
        let mut about = before.clone();
        change(&mut about, &queue.id)?;
        if about == *before && !says_retention {
            return Ok(queue);
        }
        if about.settings != before.settings {
            about.modified = self.now().0 / 1_000_000;
        }
        let mut bundle = Bundle::beside(queue.stream());
        if (&about.settings, about.is_fair) != (&before.settings, before.is_fair) || says_retention {
            let (of_group, retention, delay) = (about.clone(), about.retention(), about.stream_delay());
            let delays_otherwise = delay != before.stream_delay();
            let own = queue.stream();
            bundle = bundle
                .stream(queue.stream(), move |settings| {
                    if says_retention {
                        settings.limits.max_age = Some(retention);
                    }
                    if delays_otherwise {
                        settings.delay = delay;
                    }
                })
                .group(queue.stream(), group(), move |settings| of_group.shape_group(&own, settings));
        }
        changing.put(&asker.caller, queue.id.clone(), about, bundle).await
    }

    pub(super) fn tags(&self, asker: &Asker, request: &ListQueueTags) -> Answer {
        let queue = self.find(asker, &request.queue_url, Action::ListQueueTags)?;
        Ok(Response::ListQueueTags { tags: queue.about.tags.clone() })
    }

    pub(super) async fn tag(&self, asker: &Asker, request: &TagQueue) -> Answer {
        let change = |about: &mut About, _: &QueueId| {
            about.tags = request.added_to(&about.tags)?;
            Ok(())
        };
        self.change(asker, &request.queue_url, Action::TagQueue, change).await?;
        Ok(Response::TagQueue)
    }

    pub(super) async fn untag(&self, asker: &Asker, request: &UntagQueue) -> Answer {
        let change = |about: &mut About, _: &QueueId| {
            let keys = request.keys()?;
            about.tags.retain(|key, _| !keys.contains(key));
            Ok(())
        };
        self.change(asker, &request.queue_url, Action::UntagQueue, change).await?;
        Ok(Response::UntagQueue)
    }

    pub(super) async fn add_permission(&self, asker: &Asker, request: AddPermission) -> Answer {
        let change = |about: &mut About, id: &QueueId| {
            let permission = request.permission()?;
            let arn = id.arn(&asker.locality.region);
            about.settings.policy = Some(policy::with(about.settings.policy.as_deref(), &arn, permission)?);
            Ok(())
        };
        self.change(asker, &request.queue_url, Action::AddPermission, change).await?;
        Ok(Response::AddPermission)
    }

    pub(super) async fn remove_permission(&self, asker: &Asker, request: &RemovePermission) -> Answer {
        let change = |about: &mut About, _: &QueueId| {
            about.settings.policy = policy::without(about.settings.policy.as_deref(), request.label()?)?;
            Ok(())
        };
        self.change(asker, &request.queue_url, Action::RemovePermission, change).await?;
        Ok(Response::RemovePermission)
    }

    pub(super) async fn purge(&self, asker: &Asker, request: &PurgeQueue) -> Answer {
        let changing = self.registry.change().await;
        let queue = self.find(asker, &request.queue_url, Action::PurgeQueue)?;
        if changing.forget_if_gone(&queue).await {
            return Err(SqsError::no_such_queue());
        }
        if self.waits {
            let purged = asker.caller.note(&queue.stream, DOOR, queue.id.purged_key()).await;
            if purged.map_err(|error| failure::of_call(&error))?.is_some() {
                let name = &queue.id.name;
                let message = format!("Only one PurgeQueue operation on {name} is allowed every 60 seconds.");
                return Err(SqsError::new(ErrorKind::PurgeQueueInProgress, message));
            }
        }
        // The purge forgets deduplication ids too, so that earlier messages may be sent again.
        let everything = Purge { parked: true, ids: true };
        asker.caller.purge(queue.stream(), everything).await.map_err(|error| failure::of_call(&error))?;
        if self.waits {
            let note = Bundle::beside(queue.stream()).note(queue.id.purged(self.now() + REST));
            // It is purged. Whether the next one has to wait is not worth a second purge by a client that tries again.
            let _ = self.registry.own().commit(note).await;
        }
        Ok(Response::PurgeQueue)
    }
}

/// Whether messages that were received too often go from one queue to another.
pub(super) fn sends_dead_letters_to(queue: &Queue, target: &QueueId) -> bool {
    queue.about.settings.redrive.as_ref().is_some_and(|policy| {
        (&policy.target.account, &policy.target.queue) == (&target.account, &target.name)
    })
}
