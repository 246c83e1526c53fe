//! Passwords of users, kept as SCRAM-SHA-256 keeps them (RFC 5802, RFC 7677). The log has no password, and its values
//! serve clients that send the password itself (HTTP Basic, SASL PLAIN) as well as clients that prove that they know
//! it (SASL SCRAM).
//!
//! Names and passwords are of printable ASCII. The preparation of texts that SCRAM asks for (RFC 4013) leaves these as
//! they are, so that a client that prepares them and a client that does not agree.

use std::num::NonZeroU32;

use ring::{digest, hmac, pbkdf2};

use super::{CredentialRefusal, random};

/// Rounds of hashing for a new password: as many as Kafka takes at most. A guess costs some milliseconds of a core.
pub const PASSWORD_ITERATIONS: NonZeroU32 = NonZeroU32::new(16_384).expect("it is not zero");
/// The shortest and the longest password, in characters.
pub const PASSWORD_CHARACTERS: std::ops::RangeInclusive<usize> = 8..=256;

/// The values by which a password is verified.
#[derive(Clone, PartialEq, Eq)]
pub struct Verifier {
    pub salt: [u8; 16],
    pub iterations: NonZeroU32,
    /// The hash of the key by which a client proves that it knows the password.
    pub stored_key: [u8; 32],
    /// The key by which the server proves that it knows the user.
    pub server_key: [u8; 32],
}

impl std::fmt::Debug for Verifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Verifier(..)")
    }
}

impl Verifier {
    /// For a new password.
    pub fn new(password: &str) -> Result<Verifier, CredentialRefusal> {
        check_password(password)?;
        Ok(Verifier::of(password, random()?, PASSWORD_ITERATIONS))
    }

    /// For a password with this salt. Takes long, on purpose.
    pub fn of(password: &str, salt: [u8; 16], iterations: NonZeroU32) -> Verifier {
        let mut salted = [0; 32];
        pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, iterations, &salt, password.as_bytes(), &mut salted);
        let salted = hmac::Key::new(hmac::HMAC_SHA256, &salted);
        let part = |name: &[u8]| of_32(hmac::sign(&salted, name).as_ref());
        let stored_key = of_32(digest::digest(&digest::SHA256, &part(b"Client Key")).as_ref());
        Verifier { salt, iterations, stored_key, server_key: part(b"Server Key") }
    }

    /// Whether this is the password. Takes long, on purpose, and as long for a wrong one.
    pub fn accepts(&self, password: &str) -> bool {
        let given = Verifier::of(password, self.salt, self.iterations);
        is_equal(&given.stored_key, &self.stored_key)
    }

    /// Whether a client that sent this proof knows the password. `message` is the exchange that both sides have seen.
    pub fn accepts_proof(&self, message: &[u8], proof: &[u8]) -> bool {
        let Ok(proof) = <[u8; 32]>::try_from(proof) else { return false };
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.stored_key);
        let signature = hmac::sign(&key, message);
        let mut client_key = proof;
        for (byte, other) in client_key.iter_mut().zip(signature.as_ref()) {
            *byte ^= other;
        }
        let hash = of_32(digest::digest(&digest::SHA256, &client_key).as_ref());
        is_equal(&hash, &self.stored_key)
    }

    /// The proof that the server knows the user too.
    pub fn signature(&self, message: &[u8]) -> [u8; 32] {
        of_32(hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &self.server_key), message).as_ref())
    }
}

fn of_32(bytes: &[u8]) -> [u8; 32] {
    bytes.try_into().expect("SHA-256 has 32 bytes")
}

/// In constant time.
fn is_equal(a: &[u8; 32], b: &[u8; 32]) -> bool {
    blake3::Hash::from_bytes(*a) == blake3::Hash::from_bytes(*b)
}

pub(super) fn check_password(password: &str) -> Result<(), CredentialRefusal> {
    let characters = password.len();
    let is_printable = password.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
    match PASSWORD_CHARACTERS.contains(&characters) && is_printable {
        true => Ok(()),
        false => Err(CredentialRefusal::Password { bytes: characters }),
    }
}

/// The name of a user goes before a colon in HTTP.
pub(super) fn check_user(name: &str) -> Result<(), CredentialRefusal> {
    match name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':') {
        true => Ok(()),
        false => Err(CredentialRefusal::UserName { name: name.escape_debug().to_string() }),
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::prelude::BASE64_STANDARD;

    use super::*;

    /// RFC 7677, 3.
    const MESSAGE: &[u8] = b"n=user,r=rOprNGfwEbeRWgbNEkqO,\
        r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096,\
        c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";

    fn of_rfc(password: &str) -> Verifier {
        let salt = BASE64_STANDARD.decode("W22ZaJ0SNY7soEsUEjb6gQ==").expect("base64");
        Verifier::of(
            password,
            salt.try_into().expect("16 bytes"),
            NonZeroU32::new(4_096).expect("it is not zero"),
        )
    }

    #[test]
    fn the_values_are_those_of_the_rfc() {
        let verifier = of_rfc("pencil");
        let proof = BASE64_STANDARD.decode("dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=").expect("base64");
        assert!(verifier.accepts_proof(MESSAGE, &proof));
        assert!(
            !verifier.accepts_proof(&MESSAGE[1..], &proof) && !verifier.accepts_proof(MESSAGE, &proof[1..])
        );
        let signature = BASE64_STANDARD.encode(verifier.signature(MESSAGE));
        assert_eq!(signature, "6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=");
        assert!(!of_rfc("pencils").accepts_proof(MESSAGE, &proof));
    }

    #[test]
    fn a_password_is_verified_by_itself_alone() {
        let verifier = Verifier::new("correct horse").expect("it is good");
        assert!(verifier.accepts("correct horse"));
        for wrong in ["", "correct hors", "correct horse ", "Correct horse"] {
            assert!(!verifier.accepts(wrong), "{wrong}");
        }
        assert_ne!(
            verifier,
            Verifier::new("correct horse").expect("it is good"),
            "each has a salt of its own"
        );
        assert!(!format!("{verifier:?}").contains(char::is_numeric));
    }

    #[test]
    fn names_and_passwords_are_printable() {
        for good in ["12345678", "with a space", &"x".repeat(256)] {
            assert!(check_password(good).is_ok(), "{good}");
        }
        for wrong in ["1234567", "", "tab\tbetween", "größer als", &"x".repeat(257)] {
            assert!(check_password(wrong).is_err(), "{wrong}");
        }
        assert!(check_user("alice@example.com").is_ok() && check_user("a,b=c").is_ok());
        for wrong in ["a:b", "a b", "é", "a\n"] {
            assert!(check_user(wrong).is_err(), "{wrong}");
        }
    }
}
