//! The certificate of the server, from files that are read again when they change.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context as _, bail};
use forebay_doors::kit::tls::Tls;

use super::identity::{check_private, on_change};
use crate::exit::Exit;
use crate::safe::printable;
use crate::settings::Settings;

/// The certificate and the key that the settings name. None: connections are not encrypted.
pub(crate) fn read(settings: &Settings) -> anyhow::Result<Option<Tls>> {
    match (&settings.tls_cert, &settings.tls_key) {
        (None, None) => Ok(None),
        (Some(certificate), Some(key)) => {
            let read = read_files(certificate, key)
                .and_then(|(certificate, key)| Tls::new(&certificate, &key).with_context(|| named(settings)));
            read.map(Some).context(Exit::NotUnderstood)
        }
        _ => {
            bail!(anyhow::anyhow!(Exit::NotUnderstood).context("tls_cert and tls_key must be given together"))
        }
    }
}

fn named(settings: &Settings) -> String {
    let shown = |path: &Option<std::path::PathBuf>| {
        printable(&path.as_deref().unwrap_or(Path::new("")).display().to_string())
    };
    format!("tls_cert=`{}` tls_key=`{}`", shown(&settings.tls_cert), shown(&settings.tls_key))
}

fn read_files(certificate: &Path, key: &Path) -> anyhow::Result<(Vec<u8>, Vec<u8>)> {
    let read = |path: &Path, what: &str| {
        std::fs::read(path)
            .with_context(|| format!("cannot read the {what} in {}", printable(&path.display().to_string())))
    };
    let shown = || format!("cannot use the private key in {}", printable(&key.display().to_string()));
    let certificate = read(certificate, "certificate")?;
    check_private(key, "private key").with_context(shown)?;
    Ok((certificate, read(key, "private key")?))
}

/// Watches the files, and warns of tokens that are sent in the clear.
pub(super) fn begin(settings: &Settings, tls: Option<&Tls>, address: SocketAddr) {
    let (Some(tls), Some(certificate), Some(key)) = (tls, &settings.tls_cert, &settings.tls_key) else {
        if !address.ip().is_loopback() && !settings.allow_anyone {
            tracing::warn!(
                "tokens and messages are sent unencrypted: set tls_cert and tls_key, or let a proxy on the same \
                 network end TLS"
            );
        }
        return;
    };
    for watched in [certificate, key] {
        let (tls, certificate, key) = (tls.clone(), certificate.clone(), key.clone());
        tokio::spawn(on_change(watched.clone(), move |_| {
            let read = read_files(&certificate, &key);
            match read.and_then(|(certificate, key)| Ok(tls.replace(&certificate, &key)?)) {
                Ok(()) => tracing::info!("the certificate was read again"),
                // Of two files one changes first.
                Err(error) => {
                    tracing::warn!(
                        "the certificate cannot be read again, and the last one counts: {error:#}"
                    );
                }
            }
        }));
    }
}
