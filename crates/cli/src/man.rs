//! `forebay man`: the manual pages, one for each command, from the same text as `--help`.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::{Args, CommandFactory as _};

#[derive(Debug, Args)]
pub(crate) struct Man {
    /// Write the pages of all commands into this folder instead of printing the first one.
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,
}

pub(crate) const EXAMPLES: &str = "\
Examples:
  forebay man | man --local-file -       read the manual
  forebay man --to /usr/local/share/man/man1";

pub(crate) fn run(options: &Man) -> anyhow::Result<()> {
    let mut command = crate::Cli::command();
    command.build();
    match &options.to {
        None => crate::print::print_bytes(&page(&command)?),
        Some(folder) => {
            std::fs::create_dir_all(folder)
                .with_context(|| format!("cannot create the folder {}", folder.display()))?;
            write_pages(&command, folder)
        }
    }
}

fn write_pages(command: &clap::Command, folder: &Path) -> anyhow::Result<()> {
    // A command of a command is called `stream create`, and its page `forebay-stream-create`.
    let name = command.get_display_name().unwrap_or(command.get_name());
    let file = folder.join(format!("{name}.1"));
    std::fs::write(&file, page(command)?).with_context(|| format!("cannot write {}", file.display()))?;
    let mut visible = command.get_subcommands().filter(|one| !one.is_hide_set() && one.get_name() != "help");
    visible.try_for_each(|one| write_pages(one, folder))
}

fn page(command: &clap::Command) -> anyhow::Result<Vec<u8>> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut page)?;
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_with_its_examples() {
        let folder = std::env::temp_dir().join(format!("forebay-man-{}", std::process::id()));
        run(&Man { to: Some(folder.clone()) }).expect("pages are written");
        for name in ["forebay", "forebay-serve", "forebay-stream-create", "forebay-parked-replay"] {
            let text =
                std::fs::read_to_string(folder.join(format!("{name}.1"))).expect("a page of this name");
            assert!(text.contains(".SH SYNOPSIS") && text.contains("Examples:"), "{name}: {text}");
        }
        assert!(!folder.join("forebay-demo-server.1").exists(), "a hidden command has no page");
        std::fs::remove_dir_all(folder).expect("the folder is ours");
    }
}
