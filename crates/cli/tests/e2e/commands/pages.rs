//! The commands of README and of the guide, run as they stand there, with their replies compared.
//!
//! A block of `console` has commands, which begin with `$`, each followed by its reply; a line after one that ends with
//! a backslash, or that begins with `>`, continues a command. `…` stands for any text, and white space counts as one
//! space, since tables and tabs are wider on a terminal. The blocks of a page are one session with one server: a
//! variable that one sets is there in the next. A block after the words "save as" is the file that they name.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::commands::rig::Server;
use crate::rig::Folder;

struct Step {
    command: String,
    reply: Vec<String>,
}

/// What a person who reads a page does.
#[derive(Default)]
struct Session {
    steps: Vec<Step>,
    /// Names and contents.
    files: Vec<(String, String)>,
    /// Commands that the page shows and that are not part of the session: the lines of blocks without a language, and
    /// of `sh`. Programs and outputs have another language.
    others: Vec<String>,
}

enum Block {
    Console,
    File,
    Commands,
    Other,
}

/// The name in a sentence such as: Save this as `send.sh`:
fn file_named(line: &str) -> Option<String> {
    let lower = line.to_lowercase();
    let at = lower.find("save")?;
    let name = lower[at..].find(" as `").map(|place| &line[at + place + 5..])?;
    Some(name.split('`').next()?.to_owned())
}

fn session(page: &str) -> Session {
    let mut session = Session::default();
    let (mut inside, mut file): (Option<Block>, Option<String>) = (None, None);
    for line in page.lines() {
        if let Some(language) = line.strip_prefix("```") {
            inside = match (inside.take(), language) {
                (Some(_), _) => None,
                (None, "console") => Some(Block::Console),
                (None, _) => match file.take() {
                    Some(name) => {
                        session.files.push((name, String::new()));
                        Some(Block::File)
                    }
                    None if ["", "sh"].contains(&language) => Some(Block::Commands),
                    None => Some(Block::Other),
                },
            };
            continue;
        }
        match &inside {
            None => file = file_named(line).or_else(|| file.take().filter(|_| line.is_empty())),
            Some(Block::Other) => {}
            Some(Block::Commands) => match session.others.last_mut().filter(|last| last.ends_with('\\')) {
                Some(last) => last.push_str(line),
                None => session.others.push(line.to_owned()),
            },
            Some(Block::File) => {
                let (_, contents) = session.files.last_mut().expect("it was just begun");
                contents.push_str(line);
                contents.push('\n');
            }
            Some(Block::Console) => {
                let Some(command) = line.strip_prefix("$ ") else {
                    let step = session.steps.last_mut().expect("a command comes first");
                    let goes_on = step.command.ends_with('\\') || line.starts_with("> ");
                    if step.reply.is_empty() && goes_on {
                        step.command.push('\n');
                        step.command.push_str(line.strip_prefix("> ").unwrap_or(line));
                    } else {
                        step.reply.push(line.to_owned());
                    }
                    continue;
                };
                session.steps.push(Step { command: command.to_owned(), reply: Vec::new() });
            }
        }
    }
    session
}

fn plain(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Whether a reply is what the page shows.
fn is_like(reply: &str, shown: &str) -> bool {
    let (reply, shown) = (plain(reply), plain(shown));
    let mut parts = shown.split('…').map(str::trim);
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = reply.strip_prefix(first) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, between)) = parts.split_last() else { return rest.is_empty() };
    for part in between {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// Whether the programs are here. On a build machine they have to be.
#[expect(clippy::print_stderr, reason = "a test that cannot run says so")]
fn are_here(programs: &[&str]) -> bool {
    programs.iter().all(|program| {
        let is_here = Command::new(program).arg("--version").stdout(Stdio::null()).status().is_ok();
        assert!(is_here || std::env::var_os("CI").is_none(), "{program} is missing");
        if !is_here {
            eprintln!("skipped: {program} is missing");
        }
        is_here
    })
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    listener.local_addr().expect("it is bound").port()
}

/// Follows a page from its first command to its last, and compares.
fn follow(page: &str, text: &str, steps_min: usize, programs: &[&str]) {
    if !are_here(programs) {
        return;
    }
    let folder = Folder::made(&format!("page-{}", page.replace(['/', '.'], "-")));
    let server = Server::start_with(&["--data", &folder.file("data"), "--sqs", "127.0.0.1:0"]);
    let sqs = server.first["sqs"].as_str().expect("it serves SQS").to_owned();
    let binary = Path::new(env!("CARGO_BIN_EXE_forebay")).parent().expect("a folder");
    let path = format!("{}:{}", binary.display(), std::env::var("PATH").unwrap_or_default());
    // The page has the usual ports, and this machine may use them for something else.
    let port = |address: &str| address.rsplit(':').next().expect("a port").to_owned();
    let ports = [(":7070", port(&server.address)), (":9324", port(&sqs)), (":8000", free_port().to_string())];
    let here = |text: &str| {
        ports.iter().fold(text.to_owned(), |text, (usual, port)| text.replace(usual, &format!(":{port}")))
    };
    let Session { steps, files, .. } = session(text);
    assert!(steps.len() >= steps_min, "{page} has {} commands", steps.len());
    for (name, contents) in files {
        let contents = here(&contents).replace("\", 8000)", &format!("\", {})", ports[2].1));
        std::fs::write(folder.file(&name), contents).expect("the folder is ours");
    }
    let mut script = String::new();
    for step in &steps {
        // The meter of curl goes to the standard error, which the page does not show.
        let command = here(&step.command).replace("curl ", "curl -sS ");
        script.push_str(&format!("{{ {command}\n}} 2>&1\nprintf '\\n@@@\\n'\n"));
    }
    let ran = Command::new("bash")
        .args(["-c", &script])
        .current_dir(folder.file("."))
        .env("PATH", path)
        .env("FOREBAY_SERVER", &server.address)
        .env("HOME", folder.file("."))
        .env("XDG_CONFIG_HOME", folder.file("."))
        .stdin(Stdio::null())
        .output()
        .expect("a shell runs");
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    let replies: Vec<&str> = said.split("\n@@@\n").collect();
    for (step, reply) in steps.iter().zip(&replies) {
        let shown = here(&step.reply.join("\n"));
        assert!(is_like(reply, &shown), "$ {}\nanswered\n{reply}\nbut {page} shows\n{shown}", step.command);
    }
    assert_eq!(replies.len(), steps.len() + 1, "each command of {page} ran: {said}");
    server.stop();
}

#[test]
fn the_commands_of_the_readme_answer_as_it_shows() {
    follow("README.md", include_str!("../../../../../README.md"), 15, &["curl"]);
}

#[test]
fn the_commands_of_the_guide_to_other_languages_answer_as_it_shows() {
    let page = include_str!("../../../../../docs/guide/other-languages.md");
    follow("other-languages.md", page, 9, &["python3"]);
}

#[test]
fn the_commands_of_the_guide_to_exactly_once_answer_as_it_shows() {
    let page = include_str!("../../../../../docs/guide/exactly-once.md");
    follow("exactly-once.md", page, 5, &["curl"]);
}

#[test]
fn the_commands_of_the_guide_to_many_streams_answer_as_it_shows() {
    let page = include_str!("../../../../../docs/guide/many-streams.md");
    follow("many-streams.md", page, 6, &["curl"]);
}

#[test]
fn the_commands_of_the_guide_to_sqs_answer_as_it_shows() {
    let page = include_str!("../../../../../docs/guide/sqs.md");
    follow("sqs.md", page, 4, &["curl"]);
}

#[test]
fn the_commands_of_the_guide_to_the_dashboard_answer_as_it_shows() {
    let page = include_str!("../../../../../docs/guide/dashboard.md");
    follow("dashboard.md", page, 1, &[]);
}

/// Commands of pages that are not part of a session here, by their beginning, and why.
const ELSEWHERE: [(&str, &str); 26] = [
    ("forebay serve", "the server of the session is running"),
    ("forebay bench", "the tests of `bench` run it, shorter"),
    ("forebay group create events/", "the tests of the webhooks example run its script"),
    ("forebay work events/", "the tests of the webhooks example run its script"),
    ("sqs ", "compat/sqs runs each action with the AWS CLI's library"),
    ("alias sqs=", "compat/sqs"),
    ("export AWS_", "compat/sqs"),
    ("echo '{\"id\": \"invite-", "compat/guides runs the page on Go"),
    ("go run mailer.go", "compat/guides"),
    ("cargo run --release -- demo", "the tests of `demo` run it, with --quick"),
    ("cargo run --release -- serve", "it is `forebay serve`"),
    ("cargo xtask test", "it runs this test"),
    (
        "cargo install --locked --path crates/cli",
        "it is a build; `cargo publish --dry-run` packs the same crate",
    ),
    ("cargo run -p forebay-examples --bin ", "the tests of forebay-examples run the program"),
    ("cargo build -p forebay-examples", "the tests of forebay-examples"),
    ("target/debug/orders ", "the tests of forebay-examples"),
    ("sleep 1; kill -9 $!", "the tests of forebay-examples kill it"),
    ("FOREBAY=target/release/forebay examples/webhooks/dispatch.sh", "the tests of forebay-examples"),
    ("cargo xtask bench peers", "it takes an hour, and other servers"),
    ("pip install ./clients/python", "`cargo xtask compat package` tests the package"),
    ("python mailer.py", "`cargo xtask compat package` runs the program"),
    ("npm install ./clients/typescript", "`cargo xtask compat node` tests the package"),
    ("node mailer.mjs", "`cargo xtask compat node` runs the program"),
    ("npm --prefix clients/typescript ci", "`cargo xtask compat node`"),
    ("python3 -m venv venv", "`cargo xtask compat package`"),
    (". venv/bin/activate", "`cargo xtask compat package`"),
];

#[test]
fn every_command_of_a_page_for_users_is_run_by_a_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let guide = std::fs::read_dir(root.join("docs/guide")).expect("it is there").flatten();
    let mut pages: Vec<_> = guide.map(|entry| entry.path()).collect();
    assert!(pages.len() >= 15, "{pages:?}");
    pages.extend(
        ["README.md", "clients/python/README.md", "clients/typescript/README.md"].map(|page| root.join(page)),
    );
    let mut used = std::collections::BTreeSet::new();
    for page in pages {
        let text = std::fs::read_to_string(&page).expect("a page");
        for line in session(&text).others.iter().filter(|line| !line.trim().is_empty()) {
            let reason = ELSEWHERE.iter().find(|(begins, _)| line.starts_with(begins));
            assert!(reason.is_some(), "{}: `{line}` is in no block of `console`", page.display());
            used.extend(reason.map(|(begins, _)| *begins));
        }
    }
    let unused: Vec<&str> =
        ELSEWHERE.iter().map(|(begins, _)| *begins).filter(|begins| !used.contains(begins)).collect();
    assert!(unused.is_empty(), "no page has these any more: {unused:?}");
}

#[test]
fn a_page_is_read_as_a_session() {
    let page = "Save this as `a.sh`:\n\n```sh\necho one\n```\n\n```console\n$ sh a.sh\none\n\
                $ echo \\\n  two\ntwo\n```\n\n```\nforebay serve\n```\n";
    let session = session(page);
    assert_eq!(session.files, [("a.sh".to_owned(), "echo one\n".to_owned())]);
    let steps: Vec<_> =
        session.steps.iter().map(|step| (step.command.as_str(), step.reply.join("|"))).collect();
    assert_eq!(steps, [("sh a.sh", "one".to_owned()), ("echo \\\n  two", "two".to_owned())]);
    assert_eq!(session.others, ["forebay serve"]);
}

#[test]
fn a_reply_is_compared_around_its_marks() {
    assert!(
        is_like("a  b\nc", "a b c") && is_like("took 17 ms", "took … ms") && is_like("a 1 b 2 c", "a…b…c")
    );
    assert!(!is_like("a b", "a") && !is_like("took 17 s", "took … ms") && !is_like("x a", "a…"));
}
