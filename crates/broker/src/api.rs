//! Everything that a door may name, in one list.
//!
//! Doors use this module and `forebay_core::types`, and `cargo xtask tidy` holds them to it. The driver, the
//! index, the window and recovery are public for the simulator, and no business of a door.

pub use crate::access::{AUDIT_STREAM, Action, Denied, GrantError, Grants, Principal, ROLES, Right};
pub use crate::audit::{Audit, AuditOutcome, AuditRecord};
pub use crate::batch::{
    Batch, BatchBuilder, ContentType, CopiedFrom, Dedupe, Message, Own, after, parse_content,
};
pub use crate::broker::{
    Broker, BrokerConfig, Entrance, Event, FIRST_PUBLISH_BYTES_MAX, Room, Running, Stage,
};
pub use crate::broker::{SettleRequest, Settled};
pub use crate::caller::{
    Absent, Bundle, Caller, Change, Choice, Committed, Confirmation, Consumer, Created, Filter, GroupCursor,
    JobTerms, LinkFeed, LinkStream, LogFilter, LogMessage, LogPage, LogReader, NoteWish, Reader, Receive,
    Receiving, Select, WriteLink,
};
pub use crate::clock::{Clock, Moment};
pub use crate::credentials::{
    CredentialKind, CredentialRefusal, CredentialReport, CredentialTerms, Credentials, IssuerFigures,
    KnownKey, KnownUser, NewCredential, NotRecognised, PASSWORD_ITERATIONS, Secret, TokenIssuer, Verifier,
};
pub use crate::door::Door;
pub use crate::driver::{Delivered, Delivery, DriverConfig, Past, Published, RunMessage};
pub use crate::error::{Advice, CallError, OpenError, PublishError};
pub use crate::memory::{Hold, Memory, MemoryFigures, Pool, Share};
pub use crate::reader::{Direction, Most, Stretch};
pub use crate::report::{
    BANDS, Bands, ConsumerReport, END_TO_END_BANDS, Found, GroupReport, JobReport, Page, ParkedReport,
    ReadPage, ScalingReport, Selected, ServerReport, StreamReport, Throughput,
};
pub use crate::stats::connections::{ConnectionReport, LiveConnection};
pub use crate::stats::doors::{DoorStats, Doors};
pub use crate::stats::{Histogram, Rates, ScalingAdvice, ScalingTarget, Summary};
pub use crate::tenants::{
    ClientLimits, Limit, LimitError, OverLimit, Refusals, Seat, Subject, Tenant, Tenants, Turn,
};
pub use crate::trace::{Operation, SPANS_MAX, Span, TraceContext, Tracer};

pub use forebay_core::Admission;
pub use forebay_core::codec::DecodeError;
pub use forebay_core::entry::{Cause, Failure, JobFailure, Work};
pub use forebay_core::group::{
    Bound, ConsumerTerms, Counters, GroupFigures, JobRefusal, JobState, Lease, LeaseRun, Life, LifeState,
    NotYours, Outcome, OutcomeRun, Parked, REST_MAX, Settlement, Status, Verb, each_outcome,
};
pub use forebay_core::notes::{Expected, NOTE_VALUE_BYTES_MAX, NoteRefusal};
pub use forebay_core::pace::Rate;
pub use forebay_core::producers::{ProducerRefusal, ProducerStamp};
pub use forebay_core::settings::{
    Acks, Backoff, Checkpoint, Fairness, GroupSettings, KeyLock, MoveTerms, OnEnd, OnExhausted, OnFull,
    OnParkedKey, Retention, Retries, SettingsError, Source, Strategy, StreamLimits, StreamSettings,
};
pub use forebay_core::shard::{
    ChangeRefusal, CreateRefusal, DeleteIf, MemberRefusal, PublishOptions, PublishRefusal, Purge, ResetTo,
    Start, StreamFigures,
};
