//! Tokens of an OIDC issuer: its keys, from a file or fetched from the issuer, and the file with the rights of claims.
//! Files are read again when they change. When keys are fetched is decided by [`Jwt`]; here they are.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use bytes::Bytes;
use forebay_broker::broker::Entrance;
use forebay_doors::kit::jwt::Jwt;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::header::{ACCEPT, HeaderValue, USER_AGENT};
use hyper::{Request, Uri};
use serde::Deserialize;
use tokio::task::JoinSet;

use super::identity::on_change;
use crate::exit::Exit;
use crate::post::{self, Poster, cause};
use crate::safe::printable;
use crate::settings::Settings;

/// How long the issuer may take for one answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// The largest answer that is read.
const ANSWER_BYTES_MAX: usize = 256 << 10;
/// Of what the issuer sent, so many characters are shown in the log.
const SHOWN_MAX: usize = 300;
/// Where an issuer says where its keys are.
const CONFIGURATION: &str = "/.well-known/openid-configuration";
const AGENT: HeaderValue = HeaderValue::from_static(concat!("forebay/", env!("CARGO_PKG_VERSION")));

/// Where the keys of an issuer are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum KeySource {
    File(PathBuf),
    Url(Uri),
}

impl KeySource {
    /// A file, or an address that begins with `https://` or `http://`.
    pub(crate) fn parse(text: &str) -> Result<KeySource, String> {
        if !text.contains("://") {
            return match text.is_empty() {
                true => Err("expected a file or an address".to_owned()),
                false => Ok(KeySource::File(PathBuf::from(text))),
            };
        }
        address(text).map(KeySource::Url)
    }
}

fn address(text: &str) -> Result<Uri, String> {
    let expected = || "expected an address such as https://id.example.com/keys".to_owned();
    let address: Uri = text.parse().map_err(|_| expected())?;
    let is_http = matches!(address.scheme_str(), Some("http" | "https"));
    match address.authority().filter(|of| is_http && !of.host().is_empty()) {
        Some(authority) if authority.as_str().contains('@') => {
            Err("an address must not have a user or a password in it".to_owned())
        }
        Some(_) => Ok(address),
        None => Err(expected()),
    }
}

/// Keys that come in the clear can be replaced on the way by anyone who can change packets.
fn check_scheme(address: &Uri, allow_http: bool) -> Result<(), String> {
    let host = address.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    let is_here =
        host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
    if address.scheme_str() == Some("https") || is_here || allow_http {
        return Ok(());
    }
    Err(format!(
        "keys of an issuer must come over https, or over http from this machine; jwt_allow_http allows http. \
         address=`{}`",
        printable(&address.to_string())
    ))
}

/// The settings of an issuer.
struct Issuer<'a> {
    name: &'a str,
    audience: &'a str,
    keys: Keys,
    rights: &'a Path,
    settings: &'a Settings,
}

#[derive(Clone)]
enum Keys {
    File(PathBuf),
    Url(Uri),
    /// At the `jwks_uri` of this document, which is about the issuer of this name.
    Configured {
        at: Uri,
        issuer: String,
    },
}

fn issuer(settings: &Settings) -> anyhow::Result<Option<Issuer<'_>>> {
    let Settings { jwt_issuer, jwt_audience, jwt_keys, jwt_rights, .. } = settings;
    let (name, audience, rights) = match (jwt_issuer, jwt_audience, jwt_rights) {
        (None, None, None) if jwt_keys.is_none() => return Ok(None),
        (Some(name), Some(audience), Some(rights)) => (name, audience, rights),
        _ => bail!(anyhow!(Exit::NotUnderstood).context(
            "jwt_issuer, jwt_audience and jwt_rights must be given together, and jwt_keys with them only"
        )),
    };
    let wrong = |wrong: String| anyhow!(Exit::NotUnderstood).context(wrong);
    let keys = match jwt_keys {
        Some(KeySource::File(path)) => Keys::File(path.clone()),
        Some(KeySource::Url(address)) => Keys::Url(address.clone()),
        None => {
            let at = address(&format!("{}{CONFIGURATION}", name.trim_end_matches('/'))).map_err(|_| {
                wrong(format!(
                    "jwt_keys must be given, because jwt_issuer is no address at which the keys could be found. \
                     jwt_issuer=`{}`",
                    printable(name)
                ))
            })?;
            Keys::Configured { at, issuer: name.clone() }
        }
    };
    if let Keys::Url(at) | Keys::Configured { at, .. } = &keys {
        check_scheme(at, settings.jwt_allow_http).map_err(wrong)?;
    }
    Ok(Some(Issuer { name, audience, keys, rights, settings }))
}

fn read(path: &Path, what: &str) -> anyhow::Result<String> {
    let shown = printable(&path.display().to_string());
    std::fs::read_to_string(path).with_context(|| format!("cannot read the {what} in {shown}"))
}

fn read_keys(path: &Path) -> anyhow::Result<String> {
    read(path, "keys of the issuer")
}

fn read_rights(path: &Path) -> anyhow::Result<String> {
    read(path, "rights of claims")
}

fn named(setting: &str, path: &Path) -> String {
    format!("{setting}=`{}`", printable(&path.display().to_string()))
}

impl Issuer<'_> {
    fn client(&self) -> anyhow::Result<Poster> {
        let Some(path) = &self.settings.jwt_ca else { return Ok(post::client()) };
        let pem = read(path, "authorities of the issuer")?;
        post::client_trusting(pem.as_bytes()).with_context(|| named("jwt_ca", path))
    }
}

/// Refuses an issuer that cannot be used, before the server begins. An issuer that does not answer can be used later.
pub(crate) fn check(settings: &Settings) -> anyhow::Result<()> {
    let Some(issuer) = issuer(settings)? else { return Ok(()) };
    let checked = || {
        Jwt::check_rights(&read_rights(issuer.rights)?)
            .with_context(|| named("jwt_rights", issuer.rights))?;
        match &issuer.keys {
            Keys::File(path) => Jwt::check_keys(&read_keys(path)?).with_context(|| named("jwt_keys", path)),
            Keys::Url(_) | Keys::Configured { .. } => issuer.client().map(drop),
        }
    };
    checked().context(Exit::NotUnderstood)
}

/// Tokens of the issuer are recognised from now on, and the tasks that are returned keep its keys and the rights.
pub(super) fn begin(broker: &Entrance, settings: &Settings) -> anyhow::Result<JoinSet<()>> {
    let mut tasks = JoinSet::new();
    let Some(issuer) = issuer(settings)? else { return Ok(tasks) };
    let rights = read_rights(issuer.rights)?;
    let (clock, name, audience) = (broker.clock(), issuer.name, issuer.audience);
    let jwt = match &issuer.keys {
        Keys::File(path) => {
            let jwt = Jwt::new(clock, name, audience, &read_keys(path)?, &rights).with_context(|| {
                format!("{} {}", named("jwt_keys", path), named("jwt_rights", issuer.rights))
            })?;
            let file = jwt.clone();
            tasks.spawn(on_change(path.clone(), move |path| {
                let replaced = read_keys(path).and_then(|keys| Ok(file.replace_keys(&keys)?));
                read_again("keys of the issuer", replaced.map(drop));
            }));
            jwt
        }
        Keys::Url(_) | Keys::Configured { .. } => {
            let jwt = Jwt::with_fetched_keys(clock, name, audience, &rights, settings.jwt_refresh)
                .with_context(|| named("jwt_rights", issuer.rights))?;
            let (client, keys) = (issuer.client()?, issuer.keys.clone());
            let fetcher = Fetcher { client, keys, allow_http: settings.jwt_allow_http };
            tasks.spawn(fetcher.run(jwt.clone()));
            jwt
        }
    };
    broker.credentials().set_issuer(Arc::new(jwt.clone()));
    tasks.spawn(on_change(issuer.rights.to_owned(), move |path| {
        let replaced = read_rights(path).and_then(|rights| Ok(jwt.replace_rights(&rights)?));
        read_again("rights of claims", replaced);
    }));
    Ok(tasks)
}

fn read_again(what: &str, replaced: anyhow::Result<()>) {
    match replaced {
        Ok(()) => tracing::info!("the {what} were read again"),
        Err(error) => {
            tracing::warn!("the {what} cannot be read again, and the last ones count: {error:#}");
        }
    }
}

/// Fetches the keys of an issuer.
struct Fetcher {
    client: Poster,
    keys: Keys,
    allow_http: bool,
}

/// The part of an issuer's configuration that counts here.
#[derive(Deserialize)]
struct Configuration {
    issuer: String,
    jwks_uri: String,
}

impl Fetcher {
    async fn run(self, jwt: Jwt) {
        let mut has_some = false;
        let mut last_error = None;
        loop {
            jwt.fetch_is_due().await;
            let fetched = match self.fetch().await {
                Ok(text) => jwt.fetched(&text).map_err(|error| shown(&error.to_string())),
                Err(error) => {
                    jwt.not_fetched();
                    Err(error)
                }
            };
            match fetched {
                Ok(keys) if !has_some || last_error.is_some() => {
                    tracing::info!(keys, "the keys of the issuer were fetched");
                    (has_some, last_error) = (true, None);
                }
                Ok(keys) => tracing::debug!(keys, "the keys of the issuer were fetched again"),
                // One line for each trouble, and not for each attempt.
                Err(error) if last_error.as_ref() == Some(&error) => {
                    tracing::debug!(error, "the keys of the issuer still cannot be fetched");
                }
                Err(error) => {
                    let meanwhile = if has_some {
                        "the last ones count"
                    } else {
                        "its tokens are not accepted until then"
                    };
                    tracing::warn!(
                        error,
                        "the keys of the issuer cannot be fetched and are tried again; {meanwhile}"
                    );
                    last_error = Some(error);
                }
            }
        }
    }

    /// The key set, as the issuer sent it.
    async fn fetch(&self) -> Result<String, String> {
        match &self.keys {
            Keys::File(_) => Err("the keys are in a file".to_owned()),
            Keys::Url(address) => self.get(address).await,
            Keys::Configured { at, issuer } => {
                let text = self.get(at).await?;
                let of: Configuration = serde_json::from_str(&text).map_err(|error| {
                    shown(&format!(
                        "the configuration of the issuer must be JSON with issuer and jwks_uri: {error}"
                    ))
                })?;
                if of.issuer != *issuer {
                    let found = printable(&of.issuer);
                    return Err(shown(&format!("the configuration is of another issuer. issuer=`{found}`")));
                }
                let wrong = |wrong: String| shown(&format!("the issuer's jwks_uri cannot be used: {wrong}"));
                let address = address(&of.jwks_uri).map_err(wrong)?;
                check_scheme(&address, self.allow_http).map_err(wrong)?;
                self.get(&address).await
            }
        }
    }

    /// Redirections are not followed: they could lead anywhere.
    async fn get(&self, address: &Uri) -> Result<String, String> {
        let mut request = Request::new(Full::new(Bytes::new()));
        *request.uri_mut() = address.clone();
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static("application/json"));
        request.headers_mut().insert(USER_AGENT, AGENT);
        let fetched = tokio::time::timeout(PATIENCE, async {
            let answer = self.client.request(request).await.map_err(|error| cause(&error).to_string())?;
            let status = answer.status().as_u16();
            if status != 200 {
                return Err(format!("it answered with HTTP {status}"));
            }
            let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await;
            let body = body.map_err(|error| match error.is::<LengthLimitError>() {
                true => format!("the answer has more than {ANSWER_BYTES_MAX} bytes"),
                false => format!("the answer broke off: {}", cause(&*error)),
            })?;
            String::from_utf8(body.to_bytes().into()).map_err(|_| "the answer is not UTF-8".to_owned())
        });
        let fetched = fetched.await;
        let fetched = fetched.unwrap_or_else(|_| Err(format!("no answer within {} s", PATIENCE.as_secs())));
        fetched.map_err(|error| shown(&format!("{error}. address=`{}`", printable(&address.to_string()))))
    }
}

/// For the log: what an issuer sent may be anything.
fn shown(text: &str) -> String {
    printable(text).chars().take(SHOWN_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_in_a_file_or_at_an_address() {
        assert_eq!(KeySource::parse("keys.json"), Ok(KeySource::File("keys.json".into())));
        let url = KeySource::parse("https://id.example.com/keys?v=1").expect("an address");
        assert!(matches!(url, KeySource::Url(address) if address.path() == "/keys"));
        for wrong in ["", "ftp://id/keys", "https://", "https://u:p@id/keys", "file:///etc/keys"] {
            assert!(KeySource::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn http_is_for_this_machine_unless_it_is_allowed() {
        let allowed =
            |text: &str, allow: bool| check_scheme(&text.parse().expect("an address"), allow).is_ok();
        for here in ["http://127.0.0.1:8080/keys", "http://[::1]/keys", "http://localhost/keys"] {
            assert!(allowed(here, false), "{here}");
        }
        assert!(allowed("https://10.0.0.1/keys", false));
        for beyond in
            ["http://10.0.0.1/keys", "http://localhost.example.com/", "http://127.0.0.1.example.com/"]
        {
            assert!(!allowed(beyond, false) && allowed(beyond, true), "{beyond}");
        }
    }
}
