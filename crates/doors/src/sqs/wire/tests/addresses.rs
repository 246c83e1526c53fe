//! Names, URLs, ARNs, accounts and regions.

use axum::http::{HeaderMap, HeaderName, HeaderValue};

use super::map;
use crate::sqs::wire::address::{Arn, Locality, QueueAddress, QueueName, UrlBase, UrlOptions, queue_in_path};
use crate::sqs::wire::attributes::QueueSettings;

/// A queue URL, the account and the name in it.
pub(super) const URLS: &[(&str, Option<(&str, &str)>)] = &[
    ("https://sqs.us-east-1.amazonaws.com/123456789012/q", Some(("123456789012", "q"))),
    ("https://eu-west-1.queue.amazonaws.com/123456789012/q", Some(("123456789012", "q"))),
    ("https://queue.amazonaws.com/123456789012/q", Some(("123456789012", "q"))),
    ("http://localhost:9324/000000000000/q.fifo", Some(("000000000000", "q.fifo"))),
    ("http://elsewhere:1/000000000000/q/", Some(("000000000000", "q"))),
    ("/000000000000/q", Some(("000000000000", "q"))),
    ("000000000000/q", Some(("000000000000", "q"))),
    ("http://h/queue/us-east-1/000000000000/q", Some(("000000000000", "q"))),
    ("http://h/queue/q", Some(("", "q"))),
    ("q", Some(("", "q"))),
    ("http://h/q?x=1", Some(("", "q"))),
    ("http://h/", None),
    ("http://h", None),
    ("", None),
    ("///", None),
];

#[test]
fn a_queue_url_is_understood_whatever_host_it_has() {
    for (url, expected) in URLS {
        let found = QueueAddress::parse(url);
        let found = found.as_ref().map(|it| (it.account.as_deref().unwrap_or_default(), &it.name[..]));
        assert_eq!(found, *expected, "{url}");
    }
}

#[test]
fn a_path_is_a_queue_if_something_comes_before_its_name() {
    for (path, name) in [
        ("/", None),
        ("", None),
        ("/health", None),
        ("/000000000000/q", Some("q")),
        ("/queue/q", Some("q")),
        ("/queue/us-east-1/000000000000/q/", Some("q")),
    ] {
        assert_eq!(queue_in_path(path).map(|queue| queue.name).as_deref(), name, "{path}");
    }
}

/// Texts, and whether each is the ARN of a queue.
pub(super) const ARNS: &[(&str, bool)] = &[
    ("arn:aws:sqs:us-east-1:000000000000:q", true),
    ("arn:aws-cn:sqs:cn-north-1:000000000000:q.fifo", true),
    ("arn:aws-us-gov:sqs:us-gov-west-1:000000000000:q", true),
    ("arn:aws:sns:us-east-1:000000000000:q", false),
    ("arn:aws:sqs:us-east-1:000000000000", false),
    ("arn:aws:sqs::000000000000:q", false),
    ("arn:aws:sqs:us-east-1:000000000000:q:r", false),
    ("q", false),
    ("", false),
];

#[test]
fn an_arn_comes_back_as_it_went() {
    for (text, is_arn) in ARNS {
        let arn = Arn::parse(text).map(|arn| arn.to_string());
        assert_eq!(arn.as_deref(), is_arn.then_some(*text));
        if let Some(arn) = Arn::parse(text) {
            assert_eq!(
                Arn::new(&arn.region, &arn.account, &arn.queue),
                arn,
                "the region gives the partition"
            );
        }
    }
}

pub(super) struct Base {
    headers: &'static [(&'static str, &'static str)],
    public_base: Option<&'static str>,
    trust_forwarded: bool,
    is_tls: bool,
    expected: &'static str,
}

const USUAL: Base =
    Base { headers: &[], public_base: None, trust_forwarded: false, is_tls: false, expected: "" };
const PROXIED: &[(&str, &str)] =
    &[("host", "inner:9324"), ("x-forwarded-proto", "https"), ("x-forwarded-host", "sqs.example.com, b")];

/// How queue URLs begin.
pub(super) const BASES: &[Base] = &[
    Base { headers: &[("host", "localhost:9324")], expected: "http://localhost:9324/1/q", ..USUAL },
    Base { headers: &[("host", "my-queue")], expected: "http://my-queue/1/q", ..USUAL },
    Base { headers: &[("host", "[::1]:9324")], expected: "http://[::1]:9324/1/q", ..USUAL },
    Base { headers: &[("host", "h")], is_tls: true, expected: "https://h/1/q", ..USUAL },
    Base { headers: PROXIED, expected: "http://inner:9324/1/q", ..USUAL },
    Base { headers: PROXIED, trust_forwarded: true, expected: "https://sqs.example.com/1/q", ..USUAL },
    Base {
        headers: &[("host", "h"), ("x-forwarded-proto", "gopher"), ("x-forwarded-host", "a/b")],
        trust_forwarded: true,
        expected: "http://h/1/q",
        ..USUAL
    },
    Base {
        headers: PROXIED,
        public_base: Some("https://fixed.example.com/"),
        expected: "https://fixed.example.com/1/q",
        ..USUAL
    },
    Base { headers: &[], expected: "http://127.0.0.1:9324/1/q", ..USUAL },
    Base { headers: &[("host", "a/../b")], expected: "http://127.0.0.1:9324/1/q", ..USUAL },
];

#[test]
fn a_queue_url_begins_as_the_request_did() {
    for base in BASES {
        let header = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        let headers: HeaderMap = base.headers.iter().map(header).collect();
        let options = UrlOptions {
            public_base: base.public_base.map(str::to_owned),
            trust_forwarded: base.trust_forwarded,
            is_tls: base.is_tls,
        };
        let url = UrlBase::of(&headers, &options, "127.0.0.1:9324").queue_url("1", "q");
        assert_eq!(url, base.expected);
    }
}

#[test]
fn names_of_queues_have_up_to_80_characters_and_fifo_says_so() {
    let long = "a".repeat(80);
    let long_fifo = format!("{}.fifo", "a".repeat(75));
    for (name, is_fifo) in
        [("a", false), ("a-b_C9", false), (&long, false), ("a.fifo", true), (&long_fifo, true)]
    {
        let parsed = QueueName::new(name, is_fifo).expect(name);
        assert_eq!((parsed.as_str(), parsed.is_fifo()), (name, is_fifo));
    }
}

#[test]
fn account_and_region_come_from_the_credential_then_from_the_host() {
    use super::signatures::scope;
    let said = |key: &str, region: &str, host: &str, owner: Option<&str>| {
        let Locality { account, region } = Locality::of(Some(&scope(key, region)), Some(host), owner);
        (account, region)
    };
    let expect = |account: &str, region: &str| (account.to_owned(), region.to_owned());
    assert_eq!(said("test", "eu-west-1", "h", None), expect("000000000000", "eu-west-1"));
    assert_eq!(said("123456789012", "x", "h", None), expect("123456789012", "x"));
    assert_eq!(said("123456789012", "x", "h", Some("111111111111")), expect("111111111111", "x"));
    assert_eq!(said("test", "", "sqs.eu-west-2.amazonaws.com", None), expect("000000000000", "eu-west-2"));
    assert_eq!(said("test", "", "eu-west-2.queue.amazonaws.com", None), expect("000000000000", "eu-west-2"));
    assert_eq!(said("test", "", "sqs.localhost:9324", None), expect("000000000000", "us-east-1"));
    let nobody = Locality::of(None, None, None);
    assert_eq!(nobody.arn("q").to_string(), "arn:aws:sqs:us-east-1:000000000000:q");
}

#[test]
fn what_a_queue_is_kept_by_makes_the_same_queue() {
    let attributes = [
        ("FifoQueue", "True"),
        ("VisibilityTimeout", "0"),
        ("KmsMasterKeyId", "alias/k"),
        ("KmsDataKeyReusePeriodSeconds", "60"),
        ("DeduplicationScope", "messageGroup"),
        ("RedrivePolicy", r#"{"deadLetterTargetArn":"arn:aws:sqs:r:000000000000:d","maxReceiveCount":"5"}"#),
    ];
    let (_, settings) = QueueSettings::create("q.fifo", &map(&attributes)).expect("a queue");
    let fresh = QueueSettings::create("q.fifo", &map(&[("FifoQueue", "true")])).expect("a queue").1;
    assert_eq!(fresh.changed(&settings.texts()), Ok(settings));
}
