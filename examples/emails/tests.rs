//! The burst at the pace of the group, by a clock that the test moves.

use forebay_test::TestServer;

use super::*;

const COUNT: u32 = 100;
const STEP: Duration = Duration::from_millis(100);

/// Moves the clock until nothing is left to do, and checks that sending is never ahead of the pace. Returns how
/// long it took by that clock.
async fn level(server: &TestServer, client: &Client, smtp: &Smtp) -> Duration {
    let before = smtp.tries();
    let mut passed = Duration::ZERO;
    while client.group(STREAM, GROUP).await.expect("it is there").lag > 0 {
        passed += STEP;
        server.advance(STEP).await;
        // Time for the worker to take what it may have by now.
        tokio::time::sleep(Duration::from_millis(5)).await;
        let tries = smtp.tries() - before;
        let allowed = f64::from(BURST) + PER_SECOND * passed.as_secs_f64();
        assert!(f64::from(tries) <= allowed, "{tries} tries after {passed:?}");
        assert!(passed < Duration::from_secs(120), "it does not come to an end");
    }
    passed
}

#[tokio::test]
async fn a_burst_is_sent_at_the_groups_pace_and_what_is_left_over_is_triaged() {
    let server = TestServer::start().await.expect("it starts");
    let client = Client::connect(server.url()).await.expect("it answers");
    create_group(&client).await.expect("there was none");
    let smtp = Smtp::default();
    // Two workers share one pace.
    let workers = [worker(client.clone(), smtp.clone()), worker(client.clone(), smtp.clone())];
    let [first, second] = workers.map(WorkerBuilder::start);
    let (first, second) = (first.await.expect("it joins"), second.await.expect("it joins"));
    publish_burst(&client, COUNT).await.expect("it is stored");
    let took = level(&server, &client, &smtp).await;
    let least = f64::from(COUNT - BURST) / PER_SECOND;
    assert!(took.as_secs_f64() >= least, "{took:?}");

    // Of a hundred, four each are flaky, busy, full, misspelled and gone.
    assert_eq!(smtp.sent(), 88);
    let mut reasons = client.parked_reasons(STREAM, GROUP).await.expect("they are there");
    reasons.sort();
    assert_eq!(reasons, [("452 mailbox full".to_owned(), 4), ("550 no such mailbox".to_owned(), 8)]);

    smtp.empty_mailboxes();
    let triaged = triage(&client).await.expect("it goes through");
    assert_eq!(triaged, Triaged { corrected: 4, replayed: 4, discarded: 4 });
    level(&server, &client, &smtp).await;
    assert_eq!(client.group(STREAM, GROUP).await.expect("it is there").parked, 0);
    let got_mail = smtp.recipients();
    assert_eq!(got_mail.len(), 96);
    assert!(got_mail.windows(2).all(|pair| pair[0] != pair[1]), "somebody got two");
    assert!(got_mail.contains(&"reader-15@example.com".to_owned()));

    let (first, second) = (first.shutdown().await, second.shutdown().await);
    let (first, second) = (first.expect("it leaves well"), second.expect("it leaves well"));
    // Flaky ones once; full ones three times, and then they were parked.
    assert_eq!(first.retried + second.retried, 4 + 4 * 3);
    assert_eq!(first.throttled + second.throttled, 4);
}
