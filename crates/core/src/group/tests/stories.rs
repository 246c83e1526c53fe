//! Generated stories: whatever happens, the log and an image yield the same state, and every message is
//! settled in the end.

use proptest::prelude::*;

use super::{range, trace};

fn pick(options: &'static [&'static str]) -> impl Strategy<Value = String> {
    prop::sample::select(options).prop_map(str::to_owned)
}

fn settings() -> impl Strategy<Value = String> {
    let each = pick(&[
        "set strategy ordered",
        "set strategy pinned",
        "set strategy single",
        "set batch 3",
        "set hold",
        "set lock position",
        "set fair",
        "set window 4",
        "set parked 3",
        "set parked age 20s",
        "set retries 1",
        "set retries none",
        "set exhausted skip",
        "set exhausted move",
        "set rate 2 3",
        "set timeout 7s",
        "set in flight 3",
        "buffer 3",
        "set limit 6 drop",
        "set limit 9 reject",
        "set age 30s",
        "set log 8",
        "limit scan 900",
    ]);
    prop::collection::vec(each, 0..5).prop_map(|settings| settings.join(" / "))
}

fn step() -> impl Strategy<Value = String> {
    let who = || pick(&["A", "B", "C"]);
    let poller = || pick(&["P", "Q"]);
    let any = || pick(&["A", "B", "C", "P", "Q"]);
    let token = pick(&["a", "b", "c", ".", "a!5", "b!9", ".!3", "a+4s", ".+8s", "b-6s", ".-9s", "c+3s-6s"]);
    prop_oneof![
        6 => prop::collection::vec(token, 1..5).prop_map(|tokens| format!("publish {}", tokens.join(" "))),
        1 => pick(&["publish id:x", "publish id:y id:x", "publish 7"]),
        3 => (who(), 1..5).prop_map(|(who, slots)| format!("{who} joins {slots}")),
        1 => (who(), 100..400).prop_map(|(who, bytes)| format!("{who} joins 4 of {bytes}B")),
        3 => (poller(), 1..4).prop_map(|(who, most)| format!("{who} polls {most} for 5s")),
        1 => (poller(), 1..4).prop_map(|(who, most)| format!("{who} polls {most} for 0s")),
        9 => (any(), 1..25u32, 0..4u32, pick(&[
            "acks", "acks", "acks", "acks late", "nacks", "parks", "skips", "moves",
        ]))
            .prop_map(|(who, first, more, verb)| format!("{who} {verb} {first}-{}", first + more)),
        1 => (any(), 1..25u32).prop_map(|(who, seq)| format!("{who} nacks {seq} in 3s")),
        1 => (any(), 1..25u32, 0..9u32).prop_map(|(who, seq, by)| format!("{who} extends {seq} by {by}s")),
        2 => (any(), pick(&["lost", "goodbye"])).prop_map(|(who, how)| format!("{who} {how}")),
        4 => (1..12u32).prop_map(|time| format!("wait {time}s")),
        1 => (1..12u32).prop_map(|time| format!("+{time}s")),
        2 => Just("crash".to_owned()),
        2 => pick(&[
            "pause", "resume", "reset beginning", "reset end", "reset 3", "reset beginning parked", "purge",
            "purge parked", "replay all", "replay all limit 2", "replay all at 1", "discard all", "discard 1-9",
            "release", "set strategy ordered", "set strategy round robin", "set strategy pinned", "set hold",
            "set continue", "set lock position", "set lock delivery", "set window 4", "set window 100",
            "set batch 2", "moves wait", "moves go",
        ]),
    ]
}

/// Which messages make up a run, in deliveries and entries, is not what this is about.
fn one_by_one(trace: &str) -> String {
    let mut lines = Vec::new();
    for line in trace.lines().filter(|line| !line.contains(" append ")) {
        let parts = line.split_once("deliver ").and_then(|(at, rest)| Some((at, rest.split_once('#')?)));
        match parts {
            Some((at, (seqs, rest))) => {
                lines.extend(range(seqs).seqs().map(|seq| format!("{at}deliver {seq}#{rest}")));
            }
            None => lines.push(line.to_owned()),
        }
    }
    lines.join("\n")
}

/// How every story ends.
const END: &str = " / moves go / wait 60s / figures / parked";

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn an_image_is_as_good_as_the_log(settings in settings(), steps in prop::collection::vec(step(), 1..50)) {
        // A run goes as one although age may have raised only its first: no ageing, so that runs do not matter.
        let settings = if settings.is_empty() { String::new() } else { format!("{settings} / ") };
        let script = format!("set step 0s / {settings}publish a / {}{END}", steps.join(" / "));
        let after_image = script.replace("/ crash ", "/ crash after image ");
        prop_assert_eq!(one_by_one(&trace(&script)), one_by_one(&trace(&after_image)), "{}", script);
    }
}
