//! A worker that is killed again and again while it works, and a database in which everything is there once.
//!
//! The server is in this process. The worker is another one: this very program, told by its environment to be the
//! worker, so that it can be killed as the system kills. Its handler writes an effect that nothing but the mark keeps
//! from being written twice, since its table has no key.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_client::admin::groups::GroupReport;
use forebay_client::admin::settings::{Backoff, Retries};
use forebay_client::idempotency::{PostgresStore, SqliteStore};
use forebay_client::{Client, Fault, GroupSettings, Job, Payload, Worker};
use forebay_test::TestServer;
use serde::{Deserialize, Serialize};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{AssertSqlSafe, PgPool, SqlitePool};

const STREAM: &str = "work";
const GROUP: &str = "pool";
const MESSAGES: u32 = 300;
const KILLS: u64 = 10;
/// How many messages are handled between two kills, at least. Enough are left after the last kill.
const DONE_BETWEEN: i64 = 12;
const JOBS: usize = 6;
/// How long each step of a handler takes, so that kills hit it in the middle and not only in between.
const STEP: Duration = Duration::from_millis(4);
const KEEP: Duration = Duration::from_secs(3_600);
const PATIENCE: Duration = Duration::from_secs(60);

/// What the worker's process is told.
const SERVER: &str = "FOREBAY_KILLED_SERVER";
const DATABASE: &str = "FOREBAY_KILLED_DATABASE";

#[derive(Debug, Serialize, Deserialize)]
struct Task {
    n: u32,
}

impl Payload for Task {
    const TYPE: &'static str = "task";
}

/// The effects of the work, and the marks beside them.
#[derive(Clone)]
enum Database {
    Sqlite(SqlitePool, SqliteStore),
    Postgres(PgPool, PostgresStore),
}

/// Runs a piece of code with the pool and the store of either database.
macro_rules! either {
    ($database:expr, $pool:pat, $store:pat => $run:expr) => {
        match $database {
            Database::Sqlite($pool, $store) => $run,
            Database::Postgres($pool, $store) => $run,
        }
    };
}

impl Database {
    /// `sqlite:FILE`, or `postgres:SCHEMA` on the server that the environment names.
    async fn open(name: &str) -> Database {
        if let Some(file) = name.strip_prefix("sqlite:") {
            let options = SqliteConnectOptions::new()
                .filename(file)
                .create_if_missing(true)
                .journal_mode(SqliteJournalMode::Wal)
                // A process that is killed leaves everything that it wrote to the system.
                .synchronous(SqliteSynchronous::Off)
                .busy_timeout(PATIENCE);
            let pool = SqlitePoolOptions::new().max_connections(12).connect_with(options).await;
            let pool = pool.expect("a database");
            return Database::Sqlite(pool.clone(), SqliteStore::new(pool));
        }
        let schema = name.strip_prefix("postgres:").expect("one of the two");
        let address = std::env::var("FOREBAY_TEST_POSTGRES").expect("who calls has looked");
        let options: PgConnectOptions = address.parse().expect("an address");
        let options = options.options([("search_path", schema)]);
        let pool = PgPoolOptions::new().max_connections(12).connect_with(options).await;
        let pool = pool.expect("the server that the environment names answers");
        Database::Postgres(pool.clone(), PostgresStore::new(pool))
    }

    async fn create_tables(&self) {
        let effects = "CREATE TABLE effects (n INTEGER NOT NULL, attempt INTEGER NOT NULL)";
        either!(self, pool, store => {
            sqlx::query(effects).execute(pool).await.expect("a table");
            store.create_table().await.expect("a table");
        });
    }

    /// How many effects there are, how many different ones, and how many of those that began more than once.
    async fn effects(&self) -> (i64, i64, i64) {
        let query = "SELECT count(*), count(DISTINCT n), count(DISTINCT CASE WHEN attempt > 1 THEN n END)
                     FROM effects";
        either!(self, pool, _ => sqlx::query_as(query).fetch_one(pool).await.expect("the table is there"))
    }
}

async fn handle(database: Database, job: Job<Task>) -> Result<(), Fault> {
    let effect = "INSERT INTO effects (n, attempt) VALUES ($1, $2)";
    let (n, attempt) = (i64::from(job.n), i64::from(job.info.attempt()));
    either!(&database, pool, store => {
        let begin = if matches!(database, Database::Sqlite(..)) { "BEGIN IMMEDIATE" } else { "BEGIN" };
        let mut tx = pool.begin_with(begin).await?;
        sqlx::query(effect).bind(n as i32).bind(attempt as i32).execute(&mut *tx).await?;
        tokio::time::sleep(STEP).await;
        store.mark_in(&mut tx, &job, KEEP).await?;
        tx.commit().await?;
    });
    // Done, and not acked yet: if the worker is killed here, the mark has to prevent a second run.
    tokio::time::sleep(4 * STEP).await;
    Ok(())
}

/// Not a test: the worker, when another test starts it.
#[test]
#[ignore = "it is started by the other tests"]
fn child() {
    let (Ok(server), Ok(database)) = (std::env::var(SERVER), std::env::var(DATABASE)) else { return };
    // If the test is gone, so is its end of the pipe, and this process is not needed any more.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let client = Client::connect(server).await.expect("the test's server answers");
        let database = Database::open(&database).await;
        let worker = Worker::builder(client, STREAM, GROUP, database.clone()).concurrency(JOBS).on(handle);
        let worker = either!(database, _, store => worker.idempotency(store, KEEP));
        worker.run_until(std::future::pending()).await.expect("it works until it is killed");
    });
}

/// A worker in a process of its own, which does not outlive this value.
struct Killable(Child);

impl Killable {
    fn start(server: &TestServer, database: &str) -> Killable {
        let program = std::env::current_exe().expect("this program is a file");
        let child = Command::new(program)
            .args(["--exact", "killed::child", "--ignored", "--nocapture", "--quiet"])
            .env(SERVER, server.url())
            .env(DATABASE, database)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn();
        Killable(child.expect("a second process of this program"))
    }

    /// By SIGKILL: it has no time for anything.
    fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Killable {
    fn drop(&mut self) {
        self.kill();
    }
}

async fn group(client: &Client) -> GroupReport {
    client.group(STREAM, GROUP).await.expect("it is there")
}

/// Waits until this is so.
async fn until<F: Future<Output = bool>>(what: &str, mut so: impl FnMut() -> F) {
    let give_up = Instant::now() + PATIENCE;
    while !so().await {
        assert!(Instant::now() < give_up, "it never came to that: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Lets the server's time pass as ours does, for as long as this is not dropped.
fn keep_time(server: Arc<TestServer>) -> tokio::task::JoinHandle<()> {
    tokio::spawn(async move {
        let mut last = Instant::now();
        loop {
            tokio::time::sleep(Duration::from_millis(5)).await;
            let now = Instant::now();
            server.advance(now - last).await;
            last = now;
        }
    })
}

/// Kills ten workers, one after the other, and lets the eleventh finish.
async fn everything_is_there_once(name: &str) {
    let database = Database::open(name).await;
    database.create_tables().await;
    let server = Arc::new(TestServer::start().await.expect("it starts"));
    let client = Client::connect(server.url()).await.expect("it answers");
    let settings = GroupSettings::new()
        .message_timeout(Duration::from_secs(1))
        .max_retries(Retries::Unlimited)
        .backoff(Backoff::new().min(Duration::from_millis(10)).max(Duration::from_millis(10)));
    client.create_group(STREAM, GROUP, settings).await.expect("there was none");
    let tasks: Vec<Task> = (0..MESSAGES).map(|n| Task { n }).collect();
    client.publish_batch(STREAM, &tasks).await.expect("it is stored");
    let time = keep_time(server.clone());

    let mut done_before = 0;
    let mut not_acked = 0;
    for kill in 0..KILLS {
        let mut worker = Killable::start(&server, name);
        until("it works", async || database.effects().await.0 >= done_before + DONE_BETWEEN).await;
        tokio::time::sleep(Duration::from_millis(3 * kill)).await;
        worker.kill();
        until("the server has noticed", async || group(&client).await.consumers == 0).await;
        done_before = database.effects().await.0;
        // Messages that are in the database and not acked have to be recognised by their marks.
        let acked = i64::from(MESSAGES) - i64::try_from(group(&client).await.lag).expect("not so many");
        not_acked += done_before - acked;
    }
    assert!(done_before < i64::from(MESSAGES), "it was finished before the last kill");
    assert!(not_acked > 0, "no worker was killed between its commit and its ack");

    let mut worker = Killable::start(&server, name);
    until("everything is done", async || group(&client).await.lag == 0).await;
    worker.kill();
    time.abort();
    let (all, different, begun_again) = database.effects().await;
    assert_eq!((all, different), (MESSAGES.into(), MESSAGES.into()));
    assert!(begun_again > 0, "no worker was killed before its commit");
    assert_eq!(group(&client).await.parked, 0);
}

/// A folder for a database, which goes with this value.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).expect("a folder for the database");
        Folder(folder)
    }
}

impl AsRef<Path> for Folder {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_killed_ten_times_does_everything_once_in_sqlite() {
    let folder = Folder::new(&format!("forebay-killed-{}", std::process::id()));
    let file = folder.as_ref().join("effects.db");
    everything_is_there_once(&format!("sqlite:{}", file.display())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[allow(clippy::print_stderr)]
async fn a_worker_killed_ten_times_does_everything_once_in_postgres() {
    let Some(address) = std::env::var("FOREBAY_TEST_POSTGRES").ok().filter(|address| !address.is_empty())
    else {
        assert!(std::env::var_os("CI").is_none(), "FOREBAY_TEST_POSTGRES is needed where CI is set");
        eprintln!(
            "SKIPPED: needs FOREBAY_TEST_POSTGRES; `cargo xtask services -- cargo test` starts what it names"
        );
        return;
    };
    let pool = PgPool::connect(&address).await.expect("the server that the environment names answers");
    let schema = format!("killed_{}", std::process::id());
    let create = AssertSqlSafe(format!("CREATE SCHEMA {schema}"));
    sqlx::query(create).execute(&pool).await.expect("a schema of our own");
    everything_is_there_once(&format!("postgres:{schema}")).await;
    let drop = AssertSqlSafe(format!("DROP SCHEMA {schema} CASCADE"));
    sqlx::query(drop).execute(&pool).await.expect("it is ours");
}
