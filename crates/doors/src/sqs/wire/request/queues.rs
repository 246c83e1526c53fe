//! Requests about queues: create, find, list, change, tag, permit.

use std::collections::BTreeMap;

use super::members::{Given, Halves, Members, Name};
use crate::sqs::wire::error::SqsError;
use crate::sqs::wire::policy::{self, Permission};
use crate::sqs::wire::tags;

const ATTRIBUTES: Name = Name { json: "Attributes", query: "Attribute" };
const ATTRIBUTE_NAMES: Name = Name { json: "AttributeNames", query: "AttributeName" };
const NEW_TAGS: Name = Name { json: "tags", query: "Tag" };
const TAGS: Name = Name { json: "Tags", query: "Tag" };
const TAG_KEYS: Name = Name { json: "TagKeys", query: "TagKey" };
const ACCOUNTS: Name = Name { json: "AWSAccountIds", query: "AWSAccountId" };
const ACTIONS: Name = Name { json: "Actions", query: "ActionName" };

const ATTRIBUTE: Halves = Halves { key: "Name", value: "Value" };
const TAG: Halves = Halves { key: "Key", value: "Value" };

/// The queue that a request is for. An empty URL is as good as none.
pub(super) fn queue_url(members: &Members<'_>) -> Result<String, SqsError> {
    let url = members.text("QueueUrl")?.filter(|url| !url.is_empty());
    url.ok_or_else(|| SqsError::missing("QueueUrl"))
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreateQueue {
    /// As given; see [`address::QueueName`](crate::sqs::wire::address::QueueName).
    pub queue_name: String,
    /// As given; see [`QueueSettings`](crate::sqs::wire::attributes::QueueSettings).
    pub attributes: BTreeMap<String, String>,
    pub tags: BTreeMap<String, String>,
}

impl CreateQueue {
    pub(super) fn read(members: &Members<'_>) -> Result<CreateQueue, SqsError> {
        Ok(CreateQueue {
            queue_name: members.required("QueueName")?,
            attributes: members.text_map(ATTRIBUTES, ATTRIBUTE)?.unwrap_or_default(),
            tags: members.text_map(NEW_TAGS, TAG)?.unwrap_or_default(),
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GetQueueUrl {
    pub queue_name: String,
    pub owner: Option<String>,
}

impl GetQueueUrl {
    pub(super) fn read(members: &Members<'_>) -> Result<GetQueueUrl, SqsError> {
        let owner = members.text("QueueOwnerAWSAccountId")?;
        Ok(GetQueueUrl { queue_name: members.required("QueueName")?, owner })
    }
}

/// Which part of a list to show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    max_results: Option<Given>,
    pub next_token: Option<String>,
}

/// Queues on a page, and in a list without pages.
pub const LIST_MAX: u32 = 1_000;

impl Page {
    fn read(members: &Members<'_>) -> Result<Page, SqsError> {
        let next_token = members.text("NextToken")?.filter(|token| !token.is_empty());
        Ok(Page { max_results: members.number("MaxResults")?, next_token })
    }

    /// The size of a page. Without one, the list is one page.
    pub fn size(&self) -> Result<Option<u32>, SqsError> {
        let size = |given: &Given| {
            given.within("MaxResults", 1, LIST_MAX, "Must be between 1 and 1000, if provided.")
        };
        self.max_results.as_ref().map(size).transpose()
    }

    /// For a token that was not given out by us.
    pub fn bad_token(&self) -> SqsError {
        let token = self.next_token.as_deref().unwrap_or_default();
        SqsError::value(token, "NextToken", "Must be a token from an earlier page.")
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListQueues {
    pub prefix: String,
    pub page: Page,
}

impl ListQueues {
    pub(super) fn read(members: &Members<'_>) -> Result<ListQueues, SqsError> {
        let prefix = members.text("QueueNamePrefix")?.unwrap_or_default();
        Ok(ListQueues { prefix, page: Page::read(members)? })
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListDeadLetterSourceQueues {
    pub queue_url: String,
    pub page: Page,
}

impl ListDeadLetterSourceQueues {
    pub(super) fn read(members: &Members<'_>) -> Result<ListDeadLetterSourceQueues, SqsError> {
        Ok(ListDeadLetterSourceQueues { queue_url: queue_url(members)?, page: Page::read(members)? })
    }
}

/// Requests that name a queue and nothing else.
macro_rules! queue_alone {
    ($($name:ident)*) => {
        $(#[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name {
            pub queue_url: String,
        }

        impl $name {
            pub(super) fn read(members: &Members<'_>) -> Result<$name, SqsError> {
                Ok($name { queue_url: queue_url(members)? })
            }
        })*
    };
}

queue_alone! { DeleteQueue PurgeQueue ListQueueTags }

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GetQueueAttributes {
    pub queue_url: String,
    /// As given; see [`Wanted`](crate::sqs::wire::attributes::Wanted).
    pub names: Vec<String>,
}

impl GetQueueAttributes {
    pub(super) fn read(members: &Members<'_>) -> Result<GetQueueAttributes, SqsError> {
        let names = members.texts(ATTRIBUTE_NAMES)?.unwrap_or_default();
        Ok(GetQueueAttributes { queue_url: queue_url(members)?, names })
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetQueueAttributes {
    pub queue_url: String,
    /// As given; see [`QueueSettings`](crate::sqs::wire::attributes::QueueSettings).
    pub attributes: BTreeMap<String, String>,
}

impl SetQueueAttributes {
    /// Query cannot tell an empty map from none, so neither does JSON.
    pub(super) fn read(members: &Members<'_>) -> Result<SetQueueAttributes, SqsError> {
        let queue_url = queue_url(members)?;
        let attributes = members.text_map(ATTRIBUTES, ATTRIBUTE)?.filter(|pairs| !pairs.is_empty());
        Ok(SetQueueAttributes {
            queue_url,
            attributes: attributes.ok_or_else(|| SqsError::missing("Attributes"))?,
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TagQueue {
    pub queue_url: String,
    tags: BTreeMap<String, String>,
}

impl TagQueue {
    pub(super) fn read(members: &Members<'_>) -> Result<TagQueue, SqsError> {
        let queue_url = queue_url(members)?;
        let tags = members.text_map(TAGS, TAG)?.filter(|pairs| !pairs.is_empty());
        Ok(TagQueue { queue_url, tags: tags.ok_or_else(|| SqsError::missing("Tags"))? })
    }

    /// The tags of a queue with these, where it may have them.
    pub fn added_to(&self, present: &BTreeMap<String, String>) -> Result<BTreeMap<String, String>, SqsError> {
        tags::added(present, &self.tags)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UntagQueue {
    pub queue_url: String,
    keys: Vec<String>,
}

impl UntagQueue {
    pub(super) fn read(members: &Members<'_>) -> Result<UntagQueue, SqsError> {
        let queue_url = queue_url(members)?;
        let keys = members.texts(TAG_KEYS)?.ok_or_else(|| SqsError::missing("TagKeys"))?;
        Ok(UntagQueue { queue_url, keys })
    }

    /// At least one.
    pub fn keys(&self) -> Result<&[String], SqsError> {
        if self.keys.is_empty() {
            return Err(SqsError::value("[]", "TagKeys", "Must contain at least one key."));
        }
        Ok(&self.keys)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddPermission {
    pub queue_url: String,
    permission: Permission,
}

impl AddPermission {
    pub(super) fn read(members: &Members<'_>) -> Result<AddPermission, SqsError> {
        let queue_url = queue_url(members)?;
        let label = members.required("Label")?;
        let accounts = members.texts(ACCOUNTS)?.ok_or_else(|| SqsError::missing(ACCOUNTS.json))?;
        let actions = members.texts(ACTIONS)?.filter(|actions| !actions.is_empty());
        let actions = actions.ok_or_else(|| SqsError::missing(ACTIONS.json))?;
        Ok(AddPermission { queue_url, permission: Permission { label, accounts, actions } })
    }

    /// The requested permission, if it is valid.
    pub fn permission(&self) -> Result<&Permission, SqsError> {
        self.permission.check()?;
        Ok(&self.permission)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemovePermission {
    pub queue_url: String,
    label: String,
}

impl RemovePermission {
    pub(super) fn read(members: &Members<'_>) -> Result<RemovePermission, SqsError> {
        Ok(RemovePermission { queue_url: queue_url(members)?, label: members.required("Label")? })
    }

    pub fn label(&self) -> Result<&str, SqsError> {
        policy::check_label(&self.label)?;
        Ok(&self.label)
    }
}
