//! The certificate of the server, from files that are read again when they change.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context as _, bail};
use forebay_doors::kit::certificates::Clients;
use forebay_doors::kit::tls::Tls;

use super::identity::{check_private, on_change};
use crate::exit::Exit;
use crate::safe::printable;
use crate::settings::Settings;

/// The certificate and the key that the settings name. None: connections are not encrypted.
pub(crate) fn read(settings: &Settings) -> anyhow::Result<Option<Tls>> {
    let wrong = |text: &str| anyhow::anyhow!(Exit::NotUnderstood).context(text.to_owned());
    let asks_clients = match (&settings.tls_client_ca, &settings.tls_client_names) {
        (None, None) => false,
        (Some(_), Some(_)) => true,
        _ => bail!(wrong("tls_client_ca and tls_client_names must be given together")),
    };
    match (&settings.tls_cert, &settings.tls_key) {
        (None, None) if asks_clients => bail!(wrong("tls_client_ca needs tls_cert and tls_key")),
        (None, None) => Ok(None),
        (Some(_), Some(_)) => {
            let read = read_files(settings).and_then(|Files { certificate, key, clients }| {
                Tls::new(&certificate, &key, clients).with_context(|| named(settings))
            });
            read.map(Some).context(Exit::NotUnderstood)
        }
        _ => bail!(wrong("tls_cert and tls_key must be given together")),
    }
}

/// What the files have.
struct Files {
    certificate: Vec<u8>,
    key: Vec<u8>,
    clients: Option<Clients>,
}

fn named(settings: &Settings) -> String {
    let shown = |path: &Option<std::path::PathBuf>| {
        printable(&path.as_deref().unwrap_or(Path::new("")).display().to_string())
    };
    format!("tls_cert=`{}` tls_key=`{}`", shown(&settings.tls_cert), shown(&settings.tls_key))
}

fn read_files(settings: &Settings) -> anyhow::Result<Files> {
    let shown = |path: &Path| printable(&path.display().to_string());
    let read = |path: &Path, what: &str| {
        std::fs::read(path).with_context(|| format!("cannot read the {what} in {}", shown(path)))
    };
    let (Some(certificate), Some(key)) = (&settings.tls_cert, &settings.tls_key) else {
        bail!("tls_cert and tls_key must be given together")
    };
    let certificate = read(certificate, "certificate")?;
    check_private(key, "private key")
        .with_context(|| format!("cannot use the private key in {}", shown(key)))?;
    let clients = match (&settings.tls_client_ca, &settings.tls_client_names) {
        (Some(authorities), Some(names)) => {
            let authorities = read(authorities, "authorities of clients")?;
            let text = String::from_utf8(read(names, "names of clients")?)
                .with_context(|| format!("the names of clients in {} must be UTF-8", shown(names)))?;
            let clients = Clients::read(&authorities, &text);
            Some(clients.with_context(|| format!("cannot use the names of clients in {}", shown(names)))?)
        }
        _ => None,
    };
    Ok(Files { certificate, key: read(key, "private key")?, clients })
}

/// Watches the files, and warns of tokens that are sent in the clear.
pub(super) fn begin(settings: &Settings, tls: Option<&Tls>, address: SocketAddr) {
    let Some(tls) = tls else {
        if !address.ip().is_loopback() && !settings.allow_anyone {
            tracing::warn!(
                "tokens and messages are sent unencrypted: set tls_cert and tls_key, or let a proxy on the same \
                 network end TLS"
            );
        }
        return;
    };
    let files = [&settings.tls_cert, &settings.tls_key, &settings.tls_client_ca, &settings.tls_client_names];
    for watched in files.into_iter().flatten() {
        let (tls, settings) = (tls.clone(), settings.clone());
        tokio::spawn(on_change(watched.clone(), move |_| {
            let replace =
                |Files { certificate, key, clients }: Files| Ok(tls.replace(&certificate, &key, clients)?);
            match read_files(&settings).and_then(replace) {
                Ok(()) => tracing::info!("the files of TLS were read again"),
                // Of two files one changes first.
                Err(error) => {
                    tracing::warn!(
                        "the files of TLS cannot be read again, and the last ones count: {error:#}"
                    );
                }
            }
        }));
    }
}
