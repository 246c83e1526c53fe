//! The keys of an issuer, as it publishes them: a JSON Web Key Set.

use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents, UnparsedPublicKey,
};
use serde::Deserialize;

use super::{JwtError, decode};

/// Keys of an issuer.
pub(super) const KEYS_MAX: usize = 100;

/// The usable keys of a key set, with the ids that tokens name them by.
#[derive(Debug, Default)]
pub(super) struct Keys(Vec<(Option<String>, Key)>);

/// A key of the issuer, with the only algorithm that it is used for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Key {
    Rsa {
        n: Vec<u8>,
        e: Vec<u8>,
    },
    /// The point, uncompressed.
    P256(Vec<u8>),
    Ed25519(Vec<u8>),
}

impl Key {
    pub(super) fn algorithm(&self) -> &'static str {
        match self {
            Key::Rsa { .. } => "RS256",
            Key::P256(_) => "ES256",
            Key::Ed25519(_) => "EdDSA",
        }
    }

    pub(super) fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        let verified = match self {
            Key::Rsa { n, e } => {
                RsaPublicKeyComponents { n, e }.verify(&RSA_PKCS1_2048_8192_SHA256, message, signature)
            }
            Key::P256(point) => {
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).verify(message, signature)
            }
            Key::Ed25519(key) => UnparsedPublicKey::new(&ED25519, key).verify(message, signature),
        };
        verified.is_ok()
    }
}

/// A key, as the issuer publishes it. Fields that are not here say nothing about signatures.
#[derive(Deserialize)]
struct Published {
    kty: String,
    kid: Option<String>,
    #[serde(rename = "use")]
    purpose: Option<String>,
    alg: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

#[derive(Deserialize)]
struct KeySet {
    keys: Vec<Published>,
}

impl Published {
    /// None: it is not for signatures that are recognised here. Issuers publish others beside them.
    fn key(&self) -> Option<Key> {
        if self.purpose.as_deref().is_some_and(|purpose| purpose != "sig") {
            return None;
        }
        let bytes = |text: &Option<String>| decode(text.as_deref()?);
        let key = match (self.kty.as_str(), self.crv.as_deref()) {
            ("RSA", None) => {
                let (n, e) = (bytes(&self.n)?, bytes(&self.e)?);
                // Shorter ones verify nothing.
                (n.len() >= 256).then_some(Key::Rsa { n, e })?
            }
            ("EC", Some("P-256")) => {
                let (x, y) = (bytes(&self.x)?, bytes(&self.y)?);
                (x.len() == 32 && y.len() == 32).then(|| Key::P256([&[4], &x[..], &y[..]].concat()))?
            }
            ("OKP", Some("Ed25519")) => Key::Ed25519(bytes(&self.x).filter(|x| x.len() == 32)?),
            _ => return None,
        };
        self.alg.as_deref().is_none_or(|alg| alg == key.algorithm()).then_some(key)
    }
}

impl Keys {
    pub(super) fn read(text: &str) -> Result<Keys, JwtError> {
        let set: KeySet = serde_json::from_str(text).map_err(|error| JwtError::NoKeys(error.to_string()))?;
        let keys: Vec<_> =
            set.keys.iter().filter_map(|published| Some((published.kid.clone(), published.key()?))).collect();
        if keys.is_empty() || keys.len() > KEYS_MAX {
            return Err(JwtError::NoUsableKey);
        }
        Ok(Keys(keys))
    }

    /// The key that a token names. One that names none has the only one.
    pub(super) fn named(&self, kid: Option<&str>) -> Option<&Key> {
        match (kid, &self.0[..]) {
            (Some(kid), keys) => {
                keys.iter().find(|(known, _)| known.as_deref() == Some(kid)).map(|(_, key)| key)
            }
            (None, [(_, only)]) => Some(only),
            (None, _) => None,
        }
    }

    pub(super) fn has(&self, key: &Key) -> bool {
        self.0.iter().any(|(_, known)| known == key)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
