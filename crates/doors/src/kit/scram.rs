//! SCRAM-SHA-256 (RFC 5802, RFC 7677), the side of the server: a client proves that it knows a password without
//! sending it, and the server proves that it knows the user. For doors whose protocols carry SASL. Plain values: no
//! clock and no socket. The nonce of the server is an argument.
//!
//! ```text
//! client   n,,n=alice,r=NONCE                       ClientFirst::read
//! server   r=NONCE+OURS,s=SALT,i=16384              ClientFirst::answer
//! client   c=biws,r=NONCE+OURS,p=PROOF
//! server   v=SIGNATURE                              Exchange::finish
//! ```
//!
//! Channel binding is not offered, so a client that demands it (`p=`) is refused, and one that could have had it (`y`)
//! goes on. An exchange with a name that no user has goes to its end and is refused there.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use forebay_broker::api::{KnownUser, Principal};

/// The name of the mechanism.
pub const MECHANISM: &str = "SCRAM-SHA-256";
/// No message of a client is longer, in bytes.
const MESSAGE_BYTES_MAX: usize = 4 << 10;

/// Why an exchange ends without a client that is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ScramRefusal {
    #[error("the message is not one of SCRAM: {0}")]
    Malformed(&'static str),
    #[error("channel binding is not offered")]
    ChannelBinding,
    #[error("a client may act in its own name only")]
    OtherName,
    #[error("the user or the password is wrong")]
    Wrong,
}

impl ScramRefusal {
    /// The last message of the server, with the word of RFC 5802.
    pub fn message(self) -> &'static str {
        match self {
            ScramRefusal::Malformed(_) => "e=invalid-encoding",
            ScramRefusal::ChannelBinding => "e=channel-binding-not-supported",
            ScramRefusal::OtherName => "e=other-error",
            ScramRefusal::Wrong => "e=invalid-proof",
        }
    }
}

/// The first message of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientFirst {
    /// The name of the user.
    pub user: String,
    nonce: String,
    /// The header, which the client repeats in its last message.
    header: String,
    /// The message without its header.
    bare: String,
}

/// An exchange that waits for the last message of its client.
#[derive(Debug)]
pub struct Exchange {
    user: KnownUser,
    header: String,
    nonce: String,
    /// The messages so far, as both sides sign them.
    so_far: String,
}

/// The client is known.
#[derive(Debug)]
pub struct Proved {
    pub who: Principal,
    /// The last message of the server.
    pub message: String,
}

impl ClientFirst {
    pub fn read(message: &[u8]) -> Result<ClientFirst, ScramRefusal> {
        let text = text(message)?;
        let (flag, rest) = text.split_once(',').ok_or(ScramRefusal::Malformed("it has no header"))?;
        match flag {
            "n" | "y" => {}
            _ if flag.starts_with("p=") => return Err(ScramRefusal::ChannelBinding),
            _ => return Err(ScramRefusal::Malformed("channel binding must be n, y or p=")),
        }
        let (own, bare) = rest.split_once(',').ok_or(ScramRefusal::Malformed("it has no header"))?;
        let own = match own {
            "" => None,
            _ => Some(name(own.strip_prefix("a=").ok_or(ScramRefusal::Malformed("a name is a="))?)?),
        };
        let mut parts = bare.split(',');
        let user = parts.next().and_then(|part| part.strip_prefix("n="));
        let user = name(user.ok_or(ScramRefusal::Malformed("the user is n="))?)?;
        let nonce = parts.next().and_then(|part| part.strip_prefix("r="));
        let nonce = nonce.filter(|nonce| is_nonce(nonce));
        let nonce = nonce.ok_or(ScramRefusal::Malformed("the nonce is r="))?.to_owned();
        if own.is_some_and(|own| own != user) {
            return Err(ScramRefusal::OtherName);
        }
        let header = text[..text.len() - bare.len()].to_owned();
        Ok(ClientFirst { user, nonce, header, bare: bare.to_owned() })
    }

    /// The first message of the server, for this user. `ours` must be random, printable, and without a comma.
    pub fn answer(self, user: KnownUser, ours: &str) -> (String, Exchange) {
        let ClientFirst { nonce, header, bare, .. } = self;
        let nonce = format!("{nonce}{ours}");
        let salt = BASE64_STANDARD.encode(user.verifier.salt);
        let first = format!("r={nonce},s={salt},i={}", user.verifier.iterations);
        let so_far = format!("{bare},{first}");
        (first, Exchange { user, header, nonce, so_far })
    }
}

impl Exchange {
    /// The client that sent this last message.
    pub fn finish(self, message: &[u8]) -> Result<Proved, ScramRefusal> {
        let text = text(message)?;
        let (without, proof) = text.rsplit_once(",p=").ok_or(ScramRefusal::Malformed("the proof is p="))?;
        let proof =
            BASE64_STANDARD.decode(proof).map_err(|_| ScramRefusal::Malformed("the proof is base64"))?;
        let mut parts = without.split(',');
        let binding = parts.next().and_then(|part| part.strip_prefix("c="));
        let binding = binding.ok_or(ScramRefusal::Malformed("the header is c="))?;
        let nonce = parts.next().and_then(|part| part.strip_prefix("r="));
        let nonce = nonce.ok_or(ScramRefusal::Malformed("the nonce is r="))?;
        let signed = format!("{},{without}", self.so_far);
        // The proof is worked out in any case, so that the time tells nothing.
        let is_right = self.user.verifier.accepts_proof(signed.as_bytes(), &proof);
        let is_ours = nonce == self.nonce && binding == BASE64_STANDARD.encode(&self.header);
        match self.user.principal {
            Some(who) if is_right && is_ours => {
                let signature = BASE64_STANDARD.encode(self.user.verifier.signature(signed.as_bytes()));
                Ok(Proved { who, message: format!("v={signature}") })
            }
            _ => Err(ScramRefusal::Wrong),
        }
    }
}

fn text(message: &[u8]) -> Result<&str, ScramRefusal> {
    if message.len() > MESSAGE_BYTES_MAX {
        return Err(ScramRefusal::Malformed("it is too long"));
    }
    std::str::from_utf8(message).map_err(|_| ScramRefusal::Malformed("it is not text"))
}

/// A name, in which `=2C` is a comma and `=3D` an equals sign.
fn name(written: &str) -> Result<String, ScramRefusal> {
    let mut parts = written.split('=');
    let mut name = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (character, rest) = match part.as_bytes() {
            [b'2', b'C', ..] => (',', &part[2..]),
            [b'3', b'D', ..] => ('=', &part[2..]),
            _ => return Err(ScramRefusal::Malformed("= in a name is written =3D, and a comma =2C")),
        };
        name.push(character);
        name.push_str(rest);
    }
    match name.is_empty() {
        true => Err(ScramRefusal::Malformed("a name must not be empty")),
        false => Ok(name),
    }
}

fn is_nonce(nonce: &str) -> bool {
    !nonce.is_empty() && nonce.bytes().all(|byte| byte.is_ascii_graphic() && byte != b',')
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use forebay_broker::api::Verifier;

    use super::*;

    const OURS: &str = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";
    const FIRST: &[u8] = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO";
    const LAST: &str = "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
                        p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";

    /// The user of RFC 7677, 3.
    fn user(password: &str) -> KnownUser {
        let salt = BASE64_STANDARD.decode("W22ZaJ0SNY7soEsUEjb6gQ==").expect("base64");
        let iterations = NonZeroU32::new(4_096).expect("it is not zero");
        let verifier = Verifier::of(password, salt.try_into().expect("16 bytes"), iterations);
        KnownUser { verifier, principal: Some(Principal::owner_as("user")) }
    }

    fn exchange(user: KnownUser) -> Exchange {
        ClientFirst::read(FIRST).expect("it is good").answer(user, OURS).1
    }

    #[test]
    fn the_exchange_is_that_of_the_rfc() {
        let first = ClientFirst::read(FIRST).expect("it is good");
        assert_eq!(first.user, "user");
        let (answer, exchange) = first.answer(user("pencil"), OURS);
        assert_eq!(
            answer,
            "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
        );
        let proved = exchange.finish(LAST.as_bytes()).expect("it is right");
        assert_eq!(proved.who.name(), "user");
        assert_eq!(proved.message, "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=");
    }

    #[test]
    fn every_changed_byte_of_the_last_message_is_refused() {
        for at in 0..LAST.len() {
            let mut message = LAST.as_bytes().to_vec();
            message[at] = if message[at] == b'A' { b'B' } else { b'A' };
            assert!(exchange(user("pencil")).finish(&message).is_err(), "{at}");
            assert!(exchange(user("pencil")).finish(&LAST.as_bytes()[..at]).is_err(), "{at}");
        }
        assert_eq!(exchange(user("pencils")).finish(LAST.as_bytes()).err(), Some(ScramRefusal::Wrong));
    }

    #[test]
    fn a_name_that_no_user_has_is_refused_at_the_end() {
        let absent = KnownUser { principal: None, ..user("pencil") };
        assert_eq!(exchange(absent).finish(LAST.as_bytes()).err(), Some(ScramRefusal::Wrong));
    }

    #[test]
    fn names_may_have_commas_and_equals_signs() {
        let read = |text: &str| ClientFirst::read(text.as_bytes()).map(|first| first.user);
        assert_eq!(read("n,,n=a=2Cb=3Dc,r=x").as_deref(), Ok("a,b=c"));
        assert_eq!(read("y,a=alice,n=alice,r=x").as_deref(), Ok("alice"));
        assert_eq!(read("n,a=bob,n=alice,r=x"), Err(ScramRefusal::OtherName));
        assert_eq!(read("p=tls-unique,,n=a,r=x"), Err(ScramRefusal::ChannelBinding));
        for wrong in [
            "",
            "n",
            "n,",
            "n,,",
            "n,,r=x",
            "n,,n=,r=x",
            "n,,n=a",
            "n,,n=a,r=",
            "n,,n=a=2,r=x",
            "n,,n=a=2c,r=x",
            "x,,n=a,r=x",
            "n,b=a,n=a,r=x",
            "n,,m=1,n=a,r=x",
            "n,,n=a,r=\u{7f}",
            "n,,n=a,r=é",
        ] {
            assert!(matches!(read(wrong), Err(ScramRefusal::Malformed(_))), "{wrong}");
        }
        assert!(ClientFirst::read(&[0xff; 4]).is_err());
        assert!(ClientFirst::read(&vec![b'n'; MESSAGE_BYTES_MAX + 1]).is_err());
    }
}
