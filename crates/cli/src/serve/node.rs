//! What the dashboard shows of the program: settings with their sources, the build, the log.

use forebay_core::types::Timestamp;
use forebay_doors::native::node::{NodeFacts, SettingRow};

use crate::log;
use crate::settings::{Given, Origin};

pub(super) fn facts(given: &[Given], started: Timestamp) -> NodeFacts {
    let settings = given
        .iter()
        .map(|one| SettingRow {
            name: one.setting.name,
            value: one.setting.shown(&one.text),
            origin: one.origin.to_string(),
            is_default: one.origin == Origin::Default,
            help: one.setting.help,
        })
        .collect();
    NodeFacts { settings, build: build(), started: Some(started.0), log: Some(log::recent) }
}

fn build() -> Vec<(&'static str, String)> {
    let features = [
        (cfg!(feature = "dashboard"), "dashboard"),
        (cfg!(feature = "jetstream"), "jetstream"),
        (cfg!(feature = "kurrent"), "kurrent"),
        (cfg!(feature = "sqs"), "sqs"),
    ];
    let features: Vec<&str> = features.iter().filter(|(is_on, _)| *is_on).map(|(_, name)| *name).collect();
    let profile = if cfg!(debug_assertions) { "with debug assertions" } else { "release" };
    vec![
        ("Built for", format!("{} on {}", std::env::consts::ARCH, std::env::consts::OS)),
        ("Build", profile.to_owned()),
        ("Features", features.join(", ")),
        ("Process", std::process::id().to_string()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{SETTINGS, Setting};

    #[test]
    fn settings_are_shown_with_their_source_and_without_secrets() {
        let setting = |name: &str| -> &'static Setting {
            SETTINGS.iter().find(|setting| setting.name == name).expect("it is there")
        };
        let one = |name, text: &str, origin| Given { setting: setting(name), text: text.to_owned(), origin };
        let given = [
            one("nats", "nats://u:secret@a:4222", Origin::Environment("FOREBAY_NATS".to_owned())),
            one("alert_webhooks", "https://host/secret", Origin::Flag("--alert-webhooks".to_owned())),
            one("data", "./d", Origin::Default),
        ];
        let facts = facts(&given, Timestamp(7));
        let shown: Vec<(&str, &str)> = facts.settings.iter().map(|row| (&*row.value, &*row.origin)).collect();
        assert_eq!(
            shown,
            [
                ("nats://***@a:4222", "environment FOREBAY_NATS"),
                ("https://host/***", "flag --alert-webhooks"),
                ("./d", "default"),
            ]
        );
        assert!(facts.settings[2].is_default && !facts.settings[0].is_default);
        assert_eq!(facts.started, Some(7));
    }
}
