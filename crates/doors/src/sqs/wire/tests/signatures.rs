//! Requests that botocore 1.44.0 signed, and altered requests that are refused.

use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};
use forebay_core::types::Timestamp;

use crate::sqs::wire::error::SqsError;
use crate::sqs::wire::protocol::Head;
use crate::sqs::wire::signature::{Scope, Trust, authenticate};

pub(super) struct Vector {
    what: &'static str,
    method: &'static str,
    path: &'static str,
    query: &'static str,
    headers: &'static [(&'static str, &'static str)],
    body: &'static str,
}

/// Signed at 2026-11-15T10:30:00Z with the secret below.
pub(super) const VECTORS: &[Vector] = &[
    Vector {
        what: "a JSON call",
        method: "POST",
        path: "/",
        query: "",
        headers: &[
            ("host", "localhost:9324"),
            ("content-type", "application/x-amz-json-1.0"),
            ("x-amz-target", "AmazonSQS.SendMessage"),
            ("x-amzn-query-mode", "true"),
            ("x-amz-date", "20261115T103000Z"),
            (
                "authorization",
                concat!(
                    "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20261115/us-east-1/sqs/aws4_request, SignedHe",
                    "aders=content-type;host;x-amz-date;x-amz-target;x-amzn-query-mode, Signature=9e03d3dc",
                    "117dbd42febe83e651a69408d336fcfa9c491b0150ff20bdaf94292b",
                ),
            ),
        ],
        body: "{\"QueueUrl\":\"http://localhost:9324/000000000000/q\",\"MessageBody\":\"héllo\"}",
    },
    Vector {
        what: "a form on the path of a queue",
        method: "POST",
        path: "/000000000000/q",
        query: "",
        headers: &[
            ("host", "localhost:9324"),
            ("content-type", "application/x-www-form-urlencoded; charset=utf-8"),
            ("x-amz-date", "20261115T103000Z"),
            (
                "authorization",
                concat!(
                    "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20261115/eu-central-1/sqs/aws4_request, Signe",
                    "dHeaders=content-type;host;x-amz-date, Signature=db1e1d71a2aa6804f802ebf701b776c90300",
                    "59572e0bf39904a965a47095cba8",
                ),
            ),
        ],
        body: "Action=SendMessage&Version=2012-11-05&MessageBody=a+b%26c",
    },
    Vector {
        what: "a GET with a query",
        method: "GET",
        path: "/000000000000/q",
        query: "Action=ReceiveMessage&WaitTimeSeconds=20&AttributeName.1=All&Version=2012-11-05",
        headers: &[
            ("host", "sqs.example.com"),
            ("x-amz-date", "20261115T103000Z"),
            (
                "authorization",
                concat!(
                    "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20261115/eu-west-1/sqs/aws4_request, SignedHe",
                    "aders=host;x-amz-date, Signature=846a31dc8204822cc4f02758116f0d87daed09c1d47e5233a513",
                    "775c475c4e1e",
                ),
            ),
        ],
        body: "",
    },
    Vector {
        what: "values that are encoded",
        method: "GET",
        path: "/",
        query: "MessageBody=a%20b%2Fc%3D~%C3%A9&Action=SendMessage&A=1&A%5B%5D=",
        headers: &[
            ("host", "localhost:9324"),
            ("x-amz-date", "20261115T103000Z"),
            (
                "authorization",
                concat!(
                    "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20261115/us-east-1/sqs/aws4_request, SignedHe",
                    "aders=host;x-amz-date, Signature=d37f2156f75614d95a262a5ee7d096e344766c476e4922eabd2a",
                    "b5a318ab06fa",
                ),
            ),
        ],
        body: "",
    },
    Vector {
        what: "a path that is encoded",
        method: "POST",
        path: "/000000000000/my%20queue",
        query: "",
        headers: &[
            ("host", "localhost:9324"),
            ("content-type", "application/x-www-form-urlencoded"),
            ("x-amz-date", "20261115T103000Z"),
            (
                "authorization",
                concat!(
                    "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20261115/us-east-1/sqs/aws4_request, SignedHe",
                    "aders=content-type;host;x-amz-date, Signature=e1c47827978c66e8aef64f35f2a10320d1db2fd",
                    "5c2a4edbcd7b1438dbcddd572",
                ),
            ),
        ],
        body: "Action=PurgeQueue",
    },
    Vector {
        what: "a session token",
        method: "POST",
        path: "/",
        query: "",
        headers: &[
            ("host", "localhost:9324"),
            ("content-type", "application/x-amz-json-1.0"),
            ("x-amz-target", "AmazonSQS.ListQueues"),
            ("x-amz-date", "20261115T103000Z"),
            ("x-amz-security-token", "tok/en+1=="),
            (
                "authorization",
                concat!(
                    "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20261115/us-east-1/sqs/aws4_request, SignedHe",
                    "aders=content-type;host;x-amz-date;x-amz-security-token;x-amz-target, Signature=433dd",
                    "7fd2374792b741badb4d55691e512d71b6d95d3fecee12a1d9a2478f26c",
                ),
            ),
        ],
        body: "{}",
    },
    Vector {
        what: "spaces in a header",
        method: "POST",
        path: "/",
        query: "",
        headers: &[
            ("host", "localhost:9324"),
            ("content-type", "application/x-amz-json-1.0;   charset=utf-8"),
            ("x-amz-target", "AmazonSQS.ListQueues"),
            ("x-amz-date", "20261115T103000Z"),
            (
                "authorization",
                concat!(
                    "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20261115/cn-north-1/sqs/aws4_request, SignedH",
                    "eaders=content-type;host;x-amz-date;x-amz-target, Signature=8a1f03914af67ad5af02205c6",
                    "292d0f4d1cff01cee4f846917ec94ec87dc9306",
                ),
            ),
        ],
        body: "",
    },
    Vector {
        what: "a path with dots",
        method: "POST",
        path: "/a/./b/../000000000000//q",
        query: "",
        headers: &[
            ("host", "localhost:9324"),
            ("content-type", "application/x-www-form-urlencoded"),
            ("x-amz-date", "20261115T103000Z"),
            (
                "authorization",
                concat!(
                    "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20261115/us-east-1/sqs/aws4_request, SignedHe",
                    "aders=content-type;host;x-amz-date, Signature=5487eff980de6d22c81a3b75d34435665f914c3",
                    "d3dde061c59df6d79304945ec",
                ),
            ),
        ],
        body: "Action=PurgeQueue",
    },
    Vector {
        what: "a URL signed for an hour",
        method: "GET",
        path: "/000000000000/q",
        query: concat!(
            "Action=ReceiveMessage&MaxNumberOfMessages=10&X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-C",
            "redential=AKIDEXAMPLE%2F20261115%2Fus-east-1%2Fsqs%2Faws4_request&X-Amz-Date=20261115",
            "T103000Z&X-Amz-Expires=3600&X-Amz-SignedHeaders=host&X-Amz-Signature=93f54456c61d3534",
            "f45b89a86a17d5b26db7aeae218bc1516496c6b83717582c",
        ),
        headers: &[("host", "localhost:9324")],
        body: "",
    },
    Vector {
        what: "a URL with a token",
        method: "GET",
        path: "/000000000000/q",
        query: concat!(
            "Action=GetQueueAttributes&AttributeName.1=All&X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-",
            "Credential=AKIDEXAMPLE%2F20261115%2Fus-east-1%2Fsqs%2Faws4_request&X-Amz-Date=2026111",
            "5T103000Z&X-Amz-Expires=60&X-Amz-SignedHeaders=host&X-Amz-Security-Token=tok%2Fen%2B1",
            "%3D%3D&X-Amz-Signature=42c6d67edea9595df394f8f40eec659a75ff91372d2b12f48c269e1665c0c8",
            "7d",
        ),
        headers: &[("host", "localhost:9324")],
        body: "",
    },
];

const KEY: &str = "AKIDEXAMPLE";
const SECRET: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
const SIGNED_AT: u64 = 1_794_738_600;

/// A request that can be altered.
#[derive(Clone)]
pub(super) struct Request {
    method: Method,
    path: String,
    query: String,
    headers: HeaderMap,
    body: String,
}

impl Vector {
    fn request(&self) -> Request {
        let header = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        Request {
            method: self.method.parse().expect("a method"),
            path: self.path.to_owned(),
            query: self.query.to_owned(),
            headers: self.headers.iter().map(header).collect(),
            body: self.body.to_owned(),
        }
    }
}

impl Request {
    fn verified_at(&self, seconds: u64) -> Result<Option<Scope>, SqsError> {
        let secret = |key: &str| (key == KEY).then(|| SECRET.to_owned());
        self.authenticated(seconds, &Trust::Verify(&secret))
    }

    fn authenticated(&self, seconds: u64, trust: &Trust<'_>) -> Result<Option<Scope>, SqsError> {
        let head =
            Head { method: &self.method, path: &self.path, query: &self.query, headers: &self.headers };
        authenticate(Timestamp(seconds * 1_000_000), trust, &head, self.body.as_bytes())
    }

    fn replace(&mut self, header: &'static str, from: &str, to: &str) {
        let value = self.headers[header].to_str().expect("text").replace(from, to);
        self.headers.insert(header, value.parse().expect("a value"));
    }
}

#[test]
fn what_botocore_signed_is_believed() {
    for vector in VECTORS {
        let scope = vector.request().verified_at(SIGNED_AT).expect(vector.what).expect("a scope");
        assert_eq!((&scope.access_key[..], &scope.service[..]), (KEY, "sqs"), "{}", vector.what);
    }
}

#[test]
fn another_secret_makes_another_signature() {
    for vector in VECTORS {
        let other = |_: &str| Some("another".to_owned());
        let refused =
            vector.request().authenticated(SIGNED_AT, &Trust::Verify(&other)).expect_err(vector.what);
        assert!(refused.to_string().starts_with(MISMATCH), "{refused}");
    }
}

const MISMATCH: &str = "SignatureDoesNotMatch: The request signature we calculated does not match the signature \
                        you provided.";

/// Everything that is signed counts.
#[test]
fn nothing_can_be_altered() {
    for vector in VECTORS {
        let mut altered: Vec<Request> = Vec::new();
        let mut alter = |change: &dyn Fn(&mut Request)| {
            let mut request = vector.request();
            change(&mut request);
            altered.push(request);
        };
        alter(&|request| request.method = Method::PUT);
        alter(&|request| request.path.push('x'));
        alter(&|request| request.query.push_str("&x=1"));
        alter(&|request| request.body.push('x'));
        alter(&|request| drop(request.headers.insert("host", HeaderValue::from_static("elsewhere"))));
        for request in altered {
            let refused = request.verified_at(SIGNED_AT).expect_err(vector.what);
            assert!(refused.to_string().starts_with(MISMATCH), "{}: {refused}", vector.what);
        }
    }
}

type Alter = fn(&mut Request);

/// Alterations of a request with its signature in a header, and the error of each.
pub(super) const REFUSALS: &[(&str, Alter, &str)] = &[
    (
        "no signature",
        |it| drop(it.headers.remove("authorization")),
        "MissingAuthenticationToken: Request is missing Authentication Token",
    ),
    (
        "an unknown key",
        |it| it.replace("authorization", KEY, "OTHER"),
        "InvalidClientTokenId: The security token included in the request is invalid.",
    ),
    (
        "another algorithm",
        |it| it.replace("authorization", "AWS4-HMAC-SHA256", "AWS4-ECDSA-P256-SHA256"),
        "IncompleteSignature: Unsupported AWS 'algorithm': 'AWS4-ECDSA-P256-SHA256'.",
    ),
    (
        "no credential",
        |it| it.replace("authorization", "Credential=", "X="),
        "IncompleteSignature: Authorization header requires 'Credential' parameter.",
    ),
    (
        "no signature in the header",
        |it| it.replace("authorization", "Signature=", "X="),
        "IncompleteSignature: Authorization header requires 'Signature' parameter.",
    ),
    (
        "no signed headers",
        |it| it.replace("authorization", "SignedHeaders=", "X="),
        "IncompleteSignature: Authorization header requires 'SignedHeaders' parameter.",
    ),
    (
        "a credential without a region",
        |it| it.replace("authorization", "/us-east-1", ""),
        "IncompleteSignature: Credential must have the form",
    ),
    (
        "no date",
        |it| drop(it.headers.remove("x-amz-date")),
        "IncompleteSignature: Authorization header requires existence of either a 'X-Amz-Date' or a 'Date' header.",
    ),
    (
        "a date that is none",
        |it| drop(it.headers.insert("x-amz-date", HeaderValue::from_static("20261315T103000Z"))),
        "IncompleteSignature: Date must be in ISO-8601 'basic format'",
    ),
    (
        "another service",
        |it| it.replace("authorization", "/sqs/", "/sns/"),
        "SignatureDoesNotMatch: Credential should be scoped to correct service: 'sqs'.",
    ),
    (
        "another terminator",
        |it| it.replace("authorization", "aws4_request", "aws5_request"),
        "SignatureDoesNotMatch: Credential should be scoped with a valid terminator: 'aws4_request'.",
    ),
    (
        "a scope of another day",
        |it| it.replace("authorization", "/20261115/", "/20261114/"),
        "SignatureDoesNotMatch: Date in Credential scope does not match",
    ),
    (
        "a host that is not signed",
        |it| it.replace("authorization", "host;", ""),
        "SignatureDoesNotMatch: 'Host' must be a signed header.",
    ),
    (
        "a header of AWS that is not signed",
        |it| drop(it.headers.insert("x-amz-extra", HeaderValue::from_static("1"))),
        "SignatureDoesNotMatch: 'x-amz-extra' must be a signed header.",
    ),
    (
        "a signature that is no number",
        |it| it.replace("authorization", "Signature=", "Signature=x"),
        MISMATCH,
    ),
    ("another region", |it| it.replace("authorization", "us-east-1", "us-east-2"), MISMATCH),
];

#[test]
fn what_is_wrong_with_a_signature_is_said() {
    for (what, alter, expected) in REFUSALS {
        let mut request = VECTORS[0].request();
        alter(&mut request);
        let refused = request.verified_at(SIGNED_AT).expect_err(what).to_string();
        assert!(refused.starts_with(expected), "{what}: {refused}");
    }
}

/// The same for a URL that was signed beforehand.
pub(super) const URL_REFUSALS: &[(&str, &str, &str, &str)] = &[
    ("an unknown key", "=AKIDEXAMPLE%2F", "=OTHER%2F", "InvalidClientTokenId: The security token"),
    (
        "another algorithm",
        "=AWS4-HMAC-SHA256",
        "=AWS4-ECDSA-P256-SHA256",
        "IncompleteSignature: Unsupported AWS",
    ),
    ("no algorithm", "X-Amz-Algorithm", "X", "IncompleteSignature: AWS query-string parameters must include"),
    (
        "no credential",
        "X-Amz-Credential",
        "X",
        "IncompleteSignature: AWS query-string parameters must include",
    ),
    (
        "no date",
        "X-Amz-Date",
        "X",
        "IncompleteSignature: AWS query-string parameters must include 'X-Amz-Date'.",
    ),
    ("no end", "X-Amz-Expires", "X", "IncompleteSignature: AWS query-string parameters must include"),
    (
        "no headers",
        "X-Amz-SignedHeaders",
        "X",
        "IncompleteSignature: AWS query-string parameters must include",
    ),
    (
        "no signature",
        "X-Amz-Signature=",
        "X=",
        "IncompleteSignature: AWS query-string parameters must include",
    ),
    (
        "ends at once",
        "Expires=3600",
        "Expires=0",
        "IncompleteSignature: X-Amz-Expires must be from 1 to 604800",
    ),
    (
        "never ends",
        "Expires=3600",
        "Expires=604801",
        "IncompleteSignature: X-Amz-Expires must be from 1 to 604800",
    ),
    ("ends later", "Expires=3600", "Expires=3601", MISMATCH),
    ("another action", "Action=ReceiveMessage", "Action=PurgeQueue", MISMATCH),
    ("another service", "%2Fsqs%2F", "%2Fsns%2F", "SignatureDoesNotMatch: Credential should be scoped"),
];

/// The scope of a key in a region.
pub(super) fn scope(key: &str, region: &str) -> Scope {
    let mut request = VECTORS[0].request();
    request.replace("authorization", KEY, key);
    request.replace("authorization", "us-east-1", region);
    request.authenticated(0, &Trust::Anybody).expect("everybody is believed").expect("a scope")
}

fn signed_for_an_hour() -> Request {
    let vector = VECTORS.iter().find(|vector| vector.what == "a URL signed for an hour");
    vector.expect("it is among them").request()
}

#[test]
fn what_is_wrong_with_a_signed_url_is_said() {
    for (what, from, to, expected) in URL_REFUSALS {
        let mut request = signed_for_an_hour();
        assert!(request.query.contains(from), "{what}");
        request.query = request.query.replacen(from, to, 1);
        let refused = request.verified_at(SIGNED_AT).expect_err(what).to_string();
        assert!(refused.starts_with(expected), "{what}: {refused}");
    }
}

#[test]
fn clocks_may_be_a_quarter_of_an_hour_apart() {
    let request = VECTORS[0].request();
    for apart in [0, 1, 900] {
        assert!(request.verified_at(SIGNED_AT + apart).is_ok(), "{apart}");
        assert!(request.verified_at(SIGNED_AT - apart).is_ok(), "{apart}");
    }
    let late = request.verified_at(SIGNED_AT + 901).expect_err("too late");
    assert_eq!(
        late.to_string(),
        "SignatureDoesNotMatch: Signature expired: 20261115T103000Z is now earlier than 20261115T103001Z \
         (20261115T104501Z - 15 min.)"
    );
    let early = request.verified_at(SIGNED_AT - 901).expect_err("too early");
    assert_eq!(
        early.to_string(),
        "SignatureDoesNotMatch: Signature not yet current: 20261115T103000Z is still later than \
         20261115T102959Z (20261115T101459Z + 15 min.)"
    );
}

#[test]
fn a_signed_url_is_good_for_as_long_as_it_says() {
    let request = signed_for_an_hour();
    for after in [0, 901, 3_600] {
        assert!(request.verified_at(SIGNED_AT + after).is_ok(), "{after}");
    }
    for wrong in [SIGNED_AT + 3_601, SIGNED_AT - 901] {
        let refused = request.verified_at(wrong).expect_err("not now").to_string();
        assert!(refused.starts_with("SignatureDoesNotMatch: Signature "), "{refused}");
    }
}

#[test]
fn a_body_must_be_signed_since_there_is_no_tls() {
    // Of the request below, as botocore signs it with that header.
    let mut request = VECTORS[0].request();
    request.headers.insert("x-amz-content-sha256", HeaderValue::from_static("UNSIGNED-PAYLOAD"));
    request.replace("authorization", "host;x-amz-date", "host;x-amz-content-sha256;x-amz-date");
    let signature = request.headers["authorization"].to_str().expect("text").to_owned();
    let (head, _) = signature.split_once("Signature=").expect("a signature");
    let signed = format!("{head}Signature={UNSIGNED_SIGNATURE}");
    request.headers.insert("authorization", signed.parse().expect("a value"));
    let refused = request.verified_at(SIGNED_AT).expect_err("any body would do").to_string();
    assert!(refused.starts_with("SignatureDoesNotMatch: The payload must be signed"), "{refused}");
    request.headers.insert("x-amz-content-sha256", HeaderValue::from_static("0000"));
    let refused = request.verified_at(SIGNED_AT).expect_err("that is not its hash").to_string();
    assert!(refused.contains("x-amz-content-sha256"), "{refused}");
}

const UNSIGNED_SIGNATURE: &str = "e0bb3a9305b46220b02626e8a08b2d467b11f1d089901b0b2fc19731432c0d7b";

#[test]
fn a_date_header_will_do() {
    let mut request = VECTORS[2].request();
    request.headers.remove("x-amz-date");
    request.headers.insert("date", HeaderValue::from_static("Sun, 15 Nov 2026 10:30:00 GMT"));
    let authorization = request.headers["authorization"].to_str().expect("text").to_owned();
    let (head, _) = authorization.split_once("SignedHeaders=").expect("signed headers");
    let signed = format!("{head}SignedHeaders=date;host, Signature={DATE_SIGNATURE}");
    request.headers.insert("authorization", signed.parse().expect("a value"));
    assert_eq!(request.verified_at(SIGNED_AT).map(|scope| scope.is_some()), Ok(true));
}

const DATE_SIGNATURE: &str = "f8867f7a2303394250dba147299a649fde903b637a26164537cf96860f08a1ed";

#[test]
fn whoever_believes_everybody_still_reads_who_they_say_they_are() {
    let told = |request: &Request| request.authenticated(1, &Trust::Anybody).expect("everybody is believed");
    for vector in VECTORS {
        let mut request = vector.request();
        request.body.push_str("altered");
        let scope = told(&request).expect("a scope");
        assert_eq!(scope.access_key, KEY, "{}", vector.what);
        assert!(!scope.region.is_empty());
    }
    assert_eq!(told(&VECTORS[1].request()).map(|scope| scope.region).as_deref(), Some("eu-central-1"));
    let mut nobody = VECTORS[0].request();
    nobody.headers.remove("authorization");
    assert_eq!(told(&nobody), None);
    nobody.headers.insert("authorization", HeaderValue::from_static("Bearer something"));
    assert_eq!(told(&nobody), None);
}
