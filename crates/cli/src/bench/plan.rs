//! The plan of a run: the options with their defaults, and their conflicts.

use std::time::Duration;

use anyhow::anyhow;
use forebay_core::types::Limits;
use serde_json::{Map, Value};

use super::{Bench, Door, Mode, no_sqs_address, sqs, stamp};
use crate::commands::pairs;
use crate::connect::{self, Server};
use crate::exit::{self, Exit};

const DURATION: Duration = Duration::from_secs(10);
const WARMUP: Duration = Duration::from_secs(1);
const LATENCY_RATE: f64 = 1_000.0;
/// The largest body that a server takes through any door.
const SIZE_MAX: u64 = 1 << 20;
/// Longer is no bench.
const DURATION_MAX: Duration = Duration::from_secs(30 * 86_400);

#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) mode: Mode,
    pub(super) place: Place,
    pub(super) stream: String,
    pub(super) keep: bool,
    pub(super) producers: u16,
    pub(super) window: u64,
    pub(super) batch: u64,
    /// 0 if the run has no consumers.
    pub(super) consumers: u16,
    pub(super) credit: u32,
    pub(super) size: usize,
    pub(super) keys: u64,
    pub(super) rate: Option<f64>,
    /// One of the two says when it ends, or whichever comes first.
    pub(super) duration: Option<Duration>,
    pub(super) messages: Option<u64>,
    pub(super) warmup: Duration,
    /// Of the group, or the attributes of the queue.
    pub(super) settings: Map<String, Value>,
    pub(super) pid: Option<u32>,
}

/// Where the load goes.
#[derive(Debug, Clone)]
pub(super) enum Place {
    /// The server, and how its address is written.
    Native(Box<Server>, String),
    /// Host and port.
    Sqs(String),
}

impl Place {
    pub(super) fn address(&self) -> &str {
        match self {
            Place::Native(_, address) | Place::Sqs(address) => address,
        }
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Place::Native(..) => "native",
            Place::Sqs(_) => "sqs",
        }
    }
}

impl Plan {
    /// `number` is for the name of the stream, if it has none.
    pub(super) fn of(options: &Bench, number: u32) -> anyhow::Result<Plan> {
        read(options, number).map_err(|text| anyhow!(Exit::NotUnderstood).context(text))
    }

    /// How many of all messages a producer sends.
    pub(super) fn share(&self, producer: u16) -> u64 {
        let of = u64::from(self.producers);
        self.messages.map_or(u64::MAX, |all| all / of + u64::from(u64::from(producer) < all % of))
    }
}

fn read(options: &Bench, number: u32) -> Result<Plan, String> {
    let mode = options.mode;
    let place = place(options)?;
    let is_sqs = matches!(place, Place::Sqs(_));
    refuse_what_says_nothing(options, is_sqs)?;
    let by = |native: u64, latency: u64, sqs: u64| match mode {
        Mode::Latency => latency,
        _ if is_sqs => sqs,
        _ => native,
    };
    let batch = options.batch.unwrap_or(by(64, 1, sqs::BATCH_MAX));
    let credit = options.credit.unwrap_or(if is_sqs { sqs::BATCH_MAX as u32 } else { 256 });
    if is_sqs && (batch > sqs::BATCH_MAX || u64::from(credit) > sqs::BATCH_MAX) {
        return Err(
            "SQS takes and gives no more than 10 messages at once; --batch and --credit are at most 10 there"
                .to_owned(),
        );
    }
    let window = options.window.unwrap_or(if is_sqs { batch } else { batch.max(1_024) });
    if window < batch {
        return Err(format!("--window must have room for a batch. window=`{window}` batch=`{batch}`"));
    }
    let smallest = if is_sqs { stamp::TEXT_BYTES } else { stamp::BYTES } as u64;
    if !(smallest..=SIZE_MAX).contains(&options.size) {
        return Err(format!(
            "--size is from {smallest} to {SIZE_MAX} bytes: a message says when it was sent and which one it is. \
             size=`{}`",
            options.size
        ));
    }
    let batch_bytes = Limits::DEFAULT.batch_bytes_max.into();
    if !is_sqs && batch * options.size > batch_bytes {
        return Err(format!(
            "--batch times --size is more than a server takes at once. limit=`{batch_bytes}`"
        ));
    }
    for (name, time) in [("--duration", options.duration), ("--warmup", options.warmup)] {
        if time.is_some_and(|time| time > DURATION_MAX) {
            return Err(format!("{name} is at most 30d"));
        }
    }
    if options.duration.is_some_and(|duration| duration.is_zero()) {
        return Err("--duration must be longer than nothing".to_owned());
    }
    let messages = match mode {
        Mode::Drain => Some(options.messages.unwrap_or(by(500_000, 0, 20_000))),
        _ => options.messages,
    };
    let (settings, is_fifo) = settings(options, is_sqs)?;
    let ending = if is_fifo { ".fifo" } else { "" };
    let stream = options.stream.clone().unwrap_or_else(|| format!("bench-{number:08x}{ending}"));
    if is_sqs && stream.ends_with(".fifo") != is_fifo {
        return Err("the name of a FIFO queue ends in `.fifo`, and no other does".to_owned());
    }
    Ok(Plan {
        mode,
        place,
        stream,
        keep: options.keep,
        producers: options.producers.unwrap_or(by(2, 1, 8) as u16),
        window,
        batch,
        consumers: match mode {
            Mode::Publish => 0,
            // Over SQS a consumer asks twice for what a producer asks once.
            _ => options.consumers.unwrap_or(by(4, 1, 16) as u16),
        },
        credit,
        size: options.size as usize,
        keys: options.keys,
        rate: options.rate.or((mode == Mode::Latency).then_some(LATENCY_RATE)),
        duration: options.duration.or(messages.is_none().then_some(DURATION)),
        messages,
        warmup: options.warmup.unwrap_or(if messages.is_none() { WARMUP } else { Duration::ZERO }),
        settings,
        pid: options.pid,
    })
}

fn place(options: &Bench) -> Result<Place, String> {
    match (options.door, &options.sqs) {
        (Some(Door::Native), Some(_)) => Err("--sqs is for --door sqs".to_owned()),
        (Some(Door::Native) | None, None) => {
            Ok(Place::Native(Box::new(options.server.clone()), address_of(options)?))
        }
        (_, Some(url)) => {
            let address = url.strip_prefix("http://").unwrap_or(url).trim_end_matches('/');
            let has_port = address.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
            let is_plain = has_port && !address.contains(['/', '?', '#', '@']) && !address.contains("://");
            if is_plain { Ok(Place::Sqs(address.to_owned())) } else { Err(no_sqs_address(url)) }
        }
        // Nothing is sent to an address that the user did not name.
        (Some(Door::Sqs), None) if address_of(options)? != connect::DEFAULT_ADDRESS => {
            Err("where does that server speak SQS? --sqs takes its address, such as http://HOST:9324"
                .to_owned())
        }
        (Some(Door::Sqs), None) => Ok(Place::Sqs(sqs::DEFAULT_ADDRESS.to_owned())),
    }
}

fn address_of(options: &Bench) -> Result<String, String> {
    Ok(options.server.first().map_err(|error| exit::text(&error))?.text())
}

/// An option that would change nothing is a misunderstanding.
fn refuse_what_says_nothing(options: &Bench, is_sqs: bool) -> Result<(), String> {
    let (publishes, drains) = (options.mode == Mode::Publish, options.mode == Mode::Drain);
    let wrong = [
        (
            publishes && options.consumers.is_some(),
            "--consumers says nothing where only producers are measured",
        ),
        (publishes && options.credit.is_some(), "--credit says nothing where only producers are measured"),
        (
            publishes && !options.settings.is_empty() && !is_sqs,
            "--group says nothing where only producers are measured",
        ),
        (drains && options.rate.is_some(), "drain has no rate: everything waits already"),
        (
            drains && options.duration.is_some(),
            "drain lasts until everything is through; --messages says how many",
        ),
        (drains && options.warmup.is_some(), "drain has no warm-up: everything is measured"),
        (
            is_sqs && options.window.is_some(),
            "over SQS a producer waits for each answer; --producers says how many do",
        ),
    ];
    wrong.iter().find(|(is_wrong, _)| *is_wrong).map_or(Ok(()), |(_, text)| Err((*text).to_owned()))
}

/// The settings, and whether they are those of a FIFO queue.
fn settings(options: &Bench, is_sqs: bool) -> Result<(Map<String, Value>, bool), String> {
    let mut settings = pairs::read(&options.settings).map_err(|error| format!("{error:#}"))?;
    if !is_sqs {
        return Ok((settings, false));
    }
    // Attributes of a queue are text, whatever they mean.
    for value in settings.values_mut().filter(|value| !value.is_string()) {
        *value = Value::from(value.to_string());
    }
    if options.stream.as_ref().is_some_and(|stream| stream.ends_with(".fifo")) {
        settings.entry("FifoQueue").or_insert_with(|| Value::from("true"));
    }
    let is_fifo = settings.get("FifoQueue").is_some_and(|value| value == "true");
    Ok((settings, is_fifo))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        bench: Bench,
    }

    fn plan(text: &str) -> Result<Plan, String> {
        let words = std::iter::once("bench").chain(text.split_whitespace());
        let mut options = Command::try_parse_from(words).map_err(|error| error.to_string())?.bench;
        if !text.contains("--server") {
            // Whatever the environment says.
            options.server = Server::at(connect::DEFAULT_ADDRESS);
        }
        read(&options, 0xBEE)
    }

    #[test]
    fn every_mode_and_door_has_defaults_that_make_sense() {
        for (words, expected) in [
            ("", "2x64/1024 4x256 None Some(10s) None 1s"),
            ("publish", "2x64/1024 0x256 None Some(10s) None 1s"),
            ("latency", "1x1/1024 1x256 Some(1000.0) Some(10s) None 1s"),
            ("drain", "2x64/1024 4x256 None None Some(500000) 0ns"),
            ("--messages 5000", "2x64/1024 4x256 None None Some(5000) 0ns"),
            ("--messages 5 --duration 3s --batch 2000", "2x2000/2000 4x256 None Some(3s) Some(5) 0ns"),
            ("--door sqs", "8x10/10 16x10 None Some(10s) None 1s"),
            ("drain --door sqs", "8x10/10 16x10 None None Some(20000) 0ns"),
            ("latency --sqs http://h:1", "1x1/1 1x10 Some(1000.0) Some(10s) None 1s"),
        ] {
            let plan = plan(words).unwrap_or_else(|wrong| panic!("{words}: {wrong}"));
            let told = format!(
                "{}x{}/{} {}x{} {:?} {:?} {:?} {:?}",
                plan.producers,
                plan.batch,
                plan.window,
                plan.consumers,
                plan.credit,
                plan.rate,
                plan.duration,
                plan.messages,
                plan.warmup
            );
            assert_eq!(told, expected, "{words}");
            assert_eq!(plan.stream, "bench-00000bee");
        }
    }

    #[test]
    fn what_does_not_go_together_is_said() {
        for (words, text) in [
            ("--window 10 --batch 20", "--window must have room"),
            ("--batch 1000 --size 10KiB", "more than a server takes at once"),
            ("--size 15", "--size is from 16"),
            ("--size 2MiB", "--size is from 16"),
            ("--door sqs --size 31", "--size is from 32"),
            ("--door sqs --batch 11", "at most 10"),
            ("--door sqs --credit 11", "at most 10"),
            ("--door sqs --window 10", "--producers says how many"),
            ("--door native --sqs http://127.0.0.1:1", "--sqs is for"),
            ("--door sqs --server 10.0.0.1:7070", "where does that server speak SQS"),
            ("--sqs https://127.0.0.1:1", "the address of SQS must be http://HOST:PORT"),
            ("--sqs http://127.0.0.1", "the address of SQS must be http://HOST:PORT"),
            ("--sqs http://127.0.0.1:1/queue", "the address of SQS must be http://HOST:PORT"),
            ("publish --consumers 1", "--consumers says nothing"),
            ("publish --credit 1", "--credit says nothing"),
            ("publish --group acks=durable", "--group says nothing"),
            ("drain --rate 5", "no rate"),
            ("drain --duration 5s", "until everything is through"),
            ("drain --warmup 5s", "no warm-up"),
            ("--duration 0s", "longer than nothing"),
            ("--duration 31d", "at most 30d"),
            ("--group acks", "name=value"),
            ("--sqs h:1 --stream x --group FifoQueue=true", ".fifo"),
            ("--rate 0", "from 0.1"),
            ("--rate NaN", "from 0.1"),
            ("--producers 0", "from 1 to 1000"),
            ("fast", "steady"),
        ] {
            let wrong = plan(words).expect_err(words);
            assert!(wrong.contains(text), "{words}: {wrong}");
        }
    }

    #[test]
    fn messages_are_shared_out_and_a_fifo_queue_is_called_one() {
        let plan_of = |words: &str| plan(words).unwrap_or_else(|wrong| panic!("{words}: {wrong}"));
        let shares = |words: &str| {
            let plan = plan_of(words);
            (0..plan.producers).map(|producer| plan.share(producer)).collect::<Vec<_>>()
        };
        assert_eq!(shares("--messages 10 --producers 3"), [4, 3, 3]);
        assert_eq!(shares("--messages 1 --producers 2"), [1, 0]);
        let fifo = plan_of("--sqs h:1 --group FifoQueue=true --group VisibilityTimeout=60");
        assert_eq!(fifo.stream, "bench-00000bee.fifo");
        assert_eq!(
            Value::from(fifo.settings).to_string(),
            r#"{"FifoQueue":"true","VisibilityTimeout":"60"}"#
        );
        assert_eq!(plan_of("--sqs h:1 --stream a.fifo").settings["FifoQueue"], "true");
        assert_eq!(plan_of("--group max_retries=3").settings["max_retries"], 3);
        assert_eq!(plan_of("--sqs http://h:1/").place.address(), "h:1");
    }
}
