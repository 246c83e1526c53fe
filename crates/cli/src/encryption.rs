//! Encryption at rest: where the master keys come from, and `forebay encryption`.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::{Args, Subcommand};
use forebay_storage::journal::Keyring;
use forebay_storage::journal::crypt::{KEY_BYTES, MasterKey};
use forebay_storage::journal::disk::FolderDisk;
use forebay_storage::journal::inspect;
use serde_json::json;

use crate::exit::{Exit, say};
use crate::print::{Output, Table, print};
use crate::safe::printable;
use crate::serve::{check_private, open_error};
use crate::settings::Settings;

/// The variable with the keys. It is no setting, so that no command prints it.
const KEY: &str = "FOREBAY_ENCRYPTION_KEY";
/// No list of keys is longer, in bytes.
const TEXT_MAX: usize = 64 << 10;

/// Where the keys of a folder are.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct KeyFlags {
    /// File with the master keys of an encrypted folder, one a line. FOREBAY_ENCRYPTION_KEY has the keys themselves
    /// instead.
    #[arg(long, value_name = "FILE", env = "FOREBAY_ENCRYPTION_KEY_FILE")]
    encryption_key_file: Option<PathBuf>,
    /// Command that prints the master keys of an encrypted folder.
    #[arg(long, value_name = "COMMAND", env = "FOREBAY_ENCRYPTION_KEY_COMMAND")]
    encryption_key_command: Option<String>,
}

impl KeyFlags {
    pub(crate) fn read(&self) -> anyhow::Result<Option<Keyring>> {
        let given = |text: &str| !text.is_empty() && text != "none";
        let file = self.encryption_key_file.as_deref();
        let command = self.encryption_key_command.as_deref();
        let file = file.filter(|file| file.to_str().is_none_or(given));
        let command = command.filter(|command| given(command));
        Keys { file, command, text: variable(), data: None }.read()
    }
}

fn variable() -> Option<String> {
    std::env::var(KEY).ok().filter(|text| !text.is_empty())
}

/// Places that keys may come from, of which one may be given.
pub(crate) struct Keys<'a> {
    file: Option<&'a Path>,
    command: Option<&'a str>,
    text: Option<String>,
    /// The folder that the keys open, of a server. The file must not be in it.
    data: Option<&'a Path>,
}

impl<'a> Keys<'a> {
    pub(crate) fn of(settings: &'a Settings) -> Keys<'a> {
        Keys {
            file: settings.encryption_key_file.as_deref(),
            command: settings.encryption_key_command.as_deref(),
            text: variable(),
            data: Some(&settings.data),
        }
    }

    pub(crate) fn is_given(&self) -> bool {
        self.file.is_some() || self.command.is_some() || self.text.is_some()
    }

    /// Checks all but what the command prints, and does not run it.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        match self.command {
            Some(_) => self.check_one(),
            None => self.read().map(|_| ()),
        }
    }

    fn check_one(&self) -> anyhow::Result<()> {
        let given = [self.file.is_some(), self.command.is_some(), self.text.is_some()];
        if given.into_iter().filter(|given| *given).count() > 1 {
            return Err(anyhow::Error::new(Exit::NotUnderstood).context(format!(
                "of encryption_key_file, encryption_key_command and {KEY}, one may be given"
            )));
        }
        Ok(())
    }

    pub(crate) fn read(&self) -> anyhow::Result<Option<Keyring>> {
        self.check_one()?;
        let read = match self {
            Keys { file: Some(file), data, .. } => check_outside(file, *data).and_then(|()| from_file(file)),
            Keys { command: Some(command), .. } => from_command(command),
            Keys { text: Some(text), .. } => parse(text).context(KEY),
            _ => return Ok(None),
        };
        read.context(Exit::NotUnderstood).map(Some)
    }
}

/// Refuses a file in the data folder: every copy of the folder would have the key with it. Commands that only read a
/// folder take it from anywhere.
fn check_outside(file: &Path, data: Option<&Path>) -> anyhow::Result<()> {
    let Some(data) = data else { return Ok(()) };
    // Links may lead into the folder, and the folder may not exist yet.
    let real = |path: &Path| path.canonicalize().or_else(|_| std::path::absolute(path));
    let (Ok(real_file), Ok(real_data)) = (real(file), real(data)) else { return Ok(()) };
    if real_file.starts_with(&real_data) {
        anyhow::bail!(
            "encryption_key_file must not be in the data folder, because each copy of the folder would have the key \
             with it. Move it elsewhere, such as /etc/forebay/keys. file=`{}` data=`{}`",
            printable(&file.display().to_string()),
            printable(&data.display().to_string())
        );
    }
    Ok(())
}

fn from_file(file: &Path) -> anyhow::Result<Keyring> {
    let shown = printable(&file.display().to_string());
    let cannot = || format!("cannot read the encryption keys in {shown}");
    check_private(file, "encryption keys").with_context(cannot)?;
    parse(&std::fs::read_to_string(file).with_context(cannot)?)
        .with_context(|| format!("the encryption keys in {shown}"))
}

fn from_command(command: &str) -> anyhow::Result<Keyring> {
    let ran =
        Command::new("sh").arg("-c").arg(command).stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let done = ran.context("encryption_key_command cannot be run")?;
    if !done.status.success() {
        bail!("encryption_key_command failed, and said why. status=`{}`", done.status);
    }
    let text = String::from_utf8(done.stdout).ok().context("encryption_key_command did not print keys")?;
    parse(&text).context("the output of encryption_key_command")
}

/// Reads keys, of which no error shows anything.
fn parse(text: &str) -> anyhow::Result<Keyring> {
    if text.len() > TEXT_MAX {
        bail!("must be at most {TEXT_MAX} bytes long. bytes=`{}`", text.len());
    }
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let words = lines.flat_map(|line| line.split([' ', '\t', ','])).filter(|word| !word.is_empty());
    let mut keys = Vec::new();
    for (index, word) in words.enumerate() {
        let key = key_of(word).with_context(|| {
            format!(
                "a key must be {KEY_BYTES} random bytes, as 64 hexadecimal digits or in base64; `forebay encryption \
                 new-key` makes one. key=`number {}`",
                index + 1
            )
        })?;
        keys.push(MasterKey::new(&key));
    }
    let entropy = |bytes: &mut [u8]| getrandom::fill(bytes).map_err(std::io::Error::other);
    Ok(Keyring::new(keys, entropy)?)
}

fn key_of(word: &str) -> Option<[u8; KEY_BYTES]> {
    let bytes: Vec<u8> = match word.len() {
        64 => {
            let digits: Option<Vec<u32>> = word.chars().map(|digit| digit.to_digit(16)).collect();
            digits?.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
        }
        _ => STANDARD.decode(word).ok()?,
    };
    let key: [u8; KEY_BYTES] = bytes.try_into().ok()?;
    // Whatever made it, it was no source of random numbers.
    let is_random = key.iter().any(|byte| *byte != key[0]);
    is_random.then_some(key)
}

#[derive(Debug, Args)]
pub(crate) struct Encryption {
    #[command(subcommand)]
    command: EncryptionCommand,
}

#[derive(Debug, Subcommand)]
enum EncryptionCommand {
    /// Make a new master key.
    #[command(after_help = NEW_KEY_EXAMPLES)]
    NewKey(NewKey),
    /// Show which master keys the files of a data folder need. A server may be using the folder.
    #[command(after_help = KEYS_EXAMPLES)]
    Keys(InUse),
}

const NEW_KEY_EXAMPLES: &str = "\
Without its key an encrypted folder cannot be read by anyone, so keep a copy of the key elsewhere.

Examples:
  forebay encryption new-key --file /etc/forebay/keys
  forebay serve --encryption-key-file /etc/forebay/keys
  forebay encryption new-key                     print it, for a secret store";

const KEYS_EXAMPLES: &str = "\
To change keys: put the new key first in the file, keep the old ones below it, and restart the server. New files use
the new key. An old key may go once no file needs it. `forebay doctor --salvage` writes a folder anew with the first
key, where that takes too long.

Examples:
  forebay encryption keys --data /var/lib/forebay
  forebay encryption keys --data /var/lib/forebay --encryption-key-file /etc/forebay/keys -o json";

#[derive(Debug, Args)]
struct NewKey {
    /// A new file for the key, which only its owner can read. Without it the key is printed.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct InUse {
    /// The folder to look at.
    #[arg(long, value_name = "DIR", default_value = "./forebay-data")]
    data: PathBuf,
    #[command(flatten)]
    keys: KeyFlags,
}

pub(crate) fn run(encryption: &Encryption, output: Output) -> anyhow::Result<()> {
    match &encryption.command {
        EncryptionCommand::NewKey(options) => new_key(options, output),
        EncryptionCommand::Keys(options) => keys(options, output),
    }
}

fn new_key(options: &NewKey, output: Output) -> anyhow::Result<()> {
    let mut key = [0; KEY_BYTES];
    getrandom::fill(&mut key).context("cannot read random numbers")?;
    let id = MasterKey::new(&key).id().to_string();
    let text: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
    let Some(file) = &options.file else {
        return match output {
            Output::Text => print(&format!("# key {id}\n{text}\n")),
            Output::Json => print(&format!("{}\n", json!({ "id": id, "key": text }))),
        };
    };
    let shown = printable(&file.display().to_string());
    let mut new = match std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(file) {
        Ok(new) => new,
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            return Err(
                anyhow::anyhow!(Exit::Conflict).context(format!("{shown} exists, and was not changed"))
            );
        }
        Err(error) => return Err(error).with_context(|| format!("cannot write {shown}")),
    };
    new.write_all(format!("# key {id}\n{text}\n").as_bytes())
        .and_then(|()| new.sync_all())
        .with_context(|| format!("cannot write {shown}"))?;
    match output {
        Output::Text => {
            say(&format!(
                "wrote key {id} to {shown}. Without it the data cannot be read: keep a copy elsewhere"
            ));
            Ok(())
        }
        Output::Json => print(&format!("{}\n", json!({ "id": id, "file": file.display().to_string() }))),
    }
}

fn keys(options: &InUse, output: Output) -> anyhow::Result<()> {
    let folder = printable(&options.data.display().to_string());
    let keys = options.keys.read()?;
    let disk =
        FolderDisk::read_only(&options.data).with_context(|| format!("cannot read the folder {folder}"))?;
    let used =
        inspect::keys_used(&disk).map_err(open_error).with_context(|| format!("cannot look at {folder}"))?;
    let given = |id: &str| keys.as_ref().map(|keys| keys.ids().any(|key| key.to_string() == id));
    let rows: Vec<_> =
        used.iter().flatten().map(|used| (used.key.to_string(), used.segments, used.images)).collect();
    match output {
        Output::Json => {
            let list: Vec<_> = rows
                .iter()
                .map(|(id, segments, images)| {
                    json!({ "id": id, "segments": segments, "images": images, "given": given(id) })
                })
                .collect();
            print(&format!("{}\n", json!({ "encrypted": used.is_some(), "keys": list })))
        }
        Output::Text if used.is_none() => print("The folder is not encrypted.\n"),
        Output::Text => {
            let mut table = Table::new(&["KEY", "SEGMENTS", "IMAGES", "GIVEN"]);
            for (id, segments, images) in &rows {
                let given = match given(id) {
                    None => "",
                    Some(true) => "yes",
                    Some(false) => "no",
                };
                table.row([id, &segments.to_string(), &images.to_string(), given]);
            }
            table.print()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEX: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

    fn ids(text: &str) -> Vec<String> {
        parse(text).expect("they are keys").ids().map(|id| id.to_string()).collect()
    }

    #[test]
    fn a_key_may_be_in_hexadecimal_digits_or_base64() {
        let base64 = STANDARD.encode((0..32).collect::<Vec<u8>>());
        assert_eq!(ids(HEX), ids(&base64));
        assert_eq!(ids(HEX), ids(&HEX.to_uppercase()));
        let other = HEX.replace("00", "ff");
        let both = ids(&format!("# old\n{HEX}\n\n  # new\n{other}\n"));
        assert_eq!(both, [ids(HEX), ids(&other)].concat());
        assert_eq!(both, ids(&format!("{HEX},{other}")), "as in a variable");
    }

    #[test]
    fn bad_keys_are_refused_without_being_shown() {
        let zeros = "0".repeat(64);
        let twice = format!("{HEX}\n{HEX}");
        for text in ["", "# nothing", "secret-password", &HEX[2..], &zeros, &twice] {
            let error = parse(text).expect_err("it is no list of keys");
            let shown = format!("{error:#}");
            assert!(!shown.contains("secret-password") && !shown.contains(&HEX[2..]), "{shown}");
        }
        let error = format!("{:#}", parse(&format!("{HEX}\nwrong")).expect_err("the second is no key"));
        assert!(error.contains("number 2"), "{error}");
    }

    #[test]
    fn keys_come_from_one_place() {
        let both = Keys { file: Some(Path::new("keys")), command: Some("true"), text: None, data: None };
        assert!(format!("{:#}", both.read().expect_err("two places")).contains("one may be given"));
        let command = |command| Keys { file: None, command: Some(command), text: None, data: None };
        let printed = format!("echo {HEX}");
        assert!(command(&printed).read().expect("it prints a key").is_some());
        for wrong in ["exit 3", "echo nothing", "true"] {
            assert!(command(wrong).read().is_err(), "{wrong}");
        }
        let nothing = Keys { file: None, command: None, text: None, data: None };
        assert!(nothing.read().expect("nothing is given").is_none());
    }

    #[test]
    fn a_key_file_in_the_data_folder_is_refused() {
        use std::os::unix::fs::{PermissionsExt as _, symlink};
        let folder = std::env::temp_dir().join(format!("forebay-keys-{}", std::process::id()));
        let (data, other) = (folder.join("data"), folder.join("other"));
        std::fs::create_dir_all(data.join("deep")).expect("a folder");
        std::fs::create_dir_all(&other).expect("a folder");
        let write = |path: &Path| {
            std::fs::write(path, HEX).expect("a file");
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).expect("it is ours");
        };
        let (inside, outside, link) = (data.join("deep/keys"), other.join("keys"), other.join("link"));
        write(&inside);
        write(&outside);
        symlink(&inside, &link).expect("a link");
        let read =
            |file: &Path, data| Keys { file: Some(file), command: None, text: None, data }.read().map(drop);
        for file in [&inside, &link, &data.join("../data/deep/keys")] {
            let error = format!("{:#}", read(file, Some(&data)).expect_err("it is in the folder"));
            assert!(error.contains("must not be in the data folder"), "{error}");
        }
        read(&outside, Some(&data)).expect("it is elsewhere");
        let new = folder.join("new");
        read(&outside, Some(&new)).expect("the folder is not there yet");
        read(&inside, None).expect("a folder that is only looked at");
        std::fs::remove_dir_all(&folder).expect("it is ours");
    }
}
