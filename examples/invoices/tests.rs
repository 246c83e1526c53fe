//! Workers that are lost in the middle of their work.

use forebay_test::TestServer;

use super::*;

#[tokio::test]
async fn each_order_has_one_invoice_though_workers_are_lost() {
    const NUMBER: u64 = 120;
    let server = TestServer::start().await.expect("it starts");
    let client = Client::connect(server.url()).await.expect("it answers");
    client.create_group(ORDERS, GROUP, GroupSettings::new()).await.expect("there was none");
    order(&client, NUMBER).await.expect("they are stored");
    for share in 1..=3 {
        let lost = worker(client.clone()).start().await.expect("it joins");
        while client.group(ORDERS, GROUP).await.expect("it is there").lag > NUMBER - 20 * share {
            tokio::task::yield_now().await;
        }
        drop(lost);
    }
    let last = worker(client.clone()).start().await.expect("it joins");
    server.until_settled(ORDERS, GROUP).await.expect("all is done");
    last.shutdown().await.expect("it leaves well");
    let invoices = report(&client).await.expect("they can be read");
    assert_eq!(invoices, (1..=NUMBER).map(|number| (number, 1)).collect::<BTreeMap<u64, u32>>());
}
