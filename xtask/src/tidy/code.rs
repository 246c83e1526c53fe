//! Rules about Rust code: who may read the clock and open files, what doors may import, and how long things
//! may be.

use super::{Finding, SourceFile};

const LINE_CHARS_MAX: usize = 120;
const FILE_LINES_MAX: usize = 1_000;

/// Only the broker's clock tells the time; everyone else is told. Tools and tests measure.
pub(super) fn clock(file: &SourceFile, findings: &mut Vec<Finding>) {
    let may = [
        "crates/broker/src/clock.rs",
        "crates/broker/src/clock/",
        // How long a client has tried, and when it tries again. It gives no message a time.
        "crates/client/src/clock.rs",
        // Commands that talk to a server have a clock of their own, and so has the server for tests.
        "crates/cli/src/clock.rs",
        "crates/test-server/",
        // Prints how many histories a second it runs; no history depends on it.
        "crates/sim/src/main.rs",
        "bench/",
        "torture/",
        "xtask/",
        // Of a runtime whose time the history moves.
        "crates/sim/src/cluster/servers.rs",
    ];
    if is_allowed(file, &may) {
        return;
    }
    for (line, code) in product_code(file) {
        for call in ["SystemTime::now", "Instant::now"] {
            if code.contains(call) {
                let what = format!("`{call}` outside of the broker's clock: take `now` as an argument");
                findings.push(file.finding(line, "clock", what));
            }
        }
    }
}

/// Only the journal's disk opens files, so that the simulator's disk stands in for all of them.
pub(super) fn files(file: &SourceFile, findings: &mut Vec<Finding>) {
    let may = [
        "crates/storage/src/journal/disk.rs",
        "crates/storage/src/journal/disk/",
        "crates/cli/",
        "bench/",
        "torture/",
        "xtask/",
    ];
    if is_allowed(file, &may) || file.path.ends_with("build.rs") {
        return;
    }
    for (line, code) in product_code(file) {
        if let Some(found) = opens_files(code) {
            let what = format!("`{found}` outside of the journal's disk: go through the `Disk` trait");
            findings.push(file.finding(line, "files", what));
        }
    }
}

fn opens_files(code: &str) -> Option<&'static str> {
    if let Some(found) =
        ["std::fs", "tokio::fs", "rustix::fs", "OpenOptions"].into_iter().find(|it| code.contains(it))
    {
        return Some(found);
    }
    // `DiskFile::` and `D::File::` are ours.
    code.match_indices("File::")
        .any(|(at, _)| !code[..at].ends_with(|before: char| is_word(before) || before == ':'))
        .then_some("File::")
}

/// Doors see the broker's facade and the core's types, so that everything behind these can change without them.
pub(super) fn facade(file: &SourceFile, findings: &mut Vec<Finding>) {
    if !file.path.starts_with("crates/doors/") || is_allowed(file, &[]) {
        return;
    }
    for (line, code) in product_code(file) {
        for (name, may) in [("forebay_broker", "api"), ("forebay_core", "types"), ("forebay_storage", "")] {
            let beyond = code.match_indices(&format!("{name}::")).find_map(|(at, found)| {
                let module = code[at + found.len()..].split(|c: char| !is_word(c)).next().unwrap_or("");
                (may.is_empty() || module != may).then_some(module)
            });
            if let Some(module) = beyond {
                let what = format!(
                    "`{name}::{module}` in a door: use `forebay_broker::api` or `forebay_core::types`"
                );
                findings.push(file.finding(line, "facade", what));
            }
        }
    }
}

/// A file past a thousand lines of non-test code is a module waiting to be found.
pub(super) fn file_length(file: &SourceFile, findings: &mut Vec<Finding>) {
    if !file.is_rust() || file.is_generated() || is_test(&file.path) {
        return;
    }
    let count = product_lines(file).len();
    if count > FILE_LINES_MAX {
        let what = format!("{count} lines of non-test code, where {FILE_LINES_MAX} may be");
        findings.push(file.finding(1, "file-length", what));
    }
}

/// Formatting keeps code narrower than this; the rule is for comments and long strings.
pub(super) fn line_length(file: &SourceFile, findings: &mut Vec<Finding>) {
    let applies =
        [".rs", ".toml", ".proto", ".py", ".js", ".java"].iter().any(|ending| file.path.ends_with(ending));
    if !applies || file.is_generated() {
        return;
    }
    for (line, text) in file.lines() {
        let count = text.chars().count();
        if count > LINE_CHARS_MAX {
            let what = format!("{count} characters, where {LINE_CHARS_MAX} may be");
            findings.push(file.finding(line, "line-length", what));
        }
    }
}

fn is_allowed(file: &SourceFile, prefixes: &[&str]) -> bool {
    !file.is_rust() || is_test(&file.path) || prefixes.iter().any(|prefix| file.path.starts_with(prefix))
}

/// Whether all of a file is test code, by its name.
pub(super) fn is_test(path: &str) -> bool {
    path.starts_with("tests/")
        || path.contains("/tests/")
        || path.ends_with("/tests.rs")
        || path.ends_with("_tests.rs")
}

/// Lines that are neither comments nor test code, each up to where a comment begins.
fn product_code(file: &SourceFile) -> impl Iterator<Item = (usize, &str)> {
    product_lines(file).into_iter().map(|(line, text)| (line, text.split("//").next().unwrap_or("")))
}

/// All lines but those of test modules. Formatted code begins a test module with `#[cfg(test)]` and ends it
/// with a brace, both in the first column.
pub(super) fn product_lines(file: &SourceFile) -> Vec<(usize, &str)> {
    let mut lines = Vec::new();
    let mut rest = file.lines().peekable();
    while let Some((number, line)) = rest.next() {
        let opens_tests = line == "#[cfg(test)]"
            && rest.peek().is_some_and(|(_, next)| next.contains("mod ") && next.ends_with('{'));
        if opens_tests {
            rest.by_ref().find(|(_, inside)| *inside == "}");
        } else {
            lines.push((number, line));
        }
    }
    lines
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    type Rule = fn(&SourceFile, &mut Vec<Finding>);

    /// The lines that break a rule.
    fn broken(rule: Rule, path: &str, text: &str) -> Vec<usize> {
        let mut findings = Vec::new();
        rule(&SourceFile { path: path.to_owned(), text: text.to_owned() }, &mut findings);
        findings.iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn the_clock_is_read_in_one_place() {
        let text = "// not Instant::now\nlet a = Instant::now();\nlet b = std::time::SystemTime::now();\n";
        assert_eq!(broken(clock, "crates/broker/src/driver.rs", text), [2, 3]);
        assert_eq!(broken(clock, "crates/sim/src/world.rs", text), [2, 3]);
        for path in
            ["crates/broker/src/clock.rs", "bench/src/main.rs", "crates/cli/tests/e2e/grpc.rs", "notes.md"]
        {
            assert_eq!(broken(clock, path, text), [0; 0], "{path}");
        }
    }

    #[test]
    fn files_are_opened_in_one_place() {
        let text =
            "use std::fs::read;\nlet a = File::open(name)?;\nlet b = D::File::default();\nDiskFile::new();\n";
        assert_eq!(broken(files, "crates/storage/src/journal/segment.rs", text), [1, 2]);
        assert_eq!(broken(files, "crates/sim/src/disk.rs", text), [1, 2]);
        assert_eq!(
            broken(files, "crates/doors/src/native.rs", "use tokio::fs;\nOpenOptions::new();\n"),
            [1, 2]
        );
        for path in ["crates/storage/src/journal/disk.rs", "crates/cli/src/main.rs", "crates/wire/build.rs"] {
            assert_eq!(broken(files, path, text), [0; 0], "{path}");
        }
    }

    #[test]
    fn doors_import_the_facade_alone() {
        let text = "use forebay_broker::api::{Broker, driver};\nuse forebay_core::types::Seq;\n\
                    use forebay_broker::driver::Driver;\nuse forebay_core::{group, types};\n\
                    let a: forebay_core::typesetting::A = forebay_core::types::A;\n\
                    use forebay_storage::engine::Engine;\n// forebay_broker::driver\n";
        assert_eq!(broken(facade, "crates/doors/src/sqs/queue.rs", text), [3, 4, 5, 6]);
        for path in ["crates/cli/src/serve.rs", "crates/doors/src/sqs/tests/rig.rs", "crates/doors/README.md"]
        {
            assert_eq!(broken(facade, path, text), [0; 0], "{path}");
        }
    }

    #[test]
    fn a_test_module_may_do_both_but_what_follows_it_may_not() {
        let text = "#[cfg(test)]\nmod tests {\n    Instant::now();\n    File::open(x);\n}\nInstant::now();\n";
        assert_eq!(broken(clock, "crates/core/src/shard.rs", text), [6]);
        assert_eq!(broken(files, "crates/core/src/shard.rs", text), [0; 0]);
    }

    #[test]
    fn naming_a_test_file_does_not_make_the_rest_of_the_file_a_test() {
        let text = "#[cfg(test)]\nmod tests;\n\nInstant::now();\n";
        assert_eq!(broken(clock, "crates/core/src/shard.rs", text), [4]);
    }

    #[test]
    fn a_long_file_is_found_and_its_tests_do_not_count() {
        let long = "x();\n".repeat(1_001);
        assert_eq!(broken(file_length, "crates/core/src/group.rs", &long), [1]);
        let tests =
            format!("{}#[cfg(test)]\nmod tests {{\n{}}}\n", "x();\n".repeat(1_000), "    y();\n".repeat(50));
        assert_eq!(broken(file_length, "crates/core/src/group.rs", &tests), [0; 0]);
        assert_eq!(broken(file_length, "crates/core/src/group/tests.rs", &long), [0; 0]);
        let generated = format!("// This file is @generated by a tool.\n{long}");
        assert_eq!(broken(file_length, "crates/wire/src/native.rs", &generated), [0; 0]);
    }

    #[test]
    fn a_long_line_is_found_even_in_a_comment() {
        let fits = "é".repeat(120);
        let text = format!("// short\n// {fits}\n{fits}\n");
        assert_eq!(broken(line_length, "crates/core/src/group.rs", &text), [2]);
        assert_eq!(broken(line_length, "compat/sqs/python/conftest.py", &text), [2]);
        assert_eq!(broken(line_length, "README.md", &text), [0; 0]);
    }
}
