//! What an outbox does, case by case.

use std::time::Duration;

use super::*;
use crate::outbox::OutboxError;

const SOON: Duration = Duration::from_millis(5);

/// The tests below are the same for both databases.
macro_rules! for_both {
    ($($name:ident: $body:ident,)+) => {
        mod in_sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                let (file, outbox) = super::sqlite().await;
                super::$body!(file.pool, outbox, "forebay_outbox");
            })+
        }

        mod in_postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                let Some((pool, outbox, table)) = super::postgres().await else { return };
                super::$body!(pool, outbox, &table);
            })+
        }
    };
}

for_both! {
    what_is_committed_is_published_and_what_is_rolled_back_is_not: commits,
    a_message_keeps_its_terms: terms,
    a_row_that_is_refused_is_set_aside_and_the_rest_goes_on: refusals,
    one_relay_works_and_another_takes_over: two,
    a_stream_that_takes_nothing_holds_up_no_other: full,
}

macro_rules! commits {
    ($pool:expr, $outbox:expr, $table:expr) => {{
        let server = super::server().await;
        let relay = $outbox.relay(server.client.clone()).poll_every(super::SOON);
        let figures = relay.stats();
        let (stop, stopped) = super::stop();
        let running = tokio::spawn(relay.run_until(stopped));
        for number in 0..20 {
            let mut tx = $pool.begin().await.expect("a transaction");
            let message = crate::Message::new(format!("{number}"));
            let id = $outbox.insert(&mut tx, "notes", message).await.expect("a row");
            assert_eq!(id.len(), 32);
            if number % 2 == 0 {
                tx.commit().await.expect("an end");
            } else {
                tx.rollback().await.expect("an end");
            }
        }
        let messages = super::arrived(&server.client, "notes", 10).await;
        let expected: Vec<String> = (0..20).step_by(2).map(|number| number.to_string()).collect();
        assert_eq!(super::bodies(&messages), expected);
        drop(stop);
        running.await.expect("it stops");
        assert_eq!((figures.published(), figures.refused(), figures.is_active()), (10, 0, false));
        let left = sqlx::AssertSqlSafe(format!("SELECT count(*) FROM {}", $table));
        let left: i64 = sqlx::query_scalar(left).fetch_one(&$pool).await.expect("a number");
        assert_eq!(left, 0);
    }};
}
use commits;

macro_rules! terms {
    ($pool:expr, $outbox:expr, $table:expr) => {{
        let _ = $table;
        let server = super::server().await;
        let mut tx = $pool.begin().await.expect("a transaction");
        let message = crate::Message::new("body")
            .id("mine")
            .key("k")
            .kind("note")
            .priority(3)
            .header("a", "1")
            .header("a", "\u{0}2")
            .delay(std::time::Duration::from_secs(3_600))
            .ttl(std::time::Duration::from_secs(7_200));
        assert_eq!($outbox.insert(&mut tx, "notes", message.clone()).await.expect("a row"), "mine");
        // The same once more: it is a duplicate, and stored once.
        $outbox.insert(&mut tx, "notes", message).await.expect("a row");
        let at = std::time::SystemTime::now() + std::time::Duration::from_secs(3_600);
        $outbox.insert(&mut tx, "notes", crate::Message::new("").deliver_at(at)).await.expect("a row");
        for (stream, message) in [
            ("", crate::Message::new("x")),
            ("notes", crate::Message::new("x").priority(10)),
            ("notes", crate::Message::new("x").key("a\u{0}b")),
        ] {
            let refused = $outbox.insert(&mut tx, stream, message).await;
            assert!(matches!(refused, Err(super::OutboxError::Invalid { .. })), "{refused:?}");
        }
        tx.commit().await.expect("an end");
        let running = tokio::spawn($outbox.relay(server.client.clone()).poll_every(super::SOON).run());
        let messages = super::arrived(&server.client, "notes", 2).await;
        running.abort();
        let [first, second] = &messages[..] else { panic!("two messages: {messages:?}") };
        assert_eq!((first.id(), first.key(), first.kind()), (Some("mine"), Some("k"), Some("note")));
        assert_eq!(first.priority(), 3);
        let headers: Vec<_> = first.headers().collect();
        assert_eq!(headers, [("a", "1"), ("a", "\u{0}2")]);
        assert_eq!((second.id().map(str::len), second.body().len(), second.schema()), (Some(32), 0, None));
    }};
}
use terms;

macro_rules! refusals {
    ($pool:expr, $outbox:expr, $table:expr) => {{
        let _ = $table;
        let server = super::server().await;
        let mut tx = $pool.begin().await.expect("a transaction");
        let mut expected = Vec::new();
        for number in 0..30 {
            if [0, 13, 29].contains(&number) {
                let large = crate::Message::new(vec![b'x'; 3 << 20]).id(format!("large {number}"));
                $outbox.insert(&mut tx, "notes", large).await.expect("a row");
            } else {
                let small = crate::Message::new(format!("{number}"));
                $outbox.insert(&mut tx, "notes", small).await.expect("a row");
                expected.push(number.to_string());
            }
        }
        // No name of a stream has a line break.
        $outbox.insert(&mut tx, "no\nname", crate::Message::new("y")).await.expect("a row");
        tx.commit().await.expect("an end");
        let relay = $outbox.relay(server.client.clone()).poll_every(super::SOON);
        let figures = relay.stats();
        let running = tokio::spawn(relay.run());
        let messages = super::arrived(&server.client, "notes", 27).await;
        assert_eq!(super::bodies(&messages), expected);
        let patience = tokio::time::timeout(std::time::Duration::from_secs(30), async {
            while figures.refused() < 4 {
                tokio::time::sleep(super::SOON).await;
            }
        });
        patience.await.expect("four are refused");
        let refused = $outbox.refused(0, 100).await.expect("a list");
        let ids: Vec<&str> = refused.iter().map(|row| &*row.id).collect();
        assert_eq!(ids[..3], ["large 0", "large 13", "large 29"]);
        assert!(refused.iter().all(|row| !row.reason.is_empty()), "{refused:?}");
        assert_eq!(refused[3].stream, "no\nname");
        assert_eq!($outbox.refused(refused[2].position, 1).await.expect("a list"), refused[3..]);
        assert!($outbox.discard_refused(refused[3].position).await.expect("an answer"));
        assert!(!$outbox.retry_refused(refused[3].position).await.expect("an answer"));
        assert!($outbox.retry_refused(refused[0].position).await.expect("an answer"));
        let patience = tokio::time::timeout(std::time::Duration::from_secs(30), async {
            while figures.refused() < 5 {
                tokio::time::sleep(super::SOON).await;
            }
        });
        patience.await.expect("it is tried, and refused again");
        running.abort();
        assert_eq!($outbox.refused(0, 100).await.expect("a list").len(), 3);
    }};
}
use refusals;

macro_rules! two {
    ($pool:expr, $outbox:expr, $table:expr) => {{
        let _ = $table;
        let server = super::server().await;
        let mut relays: Vec<_> = (0..2)
            .map(|_| {
                let relay = $outbox.relay(server.client.clone()).poll_every(super::SOON).batch(10);
                let (stop, stopped) = super::stop();
                let figures = relay.stats();
                (Some(stop), figures, tokio::spawn(relay.run_until(stopped)))
            })
            .collect();
        let mut first = None;
        for number in 0..300 {
            let mut tx = $pool.begin().await.expect("a transaction");
            let message = crate::Message::new(format!("{number}"));
            $outbox.insert(&mut tx, "notes", message).await.expect("a row");
            tx.commit().await.expect("an end");
            let active = relays.iter().filter(|(_, figures, _)| figures.is_active()).count();
            assert!(active <= 1, "both work");
            if number == 150 {
                super::arrived(&server.client, "notes", 100).await;
                first = relays.iter().position(|(_, figures, _)| figures.is_active());
                relays[first.expect("one of them works")].0 = None;
            }
        }
        let messages = super::arrived(&server.client, "notes", 300).await;
        let expected: Vec<String> = (0..300).map(|number| number.to_string()).collect();
        assert_eq!(super::bodies(&messages), expected);
        let (_, second, _) = &relays[1 - first.expect("one was stopped")];
        assert!(second.published() > 0 && second.is_active());
        for (stop, _, running) in relays {
            drop(stop);
            running.await.expect("it stops");
        }
    }};
}
use two;

macro_rules! full {
    ($pool:expr, $outbox:expr, $table:expr) => {{
        let _ = $table;
        let server = super::server().await;
        let small =
            crate::StreamSettings::new().limits(crate::admin::settings::StreamLimits::new().max_messages(3));
        server.client.create_stream("small", small).await.expect("a stream");
        let mut tx = $pool.begin().await.expect("a transaction");
        for number in 0..10 {
            let message = crate::Message::new(format!("{number}"));
            $outbox.insert(&mut tx, "small", message).await.expect("a row");
        }
        for number in 0..10 {
            let message = crate::Message::new(format!("{number}"));
            $outbox.insert(&mut tx, "large", message).await.expect("a row");
        }
        tx.commit().await.expect("an end");
        let relay = $outbox.relay(server.client.clone()).poll_every(super::SOON).batch(2);
        let running = tokio::spawn(relay.run());
        let expected: Vec<String> = (0..10).map(|number| number.to_string()).collect();
        assert_eq!(super::bodies(&super::arrived(&server.client, "large", 10).await), expected);
        // What does not fit stays in its order, and follows when there is room.
        super::arrived(&server.client, "small", 2).await;
        let larger = crate::StreamSettings::new()
            .limits(crate::admin::settings::StreamLimits::new().max_messages(100));
        server.client.update_stream("small", larger, &[]).await.expect("room");
        assert_eq!(super::bodies(&super::arrived(&server.client, "small", 10).await), expected);
        running.abort();
    }};
}
use full;

#[tokio::test]
async fn a_delay_and_a_time_to_live_count_from_the_insert() {
    let (file, outbox) = sqlite().await;
    let mut connection = file.pool.acquire().await.expect("a connection");
    let message = Message::new("x").delay(Duration::from_secs(60)).ttl(Duration::from_secs(90));
    outbox.insert(&mut connection, "notes", message).await.expect("a row");
    outbox.insert(&mut connection, "notes", Message::new("y")).await.expect("a row");
    for (age_ms, delay, ttl) in [(20_000, 40_000, 70_000), (60_000, 0, 30_000), (900_000, 0, 1)] {
        let earlier = "UPDATE forebay_outbox SET created_at = created_at - ?1";
        sqlx::query(earlier).bind(age_ms).execute(&mut *connection).await.expect("earlier");
        let mut hold =
            crate::outbox::Table::hold(&outbox).await.expect("an answer").expect("nobody else is there");
        let rows = hold.read(&[], 10).await.expect("rows");
        let message = &rows[0].message;
        // The test itself takes a moment, and a row is never older than it is.
        let near = |is: u64, should: u64| is <= should && should - is < 20_000;
        assert!(near(message.delay_ms, delay) && near(message.ttl_ms, ttl), "{message:?}");
        assert_eq!((rows[1].message.delay_ms, rows[1].message.ttl_ms), (0, 0));
        hold.release().await;
        sqlx::query("UPDATE forebay_outbox SET created_at = created_at + ?1")
            .bind(age_ms)
            .execute(&mut *connection)
            .await
            .expect("as before");
    }
}
