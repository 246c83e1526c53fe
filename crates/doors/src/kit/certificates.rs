//! Clients that are recognised by their certificates: which authorities sign these, and which rights the names in them
//! have.
//!
//! The names are those of the subject alternative names: of hosts, and URIs such as `spiffe://prod/billing`. A file
//! says for each name its grants:
//!
//! ```text
//! # name                   grants
//! billing.internal         worker:orders-*
//! spiffe://prod/ci         publish:builds
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_broker::api::{Grants, Principal};
use tokio_rustls::rustls::RootCertStore;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use webpki::EndEntityCert;

/// Names in the file, and the longest of them.
const NAMES_MAX: usize = 10_000;
const NAME_BYTES_MAX: usize = 255;
/// Names of one certificate that are looked at.
const CERTIFICATE_NAMES_MAX: usize = 100;

/// Why clients cannot be recognised by certificates.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientsError {
    #[error("the file with the authorities of clients must have at least one certificate in PEM")]
    NoAuthority,
    #[error("a line must be a name of 1 to {NAME_BYTES_MAX} bytes, a space and its grants. line=`{line}`")]
    Line { line: usize },
    #[error("{error}. line=`{line}`")]
    Grants { line: usize, error: String },
    #[error("a name must be given once. line=`{line}`")]
    Twice { line: usize },
    #[error("there must be at most {NAMES_MAX} names")]
    TooMany,
}

/// The clients that are recognised by certificates.
pub struct Clients {
    pub(super) authorities: Arc<RootCertStore>,
    /// The authorities as they were read.
    pem: Vec<u8>,
    principals: BTreeMap<String, Principal>,
}

/// The names in a certificate.
pub(super) fn names_of(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok(certificate) = EndEntityCert::try_from(certificate) else { return Vec::new() };
    let names = certificate.valid_dns_names().chain(certificate.valid_uri_names());
    names.take(CERTIFICATE_NAMES_MAX).map(str::to_owned).collect()
}

impl Clients {
    /// From the certificates of authorities in PEM, and from the names with their grants.
    pub fn read(authorities: &[u8], names: &str) -> Result<Clients, ClientsError> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(authorities) {
            let certificate = certificate.map_err(|_| ClientsError::NoAuthority)?;
            roots.add(certificate).map_err(|_| ClientsError::NoAuthority)?;
        }
        if roots.is_empty() {
            return Err(ClientsError::NoAuthority);
        }
        let pem = authorities.to_vec();
        Ok(Clients { authorities: Arc::new(roots), pem, principals: read_names(names)? })
    }

    /// The client whose certificate has these names. None: they have no grants.
    pub(super) fn principal(&self, names: &[String]) -> Option<Principal> {
        names.iter().find_map(|name| self.principals.get(name)).cloned()
    }

    /// The same, after others: where authorities and grants have not changed, clients go on.
    pub(super) fn after(mut self, before: Option<&Clients>) -> Clients {
        let Some(before) = before.filter(|before| before.pem == self.pem) else { return self };
        self.authorities = before.authorities.clone();
        for (name, principal) in &mut self.principals {
            if let Some(known) = before.principals.get(name)
                && known.grants() == principal.grants()
            {
                *principal = known.clone();
            }
        }
        self
    }

    /// Ends the clients that are not among others.
    pub(super) fn end_unless_in(&self, others: Option<&Clients>) {
        for (name, principal) in &self.principals {
            let goes_on = others.is_some_and(|others| {
                let known = others.principals.get(name);
                Arc::ptr_eq(&others.authorities, &self.authorities)
                    && known.is_some_and(|known| known.grants() == principal.grants())
            });
            if !goes_on {
                principal.end();
            }
        }
    }
}

fn read_names(text: &str) -> Result<BTreeMap<String, Principal>, ClientsError> {
    let mut principals = BTreeMap::new();
    for (at, text) in text.lines().enumerate() {
        let (line, text) = (at + 1, text.trim());
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        let (name, grants) = text.split_once(char::is_whitespace).ok_or(ClientsError::Line { line })?;
        if name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
            return Err(ClientsError::Line { line });
        }
        let grants: Grants = grants.trim().parse().map_err(|error: forebay_broker::api::GrantError| {
            ClientsError::Grants { line, error: error.to_string() }
        })?;
        let principal = Principal::revocable(name, grants);
        if principals.insert(name.to_owned(), principal).is_some() {
            return Err(ClientsError::Twice { line });
        }
        if principals.len() > NAMES_MAX {
            return Err(ClientsError::TooMany);
        }
    }
    Ok(principals)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_grants_one_on_each_line() {
        let read =
            read_names("# ours\n\nbilling.internal  worker:orders-*, monitor:*\nspiffe://a/b\tread:x\n");
        let read = read.expect("it is good");
        let of = |name: &str| read[name].grants().expect("it has some").to_string();
        assert_eq!(of("billing.internal"), "worker:orders-*,monitor:*");
        assert_eq!(of("spiffe://a/b"), "read:x");
        for (text, said) in [
            ("a", "line=`1`"),
            ("a read:x\nb", "line=`2`"),
            ("a nonsense:x", "an action must be one of"),
            ("a read:x\n\na read:y", "given once. line=`3`"),
        ] {
            let wrong = read_names(text).map(drop).expect_err("it is wrong").to_string();
            assert!(wrong.contains(said), "{text}: {wrong}");
        }
        assert!(matches!(Clients::read(b"", ""), Err(ClientsError::NoAuthority)));
    }
}
