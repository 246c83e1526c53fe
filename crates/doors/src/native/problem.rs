//! Why a call of the native API is refused: the one table from the errors of the broker to kinds of problems.
//!
//! A [`Refusal`] belongs to no protocol. Its kind says which status it has over HTTP and over gRPC
//! ([`forebay_wire::problem::Kind`]); how a field is called is up to each of the two.

use std::borrow::Cow;
use std::fmt::Display;
use std::time::Duration;

use forebay_broker::api::{
    CallError, ChangeRefusal, CreateRefusal, CredentialRefusal, DecodeError, JobRefusal, MemberRefusal,
    NoteRefusal, OverLimit, ProducerRefusal, PublishError, PublishRefusal, SettingsError,
};
use forebay_core::types::{NameError, StreamName, Timestamp};
use forebay_wire::problem::Kind;
use serde::Serialize;

/// Why a call was not done.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Refusal {
    pub(super) kind: Kind,
    /// The field that is refused, by its name over HTTP.
    pub(super) field: Option<Cow<'static, str>>,
    /// A sentence. If the field's value is refused, what follows the field's name.
    text: String,
    /// Where the stream ends.
    pub(super) last_seq: Option<u64>,
    /// When the call may succeed, from now.
    pub(super) retry_after: Option<Duration>,
}

impl Refusal {
    pub(super) fn new(kind: Kind, text: impl Into<String>) -> Refusal {
        Refusal { kind, field: None, text: text.into(), last_seq: None, retry_after: None }
    }

    /// A field breaks a rule, which reads as `must be …`.
    pub(super) fn field(field: impl Into<Cow<'static, str>>, rule: impl Display) -> Refusal {
        Refusal::new(Kind::InvalidField, format!(" {rule}")).with_field(field)
    }

    /// As [`Refusal::field`], with the value.
    pub(super) fn value(
        field: impl Into<Cow<'static, str>>,
        rule: impl Display,
        value: impl Display,
    ) -> Refusal {
        Refusal::field(field, format_args!("{rule}. value=`{value}`"))
    }

    pub(super) fn name(field: impl Into<Cow<'static, str>>, error: &NameError) -> Refusal {
        Refusal { kind: Kind::InvalidName, ..Refusal::field(field, error) }
    }

    pub(super) fn stopping() -> Refusal {
        Refusal::of_call(Timestamp::ZERO, &CallError::Stopping)
    }

    /// The client, or streams, are at a limit.
    pub(super) fn over_limit(over: &OverLimit) -> Refusal {
        let retry_after = Some(whole_millis(over.retry_after));
        Refusal { retry_after, ..Refusal::new(Kind::OverLimit, over.to_string()) }
    }

    pub(super) fn damaged(error: &DecodeError) -> Refusal {
        Refusal::new(Kind::Damaged, format!("a stored message cannot be decoded: {error}"))
    }

    pub(super) fn with_field(self, field: impl Into<Cow<'static, str>>) -> Refusal {
        Refusal { field: Some(field.into()), ..self }
    }

    /// The same with a fact at the end of its sentence.
    pub(super) fn with_fact(self, name: &str, value: impl Display) -> Refusal {
        let separator = if self.text.contains("=`") { "" } else { "." };
        Refusal { text: format!("{}{separator} {name}=`{value}`", self.text), ..self }
    }

    /// The same of another kind.
    pub(super) fn with_kind(self, kind: Kind) -> Refusal {
        Refusal { kind, ..self }
    }

    /// Something exists, and one of its settings differs from the value that was asked for.
    pub(super) fn differs<P: Serialize>(
        thing: impl Display,
        field: Option<String>,
        asked: &P,
        is: &P,
    ) -> Refusal {
        let Some(field) = field else {
            return Refusal::new(Kind::SettingsDiffer, format!("the {thing} exists with other settings"));
        };
        let (asked, is) = (setting(asked, &field), setting(is, &field));
        let text = format!(" of the existing {thing} has another value. value=`{is}` requested=`{asked}`");
        Refusal::new(Kind::SettingsDiffer, text).with_field(field)
    }

    /// A batch that was not stored, with the name of its stream where that is the trouble.
    pub(super) fn in_stream(self, stream: &StreamName) -> Refusal {
        match self.kind {
            Kind::NoSuchStream | Kind::StreamFull | Kind::TooFast => {
                Refusal { text: format!("{}. stream=`{stream}`", self.text), ..self }
            }
            _ => self,
        }
    }

    /// The same of a field that is part of another one.
    pub(super) fn within(self, path: impl Display) -> Refusal {
        let field = self.field.as_ref().map(|field| format!("{path}.{field}").into());
        Refusal { field, ..self }
    }

    /// The sentence, for a protocol that calls the field so.
    pub(super) fn sentence(&self, field: Option<&str>) -> String {
        match (self.kind, field) {
            (
                Kind::InvalidField | Kind::InvalidName | Kind::InvalidParameter | Kind::SettingsDiffer,
                Some(field),
            ) => {
                format!("{field}{}", self.text)
            }
            _ => self.text.clone(),
        }
    }

    /// Why the broker did not do it.
    pub(super) fn of_call(now: Timestamp, error: &CallError) -> Refusal {
        let kind = match error {
            CallError::Denied(_) => Kind::Denied,
            CallError::OverLimit(over) => return Refusal::over_limit(over),
            CallError::Credential(refusal) => return Refusal::of_credential(refusal),
            CallError::NoSuchConnection { .. } => Kind::NoSuchConnection,
            CallError::NoSuchStream { .. }
            | CallError::StreamGone
            | CallError::NotCreated(CreateRefusal::NoSuchStream)
            | CallError::NotChanged(ChangeRefusal::NoSuchStream)
            | CallError::Job(JobRefusal::NoDestination) => Kind::NoSuchStream,
            CallError::NoSuchGroup { .. }
            | CallError::GroupGone
            | CallError::NotChanged(ChangeRefusal::NoSuchGroup)
            | CallError::NotAMember(MemberRefusal::NoSuchGroup)
            | CallError::Job(JobRefusal::NoSuchGroup) => Kind::NoSuchGroup,
            CallError::Job(JobRefusal::NoSuchJob { .. }) => Kind::NoSuchJob,
            CallError::Job(JobRefusal::NotParked { .. }) => Kind::NotParked,
            CallError::Job(JobRefusal::Empty) => Kind::EmptySelection,
            CallError::Job(JobRefusal::IdTaken { .. }) => Kind::IdTaken,
            CallError::Job(JobRefusal::TooManyRanges { .. }) => Kind::SelectionTooLarge,
            CallError::Job(JobRefusal::TooMany { .. } | JobRefusal::Moving { .. }) => Kind::TooManyJobs,
            CallError::Job(JobRefusal::Rate) => return Refusal::field("rate", error),
            CallError::NotCreated(CreateRefusal::Settings(refusal))
            | CallError::NotChanged(ChangeRefusal::Settings(refusal)) => {
                return Refusal::of_settings(refusal);
            }
            CallError::NotCreated(CreateRefusal::TooMany { .. })
            | CallError::NotChanged(ChangeRefusal::TooMany { .. })
            | CallError::Note(NoteRefusal::Full | NoteRefusal::TooMany) => Kind::LimitReached,
            CallError::NotCreated(CreateRefusal::StreamExists { .. } | CreateRefusal::GroupExists { .. })
            | CallError::Different => Kind::SettingsDiffer,
            CallError::NotChanged(ChangeRefusal::InUse { .. }) => Kind::InUse,
            CallError::NotChanged(ChangeRefusal::NotEmpty { .. }) => Kind::NotEmpty,
            CallError::NotChanged(ChangeRefusal::Beyond { last, .. }) => {
                let refusal = Refusal::new(Kind::NoSuchPosition, error.to_string());
                return Refusal { last_seq: Some(last.0), ..refusal };
            }
            CallError::NotAMember(MemberRefusal::CreditTooLarge { .. }) => {
                return Refusal::field("credit", error);
            }
            CallError::NotAMember(MemberRefusal::TooManyConsumers { .. }) => Kind::TooManyConsumers,
            CallError::NotPublished(error) => return Refusal::of_publish(now, error),
            CallError::NotStored { error, .. } => return Refusal::of_publish(now, error),
            CallError::NotCurrent { .. } => Kind::LeaseNotCurrent,
            CallError::TooLarge { .. } => Kind::BatchTooLarge,
            CallError::Twice { .. } => Kind::InvalidField,
            CallError::TooManyBytes => Kind::Busy,
            CallError::TooManyWaiting { .. } | CallError::InFlightFull { .. } => Kind::TooManyWaiting,
            CallError::Stopping => Kind::Stopping,
            CallError::Unknown => Kind::OutcomeUnknown,
            // No call of this API asks for anything that could be refused otherwise.
            _ => Kind::Internal,
        };
        Refusal::new(kind, error.to_string())
    }

    /// Why a credential was not made or revoked.
    fn of_credential(refusal: &CredentialRefusal) -> Refusal {
        let (kind, field) = match refusal {
            CredentialRefusal::Name { .. } | CredentialRefusal::UserName { .. } => {
                (Kind::InvalidField, "name")
            }
            CredentialRefusal::Password { .. } | CredentialRefusal::PasswordOfOther => {
                (Kind::InvalidField, "password")
            }
            CredentialRefusal::UserExists { .. } => {
                return Refusal::new(Kind::UserExists, refusal.to_string());
            }
            CredentialRefusal::Past => (Kind::InvalidField, "expires"),
            CredentialRefusal::Account { .. } | CredentialRefusal::AccountOfToken => {
                (Kind::InvalidField, "account")
            }
            CredentialRefusal::NoSuchCredential { .. } => {
                return Refusal::new(Kind::NoSuchCredential, refusal.to_string());
            }
            CredentialRefusal::TooMany => return Refusal::new(Kind::LimitReached, refusal.to_string()),
            _ => return Refusal::new(Kind::Internal, refusal.to_string()),
        };
        // The sentence begins with the name of the field.
        let text = refusal.to_string();
        let text = text.strip_prefix(field).map_or_else(|| format!(": {text}"), str::to_owned);
        Refusal::new(kind, text).with_field(field)
    }

    /// A setting breaks its rule.
    pub(super) fn of_settings(error: &SettingsError) -> Refusal {
        let SettingsError { field, rule, value } = error;
        Refusal::value(field.clone(), format_args!("must be {rule}"), value)
    }

    /// Why a batch was not stored, or may not have been.
    pub(super) fn of_publish(now: Timestamp, error: &PublishError) -> Refusal {
        let (mut last_seq, mut retry_after) = (None, None);
        let kind = match error {
            PublishError::Refused(refusal) => match refusal {
                PublishRefusal::StorageFull => Kind::StorageFull,
                PublishRefusal::NoSuchStream => Kind::NoSuchStream,
                PublishRefusal::Empty => {
                    return Refusal::new(Kind::EmptyBatch, error.to_string()).with_field("messages");
                }
                PublishRefusal::MessageTooLarge { .. } => Kind::MessageTooLarge,
                PublishRefusal::BatchTooLarge { .. } | PublishRefusal::TooMany { .. } => Kind::BatchTooLarge,
                PublishRefusal::Priority { .. } => return Refusal::field("priority", error),
                PublishRefusal::TooFar => Kind::InvalidField,
                PublishRefusal::WrongLastSeq { last } => {
                    last_seq = Some(last.0);
                    Kind::WrongLastSeq
                }
                PublishRefusal::Full { .. } => Kind::StreamFull,
                PublishRefusal::TooFast { retry_at } => {
                    retry_after = Some(whole_millis(retry_at.since(now))).filter(|wait| !wait.is_zero());
                    Kind::TooFast
                }
                PublishRefusal::Producer(ProducerRefusal::Fenced { .. }) => Kind::ProducerFenced,
                PublishRefusal::Producer(ProducerRefusal::Gap { .. }) => Kind::ProducerGap,
                PublishRefusal::Producer(ProducerRefusal::TooOld { .. }) => Kind::ProducerTooOld,
                _ => Kind::Internal,
            },
            PublishError::NotCreated(CreateRefusal::TooMany { .. }) => Kind::LimitReached,
            PublishError::NotCreated(CreateRefusal::NoSuchStream) => Kind::NoSuchStream,
            PublishError::NotCreated(CreateRefusal::Settings(refusal)) => {
                return Refusal::of_settings(refusal);
            }
            PublishError::Denied(_) => Kind::Denied,
            PublishError::OverLimit(over) => return Refusal::over_limit(over),
            PublishError::Stopping => Kind::Stopping,
            PublishError::Unknown => Kind::OutcomeUnknown,
            _ => Kind::Internal,
        };
        Refusal { last_seq, retry_after, ..Refusal::new(kind, error.to_string()) }
    }
}

/// A setting, by its path, as it stands in JSON.
fn setting(settings: &impl Serialize, path: &str) -> String {
    let all = serde_json::to_value(settings).unwrap_or_default();
    let found = path.split('.').try_fold(&all, |within, name| within.get(name));
    match found {
        Some(serde_json::Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
        None => "none".to_owned(),
    }
}

/// Rounded up, so that a client that waits as long is not refused again.
fn whole_millis(wait: Duration) -> Duration {
    Duration::from_millis(u64::try_from(wait.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_broker::api::GroupSettings;
    use forebay_core::types::{JobId, Seq};
    use forebay_model::GroupPatch;

    #[test]
    fn a_refusal_names_the_field_as_its_protocol_does() {
        let refusal = Refusal::value("wait", "must be at most 10m", "11m");
        assert_eq!(refusal.sentence(Some("wait_ms")), "wait_ms must be at most 10m. value=`11m`");
        assert_eq!(refusal.within("receive").field.as_deref(), Some("receive.wait"));
        let broken = SettingsError::new("backoff.min", "at most backoff.max (30s)", "1m");
        let refused = CallError::NotChanged(ChangeRefusal::Settings(broken));
        let refusal = Refusal::of_call(Timestamp::ZERO, &refused);
        assert_eq!((refusal.kind, refusal.field.as_deref()), (Kind::InvalidField, Some("backoff.min")));
        let text = "backoff.min_ms must be at most backoff.max (30s). value=`1m`";
        assert_eq!(refusal.sentence(Some("backoff.min_ms")), text);
        let (asked, is) = (GroupPatch::new().max_retries(99u32), GroupPatch::from(&GroupSettings::default()));
        let differs = Refusal::differs("group jobs/workers", Some("max_retries".to_owned()), &asked, &is);
        let text =
            "max_retries of the existing group jobs/workers has another value. value=`10` requested=`99`";
        assert_eq!(differs.sentence(differs.field.as_deref()), text);
    }

    /// Each was once answered as a mistake of the server.
    #[test]
    fn refused_jobs_have_a_kind_of_their_own() {
        for (refusal, kind) in [
            (JobRefusal::IdTaken { seq: Seq(1) }, Kind::IdTaken),
            (JobRefusal::TooManyRanges { ranges: 2, limit: 1 }, Kind::SelectionTooLarge),
            (JobRefusal::Moving { job: JobId(1) }, Kind::TooManyJobs),
            (JobRefusal::NoDestination, Kind::NoSuchStream),
        ] {
            assert_eq!(Refusal::of_call(Timestamp::ZERO, &refusal.into()).kind, kind);
        }
    }

    #[test]
    fn a_producer_that_is_too_fast_is_told_how_long_to_wait() {
        let refusal = PublishRefusal::TooFast { retry_at: Timestamp(3_000_000) };
        let error = PublishError::Refused(refusal);
        let wait = |now| Refusal::of_publish(Timestamp(now), &error).retry_after;
        assert_eq!(wait(1_000_000), Some(Duration::from_secs(2)));
        assert_eq!(wait(4_000_000), None);
    }
}
