//! How commands reach a server: addresses, contexts, and the errors of a server that does not answer.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use clap::Args;
use forebay_client::{Client, ConnectError, authority};
use hyper_rustls::ConfigBuilderExt as _;
use tokio_rustls::rustls::client::WantsClientCert;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ClientConfig, ConfigBuilder, RootCertStore};

use crate::context::{self, Known};
use crate::exit::Exit;
use crate::failure;
use crate::safe::printable;

/// The variable with the token. There is no flag for it: other users of the machine see the arguments of a process.
const TOKEN: &str = "FOREBAY_TOKEN";
pub(crate) const DEFAULT_ADDRESS: &str = "127.0.0.1:7070";
/// How long a server may take to accept a connection.
pub(crate) const CONNECT_PATIENCE: Duration = Duration::from_secs(10);
/// Addresses in one `--server`.
const ADDRESSES_MAX: usize = 16;

/// The server that a command talks to. May be given before or after the command.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Server {
    /// The server: HOST or HOST:PORT (default port 7070), https://HOST:PORT over TLS; several with commas, of which the
    /// first that answers is used, and the next one when a connection ends. Default: FOREBAY_SERVER, then the context,
    /// then 127.0.0.1:7070.
    #[arg(long, global = true, value_name = "ADDRESS", value_parser = addresses, display_order = 901)]
    pub(crate) server: Option<Addresses>,
    /// The name of a server, as `forebay context` stores it. Also FOREBAY_CONTEXT.
    #[arg(long, global = true, value_name = "NAME", conflicts_with = "server", display_order = 902)]
    pub(crate) context: Option<String>,
    /// A file with the token that authenticates the command. Also FOREBAY_TOKEN_FILE; FOREBAY_TOKEN has the token
    /// itself.
    #[arg(long, global = true, value_name = "FILE", display_order = 903)]
    pub(crate) token_file: Option<PathBuf>,
    /// A file with the certificates, in PEM, by which a server with an https address is recognised, in place of those
    /// that browsers trust. Also FOREBAY_CA.
    #[arg(long, global = true, value_name = "FILE", display_order = 904)]
    pub(crate) ca: Option<PathBuf>,
    /// A file with the certificate of the client, in PEM, for a server that recognises clients by certificates. Also
    /// FOREBAY_CLIENT_CERT.
    #[arg(long, global = true, value_name = "FILE", display_order = 905)]
    pub(crate) client_cert: Option<PathBuf>,
    /// The file with the private key of --client-cert, in PEM. Also FOREBAY_CLIENT_KEY.
    #[arg(long, global = true, value_name = "FILE", display_order = 906)]
    pub(crate) client_key: Option<PathBuf>,
    /// The token itself, for `forebay login`.
    #[arg(skip)]
    pub(crate) token: Option<Token>,
}

/// A token, which is not shown.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Token(pub(crate) String);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(..)")
    }
}

impl Token {
    /// Reads a token out of a text, which may have spaces around it. None: there is only space.
    pub(crate) fn parse(text: &str) -> anyhow::Result<Option<Token>> {
        let token = text.trim();
        if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(anyhow!(Exit::NotUnderstood)
                .context("a token must have visible ASCII characters only, in one line"));
        }
        Ok((!token.is_empty()).then(|| Token(token.to_owned())))
    }
}

/// Where a server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    /// `HOST:PORT`.
    pub(crate) authority: String,
    /// The address begins with `https://`.
    pub(crate) is_tls: bool,
}

impl Address {
    /// As people write it.
    pub(crate) fn text(&self) -> String {
        format!("{}{}", if self.is_tls { "https://" } else { "" }, self.authority)
    }
}

/// One or more addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Addresses(Vec<Address>);

/// The one parser of addresses: of flags, variables and contexts.
pub(crate) fn addresses(text: &str) -> Result<Addresses, String> {
    let all: Result<Vec<Address>, String> = text.split(',').map(|one| address(one.trim())).collect();
    let all = all?;
    if all.len() > ADDRESSES_MAX {
        return Err(format!("expected at most {ADDRESSES_MAX} addresses"));
    }
    Ok(Addresses(all))
}

fn address(text: &str) -> Result<Address, String> {
    let expected =
        "expected HOST, HOST:PORT, http://HOST:PORT or https://HOST:PORT, with a port from 1 to 65535";
    let authority = authority(text).map_err(|error| match error {
        ConnectError::UnknownScheme { scheme } => format!("{expected}. scheme=`{}`", printable(&scheme)),
        _ => format!("{expected}. address=`{}`", printable(text)),
    })?;
    Ok(Address { authority, is_tls: text.starts_with("https://") })
}

impl Addresses {
    /// Whether one of them has this host and port.
    pub(crate) fn has(&self, authority: &str) -> bool {
        self.0.iter().any(|address| address.authority == authority)
    }

    pub(crate) fn text(&self) -> String {
        self.0.iter().map(Address::text).collect::<Vec<_>>().join(",")
    }
}

/// A server, and how it is talked to.
pub(crate) struct Place {
    pub(crate) addresses: Vec<Address>,
    ca: Option<Vec<u8>>,
    /// The client's certificate and its key.
    own: Option<(Vec<u8>, Vec<u8>)>,
    pub(crate) token: Option<Token>,
}

impl Place {
    /// The TLS of a connection to an address, if the address asks for it.
    pub(crate) fn tls(&self, address: &Address) -> anyhow::Result<Option<Arc<ClientConfig>>> {
        if !address.is_tls {
            return Ok(None);
        }
        let wrong = |what: &str| anyhow!(Exit::NotUnderstood).context(format!("the {what} must be in PEM"));
        let builder = trusting(self.ca.as_deref())?;
        let Some((chain, key)) = &self.own else {
            return Ok(Some(Arc::new(builder.with_no_client_auth())));
        };
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(chain)
            .collect::<Result<_, _>>()
            .map_err(|_| wrong("certificate of the client"))?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| wrong("private key of the client"))?;
        let config = builder.with_client_auth_cert(chain, key);
        Ok(Some(Arc::new(config.context("the certificate of the client cannot be used")?)))
    }
}

/// TLS that believes certificates of these authorities, in PEM; None: of those that browsers trust.
pub(crate) fn trusting(ca: Option<&[u8]>) -> anyhow::Result<ConfigBuilder<ClientConfig, WantsClientCert>> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let Some(pem) = ca else { return Ok(builder.with_webpki_roots()) };
    let wrong = || anyhow!(Exit::NotUnderstood).context("the CA certificate must be in PEM");
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        roots.add(certificate.map_err(|_| wrong())?).map_err(|_| wrong())?;
    }
    if roots.is_empty() {
        return Err(wrong());
    }
    Ok(builder.with_root_certificates(roots))
}

/// The host of `HOST:PORT`, without the brackets of an IPv6 address.
pub(crate) fn host_of(authority: &str) -> &str {
    let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

/// A file that a flag, a variable or a context names.
fn contents(path: &Path, what: &str) -> anyhow::Result<Vec<u8>> {
    let shown = printable(&path.display().to_string());
    let read = std::fs::read(path).context(Exit::NotUnderstood);
    read.with_context(|| format!("cannot read the {what} in {shown}"))
}

impl Server {
    /// The server at this `HOST:PORT`.
    #[cfg(test)]
    pub(crate) fn at(authority: &str) -> Server {
        let address = Address { authority: authority.to_owned(), is_tls: false };
        Server { server: Some(Addresses(vec![address])), ..Server::default() }
    }

    /// Whether the command line says anything about a server.
    pub(crate) fn is_given(&self) -> bool {
        let Server { server, context, token_file, ca, client_cert, client_key, token } = self;
        let files = [token_file, ca, client_cert, client_key];
        server.is_some() || context.is_some() || token.is_some() || files.iter().any(|file| file.is_some())
    }

    /// The server, as the command line, the variables and the contexts say. The token and the CA of a context go with
    /// its own addresses only.
    pub(crate) fn known(&self) -> anyhow::Result<Known> {
        if let Some(given) = &self.server {
            return context::at(given);
        }
        if let Some(name) = &self.context {
            return context::of(name);
        }
        if let Some(text) = variable("FOREBAY_SERVER") {
            let found = addresses(&text).map_err(|wrong| anyhow!(Exit::NotUnderstood).context(wrong));
            return context::at(&found.context("the variable FOREBAY_SERVER is invalid")?);
        }
        if let Some(name) = variable("FOREBAY_CONTEXT") {
            return context::of(&name).context("the variable FOREBAY_CONTEXT is invalid");
        }
        let local = || Known::at(Addresses(vec![address(DEFAULT_ADDRESS).expect("it is an address")]));
        Ok(context::current()?.unwrap_or_else(local))
    }

    /// The server with everything that a connection needs.
    pub(crate) fn place(&self) -> anyhow::Result<Place> {
        let Known { addresses, ca, token } = self.known()?;
        let ca = self.ca.clone().or_else(|| variable("FOREBAY_CA").map(PathBuf::from)).or(ca);
        let ca = ca.map(|path| contents(&path, "CA certificate")).transpose()?;
        let named = |flag: &Option<PathBuf>, name| flag.clone().or_else(|| variable(name).map(PathBuf::from));
        let own =
            (named(&self.client_cert, "FOREBAY_CLIENT_CERT"), named(&self.client_key, "FOREBAY_CLIENT_KEY"));
        let own = match own {
            (None, None) => None,
            (Some(chain), Some(key)) => {
                Some((contents(&chain, "certificate of the client")?, contents(&key, "private key")?))
            }
            _ => {
                return Err(anyhow!(Exit::NotUnderstood)
                    .context("--client-cert and --client-key must be given together"));
            }
        };
        Ok(Place { addresses: addresses.0, ca, own, token: self.given_token()?.or(token) })
    }

    /// The token that a flag or a variable names.
    pub(crate) fn given_token(&self) -> anyhow::Result<Option<Token>> {
        if let Some(token) = &self.token {
            return Ok(Some(token.clone()));
        }
        let file = self.token_file.clone().or_else(|| variable("FOREBAY_TOKEN_FILE").map(PathBuf::from));
        let text = match file {
            Some(path) => {
                let text = String::from_utf8(contents(&path, "token")?);
                Some(text.map_err(|_| anyhow!(Exit::NotUnderstood).context("a token must be text"))?)
            }
            None => variable(TOKEN),
        };
        text.map_or(Ok(None), |text| Token::parse(&text))
    }

    /// The first address, for commands that talk to one only.
    pub(crate) fn first(&self) -> anyhow::Result<Address> {
        Ok(self.known()?.addresses.0.swap_remove(0))
    }

    /// Connects the SDK, for a command with this name, to the first server that answers.
    pub(crate) async fn client(&self, application: &str) -> anyhow::Result<Client> {
        let place = self.place()?;
        let mut failed = None;
        for (nth, address) in place.addresses.iter().enumerate() {
            // The others are for later: a connection that ends is made again to the next one.
            let (before, after) = place.addresses.split_at(nth);
            let servers: Vec<String> = after.iter().chain(before).map(Address::text).collect();
            let mut builder =
                Client::builder(servers.join(",")).application(application).connect_timeout(CONNECT_PATIENCE);
            if let Some(Token(token)) = &place.token {
                builder = builder.token(token);
            }
            if let Some(pem) = &place.ca {
                builder = builder.ca_certificate(pem.clone());
            }
            if let Some((chain, key)) = &place.own {
                builder = builder.client_certificate(chain.clone(), key.clone());
            }
            match builder.connect().await {
                Ok(client) => return Ok(client),
                Err(error) => failed.get_or_insert(failure::from_connect(
                    &error,
                    &address.authority,
                    place.token.is_some(),
                )),
            };
        }
        Err(failed.unwrap_or_else(|| anyhow!("there is no address")))
    }
}

/// The error for a server that does not answer, with the reason of the network.
pub(crate) fn unreachable(address: &str, cause: &(dyn std::error::Error + 'static)) -> anyhow::Error {
    let (server, why) = (printable(address), printable(&why_unreachable(cause)));
    let advice = match why.contains("certificate") {
        true => "--ca or FOREBAY_CA names the certificates by which it is recognised",
        false if why == CLOSED => "If it has a certificate, its address begins with https://",
        false if why == NO_TLS => "An address that begins with http:// is without TLS",
        false => "Is it running? To use another address, give --server or FOREBAY_SERVER",
    };
    let server = match context::current_name_of(address) {
        Some(name) => format!("{server}, of the context {}", printable(&name)),
        None => server.to_string(),
    };
    anyhow!(Exit::Unreachable).context(format!("cannot reach the server at {server}: {why}. {advice}"))
}

/// A server that expects TLS closes a connection without it.
const CLOSED: &str = "the server closed the connection";
/// What the client of TLS calls a corrupt message: the server answered in the clear.
const NO_TLS: &str = "the server does not speak TLS on this port";

/// The reason of the network, in a few words, from the depth of an error.
fn why_unreachable(error: &(dyn std::error::Error + 'static)) -> String {
    let mut last = error;
    loop {
        if let Some(io) = last.downcast_ref::<std::io::Error>() {
            match io.kind() {
                ErrorKind::ConnectionRefused => return "connection refused".to_owned(),
                ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => return CLOSED.to_owned(),
                ErrorKind::TimedOut => return "no answer in time".to_owned(),
                ErrorKind::HostUnreachable => return "host unreachable".to_owned(),
                ErrorKind::NetworkUnreachable => return "network unreachable".to_owned(),
                _ if io.to_string().contains("lookup address") => return "unknown host name".to_owned(),
                _ => {}
            }
        }
        match last.source() {
            Some(source) => last = source,
            None if last.to_string().contains("InvalidContentType") => return NO_TLS.to_owned(),
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
    fn a_token_is_one_word_and_is_never_shown() {
        let token = Token::parse(" fby_secret\n").expect("a token").expect("there is one");
        assert_eq!(token.0, "fby_secret");
        assert!(!format!("{token:?}").contains("secret"));
        assert_eq!(Token::parse(" \n").expect("only space"), None);
        for wrong in ["two words", "two\nlines", "caf\u{e9}"] {
            assert!(Token::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn addresses_are_understood_in_the_ways_that_people_write_them() {
        let parsed = |text| addresses(text).map(|all| all.text());
        assert_eq!(parsed("127.0.0.1").as_deref(), Ok("127.0.0.1:7070"));
        assert_eq!(parsed("http://queue.internal:80/").as_deref(), Ok("queue.internal:80"));
        assert_eq!(parsed("a, b:1,[::1]").as_deref(), Ok("a:7070,b:1,[::1]:7070"));
        assert_eq!(parsed("https://a,https://b:443/").as_deref(), Ok("https://a:7070,https://b:443"));
        for (text, said) in [
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
