//! Why something failed, in the few words that a server keeps.

/// How many bytes of a reason the server keeps. It cuts off the end of a longer one.
pub(super) const REASON_BYTES_MAX: usize = 512;

/// Joins the lines into one, without the white space around them.
pub(super) fn one_line(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines.join(" | ")
}

/// The end of a text that is too long, since that is where programs say what went wrong.
pub(super) fn last(text: &str, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text.to_owned();
    }
    const CUT: &str = "…";
    let from = text.ceil_char_boundary(text.len() - bytes_max.saturating_sub(CUT.len()));
    format!("{CUT}{}", &text[from..])
}

/// The beginning of a text that is too long.
pub(super) fn first(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_between_characters() {
        assert_eq!(last("short", 5), "short");
        assert_eq!(last("too long", 6), "…ong");
        assert_eq!(last("grüße", 6), "…ße");
        assert_eq!(first("grüße", 3), "gr");
        assert!(last(&"ü".repeat(1_000), REASON_BYTES_MAX).len() <= REASON_BYTES_MAX);
    }

    #[test]
    fn lines_become_one() {
        assert_eq!(
            one_line("Traceback:\n\n  File x\r\nValueError: 7\n"),
            "Traceback: | File x | ValueError: 7"
        );
    }
}
