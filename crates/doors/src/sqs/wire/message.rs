//! The limits of a message, and the attributes that a receiver wants to see.

use std::collections::{BTreeMap, BTreeSet};

use super::error::{ErrorKind, SqsError};
use super::request::Given;

const ATTRIBUTES_MAX: usize = 10;
const NAME_CHARS_MAX: usize = 256;
const TYPE_CHARS_MAX: usize = 256;
const TOKEN_CHARS_MAX: usize = 128;
const DELAY_MAX: u32 = 900;
/// Bytes of a batch, whatever the queue says of a single message.
pub const BATCH_BYTES_MAX: usize = 1 << 20;

/// The words of SQS, as they are.
pub const NOT_FOR_THIS_TYPE: &str = "The request include parameter that is not valid for this queue type.";
const NO_DEDUPLICATION: &str = "The queue should either have ContentBasedDeduplication enabled or \
                                MessageDeduplicationId provided explicitly";
const NO_GROUP: &str = "The request must contain the parameter MessageGroupId.";

/// The system attribute that a sender may set, and the only one.
pub const TRACE_HEADER: &str = "AWSTraceHeader";

/// The rules of a queue that decide whether it accepts a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueRules {
    pub is_fifo: bool,
    pub content_based_deduplication: bool,
    pub message_bytes_max: usize,
}

/// A message that a queue may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    pub body: String,
    /// In seconds; the queue's own, if not said.
    pub delay: Option<u32>,
    pub attributes: BTreeMap<String, MessageAttribute>,
    pub system_attributes: BTreeMap<String, MessageAttribute>,
    pub deduplication_id: Option<String>,
    pub group_id: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageAttribute {
    /// With its label, as in `Number.cents`.
    pub data_type: String,
    pub value: AttributeValue,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttributeValue {
    /// Of a string or a number.
    Text(String),
    Bytes(Vec<u8>),
}

impl AttributeValue {
    fn bytes(&self) -> &[u8] {
        match self {
            AttributeValue::Text(text) => text.as_bytes(),
            AttributeValue::Bytes(bytes) => bytes,
        }
    }
}

/// A message as it was sent, which a queue may or may not have.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Draft {
    pub(super) body: String,
    pub(super) delay: Option<Given>,
    pub(super) attributes: BTreeMap<String, AttributeDraft>,
    pub(super) system_attributes: BTreeMap<String, AttributeDraft>,
    pub(super) deduplication_id: Option<String>,
    pub(super) group_id: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct AttributeDraft {
    pub(super) data_type: Option<String>,
    pub(super) text: Option<String>,
    pub(super) bytes: Option<Vec<u8>>,
    /// Lists are in the model, and no queue takes them.
    pub(super) has_list: bool,
}

impl Draft {
    /// A trace that the request has and the message has not.
    pub(super) fn join_trace(&mut self, trace: &str) {
        let attribute = || AttributeDraft {
            data_type: Some("String".to_owned()),
            text: Some(trace.to_owned()),
            ..AttributeDraft::default()
        };
        self.system_attributes.entry(TRACE_HEADER.to_owned()).or_insert_with(attribute);
    }

    pub(super) fn message(self, rules: &QueueRules) -> Result<Message, SqsError> {
        self.check(rules, "One or more parameters are invalid.")
    }

    /// SQS has other words for the same thing in a batch.
    pub(super) fn message_of_batch(self, rules: &QueueRules) -> Result<Message, SqsError> {
        self.check(rules, "One or more parameters cannot be validated.")
    }

    fn check(self, rules: &QueueRules, too_long: &str) -> Result<Message, SqsError> {
        if self.body.is_empty() {
            return Err(SqsError::missing("MessageBody"));
        }
        check_contents(&self.body)?;
        let delay = self.delay(rules)?;
        self.check_tokens(rules)?;
        let size = self.size();
        let attributes = user_attributes(self.attributes)?;
        let system_attributes = system_attributes(self.system_attributes)?;
        if size > rules.message_bytes_max {
            let most = rules.message_bytes_max;
            let message = format!("{too_long} Reason: Message must be shorter than {most} bytes.");
            return Err(SqsError::parameter(message));
        }
        let (deduplication_id, group_id) = (self.deduplication_id, self.group_id);
        Ok(Message { body: self.body, delay, attributes, system_attributes, deduplication_id, group_id })
    }

    /// Zero is the queue's own delay on a FIFO queue, and no delay on another.
    fn delay(&self, rules: &QueueRules) -> Result<Option<u32>, SqsError> {
        let Some(given) = &self.delay else { return Ok(None) };
        let name = "DelaySeconds";
        let delay = given.within(name, 0, DELAY_MAX, "DelaySeconds must be >= 0 and <= 900.")?;
        match (rules.is_fifo, delay) {
            (true, 0) => Ok(None),
            (true, _) => Err(SqsError::value(delay, name, NOT_FOR_THIS_TYPE)),
            (false, _) => Ok(Some(delay)),
        }
    }

    fn check_tokens(&self, rules: &QueueRules) -> Result<(), SqsError> {
        if let Some(id) = &self.group_id {
            check_token(id, "MessageGroupId")?;
        }
        if let Some(id) = &self.deduplication_id {
            check_token(id, "MessageDeduplicationId")?;
            if !rules.is_fifo {
                return Err(SqsError::value(id, "MessageDeduplicationId", NOT_FOR_THIS_TYPE));
            }
        }
        match self.lacks(rules) {
            Some(Lack::Group) => Err(SqsError::new(ErrorKind::MissingParameter, NO_GROUP)),
            Some(Lack::Deduplication) => Err(SqsError::parameter(NO_DEDUPLICATION)),
            None => Ok(()),
        }
    }

    /// The field that a FIFO queue needs and the message lacks.
    fn lacks(&self, rules: &QueueRules) -> Option<Lack> {
        if !rules.is_fifo {
            None
        } else if self.group_id.is_none() {
            Some(Lack::Group)
        } else if self.deduplication_id.is_none() && !rules.content_based_deduplication {
            Some(Lack::Deduplication)
        } else {
            None
        }
    }

    /// Body, and name, type and value of each attribute. System attributes do not count.
    fn size(&self) -> usize {
        let of = |(name, attribute): (&String, &AttributeDraft)| {
            let lengths =
                [&attribute.data_type, &attribute.text].map(|it| it.as_ref().map_or(0, String::len));
            name.len() + lengths[0] + lengths[1] + attribute.bytes.as_ref().map_or(0, Vec::len)
        };
        self.body.len() + self.attributes.iter().map(of).sum::<usize>()
    }
}

enum Lack {
    Group,
    Deduplication,
}

/// Checks all messages of a batch together. In a batch a message without a group is a wrong value.
pub(super) fn check_together<'a>(
    drafts: impl Iterator<Item = &'a Draft> + Clone,
    rules: &QueueRules,
) -> Result<(), SqsError> {
    let size: usize = drafts.clone().map(Draft::size).sum();
    if size > BATCH_BYTES_MAX {
        let message = format!(
            "Batch requests cannot be longer than {BATCH_BYTES_MAX} bytes. You have sent {size} bytes."
        );
        return Err(SqsError::new(ErrorKind::BatchRequestTooLong, message));
    }
    match drafts.into_iter().find_map(|draft| draft.lacks(rules)) {
        Some(Lack::Group) => Err(SqsError::parameter(NO_GROUP)),
        Some(Lack::Deduplication) => Err(SqsError::parameter(NO_DEDUPLICATION)),
        None => Ok(()),
    }
}

/// A body is text that XML can carry.
fn check_contents(body: &str) -> Result<(), SqsError> {
    if body.chars().all(is_allowed) {
        return Ok(());
    }
    let message = "Invalid characters found. Valid unicode characters are #x9 | #xA | #xD | #x20 to #xD7FF | \
                   #xE000 to #xFFFD | #x10000 to #x10FFFF.";
    Err(SqsError::new(ErrorKind::InvalidMessageContents, message))
}

/// Whether a body may have it. Surrogates are no characters to begin with.
pub(in crate::sqs) fn is_allowed(c: char) -> bool {
    matches!(c, '\t' | '\n' | '\r' | '\u{20}'..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..)
}

/// What names a group, a duplicate or an attempt.
pub(super) fn check_token(text: &str, name: &str) -> Result<(), SqsError> {
    if (1..=TOKEN_CHARS_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(());
    }
    let reason =
        format!("{name} can only include alphanumeric and punctuation characters. 1 to 128 in length.");
    Err(SqsError::value(text, name, reason))
}

fn user_attributes(
    drafts: BTreeMap<String, AttributeDraft>,
) -> Result<BTreeMap<String, MessageAttribute>, SqsError> {
    let count = drafts.len();
    if count > ATTRIBUTES_MAX {
        let message =
            format!("Number of message attributes [{count}] exceeds the allowed maximum [{ATTRIBUTES_MAX}].");
        return Err(SqsError::parameter(message));
    }
    let check = |(name, draft): (String, AttributeDraft)| {
        check_name(&name)?;
        let attribute = draft.check(&name, "user")?;
        Ok((name, attribute))
    };
    drafts.into_iter().map(check).collect()
}

fn system_attributes(
    drafts: BTreeMap<String, AttributeDraft>,
) -> Result<BTreeMap<String, MessageAttribute>, SqsError> {
    let check = |(name, draft): (String, AttributeDraft)| {
        if name != TRACE_HEADER {
            let message = format!(
                "Message system attribute name '{name}' is invalid. Only {TRACE_HEADER} can be sent."
            );
            return Err(SqsError::parameter(message));
        }
        let attribute = draft.check(&name, "system")?;
        if attribute.data_type != "String" {
            let message = format!("The message (system) attribute '{name}' must be of type 'String'.");
            return Err(SqsError::parameter(message));
        }
        Ok((name, attribute))
    };
    drafts.into_iter().map(check).collect()
}

/// Whether an attribute could be called so.
pub(in crate::sqs) fn is_attribute_name(name: &str) -> bool {
    check_name(name).is_ok()
}

fn check_name(name: &str) -> Result<(), SqsError> {
    let refuse = |why: &str| {
        Err(SqsError::parameter(format!("Message (user) attribute name '{name}' is invalid. Reason: {why}")))
    };
    if !(1..=NAME_CHARS_MAX).contains(&name.chars().count()) {
        return refuse("It must have 1 to 256 characters.");
    }
    if !name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.')) {
        return refuse("It can only include letters, digits, underscores, hyphens and periods.");
    }
    if name.starts_with('.') || name.ends_with('.') || name.contains("..") {
        return refuse("It cannot begin or end with a period, or have two in a row.");
    }
    let reserved = |start: &str| name.get(..start.len()).is_some_and(|it| it.eq_ignore_ascii_case(start));
    if reserved("AWS.") || reserved("Amazon.") {
        return refuse("It cannot begin with 'AWS.' or 'Amazon.'.");
    }
    Ok(())
}

/// The base type of an attribute, without its label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BaseType {
    String,
    Number,
    Binary,
}

impl BaseType {
    fn of(data_type: &str) -> Option<BaseType> {
        let (base, label) =
            data_type.split_once('.').map_or((data_type, None), |(base, label)| (base, Some(label)));
        if label.is_some_and(|label| label.is_empty() || !label.chars().all(is_allowed)) {
            return None;
        }
        match base {
            "String" => Some(BaseType::String),
            "Number" => Some(BaseType::Number),
            "Binary" => Some(BaseType::Binary),
            _ => None,
        }
    }
}

impl AttributeDraft {
    /// `whose` is `user` or `system`.
    fn check(self, name: &str, whose: &str) -> Result<MessageAttribute, SqsError> {
        if self.has_list {
            let message = format!("Message ({whose}) attribute '{name}': list values are not supported.");
            return Err(SqsError::new(ErrorKind::UnsupportedOperation, message));
        }
        let Some(data_type) = self.data_type.filter(|data_type| !data_type.is_empty()) else {
            let message = format!("The message ({whose}) attribute '{name}' must contain a type.");
            return Err(SqsError::parameter(message));
        };
        let base = BaseType::of(&data_type).filter(|_| data_type.chars().count() <= TYPE_CHARS_MAX);
        let Some(base) = base else {
            return Err(SqsError::parameter(format!(
                "The type of message ({whose}) attribute '{name}' is invalid. It must be String, Number or \
                 Binary, or one of these followed by a period and a label, and have at most 256 characters."
            )));
        };
        let value = match base {
            BaseType::Binary => self.bytes.map(AttributeValue::Bytes),
            BaseType::String | BaseType::Number => self.text.map(AttributeValue::Text),
        };
        let Some(value) = value.filter(|value| !value.bytes().is_empty()) else {
            return Err(SqsError::parameter(format!(
                "Message ({whose}) attribute '{name}' must contain a non-empty value of type '{data_type}'."
            )));
        };
        if let AttributeValue::Text(text) = &value {
            if !text.chars().all(is_allowed) {
                return Err(SqsError::parameter(format!(
                    "Invalid characters found in the value of message ({whose}) attribute '{name}'."
                )));
            }
            if base == BaseType::Number && !is_number(text) {
                return Err(SqsError::parameter(format!(
                    "Can't cast the value of message ({whose}) attribute '{name}' to a number."
                )));
            }
        }
        Ok(MessageAttribute { data_type, value })
    }
}

/// A decimal number with at most 38 digits that matter, between 10^-128 and 10^126 in size, or zero.
fn is_number(text: &str) -> bool {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let (mantissa, exponent) = unsigned.split_once(['e', 'E']).unwrap_or((unsigned, "0"));
    let Ok(exponent) = exponent.parse::<i32>() else { return false };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = || whole.bytes().chain(fraction.bytes());
    if digits().count() == 0 || !digits().all(|byte| byte.is_ascii_digit()) {
        return false;
    }
    let mut that_matter = digits().enumerate().filter(|(_, byte)| *byte != b'0').map(|(at, _)| at);
    let Some(first) = that_matter.next() else { return true };
    let last = that_matter.last().unwrap_or(first);
    // The place of the first digit that matters: 0 for ones, 1 for tens, -1 for tenths.
    let place = whole.len() as i64 - 1 - first as i64 + i64::from(exponent);
    last - first < 38 && (-128..=126).contains(&place)
}

macro_rules! system_attribute_names {
    ($($name:ident)*) => {
        /// An attribute that the queue adds to a message.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum SystemAttribute {
            $($name,)*
        }

        impl SystemAttribute {
            pub const ALL: &'static [SystemAttribute] = &[$(SystemAttribute::$name,)*];

            pub fn name(self) -> &'static str {
                match self {
                    $(SystemAttribute::$name => stringify!($name),)*
                }
            }
        }
    };
}

system_attribute_names! {
    AWSTraceHeader
    ApproximateFirstReceiveTimestamp
    ApproximateReceiveCount
    DeadLetterQueueSourceArn
    MessageDeduplicationId
    MessageGroupId
    SenderId
    SentTimestamp
    SequenceNumber
}

/// Which system attributes a receiver wants to see.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SystemFilter(BTreeSet<SystemAttribute>);

impl SystemFilter {
    /// An unknown name is ignored.
    pub(super) fn of(names: &[String]) -> SystemFilter {
        let wanted =
            |attribute: &&SystemAttribute| names.iter().any(|name| name == "All" || name == attribute.name());
        SystemFilter(SystemAttribute::ALL.iter().filter(wanted).copied().collect())
    }

    pub fn wants(&self, attribute: SystemAttribute) -> bool {
        self.0.contains(&attribute)
    }
}

/// Which attributes a receiver wants to see.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AttributeFilter {
    all: bool,
    exact: BTreeSet<String>,
    starts: Vec<String>,
}

impl AttributeFilter {
    pub(super) fn of(names: Vec<String>) -> AttributeFilter {
        let mut filter = AttributeFilter::default();
        for name in names {
            match name.strip_suffix(".*") {
                _ if name == "All" || name == "*" => filter.all = true,
                Some("") => filter.all = true,
                Some(start) => filter.starts.push(start.to_owned()),
                None => drop(filter.exact.insert(name)),
            }
        }
        filter
    }

    pub fn wants(&self, name: &str) -> bool {
        self.all || self.exact.contains(name) || self.starts.iter().any(|start| name.starts_with(start))
    }
}
