//! The native API as data: the messages and the service of `forebay.v1`, generated from
//! `proto/forebay/v1/forebay.proto`, which is also where every field is explained.
//!
//! It converts to and from nothing. Doors translate into the words of the broker, clients into theirs.

/// `forebay.v1`.
pub mod v1 {
    // What a generator writes is not held to the rules of what people write.
    #![allow(clippy::all, unreachable_pub, unused_qualifications)]

    tonic::include_proto!("forebay.v1");
}
