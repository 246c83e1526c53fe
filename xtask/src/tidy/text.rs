//! Rules about words that have no place in the project, whatever the kind of file.
//!
//! The words are spelled in two halves here, so that this file follows the rules too.

use super::{Finding, SourceFile};

/// Unfinished work is an issue, or it is done; it is no remark in the code.
pub(super) fn unfinished(file: &SourceFile, findings: &mut Vec<Finding>) {
    let words = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];
    for (line, text) in file.lines() {
        for word in words {
            let found = text.match_indices(word).any(|(at, _)| {
                let joins = |c: char| c.is_alphanumeric() || c == '_';
                !text[..at].ends_with(joins) && !text[at + word.len()..].starts_with(joins)
            });
            if found {
                findings.push(file.finding(line, "unfinished", format!("`{word}`")));
            }
        }
    }
}

/// A path of one machine means nothing on another.
pub(super) fn machine_paths(file: &SourceFile, findings: &mut Vec<Finding>) {
    let folders = [
        concat!("/wo", "rk/"),
        concat!("/ro", "ot/"),
        concat!("/ho", "me/"),
        concat!("/Us", "ers/"),
        concat!("C:\\Us", "ers"),
    ];
    for (line, text) in file.lines() {
        for folder in folders {
            // What follows a name, a variable or another folder is the middle of a path, not its root.
            let inside = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '}' | '/');
            if text.match_indices(folder).any(|(at, _)| !text[..at].ends_with(inside)) {
                findings.push(file.finding(line, "machine-paths", format!("`{folder}`")));
            }
        }
    }
}

/// The source of packages is the business of the machine that builds. The lock file knows only the public
/// index, and the project's own settings redirect nothing.
pub(super) fn registries(file: &SourceFile, findings: &mut Vec<Finding>) {
    const PUBLIC: &str = "registry+https://github.com/rust-lang/crates.io-index";
    let hosts = [
        concat!("index.", "crates.io"),
        concat!("static.", "crates.io"),
        concat!("registry.", "npmjs.org"),
        concat!("pypi", ".org"),
        concat!("files.python", "hosted.org"),
        concat!("repo.maven.", "apache.org"),
        concat!("repo1.", "maven.org"),
        concat!("proxy.", "golang.org"),
    ];
    for (line, text) in file.lines() {
        if let Some(host) = hosts.into_iter().find(|host| text.contains(host)) {
            findings.push(file.finding(line, "registries", format!("`{host}`")));
        }
        let source = text.strip_prefix("source = ").filter(|_| file.path.ends_with("Cargo.lock"));
        if source.is_some_and(|source| source.trim_matches('"') != PUBLIC) {
            findings.push(file.finding(line, "registries", "a package from elsewhere than the public index"));
        }
        let redirects = ["[source", "[registries", "[registry", "replace-with"];
        if file.path == ".cargo/config.toml"
            && redirects.iter().any(|start| text.trim_start().starts_with(start))
        {
            findings.push(file.finding(line, "registries", "settings that redirect packages"));
        }
    }
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
    fn a_remark_about_unfinished_work_is_found() {
        let (a, b, c) = (concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X"));
        let text = format!("// {a}: later\n{b}\n({c})\nMASTO{a}N\n{c}L {a}_LIST\n");
        assert_eq!(broken(unfinished, "README.md", &text), [1, 2, 3]);
    }

    #[test]
    fn a_path_of_one_machine_is_found() {
        let (work, home) = (concat!("/wo", "rk/"), concat!("/ho", "me/"));
        let text = format!("cd {work}main\nlet p = \"{home}me\";\ntarget{work}x\n{{base}}{home}\n");
        assert_eq!(broken(machine_paths, "docs/guide.md", &text), [1, 2]);
    }

    #[test]
    fn a_package_from_elsewhere_is_found() {
        let lock = "[[package]]\nname = \"a\"\nsource = \"registry+https://github.com/rust-lang/crates.io-index\"\n\
                    [[package]]\nname = \"b\"\nsource = \"registry+https://mirror.example/index\"\n\
                    [[package]]\nname = \"c\"\nsource = \"git+https://github.com/c/c\"\n";
        assert_eq!(broken(registries, "Cargo.lock", lock), [6, 9]);
        assert_eq!(broken(registries, "compat/sqs/rust/Cargo.lock", lock), [6, 9]);
        let lock = concat!("{\n\"resolved\": \"https://registry.", "npmjs.org/a/-/a-1.tgz\"\n}\n");
        assert_eq!(broken(registries, "compat/sqs/js/package-lock.json", lock), [2]);
    }

    #[test]
    fn a_redirection_and_a_host_are_found() {
        let config = "[alias]\n[source.public]\nreplace-with = \"mirror\"\n[registries.mirror]\n";
        assert_eq!(broken(registries, ".cargo/config.toml", config), [2, 3, 4]);
        assert_eq!(broken(registries, "docs/guide.md", config), [0; 0]);
        assert_eq!(broken(registries, "docs/guide.md", concat!("see\nindex.", "crates.io\n")), [2]);
    }
}
