//! `forebay token`, `forebay key` and `forebay user`: create, list and revoke the credentials of clients.

use std::io::{IsTerminal as _, Read as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use forebay_wire::json::{
    ChangePasswordRequest, CreateCredentialReply, CreateCredentialRequest, Credential, CredentialKind, Span,
    Time,
};
use hyper::Method;

use super::Sure;
use crate::connect::Server;
use crate::exit::{Exit, say};
use crate::http::{self, Http, Listing, Query, encoded};
use crate::print::{Output, Table, print};
use crate::safe::printable;

#[derive(Debug, Args)]
pub(crate) struct Token {
    #[command(subcommand)]
    command: TokenCommand,
}

#[derive(Debug, Subcommand)]
enum TokenCommand {
    /// Create a token. It is printed once.
    #[command(after_help = CREATE_TOKEN)]
    Create(NewCredential),
    /// List the tokens: names, rights, when they expire and when they were last used.
    #[command(visible_alias = "ls", after_help = LIST_TOKENS)]
    List(List),
    /// Revoke a token by its id, or by its name if no other token has it. Its consumers are disconnected.
    #[command(after_help = REVOKE_TOKEN)]
    Revoke(Revoke),
}

#[derive(Debug, Args)]
pub(crate) struct Key {
    #[command(subcommand)]
    command: KeyCommand,
}

#[derive(Debug, Subcommand)]
enum KeyCommand {
    /// Create an access key for SQS clients. Its secret is printed once.
    #[command(after_help = CREATE_KEY)]
    Create {
        #[command(flatten)]
        create: NewCredential,
        /// The account whose queues the key uses, twelve digits. Default: 000000000000.
        #[arg(long, value_name = "DIGITS")]
        account: Option<String>,
    },
    /// List the access keys: names, rights, when they expire and when they were last used.
    #[command(visible_alias = "ls", after_help = LIST_KEYS)]
    List(List),
    /// Revoke an access key by its id, or by its name if no other key has it.
    #[command(after_help = REVOKE_KEY)]
    Revoke(Revoke),
}

#[derive(Debug, Args)]
pub(crate) struct User {
    #[command(subcommand)]
    command: UserCommand,
}

#[derive(Debug, Subcommand)]
enum UserCommand {
    /// Create a user with a password. A password that the server draws is printed once.
    #[command(after_help = CREATE_USER)]
    Create {
        #[command(flatten)]
        create: NewCredential,
        #[command(flatten)]
        password: PasswordFile,
    },
    /// List the users: names, rights, when they expire and when they were last used.
    #[command(visible_alias = "ls", after_help = LIST_USERS)]
    List(List),
    /// Change the password of a user. Clients with the old one are disconnected.
    #[command(after_help = CHANGE_PASSWORD)]
    Password {
        /// Its name or its id.
        id: String,
        #[command(flatten)]
        password: PasswordFile,
        #[command(flatten)]
        server: Server,
    },
    /// Revoke a user. Its clients are disconnected.
    #[command(after_help = REVOKE_USER)]
    Revoke(Revoke),
}

#[derive(Debug, Args)]
struct PasswordFile {
    /// File with the password, 8 to 256 characters of printable ASCII; `-` reads the standard input. Without it the
    /// server draws a password at random.
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct NewCredential {
    /// The name of the client, which the server's records show.
    name: String,
    /// What it may do: ACTION:PATTERN, with commas between several. Actions: publish, consume, read, view, configure,
    /// triage, operate, admin; or a role: worker, monitor, operator, developer.
    #[arg(long, value_name = "GRANTS")]
    may: String,
    /// How long it is accepted, such as 90d. Without it, until it is revoked.
    #[arg(long, value_name = "TIME", value_parser = crate::settings::values::duration)]
    expires: Option<std::time::Duration>,
    /// Limits of this credential alone, with commas between them: connections=N, requests=N and bytes=SIZE a second,
    /// in_flight=N calls at once. Limits of its name in the server's `limits_file` count too.
    #[arg(long, value_name = "LIMITS", visible_alias = "limits")]
    limit: Option<String>,
    #[command(flatten)]
    server: Server,
}

#[derive(Debug, Args)]
struct List {
    #[command(flatten)]
    server: Server,
}

#[derive(Debug, Args)]
struct Revoke {
    /// Its id or its name.
    id: String,
    #[command(flatten)]
    sure: Sure,
    #[command(flatten)]
    server: Server,
}

const CREATE_TOKEN: &str = "\
The token is printed to the standard output, and everything else to the standard error. The server keeps only a
salted hash of it and cannot show it again.

Examples:
  forebay token create ci --may 'publish:orders-*,consume:orders/*' --expires 90d
  forebay token create dashboard --may 'monitor:*'
  forebay token create batch --may 'publish:reports' --limit requests=50,bytes=1MiB
  forebay token create alice --may 'admin:*' > alice.token";

const LIST_TOKENS: &str = "\
Examples:
  forebay token list
  forebay token list -o json";

const REVOKE_TOKEN: &str = "\
Examples:
  forebay token revoke ci
  forebay token revoke 7d3f0c2b9a81e654 --yes";

const CREATE_KEY: &str = "\
Prints a section for the credentials file of AWS clients.

Examples:
  forebay key create billing --may 'worker:billing-*' >> ~/.aws/credentials
  forebay key create orders --may 'consume:orders/*' --account 123456789012 --expires 30d";

const LIST_KEYS: &str = "\
Examples:
  forebay key list
  forebay key list -o json";

const REVOKE_KEY: &str = "\
Examples:
  forebay key revoke billing
  forebay key revoke FBAK7D3F0C2B9A81E654 --yes";

const CREATE_USER: &str = "\
The password is printed to the standard output, and everything else to the standard error. The server keeps the values
of SCRAM-SHA-256 and cannot show the password again.

Examples:
  forebay user create alice --may 'worker:orders-*' --expires 90d
  forebay user create billing --may 'publish:invoices' --password-file billing.password
  curl -u alice http://127.0.0.1:7070/streams";

const LIST_USERS: &str = "\
Examples:
  forebay user list
  forebay user list -o json";

const CHANGE_PASSWORD: &str = "\
Examples:
  forebay user password alice
  forebay user password billing --password-file billing.password";

const REVOKE_USER: &str = "\
Examples:
  forebay user revoke alice
  forebay user revoke alice --yes";

pub(crate) fn run_token(token: &Token, output: Output) -> anyhow::Result<()> {
    match &token.command {
        TokenCommand::Create(create) => self::create(CredentialKind::Token, create, None, None, output),
        TokenCommand::List(list) => self::list(CredentialKind::Token, &list.server, output),
        TokenCommand::Revoke(revoke) => self::revoke(CredentialKind::Token, revoke, output),
    }
}

pub(crate) fn run_key(key: &Key, output: Output) -> anyhow::Result<()> {
    match &key.command {
        KeyCommand::Create { create, account } => {
            self::create(CredentialKind::AccessKey, create, account.clone(), None, output)
        }
        KeyCommand::List(list) => self::list(CredentialKind::AccessKey, &list.server, output),
        KeyCommand::Revoke(revoke) => self::revoke(CredentialKind::AccessKey, revoke, output),
    }
}

pub(crate) fn run_user(user: &User, output: Output) -> anyhow::Result<()> {
    match &user.command {
        UserCommand::Create { create, password } => {
            self::create(CredentialKind::User, create, None, password.read()?, output)
        }
        UserCommand::List(list) => self::list(CredentialKind::User, &list.server, output),
        UserCommand::Password { id, password, server } => {
            change_password(id, password.read()?, server, output)
        }
        UserCommand::Revoke(revoke) => self::revoke(CredentialKind::User, revoke, output),
    }
}

impl PasswordFile {
    /// The first line, without its end: editors and `echo` add one.
    fn read(&self) -> anyhow::Result<Option<String>> {
        let Some(file) = &self.password_file else { return Ok(None) };
        let mut text = String::new();
        let read = match file == Path::new("-") {
            true => {
                if std::io::stdin().is_terminal() {
                    say("type the password, then Enter and Ctrl-D");
                }
                std::io::stdin().take(4_096).read_to_string(&mut text)
            }
            false => std::fs::File::open(file).and_then(|file| file.take(4_096).read_to_string(&mut text)),
        };
        let shown = printable(&file.display().to_string());
        read.with_context(|| format!("cannot read the password in {shown}")).context(Exit::NotUnderstood)?;
        let text = text.strip_suffix('\n').unwrap_or(&text);
        let text = text.strip_suffix('\r').unwrap_or(text);
        if text.is_empty() {
            bail!(anyhow::anyhow!(Exit::NotUnderstood).context(format!("there is no password in {shown}")));
        }
        Ok(Some(text.to_owned()))
    }
}

fn word(kind: CredentialKind) -> &'static str {
    match kind {
        CredentialKind::Token => "token",
        CredentialKind::AccessKey => "access key",
        CredentialKind::User => "user",
    }
}

fn parameter(kind: CredentialKind) -> &'static str {
    match kind {
        CredentialKind::Token => "token",
        CredentialKind::AccessKey => "access_key",
        CredentialKind::User => "user",
    }
}

fn create(
    kind: CredentialKind,
    create: &NewCredential,
    account: Option<String>,
    password: Option<String>,
    output: Output,
) -> anyhow::Result<()> {
    let request = CreateCredentialRequest {
        kind,
        name: create.name.clone(),
        grants: create.may.clone(),
        expires_in: create.expires.map(Span),
        limits: create.limit.clone(),
        account,
        password,
    };
    http::with(&create.server, async |http| {
        let reply = http.send(Method::POST, "/credentials", &request).await?;
        http::show(&reply, output, |CreateCredentialReply { credential, secret }| {
            let expires = credential.expires_at.map_or_else(|| "never".to_owned(), |at| at.to_string());
            let told = if secret.is_empty() { "" } else { ". Its secret is not shown again" };
            let limits = credential.limits.as_deref().map(|limits| format!(", limits {}", printable(limits)));
            say(&format!(
                "{} {} created: id {}, may {}, expires {expires}{}{told}",
                word(kind),
                printable(&credential.name),
                printable(&credential.id),
                printable(&credential.grants),
                limits.unwrap_or_default(),
            ));
            match kind {
                CredentialKind::User if secret.is_empty() => Ok(()),
                CredentialKind::Token | CredentialKind::User => print(&format!("{}\n", printable(secret))),
                CredentialKind::AccessKey => {
                    let (name, id) = (printable(&credential.name), printable(&credential.id));
                    let secret = printable(secret);
                    print(&format!("[{name}]\naws_access_key_id = {id}\naws_secret_access_key = {secret}\n"))
                }
            }
        })
    })
}

fn change_password(
    id: &str,
    password: Option<String>,
    server: &Server,
    output: Output,
) -> anyhow::Result<()> {
    http::with(server, async |http| {
        let found = find(http, CredentialKind::User, id).await?;
        let path = format!("/credentials/{}/password", encoded(&found.id));
        let reply =
            http.send(Method::PUT, &path, &ChangePasswordRequest { password: password.clone() }).await?;
        http::show(&reply, output, |CreateCredentialReply { credential, secret }| {
            say(&format!("the password of user {} was changed", printable(&credential.name)));
            match secret.is_empty() {
                true => Ok(()),
                false => print(&format!("{}\n", printable(secret))),
            }
        })
    })
}

fn listing(kind: CredentialKind) -> Listing<'static> {
    let mut query = Query::default();
    query.add("kind", Some(parameter(kind)));
    Listing { path: "/credentials", query, field: "credentials", cursor: "after", from: None, limit: None }
}

fn list(kind: CredentialKind, server: &Server, output: Output) -> anyhow::Result<()> {
    http::with(server, async |http| {
        let list = http.list(&listing(kind)).await?;
        if output == Output::Json {
            return list.print();
        }
        let mut credentials: Vec<Credential> = list.read()?;
        credentials.sort_by_key(|one| one.created_at.0);
        let mut table = Table::new(&["NAME", "ID", "MAY", "CREATED", "BY", "EXPIRES", "LAST USED", "LIMITS"]);
        for one in &credentials {
            let time =
                |at: &Option<Time>, absent: &str| at.map_or_else(|| absent.to_owned(), |at| at.to_string());
            table.row([
                printable(&one.name),
                printable(&one.id),
                printable(&one.grants),
                one.created_at.to_string(),
                printable(&one.created_by),
                time(&one.expires_at, "never"),
                time(&one.last_used_at, "-"),
                limits(one),
            ]);
        }
        table.print()
    })
}

/// Its own limits, and those that it shares with others of its name.
fn limits(of: &Credential) -> String {
    let shared = of.shared_limits.as_deref().map(|limits| format!("shared: {}", printable(limits)));
    let all: Vec<String> = of.limits.as_deref().map(printable).into_iter().chain(shared).collect();
    if all.is_empty() { "-".to_owned() } else { all.join("; ") }
}

fn revoke(kind: CredentialKind, revoke: &Revoke, output: Output) -> anyhow::Result<()> {
    http::with(&revoke.server, async |http| {
        let found = find(http, kind, &revoke.id).await?;
        let what = format!("{} {} ({})", word(kind), printable(&found.name), printable(&found.id));
        revoke.sure.ask(&format!("Revoke the {what}? Its clients are disconnected."))?;
        http.call(Method::DELETE, &format!("/credentials/{}", encoded(&found.id)), bytes::Bytes::new())
            .await?;
        match output {
            Output::Text => print(&format!("{what} revoked\n")),
            Output::Json => print("{}\n"),
        }
    })
}

/// The credential with this id, or the only one with this name.
async fn find(http: &mut Http, kind: CredentialKind, text: &str) -> anyhow::Result<Credential> {
    let all: Vec<Credential> = http.list(&listing(kind)).await?.read()?;
    if let Some(one) = all.iter().find(|one| one.id == text) {
        return Ok(one.clone());
    }
    let named: Vec<&Credential> = all.iter().filter(|one| one.name == text).collect();
    match &named[..] {
        [one] => Ok((*one).clone()),
        [] => {
            Err(anyhow::anyhow!("no such {}. id=`{}`", word(kind), printable(text))).context(Exit::NotFound)
        }
        several => {
            let ids: Vec<_> = several.iter().map(|one| printable(&one.id)).collect();
            bail!(anyhow::anyhow!(Exit::Conflict).context(format!(
                "several have this name; name one by its id. name=`{}` ids=`{}`",
                printable(text),
                ids.join(" ")
            )))
        }
    }
}
