//! How commands reach a server: addresses, contexts, and the errors of a server that does not answer.

use std::io::ErrorKind;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use clap::Args;
use forebay_client::{Client, ConnectError, authority};

use crate::context;
use crate::exit::Exit;
use crate::failure;
use crate::safe::printable;

pub(crate) const DEFAULT_ADDRESS: &str = "127.0.0.1:7070";
/// How long a server may take to accept a connection.
pub(crate) const CONNECT_PATIENCE: Duration = Duration::from_secs(10);
/// Addresses in one `--server`.
const ADDRESSES_MAX: usize = 16;

/// The server that a command talks to. May be given before or after the command.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Server {
    /// The server: HOST or HOST:PORT (default port 7070); several with commas, of which the first that answers is
    /// used. Default: FOREBAY_SERVER, then the context, then 127.0.0.1:7070.
    #[arg(long, global = true, value_name = "ADDRESS", value_parser = addresses, display_order = 901)]
    pub(crate) server: Option<Addresses>,
    /// The name of a server, as `forebay context` stores it. Also FOREBAY_CONTEXT.
    #[arg(long, global = true, value_name = "NAME", conflicts_with = "server", display_order = 902)]
    pub(crate) context: Option<String>,
}

/// One or more `HOST:PORT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Addresses(Vec<String>);

/// The one parser of addresses: of flags, variables and contexts.
pub(crate) fn addresses(text: &str) -> Result<Addresses, String> {
    let all: Result<Vec<String>, String> = text.split(',').map(|one| address(one.trim())).collect();
    let all = all?;
    if all.len() > ADDRESSES_MAX {
        return Err(format!("expected at most {ADDRESSES_MAX} addresses"));
    }
    Ok(Addresses(all))
}

fn address(text: &str) -> Result<String, String> {
    authority(text).map_err(|error| match error {
        ConnectError::NoTls { .. } => "TLS is not supported by this command; use http://HOST:PORT".to_owned(),
        ConnectError::UnknownScheme { scheme } => {
            format!("expected HOST, HOST:PORT or http://HOST:PORT. scheme=`{}`", printable(&scheme))
        }
        _ => format!("expected HOST, HOST:PORT or http://HOST:PORT. address=`{}`", printable(text)),
    })
}

impl Addresses {
    pub(crate) fn text(&self) -> String {
        self.0.join(",")
    }
}

impl Server {
    /// The server at this address.
    pub(crate) fn at(address: &str) -> Server {
        Server { server: Some(Addresses(vec![address.to_owned()])), context: None }
    }

    /// Whether the command line names a server.
    pub(crate) fn is_given(&self) -> bool {
        self.server.is_some() || self.context.is_some()
    }

    /// Hosts and ports, in the order in which they are tried.
    pub(crate) fn addresses(&self) -> anyhow::Result<Vec<String>> {
        let variable = |name| std::env::var(name).ok().filter(|text| !text.is_empty());
        if let Some(given) = &self.server {
            return Ok(given.0.clone());
        }
        if let Some(name) = &self.context {
            return Ok(context::of(name)?.0);
        }
        if let Some(text) = variable("FOREBAY_SERVER") {
            let found = addresses(&text).map_err(|wrong| anyhow!(Exit::NotUnderstood).context(wrong));
            return Ok(found.context("the variable FOREBAY_SERVER is invalid")?.0);
        }
        if let Some(name) = variable("FOREBAY_CONTEXT") {
            return Ok(context::of(&name).context("the variable FOREBAY_CONTEXT is invalid")?.0);
        }
        Ok(context::current()?.map_or_else(|| vec![DEFAULT_ADDRESS.to_owned()], |found| found.0))
    }

    /// The first of them, for commands that talk to one only.
    pub(crate) fn authority(&self) -> anyhow::Result<String> {
        Ok(self.addresses()?.swap_remove(0))
    }

    /// Connects the SDK, for a command with this name, to the first server that answers.
    pub(crate) async fn client(&self, application: &str) -> anyhow::Result<Client> {
        let mut failed = None;
        for address in self.addresses()? {
            let connecting = Client::builder(&address)
                .application(application)
                .connect_timeout(CONNECT_PATIENCE)
                .connect();
            match connecting.await {
                Ok(client) => return Ok(client),
                Err(error) => failed.get_or_insert(failure::from_connect(&error, &address)),
            };
        }
        Err(failed.unwrap_or_else(|| anyhow!("there is no address")))
    }
}

/// The error for a server that does not answer, with the reason of the network.
pub(crate) fn unreachable(address: &str, cause: &(dyn std::error::Error + 'static)) -> anyhow::Error {
    let (server, why) = (printable(address), printable(&why_unreachable(cause)));
    anyhow!(Exit::Unreachable).context(format!(
        "cannot reach the server at {server}: {why}. Is it running? --server or FOREBAY_SERVER takes another"
    ))
}

/// The reason of the network, in a few words, from the depth of an error.
fn why_unreachable(error: &(dyn std::error::Error + 'static)) -> String {
    let mut last = error;
    loop {
        if let Some(io) = last.downcast_ref::<std::io::Error>() {
            match io.kind() {
                ErrorKind::ConnectionRefused => return "connection refused".to_owned(),
                ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => return "connection closed".to_owned(),
                ErrorKind::TimedOut => return "no answer in time".to_owned(),
                ErrorKind::HostUnreachable => return "host unreachable".to_owned(),
                ErrorKind::NetworkUnreachable => return "network unreachable".to_owned(),
                _ if io.to_string().contains("lookup address") => return "unknown host name".to_owned(),
                _ => {}
            }
        }
        match last.source() {
            Some(source) => last = source,
            None => return last.to_string(),
        }
    }
}

pub(crate) fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("cannot start the runtime")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_understood_in_the_ways_that_people_write_them() {
        let parsed = |text| addresses(text).map(|all| all.text());
        assert_eq!(parsed("127.0.0.1").as_deref(), Ok("127.0.0.1:7070"));
        assert_eq!(parsed("http://queue.internal:80/").as_deref(), Ok("queue.internal:80"));
        assert_eq!(parsed("a, b:1,[::1]").as_deref(), Ok("a:7070,b:1,[::1]:7070"));
        for (text, said) in [
            ("https://a:1", "TLS"),
            ("redis://a:1", "scheme=`redis`"),
            ("", "HOST:PORT"),
            ("a,,b", "HOST:PORT"),
            ("a:99999", "address=`a:99999`"),
        ] {
            let wrong = addresses(text).expect_err("it is wrong");
            assert!(wrong.contains(said), "{text}: {wrong}");
        }
    }
}
