//! `cargo xtask book`: README, the guide and the reference as a site, in `target/book/site`.
//!
//! `docs/SUMMARY.md` lists the pages. They are copied to a folder with the same paths as in the tree, with every file
//! that they link to, so that links work on the site as they do in the tree.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use crate::clients::cache::Cache;
use crate::clients::{quietly, read};
use crate::install::{path_folders, program_in};

pub(crate) const HELP: &str = "\
Usage: cargo xtask book

Makes a site of README and docs in target/book/site, with mdBook. If there is no `mdbook` in the path, it is built with
`cargo install` once, which takes a few minutes, and kept in the user's cache folder.
";

const VERSION: &str = "0.5.4";
const SUMMARY: &str = "docs/SUMMARY.md";
const BOOK: &str = "\
[book]
title = \"Forebay\"
language = \"en\"
src = \"src\"

[build]
build-dir = \"site\"
create-missing = false

[output.html]
default-theme = \"light\"
preferred-dark-theme = \"ayu\"
no-section-label = true
";

pub(crate) fn run() -> Result<(), String> {
    let folder = crate::target()?.join("book");
    if folder.exists() {
        std::fs::remove_dir_all(&folder).map_err(|error| cannot("remove", &folder, &error))?;
    }
    let source = folder.join("src");
    let root = crate::root();
    let summary = read(&root.join(SUMMARY))?;
    let pages = pages(&summary)?;
    for file in files(&root, &pages)? {
        let to = source.join(&file);
        if file.extension().is_some_and(|extension| extension == "md") {
            write(&to, &with_index(&read(&root.join(&file))?))?;
            continue;
        }
        make_parent(&to)?;
        std::fs::copy(root.join(&file), &to).map_err(|error| cannot("copy", &file, &error))?;
    }
    write(&source.join("SUMMARY.md"), &from_root(&summary)?)?;
    write(&folder.join("book.toml"), BOOK)?;
    let mut build = Command::new(mdbook()?);
    build.arg("build").arg(&folder);
    quietly(build)?;
    let first = folder.join("site").join("index.html");
    if !first.is_file() {
        return Err(format!("mdBook wrote no {}", first.display()));
    }
    let broken = broken_links(&folder.join("site"))?;
    if !broken.is_empty() {
        return Err(format!("links of the site lead nowhere:\n  {}", broken.join("\n  ")));
    }
    println!("xtask book: {} pages, every link leads somewhere; open {}", pages.len(), first.display());
    Ok(())
}

/// The links and pictures of the finished pages that lead nowhere in the site: to a file that is not there, or to a
/// heading that its page does not have.
fn broken_links(site: &Path) -> Result<Vec<String>, String> {
    let mut pages = BTreeMap::new();
    read_pages(site, &mut pages)?;
    let mut broken = BTreeSet::new();
    for (page, text) in &pages {
        let name = page.strip_prefix(site).unwrap_or(page).display();
        // The page for a wrong address is shown at any address, so its links begin elsewhere. `print.html` has the
        // links of all other pages once more.
        if ["404.html", "print.html"].contains(&&*name.to_string()) {
            continue;
        }
        for link in ["href=\"", "src=\""].iter().flat_map(|mark| quoted(text, mark)) {
            let link = link.replace("&amp;", "&");
            if link.contains("://")
                || ["mailto:", "data:", "javascript:"].iter().any(|one| link.starts_with(one))
            {
                continue;
            }
            let (path, heading) = link.split_once('#').unwrap_or((&link, ""));
            let path = path.split('?').next().unwrap_or_default();
            let target = match path {
                "" => page.clone(),
                path => resolve(page, path)?,
            };
            let has_heading = || {
                let id = format!("id=\"{heading}\"");
                heading.is_empty() || pages.get(&target).is_none_or(|text| text.contains(&id))
            };
            if !target.exists() || !has_heading() {
                broken.insert(format!("{name}: {link}"));
            }
        }
    }
    Ok(broken.into_iter().collect())
}

/// Every page of a folder and of the folders in it.
fn read_pages(folder: &Path, pages: &mut BTreeMap<PathBuf, String>) -> Result<(), String> {
    let entries = std::fs::read_dir(folder).map_err(|error| cannot("read", folder, &error))?;
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            read_pages(&path, pages)?;
        } else if path.extension().is_some_and(|extension| extension == "html") {
            let text = read(&path)?;
            pages.insert(path, text);
        }
    }
    Ok(())
}

/// The texts between a mark and the next quote.
fn quoted<'a>(text: &'a str, mark: &'a str) -> impl Iterator<Item = &'a str> {
    text.match_indices(mark).filter_map(move |(at, _)| {
        let rest = &text[at + mark.len()..];
        rest.find('"').map(|end| &rest[..end])
    })
}

/// The program, which is built if it is not here.
fn mdbook() -> Result<PathBuf, String> {
    if let Some(found) = program_in("mdbook", path_folders().iter().map(PathBuf::as_path)) {
        return Ok(found);
    }
    let cache = Cache::open("book")?;
    let folder = cache.made_from("mdbook", &[VERSION], |folder| {
        let build = folder.join("build");
        let mut install = Command::new("cargo");
        // Not optimized: it compiles in a fraction of the time, and the book is small.
        install.args([
            "install",
            "mdbook",
            "--debug",
            "--locked",
            "--no-default-features",
            "--features",
            "search",
        ]);
        install.args(["--version", VERSION, "--root"]).arg(folder).env("CARGO_TARGET_DIR", &build);
        quietly(install)?;
        std::fs::remove_dir_all(&build).map_err(|error| cannot("remove", &build, &error))
    })?;
    Ok(folder.join("bin").join("mdbook"))
}

/// The pages that the summary lists, by their paths in the tree.
fn pages(summary: &str) -> Result<Vec<PathBuf>, String> {
    links(summary).into_iter().map(|link| resolve(Path::new(SUMMARY), &link)).collect()
}

/// The summary with paths that begin at the root of the tree.
fn from_root(summary: &str) -> Result<String, String> {
    let mut text = summary.to_owned();
    for link in links(summary) {
        let page = resolve(Path::new(SUMMARY), &link)?;
        text = text.replace(&format!("]({link})"), &format!("](./{})", page.display()));
    }
    Ok(text)
}

/// The pages and every file of the tree that they link to.
fn files(root: &Path, pages: &[PathBuf]) -> Result<BTreeSet<PathBuf>, String> {
    let mut files: BTreeSet<PathBuf> = pages.iter().cloned().collect();
    for page in pages {
        for link in links(&read(&root.join(page))?) {
            let file = link.split('#').next().unwrap_or_default();
            if file.is_empty() || file.contains(':') {
                continue;
            }
            let target = resolve(page, file)?;
            match std::fs::metadata(root.join(&target)) {
                Ok(found) if found.is_file() => drop(files.insert(target)),
                Ok(_) => files.extend(files_of(root, &target)?),
                Err(_) => return Err(format!("{} links to {file}, which does not exist", page.display())),
            }
        }
    }
    Ok(files)
}

/// A page whose links to a `README.md` lead to `index.md`, since that is what mdBook makes of it.
fn with_index(page: &str) -> String {
    page.replace("README.md)", "index.md)").replace("README.md#", "index.md#")
}

/// The files of a folder that a page links to, without those of the folders in it.
fn files_of(root: &Path, folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = std::fs::read_dir(root.join(folder)).map_err(|error| cannot("read", folder, &error))?;
    let files = entries.flatten().filter(|entry| entry.path().is_file());
    Ok(files.map(|entry| folder.join(entry.file_name())).collect())
}

/// The targets of the links and pictures of a page, outside of code.
fn links(page: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut is_code = false;
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        }
        if is_code {
            continue;
        }
        // Code in a line has an odd number of marks before it.
        for text in line.split('`').step_by(2) {
            for (at, _) in text.match_indices("](") {
                let rest = &text[at + 2..];
                found.extend(rest.find(')').map(|end| rest[..end].to_owned()));
            }
        }
    }
    found
}

/// The path in the tree of a link on a page.
fn resolve(page: &Path, link: &str) -> Result<PathBuf, String> {
    let mut path = page.parent().unwrap_or(Path::new("")).to_path_buf();
    for part in Path::new(link).components() {
        match part {
            Component::Normal(name) => path.push(name),
            Component::CurDir => {}
            Component::ParentDir if path.pop() => {}
            _ => return Err(format!("{} links to {link}, which is not in the tree", page.display())),
        }
    }
    Ok(path)
}

fn write(file: &Path, text: &str) -> Result<(), String> {
    make_parent(file)?;
    std::fs::write(file, text).map_err(|error| cannot("write", file, &error))
}

fn make_parent(file: &Path) -> Result<(), String> {
    let folder = file.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder).map_err(|error| cannot("make", folder, &error))
}

fn cannot(what: &str, path: &Path, error: &std::io::Error) -> String {
    format!("cannot {what} {}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_to_a_readme_lead_to_the_index_of_its_folder() {
        let page = "[a](../README.md) [b](x/README.md#c) and `README.md`";
        assert_eq!(with_index(page), "[a](../index.md) [b](x/index.md#c) and `README.md`");
    }

    #[test]
    fn a_link_that_leads_nowhere_is_found_in_the_site() {
        let folder = std::env::temp_dir().join(format!("forebay-book-{}", std::process::id()));
        let page = |name: &str, text: &str| write(&folder.join(name), text).expect("a file");
        page(
            "index.html",
            r#"<a href="a/b.html#c">1</a> <a href="https://example.com/x">2</a> <a href="a">3</a>"#,
        );
        page(
            "a/b.html",
            r##"<h2 id="c">c</h2> <a href="../index.html">4</a> <a href="#c">5</a> <a href="e&amp;f.md?x#y">6</a>"##,
        );
        page("a/e&f.md", "text");
        assert_eq!(broken_links(&folder), Ok(Vec::new()));
        page("a/d.html", r##"<a href="#c">1</a> <img src="none.png"> <a href="b.html#d">2</a>"##);
        let found = broken_links(&folder).expect("they are read");
        assert_eq!(found, ["a/d.html: #c", "a/d.html: b.html#d", "a/d.html: none.png"]);
        let _ = std::fs::remove_dir_all(&folder);
    }

    fn pages_in(folder: &Path, found: &mut BTreeSet<PathBuf>) {
        for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
            let path = entry.path();
            if path.is_dir() {
                pages_in(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.insert(path.strip_prefix(crate::root()).expect("it is below").to_owned());
            }
        }
    }

    #[test]
    fn the_summary_has_every_page_of_docs_once() {
        let listed = pages(&read(&crate::root().join(SUMMARY)).expect("the summary")).expect("paths");
        let once: BTreeSet<PathBuf> = listed.iter().cloned().collect();
        assert_eq!(once.len(), listed.len(), "a page is listed twice");
        let mut there = BTreeSet::new();
        pages_in(&crate::root().join("docs"), &mut there);
        there.remove(Path::new(SUMMARY));
        let missing: Vec<_> = there.difference(&once).collect();
        assert!(missing.is_empty(), "docs/SUMMARY.md lacks {missing:?}");
    }

    #[test]
    fn every_link_of_the_book_leads_somewhere() {
        let root = crate::root();
        let pages = pages(&read(&root.join(SUMMARY)).expect("the summary")).expect("paths");
        let files = files(&root, &pages).expect("no link is broken");
        assert!(files.contains(Path::new("docs/images/overview.png")));
    }

    #[test]
    fn links_are_found_outside_of_code() {
        let page = "a [b](c.md#d) and ![e](f.png) [`g`](h.md)\n`[i](j)`\n```\n[k](l)\n```\n";
        assert_eq!(links(page), ["c.md#d", "f.png", "h.md"]);
    }

    #[test]
    fn paths_begin_at_the_root() {
        let at = |page: &str, link: &str| resolve(Path::new(page), link).ok();
        assert_eq!(at("docs/guide/a.md", "../reference/b.md"), Some("docs/reference/b.md".into()));
        assert_eq!(at("docs/a.md", "../README.md"), Some("README.md".into()));
        assert_eq!(at("README.md", "../elsewhere.md"), None);
        let summary = "- [A](install.md)\n- [B](../README.md)\n";
        assert_eq!(from_root(summary).as_deref(), Ok("- [A](./docs/install.md)\n- [B](./README.md)\n"));
    }
}
