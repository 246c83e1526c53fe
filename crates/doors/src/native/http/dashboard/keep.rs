//! The history across restarts: the minutes of each day are a note in the log, which goes by itself when it is of
//! no use any more.

use forebay_broker::api::{Bundle, Door as Notes, Expected, NoteWish};
use forebay_core::types::{StreamName, Timestamp};

use super::Dashboard;
use super::history::KEPT_FOR;
use crate::native::service::Service;

/// How often the present day is written, in seconds. A server that is killed forgets as much.
const SAVE_EVERY: u64 = 300;
/// More days are never kept.
const DAYS_MAX: usize = 16;
const PREFIX: &[u8] = b"day/";
const DAY: u64 = 86_400;

/// The notes have to be beside some stream, which need not exist.
fn beside() -> StreamName {
    StreamName::parse("forebay-history").expect("a name")
}

/// The key of a day. Numbers of days have five digits until the year 2243, so the keys are in the order of the days.
fn key(day: u64) -> Vec<u8> {
    [PREFIX, format!("{day:06}").as_bytes()].concat()
}

/// Takes in the days that were kept.
pub(super) async fn load(dashboard: &Dashboard, service: &Service) {
    let page = match service.caller().notes(Notes::HISTORY, PREFIX.to_vec(), None, DAYS_MAX).await {
        Ok(page) => page,
        Err(error) => {
            tracing::warn!(%error, "the history of the dashboard cannot be read and begins anew");
            return;
        }
    };
    let mut history = dashboard.history();
    for (key, note) in page.items {
        let day = key.strip_prefix(PREFIX).and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
        let is_read = day.is_some_and(|day| history.decode_day(day, &note.value));
        if !is_read {
            tracing::warn!("a day of the dashboard's history cannot be read and is left out");
        }
    }
}

/// Writes the present day, and the day before if it has just ended.
pub(super) async fn save_if_due(
    dashboard: &Dashboard,
    service: &Service,
    second: u64,
    saved: &mut Option<u64>,
) {
    let Some(before) = *saved else {
        *saved = Some(second);
        return;
    };
    if second < before.saturating_add(SAVE_EVERY) {
        return;
    }
    *saved = Some(second);
    let mut ends = vec![second];
    if before / DAY < second / DAY {
        ends.push(before);
    }
    for end in ends {
        let Some((day, value)) = dashboard.history().encode_day(end) else { continue };
        let note = NoteWish {
            door: Notes::HISTORY,
            key: key(day),
            value: Some(value),
            expected: Expected::Any,
            expires: Some(Timestamp((day * DAY + DAY + KEPT_FOR) * 1_000_000)),
        };
        if let Err(error) = service.caller().commit(Bundle::beside(beside()).note(note)).await {
            tracing::debug!(%error, "the history of the dashboard could not be written");
        }
    }
}
