//! The terminal, for commands that draw on all of it.

use std::io::{Read as _, Write as _};

use anyhow::Context as _;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::sync::mpsc;

use crate::print::print;

/// What a terminal has that does not say.
const USUAL_SIZE: (usize, usize) = (80, 24);

/// The terminal, taken for a while: another screen, no cursor, keys one by one. Given back when this is dropped.
pub(crate) struct Screen {
    before: Termios,
}

impl Screen {
    pub(crate) fn enter() -> anyhow::Result<Screen> {
        let before = tcgetattr(std::io::stdin()).context("cannot ask the terminal")?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(std::io::stdin(), OptionalActions::Now, &raw).context("cannot set the terminal")?;
        let screen = Screen { before };
        print("\x1b[?1049h\x1b[?25l")?;
        Ok(screen)
    }

    /// Columns and rows.
    pub(crate) fn size(&self) -> (usize, usize) {
        match tcgetwinsize(std::io::stdout()) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
            _ => USUAL_SIZE,
        }
    }

    pub(crate) fn draw(&self, lines: &[String]) -> anyhow::Result<()> {
        let mut out = String::from("\x1b[H");
        for (index, line) in lines.iter().enumerate() {
            out.push_str(if index == 0 { "" } else { "\r\n" });
            out.push_str(line);
            out.push_str("\x1b[K");
        }
        out.push_str("\x1b[J");
        print(&out)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Whatever fails now, there is nothing better to do.
        let _ = std::io::stdout().write_all(b"\x1b[?25h\x1b[?1049l");
        let _ = std::io::stdout().flush();
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &self.before);
    }
}

/// Keys as they are pressed. Reading them blocks, so it has a thread of its own, which ends with the process.
pub(crate) fn read_keys() -> mpsc::Receiver<u8> {
    let (keys, pressed) = mpsc::channel(16);
    std::thread::spawn(move || {
        for key in std::io::stdin().lock().bytes() {
            let Ok(key) = key else { break };
            if keys.blocking_send(key).is_err() {
                break;
            }
        }
    });
    pressed
}

/// Text that fits.
pub(crate) fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let kept: String = text.chars().take(width.saturating_sub(1)).collect();
    format!("{kept}…")
}
