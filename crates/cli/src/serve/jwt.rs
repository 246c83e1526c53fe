//! Tokens of an OIDC issuer: the files with its keys and with the rights of claims, which are read again when they
//! change.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use forebay_broker::broker::Entrance;
use forebay_doors::kit::jwt::Jwt;

use super::identity::on_change;
use crate::exit::Exit;
use crate::safe::printable;
use crate::settings::Settings;

/// The settings of an issuer.
struct Issuer<'a> {
    name: &'a str,
    audience: &'a str,
    keys: &'a Path,
    rights: &'a Path,
}

fn issuer(settings: &Settings) -> anyhow::Result<Option<Issuer<'_>>> {
    let Settings { jwt_issuer, jwt_audience, jwt_keys, jwt_rights, .. } = settings;
    match (jwt_issuer, jwt_audience, jwt_keys, jwt_rights) {
        (None, None, None, None) => Ok(None),
        (Some(name), Some(audience), Some(keys), Some(rights)) => {
            Ok(Some(Issuer { name, audience, keys, rights }))
        }
        _ => bail!(
            anyhow::anyhow!(Exit::NotUnderstood)
                .context("jwt_issuer, jwt_audience, jwt_keys and jwt_rights must be given together")
        ),
    }
}

impl Issuer<'_> {
    fn read(&self) -> anyhow::Result<(String, String)> {
        let read = |path: &Path, what: &str| {
            let shown = printable(&path.display().to_string());
            std::fs::read_to_string(path).with_context(|| format!("cannot read the {what} in {shown}"))
        };
        Ok((read(self.keys, "keys of the issuer")?, read(self.rights, "rights of claims")?))
    }

    fn named(&self) -> String {
        let shown = |path: &Path| printable(&path.display().to_string());
        format!("jwt_keys=`{}` jwt_rights=`{}`", shown(self.keys), shown(self.rights))
    }
}

/// Refuses an issuer that cannot be used, before the server begins.
pub(crate) fn check(settings: &Settings) -> anyhow::Result<()> {
    let Some(issuer) = issuer(settings)? else { return Ok(()) };
    let (keys, rights) = issuer.read().context(Exit::NotUnderstood)?;
    Jwt::check_files(&keys, &rights).with_context(|| issuer.named()).context(Exit::NotUnderstood)
}

/// Tokens of the issuer are recognised from now on.
pub(super) fn begin(broker: &Entrance, settings: &Settings) -> anyhow::Result<()> {
    let Some(issuer) = issuer(settings)? else { return Ok(()) };
    let (keys, rights) = issuer.read()?;
    let jwt = Jwt::new(broker.clock(), issuer.name, issuer.audience, &keys, &rights);
    let jwt = jwt.with_context(|| issuer.named())?;
    broker.credentials().set_issuer(Arc::new(jwt.clone()));
    for watched in [issuer.keys, issuer.rights] {
        let (jwt, settings) = (jwt.clone(), settings.clone());
        tokio::spawn(on_change(watched.to_owned(), move |_| {
            let read = self::issuer(&settings).and_then(|issuer| match issuer {
                Some(issuer) => issuer.read(),
                None => bail!("there is no issuer"),
            });
            match read.and_then(|(keys, rights)| Ok(jwt.replace(&keys, &rights)?)) {
                Ok(()) => tracing::info!("the keys of the issuer and the rights of claims were read again"),
                Err(error) => tracing::warn!(
                    "the keys of the issuer and the rights of claims cannot be read again, and the last ones count: \
                     {error:#}"
                ),
            }
        }));
    }
    Ok(())
}
