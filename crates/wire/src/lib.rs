//! The native API as data: the messages and the service of `forebay.v1`, generated from the files in
//! `proto/forebay/v1`, which is also where every field is explained (`cargo xtask proto` writes them anew); the same
//! API in [`json`]; the [`problem`]s that it answers with; in [`attention`] what its reports say to an operator,
//! and in [`alert`] when an operator is told.
//! Behind the feature `kurrent` lies the protocol of KurrentDB and EventStoreDB clients, made from `proto/kurrent`.
//!
//! It converts nothing but [`settings`]. Doors translate into the words of the broker, clients into theirs.

pub mod alert;
pub mod attention;
pub mod codec;
pub mod encoded;
pub mod json;
#[cfg(feature = "kurrent")]
pub mod kurrent;
pub mod problem;
pub mod settings;

/// `forebay.v1`.
pub mod v1 {
    // What a generator writes is not held to the rules of what people write.
    #![allow(clippy::all, unreachable_pub, unused_qualifications)]

    include!("generated/forebay.v1.rs");

    pub use crate::encoded::{Deliveries, Followed as FollowStreamReply, Followed as FollowLogReply};

    /// The protocol itself, as an encoded `FileDescriptorSet`, for server reflection.
    pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!("generated/forebay.v1.bin");
}

/// The protocol of KEDA's external scalers, generated from `proto/keda`.
pub mod keda {
    #![allow(clippy::all, unreachable_pub, unused_qualifications)]

    include!("generated/externalscaler.rs");

    /// The protocol itself, as an encoded `FileDescriptorSet`, for server reflection.
    pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!("generated/externalscaler.bin");
}
