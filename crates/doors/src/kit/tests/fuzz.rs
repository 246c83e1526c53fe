//! Fuzzing of decoders that run before a client is known: inputs of a kept corpus, changed at random again and again.
//! No input may make a decoder panic, and each target says what else must hold.
//!
//! A run of the tests tries [`SHORT_RUN`] inputs for each target, the same ones each time. `cargo xtask fuzz
//! --minutes N` tries other ones for so long. A failure prints the input, which then belongs to the corpus.

use std::time::{Duration, Instant};

/// Inputs that an ordinary run of the tests tries for each target.
const SHORT_RUN: u64 = 3_000;
/// Changes of one input at most.
const CHANGES_MAX: u64 = 6;
/// The longest input.
const BYTES_MAX: usize = 8 << 10;
/// How long each target is tried, in seconds.
const SECONDS: &str = "FOREBAY_FUZZ_SECONDS";

/// Pieces that decoders look for.
const WORDS: [&str; 28] = [
    "Bearer ",
    "Basic ",
    "AWS4-HMAC-SHA256 ",
    "Credential=",
    "SignedHeaders=",
    "Signature=",
    "fby_",
    ".",
    ":",
    ",",
    "=",
    "==",
    "n,,",
    "p=",
    "=2C",
    "=3D",
    "r=",
    "%00",
    "%ff",
    "\r\n",
    "\0",
    "é",
    "18446744073709551616",
    "-1",
    "{",
    "}",
    "[[[[[[[[",
    "\"",
];

/// xorshift64*: the same inputs for the same seed.
pub(crate) struct Chance(u64);

impl Chance {
    fn new(seed: u64) -> Chance {
        Chance(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit.max(1) as u64).expect("it is below a usize")
    }
}

/// Tells the input if a target panics with it.
struct Told<'a>(&'a str, &'a [u8]);

impl Drop for Told<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            #[allow(clippy::print_stderr, reason = "the input of a failure is part of its report")]
            {
                eprintln!("fuzz target {}: input {}", self.0, self.1.escape_ascii());
            }
        }
    }
}

/// Tries a target with changed inputs of a corpus, which has one input on each line.
pub(crate) fn fuzz(name: &str, corpus: &str, mut target: impl FnMut(&[u8])) {
    let corpus: Vec<&[u8]> = corpus.lines().filter(|line| !line.is_empty()).map(str::as_bytes).collect();
    assert!(!corpus.is_empty(), "{name} has a corpus");
    for input in &corpus {
        let _told = Told(name, input);
        target(input);
    }
    let seconds = std::env::var(SECONDS).ok().and_then(|text| text.parse().ok());
    let begun = Instant::now();
    let goes_on = |tried: u64| match seconds {
        None => tried < SHORT_RUN,
        Some(seconds) => begun.elapsed() < Duration::from_secs(seconds),
    };
    // A long run begins elsewhere each time.
    let first = seconds.map_or(1, |_| u64::from(std::process::id()) << 32);
    let mut tried = 0;
    while goes_on(tried) {
        let mut chance = Chance::new(first + tried);
        let input = changed(&mut chance, &corpus);
        let _told = Told(name, &input);
        target(&input);
        tried += 1;
    }
    if seconds.is_some() {
        #[allow(clippy::print_stderr, reason = "a long run says how much it tried")]
        {
            eprintln!("fuzz target {name}: {tried} inputs in {} s", begun.elapsed().as_secs());
        }
    }
}

fn changed(chance: &mut Chance, corpus: &[&[u8]]) -> Vec<u8> {
    let mut input = corpus[chance.below(corpus.len())].to_vec();
    for _ in 0..=chance.next() % CHANGES_MAX {
        let at = chance.below(input.len() + 1);
        let upto = at + chance.below(input.len() + 1 - at);
        match chance.below(8) {
            0 => drop(input.drain(at..upto)),
            1 => {
                let part = input[at..upto].to_vec();
                input.splice(at..at, part);
            }
            2 => {
                let word = WORDS[chance.below(WORDS.len())];
                input.splice(at..at, word.bytes());
            }
            3 => input.truncate(at),
            4 => {
                let other = corpus[chance.below(corpus.len())];
                let from = chance.below(other.len() + 1);
                input.truncate(at);
                input.extend_from_slice(&other[from..]);
            }
            5 => {
                let byte = u8::try_from(chance.next() & 0xff).expect("a byte");
                input.insert(at, byte);
            }
            6 => {
                let times = chance.below(64);
                let byte = input.get(at).copied().unwrap_or(b'A');
                input.splice(at..at, std::iter::repeat_n(byte, times));
            }
            _ => {
                if let Some(byte) = input.get_mut(at) {
                    *byte ^= 1 << chance.below(8);
                }
            }
        }
    }
    input.truncate(BYTES_MAX);
    input
}

mod tests {
    use std::sync::Arc;

    use axum::http::{HeaderMap, HeaderValue, header};
    use forebay_broker::api::{
        Broker, BrokerConfig, Clock, KnownUser, NotRecognised, Principal, TokenIssuer as _, Verifier,
    };
    use forebay_storage::memory::{MemoryEngine, MemoryLog};
    use serde_json::json;

    use super::*;
    use crate::kit::identity;
    use crate::kit::jwt::Jwt;
    use crate::kit::jwt::tests::{AUDIENCE, ISSUER, Signer, claims, key_set};
    use crate::kit::scram::ClientFirst;

    #[test]
    fn the_header_of_a_credential_is_read() {
        fuzz("authorization", include_str!("fuzz/authorization.txt"), |input| {
            let mut headers = HeaderMap::new();
            for part in input.split(|byte| *byte == b'\n') {
                if let Ok(value) = HeaderValue::from_bytes(part) {
                    headers.append(header::AUTHORIZATION, value);
                }
            }
            identity::fuzz_given(&headers);
        });
    }

    #[tokio::test]
    async fn a_token_is_read() {
        let config = BrokerConfig::new([7; 32]);
        let engine = MemoryEngine::new(MemoryLog::new(config.driver.shard, 32 << 20));
        let (broker, _) =
            Broker::open(Arc::new(engine), Clock::still(), config).await.expect("a new log opens");
        fuzz("token", include_str!("fuzz/token.txt"), |input| {
            let text = String::from_utf8_lossy(input);
            assert_eq!(broker.credentials().recognise(&text).err(), Some(NotRecognised::Unknown));
        });
        broker.stop();
    }

    #[test]
    fn a_token_of_an_issuer_is_read() {
        let (clock, signer) = (Clock::still(), Signer::ed25519());
        let keys = key_set(&[signer.published("a")]);
        let jwt = Jwt::new(clock, ISSUER, AUDIENCE, &keys, "sub=billing view:work\n").expect("an issuer");
        let good = signer.token("a", &claims(clock, json!({})));
        assert!(jwt.recognise(&good).is_ok());
        let corpus = format!("{good}\n{}", include_str!("fuzz/jwt.txt"));
        fuzz("jwt", &corpus, |input| {
            let text = String::from_utf8_lossy(input);
            // Nothing but the very token is accepted.
            assert!(jwt.recognise(&text).is_err() || text == good);
        });
    }

    #[test]
    fn a_scram_exchange_is_read() {
        let verifier = Verifier::of("pencil", [1; 16], 1.try_into().expect("it is not zero"));
        fuzz("scram", include_str!("fuzz/scram.txt"), |input| {
            let user =
                || KnownUser { verifier: verifier.clone(), principal: Some(Principal::owner_as("user")) };
            if let Ok(first) = ClientFirst::read(input) {
                assert!(!first.user.is_empty());
                let _ = first.answer(user(), "ours");
            }
            let first = ClientFirst::read(b"n,,n=user,r=theirs").expect("it is good");
            assert!(first.answer(user(), "ours").1.finish(input).is_err(), "it proves nothing");
        });
    }
}
