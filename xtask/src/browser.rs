//! The dashboard in a real browser: its tests, and pictures of its pages.

use std::path::PathBuf;

use crate::clients::cache::Cache;
use crate::clients::suites::npm;
use crate::clients::tools::{self, Language};
use crate::install::{Missing, apt_has, apt_install, had, path_folders, program_in, take};
use crate::{cargo_command, finish, root};

pub(crate) const HELP: &str = "\
Usage: cargo xtask browser [NAME]
       cargo xtask screenshots [--after SECONDS] [--readme]

`browser` runs the tests of the dashboard in Chromium without a window, against the real server; all of them, or those
with NAME in their names. `screenshots` starts a server with producers and consumers, lets it work for four minutes
or as long as it is told, and writes pictures of every page, wide and narrow, light and dark, to target/screenshots;
also of pages with long names, and of a server without anything in it.
With --readme it also replaces the pictures of the README, in docs/images. Each has at most 250 KB.

Chromium is looked for in PATH. As root, where there is apt-get, it is installed if it is missing. axe-core, which
checks the pages for people who cannot see or use a mouse, is installed with npm into the folder `forebay/browser` of
the user's cache.
";

/// The variable that names the browser to the tests.
pub(crate) const CHROMIUM: &str = "FOREBAY_TEST_CHROMIUM";
/// The variable that names the file of axe-core to the tests.
pub(crate) const AXE: &str = "FOREBAY_TEST_AXE";
const PACKAGE: &str = "chromium";

/// Chromium, installed if need be.
pub(crate) fn find() -> Result<PathBuf, Missing> {
    let installed = || {
        let folders = path_folders();
        let mut names = ["chromium", "chromium-browser", "google-chrome"].into_iter();
        names.find_map(|name| program_in(name, folders.iter().map(PathBuf::as_path)))
    };
    had("Chromium", installed, || {
        if !apt_has(PACKAGE)? {
            return Err("no package of it is known to apt-get".to_owned());
        }
        apt_install(&[PACKAGE])
    })
}

/// The script of axe-core, installed if need be.
pub(crate) fn axe() -> Result<PathBuf, Missing> {
    let tools = tools::find(Language::Js)?;
    let made = Cache::open("browser").and_then(|cache| {
        let folder = npm("axe", &root().join("crates/cli/tests/browser/axe"), &tools, &cache)?;
        Ok(folder.join("node_modules/axe-core/axe.min.js"))
    });
    made.map_err(|why| Missing { what: "axe-core", why })
}

const TESTS: [&str; 5] = ["test", "--package", "forebay", "--test", "browser"];

/// Runs the tests with this in their names.
pub(crate) fn run(name: Option<&str>) -> Result<(), String> {
    let mut chromium = None;
    take(find(), &mut chromium)?;
    let mut checker = None;
    take(axe(), &mut checker)?;
    let line: Vec<&str> = TESTS.into_iter().chain(["--"]).chain(name).collect();
    let mut command = cargo_command(&line);
    if let Some(chromium) = chromium {
        command.env(CHROMIUM, chromium);
    }
    if let Some(checker) = checker {
        command.env(AXE, checker);
    }
    finish(command, &line)
}

/// The pictures of the README, and the most bytes that one may have.
const README: [&str; 3] = ["overview", "group", "parked-messages"];
const README_BYTES_MAX: u64 = 250_000;

/// Writes pictures of every page, after the server has worked for so long; and those of the README, if that is asked.
pub(crate) fn screenshots(seconds: u32, for_readme: bool) -> Result<(), String> {
    let chromium = find().map_err(|missing| missing.to_string())?;
    let folder = root().join("target/screenshots");
    let line: Vec<&str> = TESTS.into_iter().chain(["--", "--exact", "screenshots"]).collect();
    let mut command = cargo_command(&line);
    command.env(CHROMIUM, chromium).env("FOREBAY_SCREENSHOTS", &folder);
    command.env("FOREBAY_SCREENSHOTS_AFTER", seconds.to_string());
    finish(command, &line)?;
    println!("xtask screenshots: the pictures are in {}", folder.display());
    if for_readme {
        for name in README {
            let picture = folder.join(format!("readme-{name}.png"));
            let bytes =
                std::fs::metadata(&picture).map_err(|error| format!("{}: {error}", picture.display()))?.len();
            if bytes > README_BYTES_MAX {
                let file = picture.display();
                return Err(format!("{file} must have at most {README_BYTES_MAX} bytes. bytes=`{bytes}`"));
            }
            let to = root().join(format!("docs/images/{name}.png"));
            std::fs::copy(&picture, &to).map_err(|error| format!("{}: {error}", to.display()))?;
        }
        println!("xtask screenshots: the pictures of the README are replaced");
    }
    Ok(())
}
