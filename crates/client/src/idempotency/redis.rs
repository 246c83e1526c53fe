//! Marks in Redis.
//!
//! A key holds `c` and the token of a claim, or `d` and the token of the claim that became a mark; Redis lets it
//! expire. An operation that reads before it writes is a script, which Redis runs atomically.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::ConnectionManager;
use redis::{RedisError, Script};

use super::{Begun, BoxFuture, Claim, DURATION_MAX, IdempotencyStore, StoreError, new_token};
use crate::message::millis;

const PREFIX: &str = "forebay:done:";
/// Claims that one script renews. Nothing else runs in Redis meanwhile.
const RENEWED_AT_ONCE: usize = 200;

/// Answers 1 if the claim is ours, 2 if the work is done, or 0 and how long the other's claim lasts.
const BEGIN: &str = "
if redis.call('SET', KEYS[1], 'c' .. ARGV[1], 'NX', 'PX', ARGV[2]) then return {1, 0} end
if string.sub(redis.call('GET', KEYS[1]), 1, 1) == 'd' then return {2, 0} end
return {0, redis.call('PTTL', KEYS[1])}
";

const RENEW: &str = "
for i, key in ipairs(KEYS) do
    if redis.call('GET', key) == 'c' .. ARGV[i + 1] then redis.call('PEXPIRE', key, ARGV[1]) end
end
return 1
";

const FINISH: &str = "
local held = redis.call('GET', KEYS[1])
if held and string.sub(held, 2) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], 'd' .. ARGV[1], 'PX', ARGV[2])
return 1
";

const ABANDON: &str = "
if redis.call('GET', KEYS[1]) == 'c' .. ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
";

/// Marks in Redis, a key for each, which Redis itself lets expire. Cheap to clone.
///
/// Marks are as durable as Redis is configured to be. If a mark is lost, a duplicate repeats its work:
///
/// - With `maxmemory` and a policy other than `noeviction` it drops marks when memory runs short. With `noeviction`
///   it refuses new ones, and messages are retried until there is room.
/// - Without `appendonly` a restart forgets the marks since the last snapshot; with `appendfsync everysec` a loss of
///   power forgets a second.
/// - A replica that takes over lacks the writes that had not reached it.
///
/// Where that is too much, use a SQL store: only there can effect and mark be one.
///
/// Every call is one command or one script on one connection, and scripts touch keys by name, so Redis Cluster is
/// not supported.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use forebay_client::idempotency::RedisStore;
///
/// let client = redis::Client::open("redis://localhost:6379")?;
/// let store = RedisStore::new(client.get_connection_manager().await?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RedisStore {
    connection: ConnectionManager,
    prefix: Arc<str>,
    scripts: Arc<Scripts>,
}

struct Scripts {
    begin: Script,
    renew: Script,
    finish: Script,
    abandon: Script,
}

impl RedisStore {
    /// A store whose keys begin with `forebay:done:`.
    pub fn new(connection: ConnectionManager) -> RedisStore {
        let scripts = Scripts {
            begin: Script::new(BEGIN),
            renew: Script::new(RENEW),
            finish: Script::new(FINISH),
            abandon: Script::new(ABANDON),
        };
        RedisStore { connection, prefix: PREFIX.into(), scripts: Arc::new(scripts) }
    }

    /// The prefix of its keys. Marks under different prefixes know nothing of each other.
    #[must_use]
    pub fn with_prefix(mut self, prefix: &str) -> RedisStore {
        self.prefix = prefix.into();
        self
    }

    fn stored(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }
}

impl IdempotencyStore for RedisStore {
    fn begin<'a>(&'a self, key: &'a str, lasts: Duration) -> BoxFuture<'a, Result<Begun, StoreError>> {
        Box::pin(async move {
            let claim = Claim::new(key, new_token()?);
            let (said, left): (u8, i64) = self
                .scripts
                .begin
                .key(self.stored(key))
                .arg(claim.token)
                .arg(whole_millis(lasts))
                .invoke_async(&mut self.connection.clone())
                .await
                .map_err(failed)?;
            Ok(match said {
                1 => Begun::New(claim),
                2 => Begun::Done,
                _ => Begun::Busy(Duration::from_millis(left.max(0).unsigned_abs())),
            })
        })
    }

    fn renew<'a>(&'a self, claims: &'a [Claim], lasts: Duration) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            for piece in claims.chunks(RENEWED_AT_ONCE) {
                let mut call = self.scripts.renew.prepare_invoke();
                call.arg(whole_millis(lasts));
                for claim in piece {
                    call.key(self.stored(claim.key())).arg(claim.token);
                }
                call.invoke_async::<u8>(&mut self.connection.clone()).await.map_err(failed)?;
            }
            Ok(())
        })
    }

    fn finish<'a>(&'a self, claim: &'a Claim, keep: Duration) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            let marked: u8 = self
                .scripts
                .finish
                .key(self.stored(claim.key()))
                .arg(claim.token)
                .arg(whole_millis(keep))
                .invoke_async(&mut self.connection.clone())
                .await
                .map_err(failed)?;
            if marked == 1 { Ok(()) } else { Err(StoreError::taken(claim)) }
        })
    }

    fn abandon<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            let mut call = self.scripts.abandon.key(self.stored(claim.key()));
            let given_up = call.arg(claim.token).invoke_async::<u8>(&mut self.connection.clone()).await;
            given_up.map(|_| ()).map_err(failed)
        })
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

fn failed(error: RedisError) -> StoreError {
    StoreError::failed(error)
}

/// Redis takes no time to live of nothing.
fn whole_millis(duration: Duration) -> u64 {
    millis(duration.min(DURATION_MAX)).max(1)
}
