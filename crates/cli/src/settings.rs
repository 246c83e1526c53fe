//! The settings of `forebay serve`: one table of them, from which the flags, the names in the environment and
//! in the settings file, what `forebay config show` prints and the page in the docs all follow.
//!
//! A value is text wherever it comes from, and is read by the one function that its row names. A setting
//! that is given in several places is taken from the first of: flag, environment, file, default.

mod file;
mod similar;
mod table;
pub(crate) mod values;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches};
use forebay_wire::alert::Rules;
use hyper::Uri;

use crate::exit::Exit;
use crate::log::{Format, Level};
use crate::safe::printable;
use crate::serve::alerts::Webhook;
use crate::serve::jwt::KeySource;

pub(crate) use self::similar::doubtful_variables;
pub(crate) use self::table::SETTINGS;

/// The settings of a server.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Settings {
    pub(crate) data: PathBuf,
    pub(crate) listen: SocketAddr,
    pub(crate) sqs: Option<SocketAddr>,
    pub(crate) sqs_keys: Option<PathBuf>,
    pub(crate) sqs_url: Option<String>,
    pub(crate) sqs_trust_forwarded: bool,
    pub(crate) sqs_waits: bool,
    pub(crate) kurrent: Option<SocketAddr>,
    pub(crate) memory: bool,
    pub(crate) engine: EngineKind,
    pub(crate) nats: Vec<String>,
    pub(crate) nats_monitors: Vec<String>,
    pub(crate) nats_accept_loss: bool,
    pub(crate) nats_ca: Option<PathBuf>,
    pub(crate) nats_user_file: Option<PathBuf>,
    pub(crate) nats_replicas: usize,
    pub(crate) nats_max_bytes: Option<u64>,
    pub(crate) cluster: Option<String>,
    pub(crate) node: Option<String>,
    pub(crate) advertise: Option<String>,
    pub(crate) tenure: Duration,
    pub(crate) tls_cert: Option<PathBuf>,
    pub(crate) tls_key: Option<PathBuf>,
    pub(crate) tls_client_ca: Option<PathBuf>,
    pub(crate) tls_client_names: Option<PathBuf>,
    pub(crate) jwt_issuer: Option<String>,
    pub(crate) jwt_audience: Option<String>,
    pub(crate) jwt_keys: Option<KeySource>,
    pub(crate) jwt_rights: Option<PathBuf>,
    pub(crate) jwt_refresh: Duration,
    pub(crate) jwt_ca: Option<PathBuf>,
    pub(crate) jwt_allow_http: bool,
    pub(crate) admin_token_file: Option<PathBuf>,
    pub(crate) require_auth: bool,
    pub(crate) limits_file: Option<PathBuf>,
    pub(crate) audit_file: Option<PathBuf>,
    pub(crate) audit_stream: bool,
    pub(crate) encryption_key_file: Option<PathBuf>,
    pub(crate) encryption_key_command: Option<String>,
    pub(crate) allow_anyone: bool,
    pub(crate) alert_webhooks: Vec<Webhook>,
    pub(crate) alert_rules: Rules,
    pub(crate) alert_hold: Duration,
    pub(crate) alert_secret_file: Option<PathBuf>,
    pub(crate) metrics_series_max: usize,
    pub(crate) otlp_endpoint: Option<Uri>,
    pub(crate) otlp_interval: Duration,
    pub(crate) otlp_traces: bool,
    /// None: text on a terminal, JSON elsewhere.
    pub(crate) log: Option<Format>,
    pub(crate) log_level: Level,
    pub(crate) drain_timeout: Duration,
    pub(crate) date_jump_max: Option<Duration>,
    pub(crate) auto_create: bool,
    pub(crate) auto_create_max_bytes: u64,
    pub(crate) max_connections: usize,
    pub(crate) max_connections_per_address: Option<usize>,
    pub(crate) host_names: Vec<String>,
    pub(crate) request_bytes: u64,
    pub(crate) reply_bytes: u64,
    pub(crate) window_bytes: u64,
    pub(crate) room_bytes: u64,
    pub(crate) disk_max_bytes: Option<u64>,
    pub(crate) free_bytes_min: u64,
    pub(crate) reserve_bytes: u64,
    pub(crate) segment_bytes: u64,
}

/// Where the log is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum EngineKind {
    #[default]
    Journal,
    JetStream,
}

/// One setting.
pub(crate) struct Setting {
    /// As in the settings file. The flag and the name in the environment follow from it.
    pub(crate) name: &'static str,
    /// The form of a value, for help. `None`: the setting is a switch.
    pub(crate) value: Option<&'static str>,
    pub(crate) default: &'static str,
    pub(crate) help: &'static str,
    set: fn(&mut Settings, &str) -> Result<(), String>,
}

impl Setting {
    pub(crate) fn flag(&self) -> String {
        format!("--{}", self.long())
    }

    fn long(&self) -> String {
        self.name.replace('_', "-")
    }

    pub(crate) fn variable(&self) -> String {
        format!("FOREBAY_{}", self.name.to_uppercase())
    }

    /// A value as it may be shown: passwords and the paths of webhooks, which are secrets too, are left out.
    pub(crate) fn shown(&self, text: &str) -> String {
        let hide_path = |url: &str| {
            let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
            let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
            let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
            match scheme {
                "" => "***".to_owned(),
                scheme => format!("{}://{host}/***", scheme.trim()),
            }
        };
        let hide = |server: &str| match (server.split_once("://"), server.rsplit_once('@')) {
            (Some((scheme, _)), Some((_, host))) => format!("{scheme}://***@{host}"),
            (None, Some((_, host))) => format!("***@{host}"),
            (_, None) => server.to_owned(),
        };
        let each = |hide: &dyn Fn(&str) -> String| text.split(',').map(hide).collect::<Vec<_>>().join(",");
        match self.name {
            "nats" => each(&hide),
            "alert_webhooks" if text != "none" => each(&hide_path),
            _ => text.to_owned(),
        }
    }

    /// Checks a value. The error says which rule it breaks.
    fn check(&self, text: &str) -> Result<(), String> {
        (self.set)(&mut Settings::blank(), text)
    }

    fn arg(&'static self) -> Arg {
        let check = move |text: &str| self.check(text).map(|()| text.to_owned());
        let default = format!("{} [default: {}]", self.help, self.default);
        let arg =
            Arg::new(self.name).long(self.long()).help(default).action(ArgAction::Set).value_parser(check);
        match self.value {
            Some(value) => arg.value_name(value),
            None => arg
                .value_name("true|false")
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("true"),
        }
    }
}

impl Settings {
    /// The server, as alerts and metrics name it.
    pub(crate) fn server_name(&self) -> String {
        let name = self.node.as_ref().or(self.advertise.as_ref());
        name.cloned().unwrap_or_else(|| self.listen.to_string())
    }

    /// Every value is replaced before it is used: the table has a default for each.
    fn blank() -> Settings {
        Settings {
            data: PathBuf::new(),
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            sqs: None,
            sqs_keys: None,
            sqs_url: None,
            sqs_trust_forwarded: false,
            sqs_waits: false,
            kurrent: None,
            memory: false,
            engine: EngineKind::default(),
            nats: Vec::new(),
            nats_monitors: Vec::new(),
            nats_accept_loss: false,
            nats_ca: None,
            nats_user_file: None,
            nats_replicas: 0,
            nats_max_bytes: None,
            cluster: None,
            node: None,
            advertise: None,
            tenure: Duration::ZERO,
            tls_cert: None,
            tls_key: None,
            tls_client_ca: None,
            tls_client_names: None,
            jwt_issuer: None,
            jwt_audience: None,
            jwt_keys: None,
            jwt_rights: None,
            jwt_refresh: Duration::from_secs(900),
            jwt_ca: None,
            jwt_allow_http: false,
            admin_token_file: None,
            require_auth: false,
            limits_file: None,
            audit_file: None,
            audit_stream: false,
            encryption_key_file: None,
            encryption_key_command: None,
            allow_anyone: false,
            alert_webhooks: Vec::new(),
            alert_rules: Rules::default(),
            alert_hold: Duration::ZERO,
            alert_secret_file: None,
            metrics_series_max: 0,
            otlp_endpoint: None,
            otlp_interval: Duration::ZERO,
            otlp_traces: false,
            log: None,
            log_level: Level::Info,
            drain_timeout: Duration::ZERO,
            date_jump_max: None,
            auto_create: false,
            auto_create_max_bytes: 0,
            max_connections: 0,
            max_connections_per_address: None,
            host_names: Vec::new(),
            request_bytes: 0,
            reply_bytes: 0,
            window_bytes: 0,
            room_bytes: 0,
            disk_max_bytes: None,
            free_bytes_min: 0,
            reserve_bytes: 0,
            segment_bytes: 0,
        }
    }
}

/// The settings that were given as flags.
#[derive(Debug, Clone, Default)]
pub(crate) struct Flags(pub(crate) Vec<(&'static str, String)>);

impl FromArgMatches for Flags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Flags, clap::Error> {
        let given = |setting: &'static Setting| {
            matches.get_one::<String>(setting.name).map(|text| (setting.name, text.clone()))
        };
        Ok(Flags(SETTINGS.iter().filter_map(given).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Flags::from_arg_matches(matches)?;
        Ok(())
    }
}

impl clap::Args for Flags {
    fn augment_args(command: Command) -> Command {
        let command = SETTINGS.iter().fold(command, |command, setting| command.arg(setting.arg()));
        // A server either keeps its data in memory or in a folder, so asking for both is an error.
        command.mut_arg("memory", |memory| memory.conflicts_with("data"))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Flags::augment_args(command)
    }
}

/// Where settings come from, beside flags: `--config`, or FOREBAY_CONFIG.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Sources {
    /// A settings file in TOML, one `name = value` a line. Also FOREBAY_CONFIG.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) flags: Flags,
}

/// Where a value was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    Flag(String),
    Environment(String),
    File { path: PathBuf, line: usize },
    Default,
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Origin::Flag(flag) => write!(f, "flag {flag}"),
            Origin::Environment(name) => write!(f, "environment {name}"),
            Origin::File { path, line } => write!(f, "{}:{line}", printable(&path.display().to_string())),
            Origin::Default => f.write_str("default"),
        }
    }
}

/// One value, as it was given.
pub(crate) struct Given {
    pub(crate) setting: &'static Setting,
    pub(crate) text: String,
    pub(crate) origin: Origin,
}

/// Reads every source and says which value counts for each setting, in the order of the table.
pub(crate) fn gather(
    sources: &Sources,
    environment: impl Fn(&str) -> Option<String>,
) -> anyhow::Result<Vec<Given>> {
    // An empty variable is as good as none, as nearly everywhere else.
    let environment = |name: &str| environment(name).filter(|text| !text.is_empty());
    let path = sources.config.clone().or_else(|| environment("FOREBAY_CONFIG").map(PathBuf::from));
    let lines = match &path {
        Some(path) => read_file(path).context(Exit::NotUnderstood)?,
        None => Vec::new(),
    };
    let mut all = Vec::new();
    for setting in SETTINGS {
        let flag = sources.flags.0.iter().find(|(name, _)| *name == setting.name);
        let line = lines.iter().find(|line| line.name == setting.name);
        let (text, origin) = if let Some((_, text)) = flag {
            (text.clone(), Origin::Flag(setting.flag()))
        } else if let Some(text) = environment(&setting.variable()) {
            (text, Origin::Environment(setting.variable()))
        } else if let (Some(line), Some(path)) = (line, &path) {
            (line.text.clone(), Origin::File { path: path.clone(), line: line.line })
        } else {
            (setting.default.to_owned(), Origin::Default)
        };
        all.push(Given { setting, text, origin });
    }
    Ok(all)
}

/// The settings that these values make.
pub(crate) fn settle(given: &[Given]) -> anyhow::Result<Settings> {
    let mut settings = Settings::blank();
    for Given { setting, text, origin } in given {
        (setting.set)(&mut settings, text).map_err(|wrong| {
            let text = setting.shown(text);
            let text = printable(&text);
            anyhow::anyhow!(Exit::NotUnderstood)
                .context(format!("{wrong}. setting=`{}` value=`{text}` from=`{origin}`", setting.name))
        })?;
    }
    Ok(settings)
}

/// How many settings a text of a settings file has.
#[cfg(test)]
pub(crate) fn read_text(text: &str) -> anyhow::Result<usize> {
    file::read(text).map(|lines| lines.len())
}

fn read_file(path: &Path) -> anyhow::Result<Vec<file::Line>> {
    let shown = printable(&path.display().to_string());
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read the settings file {shown}"))?;
    file::read(&text).with_context(|| format!("the settings file {shown} cannot be understood"))
}

#[cfg(test)]
mod tests;
