use super::*;

fn sources(words: &[&str]) -> Sources {
    #[derive(clap::Parser)]
    struct Words {
        #[command(flatten)]
        sources: Sources,
    }
    let words = ["test"].iter().chain(words);
    <Words as clap::Parser>::try_parse_from(words).unwrap_or_else(|error| panic!("{error}")).sources
}

fn nothing(_: &str) -> Option<String> {
    None
}

#[test]
fn every_setting_has_a_default_that_its_own_reader_takes() {
    let settings = settle(&gather(&sources(&[]), nothing).expect("nothing is read")).expect("they are sound");
    assert_eq!(settings.listen.to_string(), "127.0.0.1:7070");
    assert_eq!(settings.drain_timeout, Duration::from_secs(10));
    assert_eq!((settings.auto_create, settings.disk_max_bytes), (true, None));
}

/// The table and what the parts of the server have for themselves must say the same.
#[test]
fn the_defaults_are_those_of_the_broker_and_the_journal() {
    use forebay_broker::broker::{BrokerConfig, FIRST_PUBLISH_BYTES_MAX};
    use forebay_storage::journal::JournalConfig;
    let settings = settle(&gather(&sources(&[]), nothing).expect("nothing is read")).expect("they are sound");
    let (broker, journal) = (BrokerConfig::new([7; 32]), JournalConfig::new(0));
    let door = forebay_doors::native::NativeConfig::default();
    assert_eq!((settings.max_connections, settings.host_names), (door.connections_max, door.host_names));
    assert_eq!(settings.request_bytes, door.body_bytes_max as u64);
    assert_eq!(settings.metrics_series_max, door.metrics_series_max);
    assert_eq!(settings.auto_create_max_bytes, FIRST_PUBLISH_BYTES_MAX);
    assert_eq!(settings.drain_timeout, broker.drain_max);
    assert_eq!(settings.date_jump_max, broker.date_jump_max);
    assert_eq!(settings.room_bytes, u64::from(broker.room_bytes));
    assert_eq!(settings.reply_bytes, broker.reply_bytes as u64);
    assert_eq!(settings.window_bytes, broker.driver.window_bytes_max as u64);
    assert_eq!(settings.free_bytes_min, journal.free_bytes_min);
    assert_eq!(settings.reserve_bytes, journal.reserve_bytes);
    assert_eq!(settings.segment_bytes, journal.segment_bytes);
    assert_eq!(settings.disk_max_bytes, journal.folder_bytes_max);
}

#[test]
fn names_are_unique_and_their_help_is_one_sentence() {
    for (index, setting) in SETTINGS.iter().enumerate() {
        assert!(SETTINGS[index + 1..].iter().all(|other| other.name != setting.name), "{}", setting.name);
        assert!(!setting.help.ends_with('.') && !setting.help.contains("  "), "{}", setting.help);
    }
}

#[test]
fn a_flag_counts_before_the_environment_and_that_before_the_default() {
    let environment = |name: &str| match name {
        "FOREBAY_LISTEN" => Some("127.0.0.1:1".to_owned()),
        "FOREBAY_DRAIN_TIMEOUT" => Some("3s".to_owned()),
        "FOREBAY_DATA" => Some(String::new()),
        _ => None,
    };
    let given =
        gather(&sources(&["--listen", "127.0.0.1:2", "--memory"]), environment).expect("they are read");
    let settings = settle(&given).expect("they are sound");
    assert_eq!((settings.listen.port(), settings.memory), (2, true));
    assert_eq!(settings.drain_timeout, Duration::from_secs(3));
    assert_eq!(settings.data, Path::new("./forebay-data"), "an empty variable is none");
    let origin = |name: &str| {
        let found = given.iter().find(|given| given.setting.name == name);
        found.map(|given| given.origin.to_string()).expect("it is there")
    };
    assert_eq!(origin("listen"), "flag --listen");
    assert_eq!(origin("drain_timeout"), "environment FOREBAY_DRAIN_TIMEOUT");
    assert_eq!(origin("data"), "default");
    let wrong = gather(&sources(&[]), |name| (name == "FOREBAY_LISTEN").then(|| "here\u{1b}".to_owned()));
    let wrong = settle(&wrong.expect("it is read")).expect_err("that is no address");
    let text = crate::exit::text(&wrong);
    assert!(text.contains("FOREBAY_LISTEN") && text.contains(r"here\x1b"), "{text}");
}

#[test]
fn a_file_says_where_it_is_wrong() {
    let lines =
        file::read("# ours\ndata = \"d\"\nmax_connections = 1_000\n\nmemory = true\n").expect("it is sound");
    let lines: Vec<_> = lines.iter().map(|line| (line.name, &*line.text, line.line)).collect();
    assert!(lines.contains(&("data", "d", 2)), "{lines:?}");
    assert!(lines.contains(&("max_connections", "1000", 3)) && lines.contains(&("memory", "true", 5)));
    for (text, key, line) in [
        ("data = \"d\"\n\nlisen = \"x\"\n", "lisen", 3),
        ("[serve]\ndata = \"d\"\n", "serve", 1),
        ("data = \"d\"\nlisten = 7070\n", "listen", 2),
        ("data = [\"d\"]\n", "data", 1),
        ("memory = 3\n", "memory", 1),
        ("data = \n", "", 1),
        ("data = \"a\"\ndata = \"b\"\n", "", 2),
    ] {
        let wrong = file::read(text).err().unwrap_or_else(|| panic!("that was taken: {text}")).to_string();
        assert!(wrong.contains(key) && wrong.contains(&format!("line=`{line}`")), "{text}: {wrong}");
    }
}

#[test]
fn the_page_in_the_docs_lists_every_setting_as_it_is() {
    let page = include_str!("../../../../docs/reference/settings.md");
    let listed: Vec<&str> = page.lines().filter(|line| line.starts_with("| `")).collect();
    let rows: Vec<String> = SETTINGS
        .iter()
        .map(|setting| {
            let (flag, variable) = (setting.flag(), setting.variable());
            format!(
                "| `{}` | `{flag}` | `{variable}` | `{}` | {}. |",
                setting.name, setting.default, setting.help
            )
        })
        .collect();
    assert_eq!(listed, rows, "the table should be:\n{}", rows.join("\n"));
}

#[test]
fn a_password_in_an_address_is_not_shown() {
    let setting = |name: &str| SETTINGS.iter().find(|setting| setting.name == name).expect("it is there");
    let shown = setting("nats").shown("nats://u:secret@a:4222,u:secret@b:4222,nats://c:4222");
    assert_eq!(shown, "nats://***@a:4222,***@b:4222,nats://c:4222");
    assert_eq!(setting("data").shown("./a@b"), "./a@b");
    let webhooks = setting("alert_webhooks");
    let shown =
        webhooks.shown("slack+https://hooks.slack.com/services/T/secret, http://u:p@h:1?secret,secret");
    assert_eq!(shown, "slack+https://hooks.slack.com/***,http://h:1/***,***");
    assert_eq!(webhooks.shown("none"), "none");
}
