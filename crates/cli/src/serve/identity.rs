//! Who may use the server: the admin token that it is started with, and what a client without a credential is.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, bail};
use forebay_broker::broker::Entrance;
use forebay_broker::credentials::{ADMIN_TOKEN_BYTES_MIN, Secret};
use forebay_doors::kit::identity::Anonymous;

use crate::exit::Exit;
use crate::safe::printable;
use crate::settings::Settings;

/// The variable with the admin token. It is no setting, so that no command prints it.
const ADMIN_TOKEN: &str = "FOREBAY_ADMIN_TOKEN";
/// The flag with the address of the native port.
pub(super) const LISTEN: &str = "--listen";
/// How often files are looked at that may change.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// How clients are recognised.
pub(super) struct Identity {
    admin: Option<Secret>,
    admin_file: Option<PathBuf>,
    allow_anyone: bool,
    require_auth: bool,
    /// Clients may have certificates, or tokens of an issuer.
    has_others: bool,
}

impl Identity {
    pub(super) fn read(
        settings: &Settings,
        environment: impl Fn(&str) -> Option<String>,
    ) -> anyhow::Result<Identity> {
        let admin = match (&settings.admin_token_file, environment(ADMIN_TOKEN)) {
            (Some(_), Some(_)) => {
                bail!(
                    anyhow::anyhow!(Exit::NotUnderstood)
                        .context(format!("admin_token_file and {ADMIN_TOKEN} must not be given both"))
                )
            }
            (Some(path), None) => Some(read_token(path).context(Exit::NotUnderstood)?),
            (None, Some(text)) => Some(token(&text).context(ADMIN_TOKEN).context(Exit::NotUnderstood)?),
            (None, None) => None,
        };
        Ok(Identity {
            admin,
            admin_file: settings.admin_token_file.clone(),
            allow_anyone: settings.allow_anyone,
            require_auth: settings.require_auth,
            has_others: settings.tls_client_ca.is_some() || settings.jwt_issuer.is_some(),
        })
    }

    #[cfg(feature = "sqs")]
    pub(super) fn has_admin(&self) -> bool {
        self.admin.is_some()
    }

    /// What a client without a credential is, on this address.
    pub(super) fn anonymous(&self, address: SocketAddr) -> Anonymous {
        match (self.require_auth, address.ip().is_loopback() || self.allow_anyone) {
            (false, true) => Anonymous::Owner,
            _ => Anonymous::Refused,
        }
    }

    /// Refuses an address that others can reach if there cannot be any credential: before the data folder is opened,
    /// which may have some.
    pub(super) fn check_before(
        &self,
        settings: &Settings,
        flag: &str,
        address: SocketAddr,
    ) -> anyhow::Result<()> {
        if self.anonymous(address) == Anonymous::Owner {
            if !address.ip().is_loopback() {
                tracing::warn!(
                    "anyone who reaches {address} may do everything: --allow-anyone is set, so a client without a \
                     token is let in"
                );
            }
            return Ok(());
        }
        let has_log = !settings.memory && settings.data.exists();
        if self.admin.is_none() && !has_log && !self.has_others {
            Err(no_identity(flag, address))
        } else {
            Ok(())
        }
    }

    /// The credentials count from now on.
    pub(super) fn begin(&self, broker: &Entrance, native: SocketAddr) -> anyhow::Result<()> {
        if let Some(token) = &self.admin {
            broker.credentials().set_admin_token(token);
        }
        let has_some = self.has_others || broker.credentials().has_tokens();
        if self.anonymous(native) == Anonymous::Refused && !has_some {
            return Err(no_identity(LISTEN, native));
        }
        if let Some(path) = self.admin_file.clone() {
            let broker = broker.clone();
            tokio::spawn(on_change(path, move |path| match read_token(path) {
                Ok(token) => {
                    broker.credentials().set_admin_token(&token);
                    tracing::info!("the admin token was read again");
                }
                Err(error) => {
                    tracing::warn!(
                        "the admin token cannot be read again, and the last one counts: {error:#}"
                    );
                }
            }));
        }
        Ok(())
    }
}

fn no_identity(flag: &str, address: SocketAddr) -> anyhow::Error {
    if address.ip().is_loopback() {
        return anyhow::anyhow!(Exit::NotUnderstood).context(
            "require_auth is set, and there is no token that a client could have. Give --admin-token-file a file with \
             an admin token, with which others are created",
        );
    }
    anyhow::anyhow!(Exit::NotUnderstood).context(format!(
        "no authentication is set up, so the server listens on addresses of this machine only. Give {flag} an \
         address such as 127.0.0.1:{}; or --admin-token-file a file with an admin token, with which others are \
         created; or --allow-anyone, to let anyone who can reach the port do everything. address=`{address}`",
        address.port()
    ))
}

/// The admin token in a file.
fn read_token(path: &Path) -> anyhow::Result<Secret> {
    let shown = printable(&path.display().to_string());
    let cannot = || format!("cannot read the admin token in {shown}");
    check_private(path, "admin token").with_context(cannot)?;
    token(&std::fs::read_to_string(path).with_context(cannot)?)
        .with_context(|| format!("the admin token in {shown}"))
}

fn token(text: &str) -> anyhow::Result<Secret> {
    let text = text.trim();
    if text.len() < ADMIN_TOKEN_BYTES_MIN || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        bail!(
            "must be one line of at least {ADMIN_TOKEN_BYTES_MIN} visible ASCII characters; \
             `openssl rand -hex 32` makes one. characters=`{}`",
            text.len()
        );
    }
    Ok(Secret::new(text))
}

/// Refuses a file that other users of the machine can read or write.
pub(crate) fn check_private(path: &Path, what: &str) -> anyhow::Result<()> {
    let mode = std::fs::metadata(path)?.permissions().mode() & 0o777;
    if mode & 0o007 != 0 {
        bail!(
            "the file with the {what} must not be open to every user of the machine; chmod 600 makes it private. \
             mode=`{mode:o}`"
        );
    }
    Ok(())
}

/// Calls `changed` whenever a file is another one than before. Never ends by itself.
pub(super) async fn on_change(path: PathBuf, mut changed: impl FnMut(&Path)) {
    let mut before = state_of(&path);
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let now = state_of(&path);
        // A file that is being replaced may be absent for a moment.
        if now.is_some() && now != before {
            before = now;
            changed(&path);
        }
    }
}

/// By which a file that was changed can be told.
fn state_of(path: &Path) -> Option<(SystemTime, u64, u64)> {
    use std::os::unix::fs::MetadataExt as _;
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.modified().ok()?, metadata.len(), metadata.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_admin_token_is_long_and_visible() {
        let long = "x".repeat(32);
        assert_eq!(token(&format!(" {long}\n")).expect("a token").reveal(), long);
        for wrong in ["", "short", &"x y".repeat(20), &"é".repeat(40)] {
            let error = token(wrong).expect_err(wrong).to_string();
            assert!(error.contains("at least 32 visible") && !error.contains(" y"), "{error}");
        }
    }

    #[test]
    fn without_a_credential_only_loopback_is_the_owner() {
        let identity = |allow_anyone, require_auth| Identity {
            admin: None,
            admin_file: None,
            allow_anyone,
            require_auth,
            has_others: false,
        };
        let (here, beyond) =
            ("127.0.0.1:1".parse().expect("an address"), "10.0.0.1:1".parse().expect("an address"));
        let both = |of: Identity| [of.anonymous(here), of.anonymous(beyond)];
        assert_eq!(both(identity(false, false)), [Anonymous::Owner, Anonymous::Refused]);
        assert_eq!(both(identity(true, false)), [Anonymous::Owner, Anonymous::Owner]);
        assert_eq!(both(identity(false, true)), [Anonymous::Refused, Anonymous::Refused]);
        assert_eq!(both(identity(true, true)), [Anonymous::Refused, Anonymous::Refused]);
    }
}
