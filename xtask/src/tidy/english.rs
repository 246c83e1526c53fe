//! The English of the project: a sentence names its subject.
//!
//! The prose once avoided its subjects: *the person or thing that* instead of the group, the writer, the
//! consumer. A reader has to guess the noun that was left out. This rule counts the words of that idiom. Documents
//! have none of it, and neither have the texts in Rust files: every class is at zero, so each new place is named.
//!
//! The words are spelled in two halves here, so that this file follows the rule too.

use super::code::{is_test, product_lines};
use super::{Finding, SourceFile, Tree};

/// How many places of the idiom there may be in each class of text in Rust files.
const AT_MOST: [(Class, usize); 3] = [(Class::Literal, 0), (Class::Manual, 0), (Class::Comment, 0)];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    /// String literals of the product: error texts, output, problems, help.
    Literal,
    /// Doc comments of the SDK and of the command line, which are its rustdoc and its `--help`.
    Manual,
    /// All other comments.
    Comment,
}

/// Counts the idiom over the whole tree.
pub(super) fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    check_within(tree, AT_MOST, findings);
}

fn check_within(tree: &Tree, at_most: [(Class, usize); 3], findings: &mut Vec<Finding>) {
    let mut places = Vec::new();
    for file in &tree.files {
        if is_document(&file.path) {
            findings.extend(document(file));
        } else if file.is_rust() && !file.is_generated() {
            places.extend(places_in(file));
        }
    }
    for (class, max) in at_most {
        let found: Vec<Finding> =
            places.extract_if(.., |(of, _)| *of == class).map(|(_, found)| found).collect();
        // With no place allowed, each one is named. Otherwise nothing tells which of them is the new one.
        if max == 0 {
            findings.extend(found);
        } else if found.len() > max {
            let what = format!(
                "{} places of the old idiom of the class {class:?}, where AT_MOST allows {max}: name the subject in \
                 the lines that you changed (CONTRIBUTING.md, English)",
                found.len()
            );
            findings.push(Finding {
                path: "xtask/src/tidy/english.rs".to_owned(),
                line: 1,
                rule: "english",
                what,
            });
        }
    }
}

/// Documents that users and contributors read. Measurements of the past stay as they were written.
fn is_document(path: &str) -> bool {
    let kind = path.ends_with(".md") || path.ends_with(".proto");
    kind && !path.starts_with("bench/results/") && !path.starts_with("crates/")
}

fn document(file: &SourceFile) -> Vec<Finding> {
    let mut words = Words::default();
    for (number, text) in file.lines() {
        words.add(number, text.trim_start().trim_start_matches("//"));
    }
    words.idiom(file)
}

/// Places of the idiom in a Rust file. Code itself is not read: names are another matter.
fn places_in(file: &SourceFile) -> Vec<(Class, Finding)> {
    let tested = is_test(&file.path);
    let product: Vec<usize> = product_lines(file).into_iter().map(|(number, _)| number).collect();
    let documented =
        ["crates/client/src/", "crates/cli/src/"].iter().any(|start| file.path.starts_with(start));
    let is_product = |line: usize| !tested && product.binary_search(&line).is_ok();
    let is_shown = file.path.starts_with("crates/")
        && file.path.contains("/src/")
        && !file.path.starts_with("crates/sim/");
    let mut places = Vec::new();
    for piece in pieces(&file.text) {
        let class = match piece.kind {
            Kind::Literal if !is_shown || !is_product(piece.line) => continue,
            Kind::Literal => Class::Literal,
            Kind::Doc if documented && is_product(piece.line) => Class::Manual,
            Kind::Doc | Kind::Comment => Class::Comment,
        };
        let mut words = Words::default();
        for (index, text) in piece.text.lines().enumerate() {
            words.add(piece.line + index, text);
        }
        places.extend(words.idiom(file).into_iter().map(|found| (class, found)));
    }
    places
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Literal,
    /// `///` or `//!`
    Doc,
    Comment,
}

/// A string literal, or comment lines of one kind that follow each other.
#[derive(Debug, PartialEq, Eq)]
struct Piece {
    kind: Kind,
    line: usize,
    text: String,
}

/// The comments and the string literals of Rust code. It knows no more of the language than that takes.
fn pieces(text: &str) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    let (mut rest, mut line) = (text, 1);
    while let Some(c) = rest.chars().next() {
        let (len, piece) = match c {
            '/' if rest.starts_with("//") => {
                let len = rest.find('\n').unwrap_or(rest.len());
                let kind = match rest.as_bytes().get(2) {
                    Some(b'/' | b'!') => Kind::Doc,
                    _ => Kind::Comment,
                };
                let text = rest[2..len].trim_start_matches(['/', '!']);
                (len, Some((kind, text)))
            }
            '"' => {
                let len = 1 + quoted(&rest[1..]);
                (len + 1, Some((Kind::Literal, &rest[1..len])))
            }
            'r' if raw_hashes(rest).is_some() && !ends_in_word(&text[..text.len() - rest.len()]) => {
                let end = format!("\"{}", "#".repeat(raw_hashes(rest).unwrap_or_default()));
                let start = end.len() + 1;
                let len = rest[start..].find(&end).map_or(rest.len() - start, |at| at) + start;
                (len + end.len(), Some((Kind::Literal, &rest[start..len])))
            }
            // A character, which may be a quote. A lifetime has no second quote.
            '\'' if rest.starts_with("'\\") => (2 + rest[2..].find('\'').map_or(0, |at| at + 1), None),
            '\'' if rest[1..].chars().nth(1) == Some('\'') => {
                (2 + rest[1..].chars().next().map_or(0, char::len_utf8), None)
            }
            c => (c.len_utf8(), None),
        };
        if let Some((kind, found)) = piece {
            match pieces.last_mut() {
                // A sentence may go on in the next line of a comment.
                Some(last) if kind != Kind::Literal && last.kind == kind && last.next_line() == line => {
                    last.text.push('\n');
                    last.text.push_str(found);
                }
                _ => pieces.push(Piece { kind, line, text: found.to_owned() }),
            }
        }
        let len = len.min(rest.len());
        line += rest[..len].matches('\n').count();
        rest = &rest[len..];
    }
    pieces
}

impl Piece {
    fn next_line(&self) -> usize {
        self.line + self.text.matches('\n').count() + 1
    }
}

/// The length of a string literal between its quotes.
fn quoted(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            '"' if !escaped => return at,
            '\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    text.len()
}

/// How many hashes a raw string that begins here has.
fn raw_hashes(text: &str) -> Option<usize> {
    let after = text.strip_prefix('r')?;
    let quote = after.trim_start_matches('#');
    quote.starts_with('"').then(|| after.len() - quote.len())
}

fn ends_in_word(text: &str) -> bool {
    text.ends_with(|c: char| c.is_alphanumeric() || c == '_')
}

/// The words of a text in lower case, each with its line, and whether a phrase may go on after it.
#[derive(Debug, Default)]
struct Words(Vec<(usize, String, bool)>);

impl Words {
    fn add(&mut self, line: usize, text: &str) {
        // A hyphen and an underscore belong to a word: `no-such-stream` is one.
        let joins = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '\'');
        let mut rest = text;
        while let Some(start) = rest.find(joins) {
            let ends_phrase =
                |c: char| matches!(c, '.' | '!' | '?' | ';' | ':' | ',' | '|' | '(' | ')' | '{' | '}' | '`');
            if rest[..start].contains(ends_phrase)
                && let Some(last) = self.0.last_mut()
            {
                last.2 = false;
            }
            let word = &rest[start..];
            let word = &word[..word.find(|c| !joins(c)).unwrap_or(word.len())];
            self.0.push((line, word.trim_matches('\'').to_lowercase(), true));
            rest = &rest[start + word.len()..];
        }
        if rest.contains(['.', '!', '?', ';', ':', '|'])
            && let Some(last) = self.0.last_mut()
        {
            last.2 = false;
        }
    }

    fn idiom(&self, file: &SourceFile) -> Vec<Finding> {
        let word = |at: usize| self.0.get(at).map_or("", |(_, word, _)| word.as_str());
        let goes_on = |at: usize| self.0.get(at).is_some_and(|(_, _, goes_on)| *goes_on);
        let mut findings = Vec::new();
        for (at, (line, one, _)) in self.0.iter().enumerate() {
            let next = if goes_on(at) { word(at + 1) } else { "" };
            let before = if at > 0 && goes_on(at - 1) { word(at - 1) } else { "" };
            if let Some(found) = phrase(before, one, next) {
                findings.push(file.finding(*line, "english", format!("`{found}`: name the subject")));
            }
        }
        findings
    }
}

/// The words of the idiom that begin with `one`.
fn phrase(before: &str, one: &str, next: &str) -> Option<String> {
    let alone = [
        concat!("who", "ever"),
        concat!("no", "body"),
        concat!("no", "body's"),
        concat!("some", "body"),
        concat!("some", "body's"),
        concat!("h", "e"),
        concat!("hi", "m"),
        concat!("hi", "s"),
    ];
    if alone.contains(&one) {
        return Some(one.to_owned());
    }
    // "There is no stream of that name" may be said shortly, and examples may be given.
    if one == concat!("su", "ch") && before != "no" && next != "as" {
        return Some(one.to_owned());
    }
    let pairs = [
        ("those", &[concat!("wh", "o")][..]),
        ("one", &[concat!("wh", "o")]),
        ("is", &[concat!("non", "e")]),
        ("what", &["is", "was", "are", "were", "has", "had"]),
    ];
    pairs
        .iter()
        .find(|(first, after)| *first == one && after.contains(&next))
        .map(|_| format!("{one} {next}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> SourceFile {
        SourceFile { path: path.to_owned(), text: text.to_owned() }
    }

    /// Lines with the idiom, one by one, and whether a count was exceeded.
    fn found(path: &str, text: &str, at_most: [usize; 3]) -> (Vec<usize>, bool) {
        let mut findings = Vec::new();
        let tree = Tree { files: vec![file(path, text)] };
        let [literals, manuals, comments] = at_most;
        let at_most = [(Class::Literal, literals), (Class::Manual, manuals), (Class::Comment, comments)];
        check_within(&tree, at_most, &mut findings);
        let (exceeded, places): (Vec<_>, Vec<_>) =
            findings.iter().partition(|finding| finding.what.contains("AT_MOST"));
        (places.iter().map(|finding| finding.line).collect(), !exceeded.is_empty())
    }

    #[test]
    fn documents_have_none_of_it() {
        let text = concat!(
            "Who",
            "ever asks, no",
            "body answers.\nThose\nwh",
            "o wait are told what i",
            "s known.\n",
            "It is there. None is lost: `no-such-stream`, no such stream, such as this.\n",
            "Su",
            "ch a lease is hi",
            "s.\nThe table | wh",
            "at | i",
            "s here\n",
        );
        for path in ["README.md", "docs/guide/ideas.md", "proto/forebay/v1/a.proto", "CONTRIBUTING.md"] {
            assert_eq!(found(path, text, [9; 3]), (vec![1, 1, 2, 3, 5, 5], false), "{path}");
        }
        for path in ["bench/results/2026.md", "crates/storage/fixtures/README.md", "x.toml"] {
            assert_eq!(found(path, text, [9; 3]), (vec![], false), "{path}");
        }
    }

    #[test]
    fn code_is_counted_by_class() {
        let text = concat!(
            "//! Some",
            "body.\n",
            "/// Help for no",
            "body.\n",
            "fn he() -> &'static str { \"who",
            "ever\" } // he",
            " said\n",
            "const A: char = '\"'; const B: &str = r#\"a \" no",
            "body\"#;\n",
            "#[cfg(test)]\nmod tests {\n    // some",
            "body\n    const C: &str = \"no",
            "body\";\n}\n",
        );
        assert_eq!(found("crates/cli/src/a.rs", text, [0, 0, 0]), (vec![3, 4, 1, 2, 3, 7], false));
        assert_eq!(found("crates/cli/src/a.rs", text, [2, 2, 2]), (vec![], false));
        assert_eq!(found("crates/cli/src/a.rs", text, [2, 2, 1]), (vec![], true));
        assert_eq!(found("crates/core/src/a.rs", text, [0, 0, 4]), (vec![3, 4], false));
        assert_eq!(found("crates/core/src/a.rs", text, [1, 0, 4]), (vec![], true));
        for path in ["crates/core/src/tests/a.rs", "crates/sim/src/a.rs", "xtask/src/a.rs"] {
            assert_eq!(found(path, text, [0, 0, 4]), (vec![], false), "{path}");
            assert_eq!(found(path, text, [0, 0, 3]), (vec![], true), "{path}");
        }
    }

    #[test]
    fn a_sentence_may_go_on_in_the_next_line() {
        let text = concat!(
            "// one\n// wh",
            "o\n\n// those\nlet x = 1;\nf(); // wh",
            "o\n/// wh",
            "at\n/// i",
            "s\n"
        );
        assert_eq!(found("crates/core/src/a.rs", text, [0; 3]), (vec![1, 7], false));
    }

    #[test]
    fn literals_end_where_they_end() {
        let text = "let a = \"x \\\" y\"; // one\nlet b = b\"\\\\\"; let c = '\\''; // two\n\
                    let d: &'a str = r\"\\\"; // three\n";
        let comments: Vec<String> = pieces(text)
            .into_iter()
            .filter(|piece| piece.kind == Kind::Comment)
            .map(|piece| piece.text)
            .collect();
        assert_eq!(comments, [" one", " two", " three"]);
    }
}
