//! The SQS door of a server: its settings, and whose requests it believes.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, bail};
use forebay_broker::broker::Entrance;
use forebay_doors::kit::identity::Anonymous;
use forebay_doors::sqs::{self, AccessKey, KeyRing, SqsConfig, UrlOptions, is_account};
use tokio::net::TcpListener;

use super::doors::{Protocol, Serving, Site};
use super::identity::on_change;
use crate::exit::Exit;
use crate::safe::printable;

struct Sqs {
    config: SqsConfig,
    /// The file of access keys.
    file: Option<PathBuf>,
}

impl Protocol for Sqs {
    fn check_reach(&self, broker: &Entrance, address: SocketAddr) -> anyhow::Result<()> {
        let credentials = broker.credentials();
        let has_none = self.config.keys.is_empty() && !credentials.has_keys() && !credentials.has_tokens();
        if self.config.anonymous == Anonymous::Refused && has_none { Err(no_keys(address)) } else { Ok(()) }
    }

    fn serve(&self, broker: Entrance, listener: TcpListener) -> Serving {
        let (stop, config) = (broker.stopping(), self.config.clone());
        if let Some(file) = self.file.clone() {
            let ring = config.keys.clone();
            tokio::spawn(on_change(file, move |path| match read_keys(path) {
                Ok(keys) => {
                    tracing::info!(keys = keys.len(), "the access keys were read again");
                    ring.replace(keys);
                }
                Err(error) => {
                    tracing::warn!(
                        "the access keys cannot be read again, and the last ones count: {error:#}"
                    );
                }
            }));
        }
        Box::pin(async move { sqs::serve(broker, listener, stop, config).await })
    }
}

pub(super) fn prepare(site: &Site<'_>) -> anyhow::Result<Arc<dyn Protocol>> {
    let (settings, identity) = (site.settings, site.identity);
    let keys = match &settings.sqs_keys {
        Some(path) => read_keys(path).context(Exit::NotUnderstood)?,
        None => Vec::new(),
    };
    let anonymous = identity.anonymous(site.address);
    if keys.is_empty() {
        let has_log = !settings.memory && settings.data.exists();
        match anonymous {
            Anonymous::Owner if !site.address.ip().is_loopback() => tracing::warn!(
                "anyone who reaches the SQS port may do everything: --allow-anyone is set, and there is no file of \
                 access keys"
            ),
            Anonymous::Refused if !has_log && !identity.has_admin() => return Err(no_keys(site.address)),
            _ => {}
        }
    }
    let config = SqsConfig {
        connections_max: settings.max_connections,
        connections_per_address: settings.max_connections_per_address,
        body_bytes_max: settings.request_bytes as usize,
        keys: KeyRing::new(keys),
        anonymous,
        tls: site.tls.clone(),
        urls: UrlOptions {
            public_base: settings.sqs_url.clone(),
            trust_forwarded: settings.sqs_trust_forwarded,
            is_tls: site.tls.is_some(),
        },
        host_names: settings.host_names.clone(),
        waits: settings.sqs_waits,
        seed: super::random()?,
    };
    Ok(Arc::new(Sqs { config, file: settings.sqs_keys.clone() }))
}

fn no_keys(address: SocketAddr) -> anyhow::Error {
    anyhow::anyhow!(
        "without access keys SQS is served on addresses of this machine only. Give --sqs-keys a file of them; or \
         --admin-token-file a file with an admin token, with which keys are created; or --sqs an address such as \
         127.0.0.1:9324; or --allow-anyone, to let anyone who can reach the port do everything. address=`{address}`"
    )
}

/// Access keys from a file like that of AWS clients, with the account of each, if it has one:
///
/// ```text
/// [orders]
/// aws_access_key_id = AKIAORDERS
/// aws_secret_access_key = ...
/// account = 123456789012
/// ```
fn read_keys(path: &Path) -> anyhow::Result<Vec<AccessKey>> {
    let shown = printable(&path.display().to_string());
    check_mode(path, &shown)?;
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read the access keys in {shown}"))?;
    parse_keys(&text).with_context(|| format!("the access keys in {shown} cannot be understood"))
}

/// A user who can write to the file can make keys of any account, so a file that every user can write to is refused. A
/// user who can read it has the keys in it, which is the operator's business, and worth a warning.
fn check_mode(path: &Path, shown: &str) -> anyhow::Result<()> {
    let metadata =
        std::fs::metadata(path).with_context(|| format!("cannot read the access keys in {shown}"))?;
    let mode = metadata.permissions().mode() & 0o777;
    if mode & 0o002 != 0 {
        bail!(
            "the file with access keys must not be writable for every user of the machine; chmod 600 makes it private. \
             file=`{shown}` mode=`{mode:o}`"
        );
    }
    if mode & 0o004 != 0 {
        tracing::warn!(
            file = shown,
            mode = format!("{mode:o}"),
            "every user of the machine can read the file with access keys; chmod 600 makes it private"
        );
    }
    Ok(())
}

/// One section, as far as it has been read.
#[derive(Default)]
struct Draft {
    section: String,
    id: Option<String>,
    secret: Option<String>,
    account: Option<String>,
}

impl Draft {
    fn finish(self) -> anyhow::Result<AccessKey> {
        let section = printable(&self.section);
        let missing = |name: &str| format!("[{section}] has no {name}");
        Ok(AccessKey {
            id: self.id.with_context(|| missing("aws_access_key_id"))?,
            secret: self.secret.with_context(|| missing("aws_secret_access_key"))?,
            account: self.account,
        })
    }
}

fn parse_keys(text: &str) -> anyhow::Result<Vec<AccessKey>> {
    let mut drafts: Vec<Draft> = Vec::new();
    for (n, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(section) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            drafts.push(Draft { section: section.trim().to_owned(), ..Draft::default() });
            continue;
        }
        let Some((name, value)) = line.split_once('=') else {
            bail!("expected `name = value` or `[section]`. line=`{n}`");
        };
        let Some(draft) = drafts.last_mut() else { bail!("expected a [section] first. line=`{n}`") };
        let value = value.trim().to_owned();
        let place = match name.trim() {
            "aws_access_key_id" => &mut draft.id,
            "aws_secret_access_key" => &mut draft.secret,
            "account" if is_account(&value) => &mut draft.account,
            "account" => bail!("an account has twelve digits. line=`{n}`"),
            // A credentials file may hold more than is needed here.
            _ => continue,
        };
        if value.is_empty() {
            bail!("expected a value. line=`{n}`");
        }
        *place = Some(value);
    }
    let keys: Vec<AccessKey> = drafts.into_iter().map(Draft::finish).collect::<anyhow::Result<_>>()?;
    if keys.is_empty() {
        bail!("there are none");
    }
    for (n, key) in keys.iter().enumerate() {
        if keys[..n].iter().any(|other| other.id == key.id) {
            bail!("an access key is there twice. aws_access_key_id=`{}`", printable(&key.id));
        }
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_keys_are_read_from_a_credentials_file() {
        let text = "# keys\n[a]\naws_access_key_id = A\naws_secret_access_key=s=1 \nregion = eu-west-1\n\n\
                    [b]\naws_access_key_id=B\naws_secret_access_key = t\naccount = 123456789012\n";
        let keys = parse_keys(text).expect("keys");
        assert_eq!((keys[0].id.as_str(), keys[0].secret.as_str(), &keys[0].account), ("A", "s=1", &None));
        assert_eq!((keys[1].id.as_str(), keys[1].account.as_deref()), ("B", Some("123456789012")));
    }

    #[test]
    fn what_is_wrong_with_access_keys_is_named() {
        for (text, told) in [
            ("", "there are none"),
            ("aws_access_key_id = A\n", "line=`1`"),
            ("[a]\nnonsense\n", "line=`2`"),
            ("[a]\naws_access_key_id = A\n", "[a] has no aws_secret_access_key"),
            ("[a]\naws_secret_access_key = s\n", "[a] has no aws_access_key_id"),
            ("[a]\naccount = 12\n", "twelve digits. line=`2`"),
            ("[a]\naws_access_key_id =\n", "expected a value. line=`2`"),
            (
                "[a]\naws_access_key_id=A\naws_secret_access_key=s\n[b]\naws_access_key_id=A\naws_secret_access_key=t",
                "twice",
            ),
        ] {
            let error = parse_keys(text).expect_err(text).to_string();
            assert!(error.contains(told), "{text}: {error}");
        }
    }
}
