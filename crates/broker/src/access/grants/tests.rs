use proptest::prelude::*;

use super::*;

fn grants(text: &str) -> Grants {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn stream(name: &str) -> StreamName {
    StreamName::parse(name).expect(name)
}

fn group(name: &str) -> GroupName {
    GroupName::parse(name).expect(name)
}

fn on_stream(text: &str, right: Right, name: &str) -> bool {
    grants(text).allow(right, Resource::Stream(&stream(name)))
}

fn on_group(text: &str, right: Right, name: &str, of: &str) -> bool {
    grants(text).allow(right, Resource::Group(&stream(name), &group(of)))
}

#[test]
fn a_grant_covers_the_streams_that_its_pattern_matches() {
    let text = "publish:orders-*";
    assert!(on_stream(text, Right::Publish, "orders-eu") && on_stream(text, Right::Publish, "orders-"));
    for other in ["orders", "my-orders-eu", "Orders-eu"] {
        assert!(!on_stream(text, Right::Publish, other), "{other}");
    }
    assert!(!on_stream(text, Right::Read, "orders-eu"), "publishing is not reading");
    assert!(on_stream(text, Right::Look, "orders-eu"), "every action includes seeing the stream");
}

#[test]
fn a_pattern_without_a_group_covers_all_groups() {
    for (text, of) in
        [("consume:orders", "emails"), ("consume:orders/*", "emails"), ("consume:orders/e*", "emails")]
    {
        assert!(on_group(text, Right::Consume, "orders", of), "{text}");
        assert!(!on_group(text, Right::Consume, "other", of), "{text}");
    }
    assert!(!on_group("consume:orders/e*", Right::Consume, "orders", "invoices"));
}

#[test]
fn a_pattern_with_a_group_shows_the_stream_and_grants_nothing_on_it() {
    let text = "admin:orders/emails";
    assert!(on_stream(text, Right::Look, "orders"));
    for right in [Right::Publish, Right::Read, Right::Change, Right::Delete, Right::Operate] {
        assert!(!on_stream(text, right, "orders"), "{right}");
        assert!(on_group(text, right, "orders", "emails"), "{right}");
        assert!(!on_group(text, right, "orders", "others"), "{right}");
    }
}

#[test]
fn the_server_belongs_to_grants_on_everything() {
    let may = |text: &str, right| grants(text).allow(right, Resource::Server);
    assert!(may("monitor:*", Right::Look) && may("publish:**", Right::Look));
    assert!(!may("monitor:a*", Right::Look) && !may("monitor:*/*", Right::Look));
    assert!(may("admin:*", Right::Administer));
    assert!(!may("admin:a*", Right::Administer) && !may("operator:*", Right::Administer));
}

#[test]
fn names_of_the_system_need_a_pattern_that_begins_so() {
    let matches = |pattern: &str, name: &str| glob(pattern, pattern).expect(pattern).matches(name);
    assert!(!matches("*", "$audit") && !matches("*audit", "$audit"));
    assert!(matches("$*", "$audit") && matches("$audit", "$audit"));
}

#[test]
fn a_backslash_takes_the_meaning_of_a_character_away() {
    assert!(
        on_stream(r"publish:a\*b", Right::Publish, "a*b")
            && !on_stream(r"publish:a\*b", Right::Publish, "axb")
    );
    assert!(on_stream(r"publish:a\,b,publish:c", Right::Publish, "a,b"));
    assert!(on_stream(r"publish:a\,b,publish:c", Right::Publish, "c"));
    assert!(on_group(r"consume:a\/b/c", Right::Consume, "a/b", "c"));
    assert!(on_stream(r"publish:a\\", Right::Publish, r"a\"));
    assert!(on_stream(r"publish:a\ , publish:b", Right::Publish, "a "));
    assert!(on_stream("publish:a:b", Right::Publish, "a:b"), "only the first colon separates");
}

#[test]
fn words_can_be_joined_and_roles_are_words() {
    let text = " publish+read:orders , worker:mail ";
    assert!(on_stream(text, Right::Publish, "orders") && on_stream(text, Right::Read, "orders"));
    assert!(on_group(text, Right::Consume, "mail", "x") && !on_group(text, Right::Triage, "mail", "x"));
    assert_eq!(grants(text).as_str(), "publish+read:orders,worker:mail");
    for (role, _) in ROLES {
        assert!(Action::ALL.iter().all(|action| action.name() != role), "{role} is one word for one thing");
    }
}

#[test]
fn parked_messages_are_seen_by_consumers_readers_and_triage() {
    for word in ["consume", "read", "triage", "admin"] {
        assert!(on_group(&format!("{word}:a"), Right::Inspect, "a", "g"), "{word}");
    }
    for word in ["publish", "view", "configure", "operate"] {
        assert!(!on_group(&format!("{word}:a"), Right::Inspect, "a", "g"), "{word}");
    }
}

#[test]
fn a_wrong_grant_is_named_with_its_rule() {
    for (text, told) in [
        ("", "at least one grant"),
        (" , ", "at least one grant"),
        ("publish", "must be ACTION:PATTERN, such as publish:orders-* or consume:orders/*. grant=`publish`"),
        (
            "sing:a",
            "publish, consume, read, view, configure, triage, operate, admin, worker, monitor, operator, \
                    developer. action=`sing`",
        ),
        ("Publish:a", "action=`Publish`"),
        ("publish+:a", "action=``"),
        ("publish:", "must be STREAM or STREAM/GROUP"),
        ("consume:a/", "must be STREAM or STREAM/GROUP"),
        ("consume:a/b/c", "must be STREAM or STREAM/GROUP"),
        ("publish:a/b", "publish must name streams without groups. grant=`publish:a/b`"),
        ("publish:a\\", "followed by the character that it quotes"),
        ("publish:a\n", "control characters"),
        (&"publish:a,".repeat(65), "at most 64 grants. grants=`65`"),
        (&"x".repeat(5_000), "at most 4096 bytes. bytes=`5000`"),
    ] {
        let error = text.parse::<Grants>().expect_err(text).to_string();
        assert!(error.contains(told), "{text}: {error}");
    }
}

/// The definition, as simple as it can be.
fn plainly(pattern: &[char], name: &[char]) -> bool {
    match pattern {
        [] => name.is_empty(),
        ['*', rest @ ..] => (0..=name.len()).any(|taken| plainly(rest, &name[taken..])),
        [first, rest @ ..] => name.first() == Some(first) && plainly(rest, &name[1..]),
    }
}

proptest! {
    #[test]
    fn patterns_match_as_their_plain_definition_says(pattern in "[ab*]{1,8}", name in "[ab]{1,8}") {
        let characters = |text: &str| text.chars().collect::<Vec<char>>();
        let expected = plainly(&characters(&pattern), &characters(&name));
        prop_assert_eq!(glob(&pattern, &pattern).expect("a pattern").matches(&name), expected);
    }

    #[test]
    fn any_text_is_grants_or_an_error(text in any::<String>()) {
        let _ = text.parse::<Grants>();
    }

    #[test]
    fn grants_are_what_they_are_written_as(
        text in r"(publish|consume\+read|admin):[a-c*\\$ ]{1,6}(,view:[a-c/*]{1,5})?"
    ) {
        if let Ok(read) = text.parse::<Grants>() {
            prop_assert_eq!(&read.as_str().parse::<Grants>().expect("it was read once"), &read);
        }
    }

    #[test]
    fn every_name_can_be_granted_by_quoting_it(name in "[^\\p{Cc}$][^\\p{Cc}]{0,6}") {
        let quoted: String = name.chars().flat_map(|character| ['\\', character]).collect();
        let grants: Grants = format!("read:{quoted}").parse().expect("a grant");
        prop_assert!(grants.allow(Right::Read, Resource::Stream(&stream(&name))));
    }

    #[test]
    fn more_grants_never_allow_less(one in "(publish|consume|admin):[ab*]{1,3}", other in "(read|view):[ab*]{1,3}",
                                    name in "[ab]{1,4}") {
        let (few, many) = (grants(&one), grants(&format!("{one},{other}")));
        for right in Right::ALL {
            let name = stream(&name);
            let what = Resource::Stream(&name);
            prop_assert!(!few.allow(right, what) || many.allow(right, what));
        }
    }
}
