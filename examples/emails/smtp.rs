//! A mail server that is as difficult as real ones, inside the process.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Why a mail was not accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refusal {
    TryAgain,
    MailboxFull,
    TooManyConnections { wait: Duration },
    NoSuchMailbox,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refusal::TryAgain => "451 try again",
            Refusal::MailboxFull => "452 mailbox full",
            Refusal::TooManyConnections { .. } => "421 too many connections",
            Refusal::NoSuchMailbox => "550 no such mailbox",
        })
    }
}

impl std::error::Error for Refusal {}

/// The mail server. The domain of an address decides how it behaves. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Smtp(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    tries: HashMap<String, u32>,
    sent: Vec<String>,
    mailboxes_emptied: bool,
}

impl Smtp {
    pub(crate) async fn send(&self, to: &str, _subject: &str) -> Result<(), Refusal> {
        tokio::time::sleep(Duration::from_millis(2)).await;
        let mut state = self.state();
        let tries = state.tries.entry(to.to_owned()).or_default();
        *tries += 1;
        let is_first = *tries == 1;
        match to.split_once('@').map_or("", |(_, domain)| domain) {
            "flaky.example" if is_first => return Err(Refusal::TryAgain),
            "busy.example" if is_first => {
                return Err(Refusal::TooManyConnections { wait: Duration::from_millis(200) });
            }
            "full.example" if !state.mailboxes_emptied => return Err(Refusal::MailboxFull),
            "gone.example" | "exmaple.com" => return Err(Refusal::NoSuchMailbox),
            _ => {}
        }
        state.sent.push(to.to_owned());
        Ok(())
    }

    /// Number of mails that were accepted.
    pub(crate) fn sent(&self) -> usize {
        self.state().sent.len()
    }

    /// Makes room in the full mailboxes.
    pub(crate) fn empty_mailboxes(&self) {
        self.state().mailboxes_emptied = true;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
impl Smtp {
    /// Number of calls.
    pub(crate) fn tries(&self) -> u32 {
        self.state().tries.values().sum()
    }

    /// The recipients, sorted.
    pub(crate) fn recipients(&self) -> Vec<String> {
        let mut sent = self.state().sent.clone();
        sent.sort();
        sent
    }
}
