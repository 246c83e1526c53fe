//! The server as its operator started it: settings, build, and the last lines of its log. The program that runs the
//! server knows them, and the Node page shows them.

/// A setting and where its value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingRow {
    pub name: &'static str,
    /// Without secrets.
    pub value: String,
    pub origin: String,
    pub is_default: bool,
    pub help: &'static str,
}

/// A line of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLine {
    /// Microseconds since 1970.
    pub at: u64,
    /// `error`, `warn`, `info` or `debug`.
    pub level: &'static str,
    pub text: String,
}

/// Everything that the program knows of the server.
#[derive(Debug, Clone, Default)]
pub struct NodeFacts {
    pub settings: Vec<SettingRow>,
    /// Facts of the build, by name.
    pub build: Vec<(&'static str, String)>,
    /// When the server was started, in microseconds since 1970.
    pub started: Option<u64>,
    /// The last lines of the log, the oldest first.
    pub log: Option<fn() -> Vec<LogLine>>,
}
