//! Short texts that come again and again, such as failure reasons and consumer names, each kept once.
//!
//! A million parked messages usually have a handful of reasons. Where every text is different, because it
//! has a number or an id in it, the table would grow with the messages; so when it is nearly full, new texts
//! lose their numbers, and when it is full, they become one text for all others.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Bytes of a text.
pub(crate) const TEXT_BYTES_MAX: usize = 512;
/// Different texts in use.
const TEXTS_MAX: usize = 4_096;
/// Of these, texts as they came. The rest is for reduced ones, which would find no room otherwise, just when
/// they are needed.
const WHOLE_MAX: usize = TEXTS_MAX / 8 * 7;
/// After a sweep that made no room, so many new texts go by before the next one: a sweep takes some ten
/// microseconds.
const SWEEP_EVERY: u32 = 256;
/// From this length on letters between digits belong to an id, and not to a word.
const ID_LEN_MIN: usize = 4;
/// From this length on hex digits are an id even if all of them are letters.
const HEX_LEN_MIN: usize = 8;
const OTHER: &str = "(other)";

#[derive(Debug, Default)]
pub(crate) struct Texts {
    kept: BTreeSet<Arc<str>>,
    /// New texts to go by before the next sweep.
    patience: u32,
}

impl Texts {
    /// The text, cut to 512 bytes and without control characters, or a shortened text if there are too many
    /// different ones. It stays in the table for as long as a record holds it.
    pub(crate) fn intern(&mut self, text: &str) -> Arc<str> {
        let text = cleaned(text);
        if let Some(kept) = self.kept.get(&*text) {
            return kept.clone();
        }
        if self.kept.len() >= WHOLE_MAX {
            self.sweep();
        }
        if self.kept.len() < WHOLE_MAX {
            return self.keep(&text);
        }
        let reduced = reduced(&text);
        match self.kept.get(&*reduced) {
            Some(kept) => kept.clone(),
            // The text for all others has a place of its own.
            None if self.kept.len() < TEXTS_MAX - 1 => self.keep(&reduced),
            None => self.kept.get(OTHER).cloned().unwrap_or_else(|| self.keep(OTHER)),
        }
    }

    /// The same text from the table, or a new one. A text from an image or from the log was cleaned and shortened
    /// when it was first kept, and is not changed again: after a restart the state is as it was.
    pub(crate) fn share(&mut self, text: &str) -> Arc<str> {
        if let Some(kept) = self.kept.get(text) {
            return kept.clone();
        }
        if self.kept.len() >= TEXTS_MAX {
            self.sweep();
        }
        if self.kept.len() < TEXTS_MAX { self.keep(text) } else { text.into() }
    }

    fn keep(&mut self, text: &str) -> Arc<str> {
        let text: Arc<str> = text.into();
        self.kept.insert(text.clone());
        text
    }

    /// Drops texts that no record holds any more, unless that was tried in vain a moment ago.
    fn sweep(&mut self) {
        if self.patience > 0 {
            self.patience -= 1;
            return;
        }
        self.kept.retain(|text| Arc::strong_count(text) > 1);
        // Little room is soon used up, and would then be looked for with every few texts.
        if self.kept.len() + SWEEP_EVERY as usize > WHOLE_MAX {
            self.patience = SWEEP_EVERY;
        }
    }

    /// How many different texts are in the table, in use or not swept yet.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.kept.len()
    }
}

fn cleaned(text: &str) -> Cow<'_, str> {
    let text = &text[..text.floor_char_boundary(TEXT_BYTES_MAX)];
    if !text.contains(char::is_control) {
        return Cow::Borrowed(text);
    }
    // A space is never longer than what it replaces.
    Cow::Owned(text.chars().map(|char| if char.is_control() { ' ' } else { char }).collect())
}

/// The text with `#` for every number and every id.
fn reduced(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(char) = rest.chars().next() {
        let hex = rest.len() - rest.trim_start_matches(|char: char| char.is_ascii_hexdigit()).len();
        let digits = rest.len() - rest.trim_start_matches(|char: char| char.is_ascii_digit()).len();
        let has_digit = rest[..hex].contains(|char: char| char.is_ascii_digit());
        let (piece, len) = match () {
            () if hex >= HEX_LEN_MIN || hex >= ID_LEN_MIN && has_digit => ("#", hex),
            () if digits > 0 => ("#", digits),
            // A word goes as a whole, or its end might be taken for an id.
            () if hex > 0 => {
                let letters = rest[..hex].find(|char: char| char.is_ascii_digit()).unwrap_or(hex);
                (&rest[..letters], letters)
            }
            () => (&rest[..char.len_utf8()], char.len_utf8()),
        };
        out.push_str(piece);
        rest = &rest[len..];
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_text_is_kept_once() {
        let mut texts = Texts::default();
        let first = texts.intern("connection refused");
        let second = texts.intern("connection refused");
        assert!(Arc::ptr_eq(&first, &second));
        assert_eq!(texts.len(), 1);
        assert_eq!(&*texts.intern("line\nand\tmore\u{7f}"), "line and more ");
        let long = texts.intern(&"ä".repeat(400).replacen('ä', "a", 1));
        assert_eq!(long.len(), 511, "cut between two characters");
    }

    #[test]
    fn numbers_and_ids_are_reduced() {
        for (text, expected) in [
            ("timeout after 1500ms", "timeout after #ms"),
            ("user 550e8400-e29b-41d4-a716-446655440000 is gone", "user #-#-#-#-# is gone"),
            ("hash deadbeefcafe", "hash #"),
            ("a decade of facades", "a decade of facades"),
            ("bad v2 at 0x1f", "bad v# at #x#f"),
            ("größe 12 µs", "größe # µs"),
            ("", ""),
        ] {
            assert_eq!(reduced(text), expected);
        }
    }

    #[test]
    fn when_there_are_too_many_they_are_reduced_and_then_all_the_same() {
        let mut texts = Texts::default();
        let letters = |n: usize| {
            let letter = |n: usize| char::from(b'g' + (n % 16) as u8);
            format!("{}{}{}{}", letter(n), letter(n / 16), letter(n / 256), letter(n / 4_096))
        };
        let mut held: Vec<_> = (0..WHOLE_MAX).map(|n| texts.intern(&format!("order {n}"))).collect();
        assert_eq!(&*held[77], "order 77");
        assert_eq!(&*texts.intern("order 77"), "order 77", "what is known stays as it is");
        for n in WHOLE_MAX..20_000 {
            let text = texts.intern(&format!("order {n}"));
            assert_eq!(&*text, "order #");
            held.push(text);
        }
        for n in 0..10_000 {
            held.push(texts.intern(&letters(n)));
            assert!(texts.len() <= TEXTS_MAX);
        }
        assert_eq!(held.last().map(|text| &**text), Some(OTHER));
        assert_eq!(texts.len(), TEXTS_MAX);
        held.clear();
        for n in 0..=SWEEP_EVERY {
            texts.intern(&letters(20_000 + n as usize));
        }
        assert_eq!(&*texts.intern("order 5"), "order 5", "there is room again");
        assert!(texts.len() < 2 * SWEEP_EVERY as usize);
    }

    proptest! {
        #[test]
        fn any_text_is_made_to_fit(text in "\\PC{0,300}[\\x00-\\x20]{0,5}\\PC{0,300}") {
            let kept = Texts::default().intern(&text);
            prop_assert!(kept.len() <= TEXT_BYTES_MAX);
            prop_assert!(!kept.contains(char::is_control));
            prop_assert_eq!(cleaned(&kept), &*kept);
            let once = reduced(&kept);
            prop_assert!(once.len() <= kept.len());
            prop_assert!(!once.contains(|char: char| char.is_ascii_digit()));
        }
    }
}
