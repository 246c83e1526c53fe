//! How commands reach a server.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use forebay_client::Client;
use hyper_rustls::ConfigBuilderExt as _;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};

use crate::exit::Exit;
use crate::failure;
use crate::profile::{self, Profile};
use crate::safe::printable;

/// The variable with the token. It is no argument of its own: other users of the machine see those of a process.
const TOKEN: &str = "FOREBAY_TOKEN";
pub(crate) const DEFAULT_ADDRESS: &str = "127.0.0.1:7070";
/// How long a server may take to accept a connection.
pub(crate) const CONNECT_PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Args)]
pub(crate) struct Server {
    /// The server's address.
    #[arg(long, value_name = "ADDRESS", default_value = profile::server(), env = "FOREBAY_SERVER")]
    pub(crate) server: String,
    /// A file with the token that authenticates the command. FOREBAY_TOKEN has the token itself instead.
    #[arg(long, value_name = "FILE", env = "FOREBAY_TOKEN_FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// A file with the certificates, in PEM, by which a server with an https address is recognised, in place of those
    /// that browsers trust.
    #[arg(long, value_name = "FILE", env = "FOREBAY_CA")]
    pub(crate) ca: Option<PathBuf>,
    /// The token itself, for `forebay login`.
    #[arg(skip)]
    pub(crate) token: Option<String>,
}

impl Server {
    /// Host and port, without a leading `http://` or `https://`.
    pub(crate) fn authority(&self) -> &str {
        let without = self.server.strip_prefix("http://").or_else(|| self.server.strip_prefix("https://"));
        without.unwrap_or(&self.server).trim_end_matches('/')
    }

    /// The TLS of the connection, if the address asks for it.
    pub(crate) fn tls(&self) -> anyhow::Result<Option<Arc<ClientConfig>>> {
        if !self.server.starts_with("https://") {
            return Ok(None);
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let Some(pem) = self.ca_pem()? else {
            return Ok(Some(Arc::new(builder.with_webpki_roots().with_no_client_auth())));
        };
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(&pem) {
            let added = certificate.map_err(|_| ()).and_then(|der| roots.add(der).map_err(|_| ()));
            added
                .map_err(|()| anyhow::anyhow!("the CA certificate must be in PEM"))
                .context(Exit::NotUnderstood)?;
        }
        Ok(Some(Arc::new(builder.with_root_certificates(roots).with_no_client_auth())))
    }

    fn ca_pem(&self) -> anyhow::Result<Option<Vec<u8>>> {
        let of_profile = || self.profile().and_then(|profile| profile.ca.as_ref());
        let Some(path) = self.ca.as_ref().or_else(of_profile) else { return Ok(None) };
        let shown = printable(&path.display().to_string());
        let read = std::fs::read(path).context(Exit::NotUnderstood);
        read.map(Some).with_context(|| format!("cannot read the CA certificate in {shown}"))
    }

    /// The message for a server that does not answer.
    pub(crate) fn unreachable(&self) -> String {
        let server = printable(&self.server);
        format!(
            "cannot connect; is the server running? --server or FOREBAY_SERVER takes another. server=`{server}`"
        )
    }

    /// The message for an address that cannot be used.
    pub(crate) fn invalid(&self) -> String {
        format!("the address must be HOST:PORT. server=`{}`", printable(&self.server))
    }

    /// The token that authenticates the command, if there is one.
    pub(crate) fn token(&self) -> anyhow::Result<Option<String>> {
        if self.token.is_some() {
            return Ok(self.token.clone());
        }
        Ok(self.given_token()?.or_else(|| self.profile()?.token.clone()))
    }

    /// The profile, if it is about this server. A token is not sent to another one.
    fn profile(&self) -> Option<&'static Profile> {
        Some(profile::get()).filter(|profile| profile.server.as_ref() == Some(&self.server))
    }

    /// The token that a flag or a variable names.
    pub(crate) fn given_token(&self) -> anyhow::Result<Option<String>> {
        let text = match &self.token_file {
            Some(path) => {
                let shown = printable(&path.display().to_string());
                let text = std::fs::read_to_string(path).context(Exit::NotUnderstood);
                Some(text.with_context(|| format!("cannot read the token in {shown}"))?)
            }
            None => std::env::var(TOKEN).ok(),
        };
        let token = text.map(|text| text.trim().to_owned()).filter(|token| !token.is_empty());
        match token {
            Some(token) if !token.bytes().all(|byte| byte.is_ascii_graphic()) => {
                bail!(
                    anyhow::anyhow!(Exit::NotUnderstood)
                        .context("a token must have visible ASCII characters only, in one line")
                )
            }
            token => Ok(token),
        }
    }

    /// Connects the SDK, for a command with this name.
    pub(crate) async fn client(&self, application: &str) -> anyhow::Result<Client> {
        let mut builder =
            Client::builder(&self.server).application(application).connect_timeout(CONNECT_PATIENCE);
        if let Some(token) = self.token()? {
            builder = builder.token(token);
        }
        if let Some(pem) = self.ca_pem()? {
            builder = builder.ca_certificate(pem);
        }
        builder.connect().await.map_err(|error| failure::from_connect(&error, self))
    }
}

pub(crate) fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("cannot start the runtime")
}
