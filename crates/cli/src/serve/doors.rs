//! The ports of a server. Every protocol beside the native API is a row of [`ROWS`] and has a port of its own.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use forebay_broker::broker::Entrance;
use forebay_doors::kit::tls::Tls;
use forebay_doors::native::node::NodeFacts;
use forebay_doors::native::{self, ClusterReporter, NativeConfig};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::alerts::Plan;
use super::identity::Identity;
use crate::exit::Exit;
use crate::settings::Settings;

/// The protocols beside the native API.
pub(super) static ROWS: [Row; 2] = [
    Row {
        name: "SQS",
        setting: "sqs",
        address: |settings| settings.sqs,
        #[cfg(feature = "sqs")]
        prepare: Some(super::sqs::prepare),
        #[cfg(not(feature = "sqs"))]
        prepare: None,
    },
    Row {
        name: "Kurrent",
        setting: "kurrent",
        address: |settings| settings.kurrent,
        #[cfg(feature = "kurrent")]
        prepare: Some(super::kurrent::prepare),
        #[cfg(not(feature = "kurrent"))]
        prepare: None,
    },
];

/// One protocol beside the native API.
pub(super) struct Row {
    pub(super) name: &'static str,
    /// The setting that has its address.
    pub(super) setting: &'static str,
    pub(super) address: fn(&Settings) -> Option<SocketAddr>,
    /// `None` in a build without the protocol.
    prepare: Option<Prepare>,
}

/// Reads and checks the settings of a protocol.
type Prepare = fn(&Site<'_>) -> anyhow::Result<Arc<dyn Protocol>>;

/// The place where a protocol is to be served.
#[cfg_attr(
    not(any(feature = "kurrent", feature = "sqs")),
    allow(dead_code, reason = "there is no row to serve")
)]
pub(super) struct Site<'a> {
    pub(super) settings: &'a Settings,
    pub(super) identity: &'a Identity,
    pub(super) tls: Option<Tls>,
    pub(super) address: SocketAddr,
}

/// Ends when the broker has stopped and the calls have ended.
pub(super) type Serving = Pin<Box<dyn Future<Output = std::io::Result<()>> + Send>>;

/// A protocol whose settings have been read and checked.
#[cfg_attr(
    not(any(feature = "kurrent", feature = "sqs")),
    allow(dead_code, reason = "there is no row to serve")
)]
pub(super) trait Protocol: Send + Sync {
    /// Refuses an address that others can reach if no client can have a credential.
    fn check_reach(&self, _broker: &Entrance, _address: SocketAddr) -> anyhow::Result<()> {
        Ok(())
    }

    fn serve(&self, broker: Entrance, listener: TcpListener) -> Serving;
}

impl Row {
    fn flag(&self) -> String {
        format!("--{}", self.setting)
    }

    /// The protocol, if the settings ask for it. Nothing is opened.
    fn read(
        &self,
        settings: &Settings,
        identity: &Identity,
        tls: Option<Tls>,
        is_asked_for: bool,
    ) -> anyhow::Result<Option<(SocketAddr, Arc<dyn Protocol>)>> {
        let Some(address) = (self.address)(settings) else { return Ok(None) };
        let Some(prepare) = self.prepare else {
            if is_asked_for {
                let (setting, name) = (self.setting, self.name);
                let error = anyhow::anyhow!(
                    "{setting} must be `none`: this server was built without {name}. value=`{address}`"
                );
                bail!(error.context(Exit::NotUnderstood));
            }
            return Ok(None);
        };
        prepare(&Site { settings, identity, tls, address }).map(|protocol| Some((address, protocol)))
    }

    /// A socket, or a remark: if the port is in use and no setting asks for it explicitly, the server starts without.
    async fn listen(
        &self,
        address: SocketAddr,
        is_asked_for: bool,
    ) -> anyhow::Result<Result<TcpListener, String>> {
        let (name, flag) = (self.name, self.flag());
        match TcpListener::bind(address).await {
            Ok(listener) => Ok(Ok(listener)),
            Err(error) if !is_asked_for => Ok(Err(format!(
                "{name} is not served: {address} cannot be listened on ({error}). To use another address, or \
                 none, give {flag}"
            ))),
            Err(error) => Err(anyhow::Error::new(error).context(Exit::CannotListen).context(format!(
                "{name} cannot be served on port {}. To use another address, give {flag}. address=`{address}`",
                address.port()
            ))),
        }
    }
}

/// Checks the settings of every protocol without opening a port.
pub(super) fn check(settings: &Settings, identity: &Identity) -> anyhow::Result<()> {
    ROWS.iter().try_for_each(|row| row.read(settings, identity, None, false).map(drop))
}

/// One open port.
struct Door {
    row: &'static Row,
    listener: TcpListener,
    address: SocketAddr,
    protocol: Arc<dyn Protocol>,
}

/// The open ports of a server.
pub(super) struct Doors {
    pub(super) native: TcpListener,
    others: Vec<Door>,
    /// Why a port is closed that an operator might expect to be open.
    pub(super) remarks: Vec<String>,
    /// Connections that all ports together may have.
    pub(super) connections_max: Option<usize>,
    pub(super) identity: Arc<Identity>,
    pub(super) tls: Option<Tls>,
    /// How the cluster stands, on a node of one.
    pub(super) cluster: Option<ClusterReporter>,
    pub(super) alerts: Option<Plan>,
    /// For the dashboard.
    pub(super) node: Arc<NodeFacts>,
}

impl Doors {
    /// Listens for every protocol that the settings ask for. `is_default` says whether a setting has its default.
    pub(super) async fn open(
        native: TcpListener,
        settings: &Settings,
        identity: Identity,
        tls: Option<Tls>,
        is_default: impl Fn(&str) -> bool,
    ) -> anyhow::Result<Doors> {
        let (mut others, mut remarks) = (Vec::new(), Vec::new());
        for row in &ROWS {
            let is_asked_for = !is_default(row.setting);
            let Some((address, protocol)) = row.read(settings, &identity, tls.clone(), is_asked_for)? else {
                continue;
            };
            match row.listen(address, is_asked_for).await? {
                Err(remark) => remarks.push(remark),
                Ok(listener) => {
                    let address = listener
                        .local_addr()
                        .with_context(|| format!("cannot tell the address of {}", row.name))?;
                    others.push(Door { row, listener, address, protocol });
                }
            }
        }
        let identity = Arc::new(identity);
        let (connections_max, cluster, alerts, node) = (None, None, None, Arc::default());
        Ok(Doors { native, others, remarks, connections_max, identity, tls, cluster, alerts, node })
    }

    /// Where each protocol is served, by row.
    pub(super) fn addresses(&self) -> Vec<(&'static Row, Option<SocketAddr>)> {
        let address =
            |row: &Row| self.others.iter().find(|door| std::ptr::eq(door.row, row)).map(|door| door.address);
        ROWS.iter().map(|row| (row, address(row))).collect()
    }

    /// Where the protocol of this setting is served.
    pub(super) fn address_of(&self, setting: &str) -> Option<SocketAddr> {
        self.others.iter().find(|door| door.row.setting == setting).map(|door| door.address)
    }

    /// Every socket, with its row; the native one, which has none, first.
    #[cfg_attr(not(feature = "jetstream"), allow(dead_code))]
    pub(super) fn listeners(&self) -> impl Iterator<Item = (Option<&'static Row>, &TcpListener)> {
        let others = self.others.iter().map(|door| (Some(door.row), &door.listener));
        std::iter::once((None, &self.native)).chain(others)
    }

    /// Refuses addresses that others can reach if no client can have a credential.
    pub(super) fn check_reach(&self, broker: &Entrance) -> anyhow::Result<()> {
        self.others.iter().try_for_each(|door| door.protocol.check_reach(broker, door.address))
    }

    /// The same sockets for a later term of office, after the doors of this one have closed.
    #[cfg_attr(not(feature = "jetstream"), allow(dead_code))]
    pub(super) fn again(&self) -> std::io::Result<Doors> {
        let again = |door: &Door| {
            let listener = listen_again(&door.listener)?;
            Ok(Door { row: door.row, listener, address: door.address, protocol: door.protocol.clone() })
        };
        Ok(Doors {
            native: listen_again(&self.native)?,
            others: self.others.iter().map(again).collect::<std::io::Result<_>>()?,
            remarks: self.remarks.clone(),
            connections_max: self.connections_max,
            identity: self.identity.clone(),
            tls: self.tls.clone(),
            cluster: self.cluster.clone(),
            alerts: self.alerts.clone(),
            node: self.node.clone(),
        })
    }

    /// Serves every protocol until the broker stops and the calls have ended. The first failure ends all of them.
    pub(super) async fn serve(self, broker: Entrance, config: NativeConfig) -> std::io::Result<()> {
        let mut serving = JoinSet::new();
        for door in self.others {
            serving.spawn(door.protocol.serve(broker.clone(), door.listener));
        }
        let stop = broker.stopping();
        serving.spawn(native::serve_with(broker, self.native, stop, config));
        while let Some(ended) = serving.join_next().await {
            ended.map_err(std::io::Error::other)??;
        }
        Ok(())
    }
}

/// The same socket once more.
#[cfg_attr(not(feature = "jetstream"), allow(dead_code))]
fn listen_again(listener: &TcpListener) -> std::io::Result<TcpListener> {
    use std::os::fd::AsFd as _;
    let socket = listener.as_fd().try_clone_to_owned()?;
    TcpListener::from_std(std::net::TcpListener::from(socket))
}
