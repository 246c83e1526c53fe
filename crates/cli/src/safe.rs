//! Makes foreign text safe to print: names, contents and reasons may hold anything, and must not move the cursor,
//! change colours or hide text on a terminal.

/// The text with control and invisible characters escaped.
pub(crate) fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        push(&mut out, c);
    }
    out
}

/// The same for bytes. Bytes that are not text are shown in hexadecimal.
pub(crate) fn printable_bytes(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        chunk.valid().chars().for_each(|c| push(&mut out, c));
        for byte in chunk.invalid() {
            out.push_str(&format!("\\x{byte:02x}"));
        }
    }
    out
}

fn push(out: &mut String, c: char) {
    match c {
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        c if c.is_ascii_control() => out.push_str(&format!("\\x{:02x}", u32::from(c))),
        c if c.is_control() || is_hidden(c) => out.push_str(&format!("\\u{{{:x}}}", u32::from(c))),
        c => out.push(c),
    }
}

/// Characters that take no room or turn the direction of what follows.
fn is_hidden(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_act_on_a_terminal_is_escaped_and_the_rest_is_as_it_was() {
        assert_eq!(printable("grüße, 世界"), "grüße, 世界");
        assert_eq!(printable("a\u{1b}[2Jb\nc\td\u{7f}"), r"a\x1b[2Jb\nc\td\x7f");
        assert_eq!(printable("\u{9b}31m \u{202e}txt\u{200b}"), r"\u{9b}31m \u{202e}txt\u{200b}");
        assert_eq!(printable_bytes(b"ok \xff\xfe\0"), r"ok \xff\xfe\x00");
    }
}
