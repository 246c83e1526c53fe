//! The databases that tests of this crate run against.

/// The address of a server that `cargo xtask test` starts. Without one the test says that it does nothing; on a
/// build machine, where that line would be overlooked, it fails.
#[allow(clippy::print_stderr)]
pub(crate) fn address(variable: &str) -> Option<String> {
    let address = std::env::var(variable).ok().filter(|address| !address.is_empty());
    if address.is_none() {
        let test = std::thread::current().name().unwrap_or("a test").to_owned();
        assert!(
            std::env::var_os("CI").is_none(),
            "{test} needs {variable}, and nothing is skipped where CI is set"
        );
        eprintln!(
            "SKIPPED: {test} needs {variable}; `cargo xtask services -- cargo test` starts what it names"
        );
    }
    address
}

/// A name that no other test has.
pub(crate) fn unique(what: &str) -> String {
    format!("{what}_{:016x}", getrandom::u64().expect("the system has random numbers"))
}

#[cfg(feature = "postgres")]
pub(crate) async fn postgres(connections: u32) -> Option<sqlx::PgPool> {
    let address = address("FOREBAY_TEST_POSTGRES")?;
    let options = sqlx::postgres::PgPoolOptions::new().max_connections(connections);
    Some(options.connect(&address).await.expect("the server that the environment names answers"))
}

#[cfg(feature = "redis")]
pub(crate) async fn redis() -> Option<redis::aio::ConnectionManager> {
    let client = redis::Client::open(address("FOREBAY_TEST_REDIS")?).expect("an address of Redis");
    Some(client.get_connection_manager().await.expect("the server that the environment names answers"))
}

/// A database in a file of its own, which goes with this value.
#[cfg(feature = "sqlite")]
pub(crate) struct SqliteFile {
    folder: std::path::PathBuf,
    pub(crate) pool: sqlx::SqlitePool,
}

#[cfg(feature = "sqlite")]
pub(crate) async fn sqlite(connections: u32) -> SqliteFile {
    use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};

    let folder = std::env::temp_dir().join(unique("forebay-client-test"));
    std::fs::create_dir(&folder).expect("a folder for the database");
    let options = SqliteConnectOptions::new()
        .filename(folder.join("test.db"))
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        // The file does not outlive the test, and the visibility of writes does not depend on the disk.
        .synchronous(SqliteSynchronous::Off)
        .busy_timeout(std::time::Duration::from_secs(30));
    let pool = SqlitePoolOptions::new().max_connections(connections).connect_with(options).await;
    SqliteFile { folder, pool: pool.expect("a database") }
}

#[cfg(feature = "sqlite")]
impl Drop for SqliteFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
