//! The calls that the server has, as clients ask for them before their first one. Clients turn features off, or use
//! another protocol, for calls that are not in this list.

use forebay_wire::kurrent::client::Empty;
use forebay_wire::kurrent::server_features::server_features_server::ServerFeatures;
use forebay_wire::kurrent::server_features::{SupportedMethod, SupportedMethods};
use tonic::{Request, Response, Status};

use super::{gossip, persistent, streams};

/// The release of KurrentDB whose protocol this is. Clients compare it, and take nothing but numbers.
pub(super) const VERSION: &str = "24.10.0";

/// A call that is advertised.
#[derive(Debug, Clone, Copy)]
pub(super) struct Method {
    /// In lower case, as clients compare it.
    pub(super) name: &'static str,
    pub(super) features: &'static [&'static str],
}

const OWN: &[Method] = &[Method { name: "getsupportedmethods", features: &[] }];

/// Every service with its calls.
pub(super) const SERVICES: [(&str, &[Method]); 4] = [
    ("event_store.client.streams.streams", streams::METHODS),
    ("event_store.client.persistent_subscriptions.persistentsubscriptions", persistent::METHODS),
    ("event_store.client.server_features.serverfeatures", OWN),
    ("event_store.client.gossip.gossip", gossip::METHODS),
];

pub(super) struct Features;

#[tonic::async_trait]
impl ServerFeatures for Features {
    async fn get_supported_methods(&self, _: Request<Empty>) -> Result<Response<SupportedMethods>, Status> {
        let methods = SERVICES.iter().flat_map(|(service, methods)| {
            methods.iter().map(|method| SupportedMethod {
                method_name: method.name.to_owned(),
                service_name: (*service).to_owned(),
                features: method.features.iter().map(|&feature| feature.to_owned()).collect(),
            })
        });
        Ok(Response::new(SupportedMethods {
            methods: methods.collect(),
            event_store_server_version: VERSION.to_owned(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn names_are_in_lower_case_and_the_version_is_three_numbers() {
        let asked = Features.get_supported_methods(Request::new(Empty {})).await;
        let supported = asked.expect("an answer").into_inner();
        for method in &supported.methods {
            for name in [&method.method_name, &method.service_name] {
                assert_eq!(*name, name.to_lowercase());
            }
        }
        let parts: Vec<&str> = supported.event_store_server_version.split('.').collect();
        assert_eq!(parts.len(), 3);
        for part in parts {
            assert_eq!(part.parse::<u32>().expect("a number").to_string(), part);
        }
    }

    #[test]
    fn features_are_those_that_clients_look_for() {
        let of = |service: &str, name: &str| {
            let (_, methods) = SERVICES.iter().find(|(found, _)| *found == service).expect("the service");
            methods.iter().find(|method| method.name == name).expect("the method").features
        };
        let streams = "event_store.client.streams.streams";
        assert_eq!(of(streams, "read"), ["position", "events"]);
        assert_eq!(of(streams, "batchappend"), ["deadline_duration"]);
        for name in ["append", "delete", "tombstone"] {
            assert!(of(streams, name).is_empty(), "{name}");
        }
        let groups = "event_store.client.persistent_subscriptions.persistentsubscriptions";
        for name in
            ["create", "update", "delete", "read", "getinfo", "replayparked", "list", "restartsubsystem"]
        {
            assert_eq!(of(groups, name), ["stream", "all"], "{name}");
        }
        assert_eq!(of(groups, "truncateparked"), ["stream", "all"]);
        assert!(of("event_store.client.gossip.gossip", "read").is_empty());
    }
}
