use std::time::Duration;

use base64::prelude::BASE64_STANDARD;
use forebay_broker::api::Clock;
use ring::hmac;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _, RSA_PKCS1_SHA256,
    RsaKeyPair, RsaPublicKeyComponents,
};
use serde_json::json;

use super::*;

pub(crate) const ISSUER: &str = "https://id.example.com";
pub(crate) const AUDIENCE: &str = "forebay";
/// A key for this test alone: the library signs with RSA, and makes no keys for it.
const RSA: &str = include_str!("test-key.base64");

fn encode(bytes: impl AsRef<[u8]>) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

/// A key with which an issuer signs.
pub(crate) enum Signer {
    Rsa(Box<RsaKeyPair>),
    P256(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
}

impl Signer {
    fn rsa() -> Signer {
        let text: String = RSA.split_whitespace().collect();
        let bytes = BASE64_STANDARD.decode(text).expect("base64");
        Signer::Rsa(Box::new(RsaKeyPair::from_pkcs8(&bytes).expect("a key")))
    }

    fn p256() -> Signer {
        let (random, of) = (SystemRandom::new(), &ECDSA_P256_SHA256_FIXED_SIGNING);
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(of, &random).expect("a key");
        Signer::P256(EcdsaKeyPair::from_pkcs8(of, pkcs8.as_ref(), &random).expect("a key"))
    }

    pub(crate) fn ed25519() -> Signer {
        let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).expect("a key");
        Signer::Ed25519(Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).expect("a key"))
    }

    fn algorithm(&self) -> &'static str {
        match self {
            Signer::Rsa(_) => "RS256",
            Signer::P256(_) => "ES256",
            Signer::Ed25519(_) => "EdDSA",
        }
    }

    /// As the issuer publishes it.
    pub(crate) fn published(&self, kid: &str) -> Value {
        let mut key = match self {
            Signer::Rsa(pair) => {
                let RsaPublicKeyComponents { n, e }: RsaPublicKeyComponents<Vec<u8>> = pair.public().into();
                json!({ "kty": "RSA", "n": encode(n), "e": encode(e) })
            }
            Signer::P256(pair) => {
                let point = pair.public_key().as_ref();
                json!({ "kty": "EC", "crv": "P-256", "x": encode(&point[1..33]), "y": encode(&point[33..]) })
            }
            Signer::Ed25519(pair) => {
                json!({ "kty": "OKP", "crv": "Ed25519", "x": encode(pair.public_key()) })
            }
        };
        key["kid"] = kid.into();
        key["use"] = "sig".into();
        key["alg"] = self.algorithm().into();
        key
    }

    fn sign(&self, message: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        match self {
            Signer::Rsa(pair) => {
                let mut signature = vec![0; pair.public().modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &random, message, &mut signature).expect("a signature");
                signature
            }
            Signer::P256(pair) => pair.sign(&random, message).expect("a signature").as_ref().to_vec(),
            Signer::Ed25519(pair) => pair.sign(message).as_ref().to_vec(),
        }
    }

    fn token_with(&self, header: &Value, claims: &Value) -> String {
        let signed = format!("{}.{}", encode(header.to_string()), encode(claims.to_string()));
        let signature = encode(self.sign(signed.as_bytes()));
        format!("{signed}.{signature}")
    }

    pub(crate) fn token(&self, kid: &str, claims: &Value) -> String {
        self.token_with(&json!({ "alg": self.algorithm(), "kid": kid, "typ": "JWT" }), claims)
    }
}

pub(crate) fn key_set(keys: &[Value]) -> String {
    json!({ "keys": keys }).to_string()
}

/// Claims that are good, with others in addition or in their place.
pub(crate) fn claims(clock: Clock, others: Value) -> Value {
    let mut claims = json!({
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": "billing",
        "exp": clock.date().0 / 1_000_000 + 600,
    });
    for (name, value) in others.as_object().expect("an object") {
        claims[name] = value.clone();
    }
    claims
}

const RIGHTS: &str = "# claim=value   grants\nsub=billing worker:orders-*\ngroups=platform operator:*\n\
                      scope=orders.read read:orders-*\n";

#[test]
fn tokens_of_every_algorithm_are_recognised() {
    let clock = Clock::still();
    let signers = [("a", Signer::rsa()), ("b", Signer::p256()), ("c", Signer::ed25519())];
    let keys: Vec<Value> = signers.iter().map(|(kid, signer)| signer.published(kid)).collect();
    let jwt = Jwt::new(clock, ISSUER, AUDIENCE, &key_set(&keys), RIGHTS).expect("an issuer");
    for (kid, signer) in &signers {
        let recognised = jwt.recognise(&signer.token(kid, &claims(clock, json!({}))));
        let recognised = recognised.unwrap_or_else(|error| panic!("{}: {error:?}", signer.algorithm()));
        assert_eq!(recognised.name(), "jwt:billing");
        assert_eq!(recognised.grants().map(Grants::as_str), Some("worker:orders-*"));
        // By the key of another algorithm.
        for (other, _) in signers.iter().filter(|(other, _)| other != kid) {
            let token = signer.token(other, &claims(clock, json!({})));
            assert_eq!(jwt.recognise(&token).err(), Some(NotRecognised::Unknown), "{kid} as {other}");
        }
    }
}

#[test]
fn claims_give_the_rights_of_their_lines() {
    let (clock, signer) = (Clock::still(), Signer::ed25519());
    let keys = key_set(&[signer.published("a")]);
    let jwt = Jwt::new(clock, ISSUER, AUDIENCE, &keys, RIGHTS).expect("an issuer");
    let grants = |others: Value| {
        let recognised = jwt.recognise(&signer.token("a", &claims(clock, others)));
        recognised.map(|who| who.grants().map(ToString::to_string).unwrap_or_default())
    };
    assert_eq!(grants(json!({})).as_deref(), Ok("worker:orders-*"));
    assert_eq!(grants(json!({ "groups": ["x", "platform"] })).as_deref(), Ok("worker:orders-*,operator:*"));
    assert_eq!(grants(json!({ "sub": "x", "groups": "platform" })).as_deref(), Ok("operator:*"));
    assert_eq!(grants(json!({ "sub": "x", "scope": "openid orders.read" })).as_deref(), Ok("read:orders-*"));
    assert_eq!(grants(json!({ "aud": ["other", AUDIENCE] })).as_deref(), Ok("worker:orders-*"));
    for nothing in [json!({ "sub": "x" }), json!({ "sub": "x", "groups": 7 }), json!({ "sub": "billing2" })] {
        assert_eq!(grants(nothing), Err(NotRecognised::Unknown));
    }
}

/// Every way in which a token can be wrong, by name.
pub(crate) fn wrong_tokens(clock: Clock, signer: &Signer, kid: &str) -> Vec<(&'static str, String)> {
    let of = |others: Value| signer.token(kid, &claims(clock, others));
    let now = clock.date().0 / 1_000_000;
    let good = of(json!({}));
    let (signed, signature) = good.rsplit_once('.').expect("three parts");
    let (header, body) = signed.split_once('.').expect("three parts");
    let admin = encode(claims(clock, json!({ "sub": "billing", "groups": "platform" })).to_string());
    let none = |alg: &str| encode(json!({ "alg": alg, "kid": kid }).to_string());
    // With the text of the public key as the secret, which every client can know.
    let published = signer.published(kid).to_string();
    let by_hmac = |header: &str| {
        let key = hmac::Key::new(hmac::HMAC_SHA256, published.as_bytes());
        encode(hmac::sign(&key, format!("{header}.{body}").as_bytes()))
    };
    let header_with = |header: Value| signer.token_with(&header, &claims(clock, json!({})));
    vec![
        ("expired", of(json!({ "exp": now - 61 }))),
        ("no expiry", of(json!({ "exp": null }))),
        ("an expiry that is no number", of(json!({ "exp": "tomorrow" }))),
        ("not yet", of(json!({ "nbf": now + 120 }))),
        ("another audience", of(json!({ "aud": "elsewhere" }))),
        ("no audience", of(json!({ "aud": [] }))),
        ("another issuer", of(json!({ "iss": "https://id.example.org" }))),
        ("an issuer that begins the same", of(json!({ "iss": format!("{ISSUER}/") }))),
        ("no subject", of(json!({ "sub": "" }))),
        ("other claims", format!("{header}.{admin}.{signature}")),
        ("another signature", format!("{header}.{body}.{}", encode([7; 64]))),
        ("no signature", format!("{header}.{body}.")),
        ("alg none", format!("{}.{body}.", none("none"))),
        ("alg None", format!("{}.{body}.{signature}", none("None"))),
        ("HMAC", format!("{}.{body}.{}", none("HS256"), by_hmac(&none("HS256")))),
        ("an unknown key", signer.token("unknown", &claims(clock, json!({})))),
        ("a key of another issuer", Signer::ed25519().token(kid, &claims(clock, json!({})))),
        (
            "a header that wants more",
            header_with(json!({ "alg": signer.algorithm(), "kid": kid, "crit": ["b64"] })),
        ),
        ("two parts", format!("{header}.{body}")),
        ("four parts", format!("{good}.x")),
        ("no base64", "%.%.%".to_owned()),
        ("nothing", "..".to_owned()),
    ]
}

#[test]
fn every_wrong_token_is_refused() {
    let clock = Clock::still();
    for signer in [Signer::rsa(), Signer::p256(), Signer::ed25519()] {
        let keys = key_set(&[signer.published("a")]);
        let jwt = Jwt::new(clock, ISSUER, AUDIENCE, &keys, RIGHTS).expect("an issuer");
        for (what, token) in wrong_tokens(clock, &signer, "a") {
            let refused = jwt.recognise(&token).err();
            let expected = if what == "expired" { NotRecognised::Expired } else { NotRecognised::Unknown };
            assert_eq!(refused, Some(expected), "{what} with {}", signer.algorithm());
        }
        let good = signer.token("a", &claims(clock, json!({})));
        jwt.recognise(&good).expect("the right one");
        // The clocks may differ by a minute, and a token ends after that.
        let now = clock.date().0 / 1_000_000;
        jwt.recognise(&signer.token("a", &claims(clock, json!({ "exp": now - 30 }))))
            .expect("within the leeway");
        jwt.recognise(&signer.token("a", &claims(clock, json!({ "nbf": now + 30 }))))
            .expect("within the leeway");
    }
}

#[tokio::test]
async fn other_keys_and_rights_end_their_clients_and_no_others() {
    let (clock, a, b) = (Clock::still(), Signer::ed25519(), Signer::p256());
    let both = key_set(&[a.published("a"), b.published("b")]);
    let jwt = Jwt::new(clock, ISSUER, AUDIENCE, &both, RIGHTS).expect("an issuer");
    let has_ended = async |who: &Principal| {
        tokio::time::timeout(Duration::from_millis(20), who.ended(clock)).await.is_ok()
    };
    let of_a = a.token("a", &claims(clock, json!({})));
    let of_b = b.token("b", &claims(clock, json!({ "sub": "x", "groups": "platform" })));
    let (who_a, who_b) = (jwt.recognise(&of_a).expect("good"), jwt.recognise(&of_b).expect("good"));
    jwt.replace_rights(&format!("{RIGHTS}sub=another read:x\n")).expect("it is good");
    assert!(!has_ended(&who_a).await && !has_ended(&who_b).await, "their rights are the same");
    jwt.replace_rights("sub=billing worker:orders-*\n").expect("it is good");
    assert!(!has_ended(&who_a).await && has_ended(&who_b).await, "one has no line any more");
    assert_eq!(jwt.recognise(&of_b).err(), Some(NotRecognised::Unknown));
    jwt.replace_rights(RIGHTS).expect("it is good");
    assert_eq!(jwt.replace_keys(&key_set(&[b.published("b")])).expect("it is good"), 1);
    assert!(has_ended(&who_a).await, "the key is gone");
    assert_eq!(jwt.recognise(&of_a).err(), Some(NotRecognised::Unknown));
    jwt.recognise(&of_b).expect("it has its line again");
    // Keys that cannot be used leave the last ones in force.
    assert!(jwt.replace_keys("{").is_err() && jwt.recognise(&of_b).is_ok());
}

#[test]
fn files_that_cannot_be_used_are_refused() {
    let keys = key_set(&[Signer::ed25519().published("a")]);
    let wrong = |keys: &str, rights: &str| {
        let jwt = Jwt::new(Clock::still(), ISSUER, AUDIENCE, keys, rights);
        jwt.map(drop).expect_err("wrong").to_string()
    };
    assert!(wrong("nonsense", "").starts_with("the keys of the issuer"));
    let secret =
        json!({ "keys": [{ "kty": "oct", "k": "c2VjcmV0", "kid": "a", "alg": "HS256" }] }).to_string();
    for unusable in [secret, key_set(&[])] {
        assert!(wrong(&unusable, "").starts_with("the keys must have at least one"), "{unusable}");
    }
    let mut short = Signer::rsa().published("a");
    short["n"] = encode([0xff; 128]).into();
    assert!(wrong(&key_set(&[short]), "").starts_with("the keys must have at least one"));
    let mut other_use = Signer::ed25519().published("a");
    other_use["use"] = "enc".into();
    assert!(wrong(&key_set(&[other_use]), "").starts_with("the keys must have at least one"));
    for (rights, said) in [
        ("sub=x", "line=`1`"),
        ("sub read:x", "CLAIM=VALUE"),
        ("\n=x read:x", "line=`2`"),
        ("sub=x sing:x", "an action must be one of"),
    ] {
        assert!(wrong(&keys, rights).contains(said), "{rights}");
    }
}

#[tokio::test]
async fn a_token_with_a_new_key_waits_until_the_keys_are_fetched() {
    let (clock, a, b) = (Clock::start(), Signer::ed25519(), Signer::p256());
    let every = Duration::from_secs(900);
    let jwt = Jwt::with_fetched_keys(clock, ISSUER, AUDIENCE, RIGHTS, every).expect("an issuer");
    let (of_a, of_b) = (a.token("a", &claims(clock, json!({}))), b.token("b", &claims(clock, json!({}))));
    assert_eq!(jwt.recognise(&of_a).err(), Some(NotRecognised::Pending), "there are no keys yet");
    jwt.fetch_is_due().await;
    let (answered, ()) = tokio::join!(
        async {
            jwt.settled().await;
            jwt.recognise(&of_a).map(|who| who.name().to_owned())
        },
        async {
            tokio::task::yield_now().await;
            jwt.fetched(&key_set(&[a.published("a")])).expect("they are good");
        }
    );
    assert_eq!(answered.as_deref(), Ok("jwt:billing"));
    // The keys were fetched a moment ago, so a client that names any key cannot make the server fetch again.
    assert_eq!(jwt.recognise(&of_b).err(), Some(NotRecognised::Unknown));
    assert!(jwt.fetched("garbage").is_err());
    jwt.not_fetched();
    jwt.recognise(&of_a).expect("the last good keys stay in force");
    let figures = jwt.figures().expect("the keys are fetched");
    assert_eq!((figures.keys, figures.fetches, figures.failures), (1, 3, 2));
    assert!(figures.age.is_some_and(|age| age < Duration::from_secs(60)));
}

#[tokio::test]
async fn without_any_key_a_client_is_told_to_try_again() {
    let clock = Clock::start();
    let every = Duration::from_secs(900);
    let jwt = Jwt::with_fetched_keys(clock, ISSUER, AUDIENCE, RIGHTS, every).expect("an issuer");
    jwt.fetch_is_due().await;
    jwt.not_fetched();
    let token = Signer::ed25519().token("a", &claims(clock, json!({})));
    jwt.settled().await;
    assert_eq!(jwt.recognise(&token).err(), Some(NotRecognised::Pending));
    // Only a token that names a key is worth a question.
    assert_eq!(jwt.recognise("no token").err(), Some(NotRecognised::Unknown));
}
