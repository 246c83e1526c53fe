use super::*;
use crate::access::Grants;

const NOW: Timestamp = Timestamp(1_000_000_000);

fn tenants(text: &str) -> Tenants {
    let tenants = Tenants::default();
    tenants.replace(text).expect("it is good");
    tenants
}

fn client(name: &str) -> Principal {
    Principal::new(name, Grants::admin())
}

fn named(name: &str) -> StreamName {
    StreamName::parse(name).expect("a name")
}

#[test]
fn the_very_name_counts_before_a_pattern_and_the_first_pattern_before_others() {
    let tenants = tenants("# ours\n\nteam-* requests=1\n* requests=2\nteam-a requests=3\n");
    let of = |name: &str| tenants.line_of(&client(name)).map(|tenant| tenant.name.to_string());
    assert_eq!(of("team-a").as_deref(), Some("team-a"));
    assert_eq!(of("team-b").as_deref(), Some("team-*"));
    assert_eq!(of("other").as_deref(), Some("*"));
    assert!(tenants.line_of(&Principal::owner()).is_none(), "the owner has no limits");
    assert!(tenants.line_of(&Principal::owner_as("key")).is_some(), "a key of the keys file has");
    assert_eq!(tenants.limits_of("team-a").as_deref(), Some("requests=3"));
}

#[test]
fn limits_are_written_as_they_are_read() {
    let text = "connections=5,requests=100,bytes=1MiB,in_flight=7";
    assert_eq!(tenants(&format!("ci {text}")).limits_of("ci").as_deref(), Some(text));
    assert_eq!(tenants("ci bytes=1500").limits_of("ci").as_deref(), Some("bytes=1500B"));
    for (text, said) in [
        ("ci", "line=`1`"),
        (
            "ci request=1",
            "one of connections, requests, bytes, in_flight, with `=` and its value. limit=`request=1` line=`1`",
        ),
        ("ci streams=1", "one of connections"),
        ("stream:a-* requests=1", "one of streams, stored_bytes,"),
        ("ci requests=0", "requests must be a whole number of at least 1"),
        ("ci requests=1MiB", "value=`1MiB`"),
        ("ci bytes=-1", "value=`-1`"),
        ("ci bytes=99999999TiB", "value=`99999999TiB`"),
        ("ci requests=1,requests=2", "a limit must be given once. limit=`requests` line=`1`"),
        ("ci requests=1\n\nci bytes=2", "ci must be given once. line=`3`"),
        ("stream: streams=1", "line=`1`"),
    ] {
        let wrong = Tenants::default().replace(text).expect_err("it is wrong").to_string();
        assert!(wrong.contains(said), "{text}: {wrong}");
    }
    let many: String = (0..=TENANT_PATTERNS_MAX).map(|n| format!("{n}* requests=1\n")).collect();
    assert_eq!(Tenants::default().replace(&many), Err(LimitsError::TooMany));
}

#[test]
fn connections_and_calls_count_until_they_end() {
    let tenants = tenants("ci connections=1,in_flight=2");
    let tenant = tenants.line_of(&client("ci")).expect("it has limits");
    let seat = tenant.connect().expect("the first");
    let over = tenant.connect().expect_err("one too many");
    assert_eq!((over.limit, over.value), (Limit::Connections, 1));
    assert_eq!(
        over.to_string(),
        "the number of connections of the client is reached. tenant=`ci` limit=`connections=1`"
    );
    drop(seat);
    let _seat = tenant.connect().expect("a place is free again");
    let (one, _two) = (tenant.begin(NOW).expect("the first"), tenant.begin(NOW).expect("the second"));
    assert_eq!(tenant.begin(NOW).expect_err("one too many").limit, Limit::InFlight);
    drop(one);
    tenant.begin(NOW).expect("a place is free again");
    // Of a line that stays, connections and calls still count.
    tenants.replace("ci connections=2,in_flight=1").expect("it is good");
    let same = tenants.line_of(&client("ci")).expect("it has limits");
    let _second = same.connect().expect("there may be two now");
    assert!(same.connect().is_err());
    assert_eq!(same.begin(NOW).expect_err("the first call goes on").limit, Limit::InFlight);
    let counted: Vec<_> = tenants.refusals().iter().map(|(_, limit, count)| (*limit, *count)).collect();
    assert_eq!(counted, [(Limit::Connections, 2), (Limit::InFlight, 2)]);
    tenants.replace("").expect("it is good");
    assert!(tenants.line_of(&client("ci")).is_none());
}

#[test]
fn a_refused_request_holds_no_place() {
    let tenants = tenants("ci requests=1,in_flight=1");
    let tenant = tenants.line_of(&client("ci")).expect("it has limits");
    drop(tenant.begin(NOW).expect("the first"));
    let over = tenant.begin(NOW).expect_err("one too many");
    assert_eq!((over.limit, over.retry_after), (Limit::Requests, Duration::from_secs(1)));
    tenant.begin(NOW + Duration::from_secs(1)).expect("a second later");
}

#[test]
fn bytes_are_paid_afterwards() {
    let tenants = tenants("ci bytes=1KiB");
    let tenant = tenants.line_of(&client("ci")).expect("it has limits");
    drop(tenant.begin(NOW).expect("nothing was sent"));
    tenant.charge(NOW, 3 << 10);
    assert_eq!(tenant.debt(NOW), Some(Duration::from_secs(2)));
    let over = tenant.begin(NOW).expect_err("too much was sent");
    assert_eq!((over.limit, over.value, over.retry_after), (Limit::Bytes, 1_024, Duration::from_secs(2)));
    tenant.begin(NOW + Duration::from_secs(2)).expect("it is paid");
}

#[test]
fn streams_of_a_pattern_have_a_number_and_a_size() {
    let tenants = tenants("stream:a-* streams=2,stored_bytes=100\n");
    tenants.may_create(&named("a-1")).expect("the first");
    tenants.may_publish(&named("a-2"), 60).expect("the second");
    tenants.may_publish(&named("a-1"), 60).expect("it is there");
    let full = tenants.may_publish(&named("a-1"), 1).expect_err("they are full");
    assert_eq!((full.limit, full.value), (Limit::StoredBytes, 100));
    assert_eq!(tenants.may_create(&named("a-3")).expect_err("one too many").limit, Limit::Streams);
    tenants.may_publish(&named("b-1"), 1_000).expect("no limits are for this one");
}

#[test]
fn the_page_on_security_lists_every_limit() {
    let page = include_str!("../../../../docs/security.md");
    for limit in Limit::ALL {
        let subject = match limit.subject() {
            Subject::Clients => "clients",
            Subject::Streams => "streams",
        };
        let row = format!("| `{}` | {subject} | {} |\n", limit.name(), limit.help());
        assert!(page.contains(&row), "the page has no row\n{row}");
    }
}

#[test]
fn a_credential_may_have_limits_of_its_own() {
    let limits: ClientLimits = "requests=1,connections=2".parse().expect("they are good");
    assert_eq!(limits.to_string(), "connections=2,requests=1");
    for wrong in ["", "requests", "streams=1", "requests=0", "requests=1,requests=1", "requests=1,"] {
        wrong.parse::<ClientLimits>().expect_err(wrong);
    }
    let own = Arc::new(Tenant::of_credential("7d3f", limits));
    let who = client("ci").with_tenant(Some(own.clone()));
    let tenants = tenants("ci requests=5\n");
    let [of_credential, line] = tenants.of(&who).map(|tenant| tenant.expect("it has limits"));
    assert!(Arc::ptr_eq(&of_credential, &own));
    line.begin(NOW).expect("the line has its own count");
    own.begin(NOW).expect("the first");
    let over = own.begin(NOW).expect_err("one too many");
    assert_eq!(
        over.to_string(),
        "the number of requests a second of the client is reached. tenant=`id:7d3f` limit=`requests=1`"
    );
    assert_eq!(own.refusals().collect::<Vec<_>>(), [("id:7d3f".into(), Limit::Requests, 1)]);
    assert!(Tenants::default().of(&client("ci")).iter().all(Option::is_none));
}
