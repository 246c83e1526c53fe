//! The members of the cluster, of which there is one: the server itself, which leads.

use axum::http::uri::Authority;
use forebay_broker::api::Clock;
use forebay_wire::kurrent::client::Empty;
use forebay_wire::kurrent::gossip::gossip_server::Gossip as GossipService;
use forebay_wire::kurrent::gossip::member_info::VNodeState;
use forebay_wire::kurrent::gossip::{ClusterInfo, EndPoint, MemberInfo};
use tonic::{Request, Response, Status};

use super::event;
use super::features::Method;
use super::ids::{EventId, Form};

pub(super) const METHODS: &[Method] = &[Method { name: "read", features: &[] }];

/// The address by which a client called the server. An extension of its requests.
///
/// Clients connect to the address that they find in the answer, and the one by which they asked can be reached.
#[derive(Debug, Clone)]
pub(super) struct CalledAs(pub(super) Authority);

pub(super) struct Gossip {
    /// Of this run of the server.
    pub(super) instance: EventId,
    pub(super) clock: Clock,
    /// The door's own address, for clients that do not say how they call it.
    pub(super) host: String,
    pub(super) port: u16,
}

impl Gossip {
    /// The server, as a member.
    fn end_point(&self, called_as: Option<&CalledAs>) -> EndPoint {
        let (address, port) = match called_as {
            Some(CalledAs(authority)) => {
                let host = authority.host().trim_start_matches('[').trim_end_matches(']');
                (host.to_owned(), authority.port_u16().unwrap_or(self.port))
            }
            None => (self.host.clone(), self.port),
        };
        EndPoint { address, port: port.into() }
    }
}

#[tonic::async_trait]
impl GossipService for Gossip {
    async fn read(&self, request: Request<Empty>) -> Result<Response<ClusterInfo>, Status> {
        let member = MemberInfo {
            instance_id: Some(Form::Text.write(self.instance)),
            time_stamp: i64::try_from(event::ticks(self.clock.now())).unwrap_or(i64::MAX),
            state: VNodeState::Leader.into(),
            is_alive: true,
            http_end_point: Some(self.end_point(request.extensions().get())),
        };
        Ok(Response::new(ClusterInfo { members: vec![member] }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_only_member_leads_at_the_address_by_which_it_was_called() {
        let gossip = Gossip {
            instance: EventId([7; 16]),
            clock: Clock::start(),
            host: "127.0.0.1".to_owned(),
            port: 2113,
        };
        let ask = async |called_as: Option<&'static str>| {
            let mut request = Request::new(Empty {});
            if let Some(text) = called_as {
                request.extensions_mut().insert(CalledAs(Authority::from_static(text)));
            }
            let info = gossip.read(request).await.expect("an answer").into_inner();
            let [member] = &info.members[..] else { panic!("one member") };
            assert_eq!((member.state(), member.is_alive), (VNodeState::Leader, true));
            let end_point = member.http_end_point.clone().expect("an address");
            (end_point.address, end_point.port)
        };
        assert_eq!(ask(None).await, ("127.0.0.1".to_owned(), 2113));
        assert_eq!(ask(Some("events.example:2200")).await, ("events.example".to_owned(), 2200));
        assert_eq!(ask(Some("[::1]:2200")).await, ("::1".to_owned(), 2200));
        assert_eq!(ask(Some("localhost")).await, ("localhost".to_owned(), 2113));
    }

    #[tokio::test]
    async fn the_time_of_a_member_is_in_ticks() {
        let clock = Clock::start();
        let gossip = Gossip { instance: EventId([7; 16]), clock, host: "127.0.0.1".to_owned(), port: 2113 };
        let info = gossip.read(Request::new(Empty {})).await.expect("an answer").into_inner();
        let member = info.members.first().expect("one member");
        let second = 10_000_000;
        let now = clock.date().0 as i64 * 10;
        assert!((member.time_stamp - now).abs() < 60 * second, "{member:?} {now}");
    }
}
