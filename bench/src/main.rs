//! What Forebay costs, measured.
//!
//! A rate by itself says little on a machine that others use too. So everything here is measured beside
//! something fixed, in turns and in the same run, and reported as medians and as a ratio: the cost of the
//! decisions beside a yardstick ([`measure::Yardstick`]), the journal beside a bare loop of writes and
//! syncs, a long backlog beside a short one.

// The report is what the program is for.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod arguments;
mod backlog;
mod cost;
mod crowd;
mod deep;
mod e2e;
mod features;
mod journal;
mod kurrent;
mod measure;
mod peers;
mod polls;
mod restart;
mod sdk;
mod server;
mod shell;
mod soak;
mod sqs;
mod stage;
mod turns;

use std::error::Error;
use std::process::ExitCode;

use arguments::Arguments;

const HELP: &str = "\
Measures what Forebay costs.

Usage: forebay-bench <bench> [arguments]

Benches:
  cost     Publish, deliver and ack through core, driver and a log in memory, on one thread
  journal  The journal's commit beside a bare loop that writes and syncs as many bytes, and beside an encrypted one
  backlog  Ten million messages waiting: memory, time to the first delivery, cost of a cycle
  deep     Millions of messages in the way: a stuck key, a priority, delays, an outage
  turns    The longest turn of what could take long: ten thousand leases, a million parked messages
  e2e      The server over gRPC, beside a bare pass-through
  restart  Millions of messages waiting, the server killed: time to the first delivery, memory
  crowd    Ten thousand idle long polls over a thousand groups: memory and processor time
  sdk      A worker with an empty handler, beside a bare consumer: rate and processor time
  soak     A steady rate for an hour: memory, open files and disk stay flat, or it fails
  sqs      Clients of SQS that send, receive and delete, beside another server that speaks SQS
  kurrent  Clients of KurrentDB that append, catch up and consume, beside the native gRPC API
  polls    Five thousand idle long polls of SQS: memory and processor time
  peers    The same load on Forebay, two floors, and the servers that one would pick instead

cost:
  --batch B       One batch size instead of 1, 8, 64 and 256
  --seconds S     How long each figure is measured in all (2)
  --layer L       `driver` (everything), `core` (the shard alone: no frames, no contents), or `features`
                  (the shard alone, each feature beside a message that uses none)
  --consumers C   How many consumers share the messages (1; without it, a second figure with 4)
  --count N       Run exactly N cycles in batches of B (64) and print one line, for callgrind

journal:
  --seconds S     How long each shape of a commit is measured (4)
  --frames F, --messages M, --body B
                  One shape: F frames of M messages of B bytes
  --dir D         A folder on the file system to measure

backlog:
  --messages N    How many wait (10000000)
  --few N         How many wait in the backlog that it is compared with (10000)
  --rounds N      How often each cost is measured (9)
  --dir D         A folder on the file system to measure

deep:
  --only NAME     One of stuck-key-seen, stuck-key-read, priority, priority-pinned, priority-ordered,
                  delayed, outage, outage-ordered
  --messages N    How many are in the way (5000000; 1000000 delayed)

turns:
  --only TEXT     Those whose name has this in it
  --divide N      A smaller version: one in N of the messages (1)

e2e:
  --seconds S     How long each figure is measured (3)
  --body B        One size of a message instead of 100 and 1024
  --batch B       One batch size instead of 1, 8 and 64
  --credit C      One credit of a consumer instead of 256 and 2048
  --program P     The server, if not beside this program
  --dir D         A folder on the file system to measure

restart:
  --messages N    How many wait (5000000)
  --body B        Their size (100)
  --rounds N      How often the server is killed (3)
  --program P, --dir D

crowd:
  --consumers N   How many long polls (10000)
  --groups N      Over how many groups (1000)
  --seconds S     How long the server is watched (20)
  --program P, --dir D

sdk:
  --messages N    How many are drained (400000)
  --rounds N      How often each is measured (3)
  --concurrency N Jobs at a time (8)
  --program P, --dir D

soak:
  --minutes M     How long (60)
  --rate R        Messages a second (5000)
  --body B        Their size (256)
  --program P, --dir D

sqs:
  --seconds S     How long each figure is measured (3)
  --rounds N      How often (3)
  --connections N As many send, and as many receive (16)
  --body B        One size of a message instead of 100 and 1024
  --backlog N     How many wait in the large backlog (200000)
  --only TEXT     Those whose name has this in it: send, receive, `all three`, fifo, backlog, latency
  --elasticmq C, --moto C
                  Runs this command too, with {port} in it as a free port of 127.0.0.1
  --peer N=URL    Measures a server that runs already, under this name
  --peer-pid P    Its process, to know its processor time and memory
  --program P, --dir D

kurrent:
  --seconds S     How long appends are measured (2)
  --rounds N      How often everything is measured (3)
  --messages N    How many events are read and worked off (200000)
  --body B        Their size (100)
  --only TEXT     Those whose name has this in it: append, `catch up`, subscription
  --beside P      Another build of the server, in turns with the first
  --program P, --dir D

polls:
  --polls N       How many (5000)
  --queues N      Over how many queues, after all of them on one (500)
  --seconds S     How long the server is watched (60)
  --elasticmq C, --moto C, --peer N=URL, --peer-pid P, --program P, --dir D

peers:
  --only IDS      Some contenders instead of all: forebay, floor, floor-grpc, and the peers that are there
  --workloads NAMES
                  Some of publish-64, publish-1024, drain, steady-100, steady-1k, window-1, latency, ordered,
                  groups-10, backlog-10k, backlog-1m, backlog-5m, restart
  --rounds N      How often everything is measured (3)
  --seconds S     How long each figure is measured (2)
  --quick         One round of half a second each, without large backlogs
  --out D         Where table, figures and plots go (bench/results, if everything is measured)
  --date D        The date in their names (today)
  --render F      Makes table and plots again from the figures in F, and measures nothing
  --program P, --dir D

Examples:
  cargo xtask bench cost
  cargo xtask bench cost --layer core --batch 64 --seconds 10
  cargo xtask bench callgrind
  cargo xtask bench journal --dir target
  cargo xtask bench backlog --messages 1000000
  cargo xtask bench peers
  cargo xtask bench peers --quick --only forebay,floor --workloads steady-100,latency
  cargo xtask bench peers --render bench/results/2026-01-31-peers.json
  cargo xtask bench sqs --elasticmq \"java -Dnode-address.port={port} -Drest-sqs.bind-port={port}
      -Drest-stats.enabled=false -cp CLASSPATH org.elasticmq.server.Main\"
";

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let bench = words.next();
    let run: fn(Arguments) -> Result<(), Box<dyn Error>> = match bench.as_deref() {
        Some("cost") => cost::run,
        Some("journal") => journal::run,
        Some("backlog") => backlog::run,
        Some(backlog::CHILD) => backlog::run_child,
        Some("deep") => deep::run,
        Some("turns") => turns::run,
        Some("e2e") => e2e::run,
        Some(e2e::CHILD) => e2e::run_child,
        Some("restart") => restart::run,
        Some("crowd") => crowd::run,
        Some(crowd::CHILD) => crowd::run_child,
        Some("sdk") => sdk::run,
        Some("soak") => soak::run,
        Some("sqs") => sqs::run,
        Some("kurrent") => kurrent::run,
        Some("polls") => polls::run,
        Some("peers") => peers::run,
        Some(peers::floor::CHILD) => peers::floor::run_child,
        Some("help" | "--help" | "-h") => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        other => {
            match other {
                Some(other) => eprintln!("error: no such bench. bench=`{other}`\n\n{HELP}"),
                None => eprintln!("error: no bench given\n\n{HELP}"),
            }
            return ExitCode::from(2);
        }
    };
    let words: Vec<String> = words.collect();
    if words.iter().any(|word| word == "--help" || word == "-h") {
        print!("{HELP}");
        return ExitCode::SUCCESS;
    }
    match Arguments::parse(&words).map_err(Into::into).and_then(run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprint!("error: {error}");
            let mut cause = error.source();
            while let Some(error) = cause {
                eprint!(": {error}");
                cause = error.source();
            }
            eprintln!();
            ExitCode::FAILURE
        }
    }
}
