//! The protocol of KurrentDB and EventStoreDB clients, as modules that are nested as its packages are. Messages
//! that have the same fields under several names are one type; see `proto/kurrent/shared.proto`.

// What a generator writes is not held to the rules of what people write.
#![allow(clippy::all, unreachable_pub, unused_qualifications, missing_docs)]

pub use event_store::client::{self, gossip, persistent_subscriptions, server_features, streams};
pub use prost_types::{Any, Duration, Timestamp};

pub mod event_store {
    pub mod client {
        include!("generated/event_store.client.rs");

        pub mod gossip {
            include!("generated/event_store.client.gossip.rs");
        }

        pub mod persistent_subscriptions {
            include!("generated/event_store.client.persistent_subscriptions.rs");
        }

        pub mod server_features {
            include!("generated/event_store.client.server_features.rs");
        }

        pub mod streams {
            include!("generated/event_store.client.streams.rs");
        }
    }
}

pub mod google {
    pub mod rpc {
        include!("generated/google.rpc.rs");
    }
}

impl client::MetadataEntry {
    pub fn new(key: &'static str, value: impl Into<bytes::Bytes>) -> client::MetadataEntry {
        client::MetadataEntry { key: bytes::Bytes::from_static(key.as_bytes()), value: value.into() }
    }

    /// The value of a key, as text. As in a map, the last entry of a key counts. `None` without one, or if it is
    /// not UTF-8.
    pub fn find<'a>(entries: &'a [client::MetadataEntry], key: &str) -> Option<&'a str> {
        let entry = entries.iter().rev().find(|entry| entry.key == key.as_bytes())?;
        std::str::from_utf8(&entry.value).ok()
    }
}
