//! The commands for operators, over HTTP.

pub(crate) mod cluster;
pub(crate) mod connections;
pub(crate) mod credential;
pub(crate) mod group;
pub(crate) mod pairs;
pub(crate) mod parked;
pub(crate) mod stream;
pub(crate) mod top;

use std::io::{IsTerminal as _, Write as _};

use anyhow::bail;
use clap::Args;
use forebay_wire::json::{GroupReport, GroupStatus};

use crate::connect::Server;
use crate::exit::Exit;
use crate::http::{self, encoded};
use crate::print::{Cell, Colour};
use crate::safe::printable;

/// A group by its stream and its own name.
#[derive(Debug, Clone)]
pub(crate) struct GroupPath {
    pub(crate) stream: String,
    pub(crate) group: String,
}

impl std::fmt::Display for GroupPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", printable(&self.stream), printable(&self.group))
    }
}

impl std::str::FromStr for GroupPath {
    type Err = String;

    fn from_str(text: &str) -> Result<GroupPath, String> {
        // The name of a group has no slash, so the last one ends the name of the stream.
        match text.rsplit_once('/') {
            Some((stream, group)) if !stream.is_empty() && !group.is_empty() => {
                Ok(GroupPath { stream: stream.to_owned(), group: group.to_owned() })
            }
            _ => Err("a group is named STREAM/GROUP, such as emails/senders".to_owned()),
        }
    }
}

impl GroupPath {
    pub(crate) fn path(&self) -> String {
        format!("/streams/{}/groups/{}", encoded(&self.stream), encoded(&self.group))
    }
}

fn stream_path(stream: &str) -> String {
    format!("/streams/{}", encoded(stream))
}

#[derive(Debug, Args)]
struct Sure {
    /// Do not ask for confirmation. Without a terminal the command is refused unless this is given.
    #[arg(long, short)]
    yes: bool,
}

impl Sure {
    /// As [`Sure::ask`], about something at this path of the API. There is no question about what does not exist.
    fn ask_about(&self, server: &Server, path: &str, question: &str) -> anyhow::Result<()> {
        if !self.yes
            && let Err(error) = http::with(server, async |http| http.get(path).await)
            && error.downcast_ref::<Exit>() == Some(&Exit::NotFound)
        {
            return Err(error);
        }
        self.ask(question)
    }

    /// Asks for confirmation on the terminal. Without a terminal there is no one to ask, and only `--yes` confirms.
    fn ask(&self, question: &str) -> anyhow::Result<()> {
        if self.yes {
            return Ok(());
        }
        if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
            return Err(anyhow::anyhow!(Exit::NotUnderstood).context(format!(
                "{question} This cannot be undone, and there is no terminal to confirm it on; --yes confirms it"
            )));
        }
        let _ = write!(std::io::stderr(), "{question} [y/N] ");
        let mut answer = String::new();
        std::io::stdin().read_line(&mut answer)?;
        match answer.trim() {
            "y" | "Y" | "yes" => Ok(()),
            _ => bail!("not confirmed; nothing was done"),
        }
    }
}

/// Whether a group needs a person: messages are due and no consumer is there to take them.
fn alarm(group: &GroupReport) -> Colour {
    let waits = group.due() > 0 && group.consumers.is_empty();
    if waits && group.status != GroupStatus::Paused { Colour::Red } else { Colour::Plain }
}

/// The state of a group in the word of the API. It is red if the group is idle and messages are due.
fn status(group: &GroupReport) -> Cell {
    let status = word(&group.status);
    let is_idle = group.status == GroupStatus::Idle;
    let colour = if is_idle && alarm(group) == Colour::Red { Colour::Red } else { status_colour(&status) };
    Cell(status, colour)
}

/// The colour of a group's state.
fn status_colour(status: &str) -> Colour {
    match status {
        "live" => Colour::Green,
        "catching_up" | "paused" => Colour::Yellow,
        "idle" => Colour::Dim,
        _ => Colour::Red,
    }
}

/// A word of the API, as it stands there.
fn word(value: &impl serde::Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        Ok(value) => value.to_string(),
        Err(_) => String::new(),
    }
}
