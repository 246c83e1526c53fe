//! Completion in shells: the script for a shell, and the names of streams and groups, for which the script asks the
//! server.
//!
//! Commands and flags are in the script. At the place of a name the script runs the hidden command `forebay complete`
//! with the command line so far. A person is typing meanwhile, so the answer takes no longer than [`PATIENCE`], and a
//! failure is no answer.

use std::time::Duration;

use clap::{ArgAction, Args, CommandFactory as _};
use clap_complete::Shell;

use crate::connect::{Server, addresses, runtime};
use crate::http::{Http, Listing, Query};
use crate::print::{print, print_bytes};

/// How long the server may take.
const PATIENCE: Duration = Duration::from_millis(300);
/// The most names that are looked at.
const NAMES_MAX: u64 = 2_000;
/// Names of values, as they are declared with the commands.
const STREAM: &str = "STREAM";
const GROUP: &str = "STREAM/GROUP";

pub(crate) const EXAMPLES: &str = "\
The script completes commands, flags and the names of streams and groups, for which it asks the server (--server,
FOREBAY_SERVER, or the context).

Examples:
  forebay completions bash > ~/.local/share/bash-completion/completions/forebay
  forebay completions zsh > ~/.zfunc/_forebay       with ~/.zfunc in $fpath
  forebay completions fish > ~/.config/fish/completions/forebay.fish";

/// Names after the static completions. The current word of bash ends at a colon, a name does not, so the part before is
/// taken off again.
const BASH: &str = r#"
_forebay_names() {
    _forebay "$@"
    local cur="${COMP_WORDS[COMP_CWORD]}" line="${COMP_LINE:0:COMP_POINT}" name
    local typed="${line##*[[:space:]]}"
    local before="${typed%"$cur"}"
    local names=()
    while IFS= read -r name; do
        names+=("$(printf '%q' "${name#"$before"}")")
    done < <(forebay complete -- "$line" 2>/dev/null)
    if [[ ${#names[@]} -gt 0 ]]; then
        COMPREPLY=("${names[@]}")
    fi
}

if [[ "${BASH_VERSINFO[0]}" -eq 4 && "${BASH_VERSINFO[1]}" -ge 4 || "${BASH_VERSINFO[0]}" -gt 4 ]]; then
    complete -F _forebay_names -o nosort -o bashdefault -o default forebay
else
    complete -F _forebay_names -o bashdefault -o default forebay
fi
"#;

const ZSH: &str = r#"
_forebay() {
    local -a names
    names=(${(f)"$(forebay complete -- "${(j: :)words[1,CURRENT-1]} $PREFIX" 2>/dev/null)"})
    if (( ${#names} )); then
        compadd -- "${names[@]}"
    else
        _forebay_commands_and_flags "$@"
    fi
}
"#;

const FISH: &str = r#"
complete -c forebay -a "(forebay complete -- (commandline -cp) 2>/dev/null)"
"#;

/// Prints the script of a shell.
pub(crate) fn print_script(shell: Shell) -> anyhow::Result<()> {
    print_bytes(script(shell).as_bytes())
}

fn script(shell: Shell) -> String {
    let mut generated = Vec::new();
    clap_complete::generate(shell, &mut crate::Cli::command(), "forebay", &mut generated);
    let generated = String::from_utf8_lossy(&generated).into_owned();
    match shell {
        Shell::Bash => generated + BASH,
        Shell::Zsh => {
            // The function of this name is the one that zsh calls, so ours takes it over.
            let renamed = generated.replace("\n_forebay() {\n", "\n_forebay_commands_and_flags() {\n");
            let (functions, start) =
                renamed.split_once("\nif [ \"$funcstack[1]\"").unwrap_or((renamed.as_str(), ""));
            format!("{functions}\n{ZSH}\nif [ \"$funcstack[1]\"{start}")
        }
        Shell::Fish => generated + FISH,
        _ => generated,
    }
}

#[derive(Debug, Args)]
pub(crate) struct Complete {
    /// The command line up to the cursor.
    line: String,
}

pub(crate) fn run(options: &Complete) -> anyhow::Result<()> {
    let Some(wish) = Wish::read(&options.line) else { return Ok(()) };
    let Ok(runtime) = runtime() else { return Ok(()) };
    let asked = runtime.block_on(async { tokio::time::timeout(PATIENCE, wish.names()).await });
    // The look-up of a host may still be under way.
    runtime.shutdown_background();
    let Ok(Ok(names)) = asked else { return Ok(()) };
    let lines: String = names.iter().map(|name| format!("{name}\n")).collect();
    print(&lines)
}

/// The name that a command line lacks.
#[derive(Debug)]
struct Wish {
    is_group: bool,
    begins_with: String,
    server: Server,
}

impl Wish {
    /// None: no name belongs there.
    fn read(line: &str) -> Option<Wish> {
        let mut words: Vec<&str> = line.split_whitespace().collect();
        let typed = if line.ends_with(char::is_whitespace) { "" } else { words.pop()? };
        let mut tree = crate::Cli::command();
        // Copies the flags for all commands to each of them.
        tree.build();
        let (mut command, mut place, mut server) = (&tree, 0, Server::default());
        let mut words = words.into_iter().skip(1);
        while let Some(word) = words.next() {
            if let Some(flag) = word.strip_prefix("--") {
                let (name, value) =
                    flag.split_once('=').map_or((flag, None), |(name, value)| (name, Some(value)));
                let argument = command.get_arguments().find(|one| one.get_long() == Some(name))?;
                let value = match value {
                    None if takes_value(argument) => Some(words.next()?),
                    value => value,
                };
                take(&mut server, name, value)?;
            } else if let Some(flags) = word.strip_prefix('-').and_then(|flags| flags.chars().last()) {
                let argument = command.get_arguments().find(|one| one.get_short() == Some(flags))?;
                if takes_value(argument) {
                    words.next()?;
                }
            } else if let Some(one) = command.find_subcommand(word) {
                (command, place) = (one, 0);
            } else {
                place += 1;
            }
        }
        let is_flag = typed.starts_with('-');
        let argument = command.get_positionals().nth(place).filter(|_| !is_flag)?;
        let is_group = match argument.get_value_names()?.first()?.as_str() {
            STREAM => false,
            GROUP => true,
            _ => return None,
        };
        Some(Wish { is_group, begins_with: typed.to_owned(), server })
    }

    async fn names(&self) -> anyhow::Result<Vec<String>> {
        let (path, field) = if self.is_group { ("/groups", "groups") } else { ("/streams", "streams") };
        let listing = Listing {
            path,
            query: Query::default(),
            field,
            cursor: "after",
            from: None,
            limit: Some(NAMES_MAX),
        };
        let list = Http::connect(&self.server).await?.list(&listing).await?;
        let mut names: Vec<String> = list.read::<Named>()?.into_iter().map(Named::text).collect();
        names.retain(|name| name.starts_with(&self.begins_with) && !name.contains(char::is_control));
        names.sort_unstable();
        Ok(names)
    }
}

fn takes_value(argument: &clap::Arg) -> bool {
    matches!(argument.get_action(), ArgAction::Set | ArgAction::Append)
}

/// Takes a flag that says which server is meant. None: the flag is invalid.
fn take(server: &mut Server, name: &str, value: Option<&str>) -> Option<()> {
    let Some(value) = value else { return Some(()) };
    match name {
        "server" => server.server = Some(addresses(value).ok()?),
        "context" => server.context = Some(value.to_owned()),
        "token-file" => server.token_file = Some(value.into()),
        "ca" => server.ca = Some(value.into()),
        _ => {}
    }
    Some(())
}

/// A stream or a group in a list.
#[derive(serde::Deserialize)]
struct Named {
    stream: String,
    group: Option<String>,
}

impl Named {
    fn text(self) -> String {
        match self.group {
            Some(group) => format!("{}/{group}", self.stream),
            None => self.stream,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kind of name that belongs to the end of a line, and its beginning.
    #[track_caller]
    fn check(line: &str, expected: Option<(&str, &str)>) {
        let wish = Wish::read(line);
        let found =
            wish.as_ref().map(|wish| (if wish.is_group { GROUP } else { STREAM }, wish.begins_with.as_str()));
        assert_eq!(found, expected, "{line:?}");
    }

    #[test]
    fn names_belong_where_the_commands_say() {
        check("forebay pub ", Some((STREAM, "")));
        check("forebay pub em", Some((STREAM, "em")));
        check("forebay pub emails ", None);
        check("forebay sub emails/se", Some((GROUP, "emails/se")));
        check("forebay sub --ack --max 3 ", Some((GROUP, "")));
        check("forebay work --exec ./x ", Some((GROUP, "")));
        check("forebay group show ", Some((GROUP, "")));
        check("forebay group list ", Some((STREAM, "")));
        check("forebay stream delete a", Some((STREAM, "a")));
        check("forebay parked replay ", Some((GROUP, "")));
        check("forebay -o json stream show ", Some((STREAM, "")));
    }

    #[test]
    fn no_name_belongs_to_flags_and_their_values() {
        check("forebay", None);
        check("forebay ", None);
        check("forebay gro", None);
        check("forebay sub -", None);
        check("forebay sub --max ", None);
        check("forebay sub --no-such-flag ", None);
        check("forebay backup ", None);
    }

    #[test]
    fn the_server_of_the_command_line_is_asked() {
        let wish = Wish::read("forebay --server a:1 sub --token-file=t ").expect("a name belongs there");
        assert_eq!(wish.server.server.map(|server| server.text()), Some("a:1".to_owned()));
        assert_eq!(wish.server.token_file, Some("t".into()));
        assert!(Wish::read("forebay sub --server ftp://x ").is_none());
    }

    #[test]
    fn the_scripts_ask_for_names_in_the_function_that_the_shell_calls() {
        let bash = script(Shell::Bash);
        assert!(
            bash.rfind("complete -F _forebay_names") > bash.rfind("complete -F _forebay -o"),
            "the last one counts"
        );
        let zsh = script(Shell::Zsh);
        assert!(zsh.starts_with("#compdef forebay\n"));
        assert_eq!(zsh.matches("\n_forebay() {").count(), 1);
        assert_eq!(zsh.matches("\n_forebay_commands_and_flags() {").count(), 1);
        assert!(zsh.find("\n_forebay() {") < zsh.find("compdef _forebay forebay"));
        assert!(script(Shell::Fish).contains("forebay complete"));
    }
}
