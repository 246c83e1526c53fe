//! The events of a history, in words, for the developer who has to find out why a seed fails. Nothing is
//! recorded unless it was asked for, since most histories pass.

use std::cell::RefCell;
use std::collections::VecDeque;

thread_local! {
    static TALE: RefCell<Option<VecDeque<String>>> = const { RefCell::new(None) };
}

/// Lines that are kept; older ones are dropped.
const LINES_MAX: usize = 2_000;

/// Begins to write down what happens on this thread.
pub fn begin() {
    TALE.with(|tale| *tale.borrow_mut() = Some(VecDeque::new()));
}

/// Ends the recording and returns the events.
pub fn end() -> Vec<String> {
    TALE.with(|tale| tale.borrow_mut().take()).into_iter().flatten().collect()
}

pub(crate) fn tell(line: impl FnOnce() -> String) {
    TALE.with(|tale| {
        if let Some(lines) = &mut *tale.borrow_mut() {
            if lines.len() == LINES_MAX {
                lines.pop_front();
            }
            lines.push_back(line());
        }
    });
}
