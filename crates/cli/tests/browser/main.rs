//! The dashboard in a real browser, on the real server.
//!
//! `FOREBAY_TEST_CHROMIUM` names the browser; `cargo xtask browser` finds or installs one and sets it. Without the
//! variable these tests say that they are skipped; with `CI` set that is a failure. `FOREBAY_TEST_AXE` names the script
//! of axe-core, which one of the tests runs in every page. `FOREBAY_SCREENSHOTS` names a
//! folder for pictures of every page, which `cargo xtask screenshots` makes.

// Skipped tests say so.
#![allow(clippy::print_stderr)]

mod chrome;
mod proxy;
mod scene;
mod server;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use chrome::{Browser, Tab};
use scene::Scene;
use serde_json::{Value, json};
use server::Server;

/// The browser, if there is one.
fn browser() -> Option<Browser> {
    match std::env::var("FOREBAY_TEST_CHROMIUM") {
        Ok(program) => Some(Browser::start(&program)),
        Err(_) => {
            assert!(
                std::env::var_os("CI").is_none(),
                "CI is set, where nothing may be skipped, and FOREBAY_TEST_CHROMIUM is not: run `cargo xtask browser`"
            );
            eprintln!("SKIPPED: FOREBAY_TEST_CHROMIUM names no browser; `cargo xtask browser` finds one");
            None
        }
    }
}

/// Every kind of page of a server with these in it.
fn pages() -> Vec<(&'static str, String)> {
    [
        ("overview", "/"),
        ("streams", "/ui/streams"),
        ("stream", "/ui/streams/orders"),
        ("groups", "/ui/groups"),
        ("group", "/ui/streams/orders/groups/billing"),
        ("parked", "/ui/parked"),
        ("parked-group", "/ui/streams/orders/groups/billing/parked"),
        ("delayed", "/ui/delayed"),
        ("clients", "/ui/clients"),
        ("cluster", "/ui/cluster"),
        ("node", "/ui/node"),
        ("sign-in", "/ui/sign-in"),
        ("nowhere", "/ui/streams/none"),
    ]
    .into_iter()
    .map(|(name, path)| (name, path.to_owned()))
    .collect()
}

/// The complaints of a page, but for the one about a page that does not exist, which the browser makes.
fn complaints(tab: &mut Tab<'_>) -> Vec<String> {
    tab.complaints().into_iter().filter(|text| !text.contains("/ui/streams/none")).collect()
}

/// A place for a message that is parked.
fn park(server: &Server, path: &str, count: u64, reason: &str) {
    for _ in 0..count {
        let taken =
            server.call("POST", &format!("{path}/receive"), &json!({ "max": 1, "consumer": "tester" }));
        let nack = json!({ "leases": [taken["messages"][0]["lease"]], "action": "park", "reason": reason });
        server.call("POST", &format!("{path}/nack"), &nack);
    }
}

fn publish(server: &Server, stream: &str, count: u64) {
    let messages: Vec<Value> =
        (0..count).map(|n| json!({ "body": { "n": n }, "key": format!("k{n}") })).collect();
    server.call("POST", &format!("/streams/{stream}/messages"), &json!({ "messages": messages }));
}

#[test]
fn every_page_renders_at_every_width_without_an_error() {
    let Some(mut browser) = browser() else { return };
    let server = Server::start();
    let scene = Scene::play(&server);
    server.until("/subscriptions/orders/billing", |group| group["parked"].as_u64() > Some(3));
    let long = "a-very-long-name-".repeat(12);
    server.call("PUT", &format!("/subscriptions/{long}/{long}"), &json!({}));
    let mut all = pages();
    all.push(("long", format!("/ui/streams/{long}/groups/{long}")));
    let mut wrong = Vec::new();
    for width in [390, 800, 1_440] {
        let mut tab = browser.tab(width, 900);
        for theme in ["light", "dark"] {
            tab.theme(theme);
            for (name, path) in &all {
                tab.open(&server.url(path));
                assert!(!tab.text("document.querySelector('h1').innerText").is_empty(), "{name}");
                let over = "document.documentElement.scrollWidth - document.documentElement.clientWidth";
                let over = tab.eval(over);
                if over != 0 {
                    wrong.push(format!("{name} is {over} pixels wider than its window of {width}"));
                }
                let found = checks(&mut tab).into_iter().chain(complaints(&mut tab));
                wrong.extend(found.map(|what| format!("{name}, {theme}, {width} pixels wide: {what}")));
            }
        }
    }
    drop(scene);
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Labels, names, headings and contrast, as a checker of accessibility looks at them.
fn checks(tab: &mut Tab<'_>) -> Vec<String> {
    let found = tab.eval(include_str!("checks.js"));
    found.as_array().map_or(vec![format!("the check failed: {found}")], |list| {
        list.iter().map(|one| one.as_str().unwrap_or_default().to_owned()).collect()
    })
}

/// The script of axe-core, if it is there.
fn axe() -> Option<String> {
    match std::env::var("FOREBAY_TEST_AXE") {
        Ok(file) => Some(std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{file}: {error}"))),
        Err(_) => {
            assert!(
                std::env::var_os("CI").is_none(),
                "CI is set, where nothing may be skipped, and FOREBAY_TEST_AXE is not: run `cargo xtask browser`"
            );
            eprintln!("SKIPPED: FOREBAY_TEST_AXE names no script; `cargo xtask browser` installs it");
            None
        }
    }
}

/// Runs axe-core and answers with its serious and critical findings.
const RUN_AXE: &str = "axe.run(document, { resultTypes: ['violations'] }).then(({ violations }) => violations\
     .filter(({ impact }) => impact === 'serious' || impact === 'critical')\
     .flatMap(({ id, help, nodes }) => nodes.map(({ html }) => `${id}: ${help}: ${html.slice(0, 160)}`)))";

#[test]
fn axe_finds_no_serious_violation_on_any_page() {
    let (Some(axe), Some(mut browser)) = (axe(), browser()) else { return };
    let server = Server::start();
    let scene = Scene::play(&server);
    server.until("/subscriptions/orders/billing", |group| group["parked"].as_u64() > Some(3));
    let parked = server.call("GET", "/subscriptions/orders/billing/parked", &Value::Null);
    let seq = parked["parked"][0]["seq"].to_string();
    let mut all = pages();
    all.push(("message", format!("/ui/streams/orders/messages/{seq}")));
    all.push(("parked-one", format!("/ui/streams/orders/groups/billing/parked/{seq}")));
    let mut wrong = Vec::new();
    let mut tab = browser.tab(1_280, 900);
    for theme in ["light", "dark"] {
        tab.theme(theme);
        for (name, path) in &all {
            tab.open(&server.url(path));
            // Over the debugging protocol, which the content security policy does not concern.
            tab.eval(&axe);
            let found = tab.eval(RUN_AXE);
            let found = found.as_array().unwrap_or_else(|| panic!("axe did not run on {name}: {found}"));
            wrong.extend(found.iter().map(|what| format!("{name}, {theme}: {what}")));
        }
    }
    drop(scene);
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn figures_agree_with_the_api_and_change_by_themselves() {
    let Some(mut browser) = browser() else { return };
    let server = Server::start();
    server.call("PUT", "/subscriptions/orders/billing", &json!({}));
    publish(&server, "orders", 7);
    let mut tab = browser.tab(1_280, 900);
    let value = |name: &str| {
        format!(
            "[...document.querySelectorAll('.figure')].find(f => f.querySelector('dt').innerText === '{name}')\
             ?.querySelector('.value').innerText"
        )
    };
    tab.open(&server.url("/ui/streams/orders/groups/billing"));
    let report = server.call("GET", "/subscriptions/orders/billing", &Value::Null);
    assert_eq!(tab.text(&value("Backlog")), report["lag"].to_string());
    publish(&server, "orders", 5);
    tab.until(&format!("{} === '12'", value("Backlog")));
    park(&server, "/subscriptions/orders/billing", 2, "no reason");
    tab.until(&format!("{} === '2' && {} === '10'", value("Parked"), value("Backlog")));
    tab.open(&server.url("/ui/streams"));
    tab.until("document.querySelector('tbody td.number').innerText === '12'");
    tab.open(&server.url("/"));
    tab.until("/orders.billing parks .* 2 messages are parked now/.test(document.body.innerText)");
    server.call("DELETE", "/subscriptions/orders/billing", &Value::Null);
    tab.until("!document.body.innerText.includes('orders/billing')");
    assert_eq!(complaints(&mut tab), Vec::<String>::new());
}

#[test]
fn a_selection_of_parked_messages_is_replayed_discarded_and_moved() {
    let Some(mut browser) = browser() else { return };
    let server = Server::start();
    let group = "/subscriptions/orders/billing";
    server.call("PUT", group, &json!({}));
    publish(&server, "orders", 6);
    park(&server, group, 4, "card declined");
    park(&server, group, 2, "no such customer");
    let mut tab = browser.tab(1_280, 900);
    tab.open(&server.url("/ui/streams/orders/groups/billing/parked?reason=card%20declined"));
    assert_eq!(tab.eval("document.querySelectorAll('[data-seq]').length"), 4);
    tab.eval("document.querySelectorAll('[data-seq]')[1].click(); document.querySelectorAll('[data-seq]')[2].click()");
    tab.until("document.querySelector('[data-selected-count]').innerText === '2 selected'");
    tab.eval("document.querySelector('[data-open=replay][data-of=selected]').click()");
    tab.until("document.querySelector('#replay b[data-matched]').innerText === '2'");
    let command = tab.text("document.querySelector('#replay [data-command]').innerText");
    assert_eq!(command, "forebay parked replay orders/billing 2 3");
    tab.until("!document.querySelector('#replay [type=submit]').disabled");
    tab.eval("document.querySelector('#replay [type=submit]').click()");
    server.until(group, |group| group["parked"] == 4 && group["ready"] == 2);
    tab.until("document.querySelectorAll('[data-seq]').length === 2");
    tab.until("document.querySelector('.jobs').innerText.includes('2 of 2')");
    // All with this reason, which needs the name.
    tab.eval("document.querySelector('[data-open=discard][data-of=all]').click()");
    tab.until("document.querySelector('#discard b[data-matched]').innerText === '2'");
    assert_eq!(tab.eval("document.querySelector('#discard [type=submit]').disabled"), true);
    tab.eval("document.querySelector('#discard-confirm').focus()");
    tab.type_text("orders/billing");
    tab.until("!document.querySelector('#discard [type=submit]').disabled");
    tab.press("Enter");
    server.until(group, |group| group["parked"] == 2);
    // One message, edited.
    let left = server.call("GET", &format!("{group}/parked"), &Value::Null);
    let seq = left["parked"][0]["seq"].to_string();
    tab.open(&server.url(&format!("/ui/streams/orders/groups/billing/parked/{seq}")));
    assert!(tab.text("document.querySelector('.failures').innerText").contains("no such customer"));
    tab.eval("document.querySelector('[data-open=resubmit]').click()");
    tab.eval("document.querySelector('#resubmit-body').select()");
    tab.type_text("{\"edited\": true}");
    tab.eval("document.querySelector('#resubmit [type=submit]').click()");
    server.until(group, |group| group["parked"] == 1);
    let stored = server.call("GET", "/streams/orders/messages?from=7", &Value::Null);
    assert_eq!(stored["messages"][0]["body"], json!({ "edited": true }));
    // The last one goes to another stream.
    server.call("PUT", "/streams/quarantine", &json!({}));
    tab.open(&server.url("/ui/streams/orders/groups/billing/parked"));
    tab.eval("document.querySelector('[data-open=move][data-of=all]').click()");
    tab.until("document.querySelector('#move b[data-matched]').innerText === '1'");
    assert_eq!(tab.eval("document.querySelector('#move [type=submit]').disabled"), true);
    tab.eval("document.querySelector('#move-to').focus()");
    tab.type_text("quarantine");
    tab.until("!document.querySelector('#move [type=submit]').disabled");
    let command = tab.text("document.querySelector('#move [data-command]').innerText");
    assert_eq!(command, "forebay parked move orders/billing --all --to quarantine");
    tab.press("Enter");
    server.until(group, |group| group["parked"] == 0);
    let moved = server.call("GET", "/streams/quarantine/messages", &Value::Null);
    assert_eq!(moved["messages"].as_array().map(Vec::len), Some(1));
    tab.until("document.querySelector('.jobs').innerText.includes('quarantine')");
    assert_eq!(complaints(&mut tab), Vec::<String>::new());
}

#[test]
fn an_empty_list_of_groups_shows_the_first_one_by_itself() {
    let Some(mut browser) = browser() else { return };
    let server = Server::start();
    let mut groups = browser.tab(1_280, 900);
    groups.open(&server.url("/ui/groups"));
    groups.until("document.body.innerText.includes('No groups yet')");
    server.call("PUT", "/subscriptions/orders/billing", &json!({}));
    groups.until("[...document.links].some(a => a.innerText === 'orders/billing')");
    assert_eq!(complaints(&mut groups), Vec::<String>::new());
}

#[test]
fn operators_act_with_the_keyboard_alone() {
    let Some(mut browser) = browser() else { return };
    let server = Server::start();
    server.call("PUT", "/subscriptions/orders/billing", &json!({}));
    let mut tab = browser.tab(1_280, 900);
    tab.open(&server.url("/"));
    // The first stop leads past the navigation, and the focus is always visible.
    tab.press("Tab");
    assert_eq!(tab.text("document.activeElement.innerText"), "Skip to the content");
    tab.press("g");
    tab.press("g");
    tab.until("location.pathname === '/ui/groups'");
    // The group is new, and the page shows it with the next look at the server at the latest.
    tab.until("[...document.links].some(a => a.innerText === 'orders/billing')");
    walk(&mut tab, "document.activeElement.innerText === 'orders/billing'");
    tab.press("Enter");
    tab.until("location.pathname.endsWith('/groups/billing') && document.readyState === 'complete'");
    walk(&mut tab, "document.activeElement.innerText === 'Pause'");
    tab.press("Enter");
    tab.until("document.querySelector('#pause').open");
    walk(&mut tab, "document.activeElement.type === 'submit'");
    tab.press("Enter");
    server.until("/subscriptions/orders/billing", |group| group["status"] == "paused");
    tab.until("document.querySelector('.heading .buttons').innerText.includes('Resume')");
    // A setting, with a preview of the change.
    walk(&mut tab, "document.activeElement.name === 'max_retries'");
    tab.eval("document.activeElement.select()");
    tab.type_text("3");
    let command = "forebay group set orders/billing max_retries=3";
    tab.until(&format!("document.querySelector('[data-preview]').innerText.includes('{command}')"));
    tab.press("Enter");
    server.until("/subscriptions/orders/billing", |group| group["settings"]["max_retries"] == 3);
    // A dangerous call wants the name. Escape leaves it.
    tab.until("[...document.querySelectorAll('.toast')].some(t => t.innerText.includes('settings'))");
    tab.eval("document.querySelector('[data-open=delete]').focus()");
    tab.press("Enter");
    tab.until("document.querySelector('#delete').open");
    assert_eq!(tab.eval("document.querySelector('#delete [type=submit]').disabled"), true);
    tab.press("Escape");
    tab.until("!document.querySelector('#delete').open");
    tab.press("Enter");
    tab.until("document.querySelector('#delete').open");
    walk(&mut tab, "document.activeElement.id === 'delete-confirm'");
    tab.type_text("orders/billing");
    tab.press("Enter");
    tab.until("location.pathname === '/ui/groups'");
    server.until("/subscriptions", |list| list["subscriptions"].as_array().is_some_and(Vec::is_empty));
    assert_eq!(complaints(&mut tab), Vec::<String>::new());
}

/// Presses Tab until something has the focus.
#[track_caller]
fn walk(tab: &mut Tab<'_>, is_there: &str) {
    for _ in 0..120 {
        if tab.eval(&format!("Boolean({is_there})")) == true {
            return;
        }
        tab.press("Tab");
    }
    panic!("the keyboard never leads to: {is_there}");
}

#[test]
fn scripts_in_messages_and_names_are_text() {
    let Some(mut browser) = browser() else { return };
    let server = Server::start();
    let script = "<img src=x onerror=alert(1)><script>alert(2)</script>\"'";
    let encoded = |text: &str| text.bytes().map(|byte| format!("%{byte:02X}")).collect::<String>();
    // The name of a group has no slash.
    let (name, group) = (encoded(script), encoded("<img src=x onerror=alert(3)>"));
    let page = format!("/ui/streams/{name}/groups/{group}");
    let group = format!("/subscriptions/{name}/{group}");
    server.call("PUT", &group, &json!({}));
    let message =
        json!({ "key": script, "type": script, "headers": { script: script }, "body": script, "id": script });
    server.call(
        "POST",
        &format!("/streams/{name}/messages"),
        &json!({ "messages": [message, { "body": 1 }] }),
    );
    park(&server, &group, 1, script);
    let mut tab = browser.tab(1_280, 900);
    for path in [
        "/".to_owned(),
        "/ui/streams".to_owned(),
        "/ui/groups".to_owned(),
        "/ui/parked".to_owned(),
        format!("/ui/streams/{name}"),
        format!("/ui/streams/{name}/messages/1"),
        page.clone(),
        format!("{page}/parked"),
        format!("{page}/parked/1"),
    ] {
        let updates = "Number(document.documentElement.dataset.updates || 0)";
        tab.open(&server.url(&path));
        tab.until(&format!("!document.querySelector('[data-live]') || {updates} > 0"));
        tab.until("document.body.innerText.includes('<script>alert(2)</script>')");
        assert_eq!(tab.eval("document.querySelectorAll('main img, main script').length"), 0, "{path}");
        assert_eq!(complaints(&mut tab), Vec::<String>::new(), "{path}");
    }
    tab.eval("document.dispatchEvent(new KeyboardEvent('keydown', { key: 'k', ctrlKey: true }))");
    tab.until("document.querySelector('[data-palette-list]').innerText.includes('<script>')");
    assert_eq!(complaints(&mut tab), Vec::<String>::new());
}

#[test]
fn a_connection_is_closed_through_the_page() {
    let Some(mut browser) = browser() else { return };
    let server = Server::start();
    let mut client = TcpStream::connect(&server.address).expect("the server listens");
    client.set_read_timeout(Some(Duration::from_secs(60))).expect("a socket");
    let request = format!("GET /livez HTTP/1.1\r\nhost: {}\r\n\r\n", server.address);
    client.write_all(request.as_bytes()).expect("it is taken");
    assert!(client.read(&mut [0; 4_096]).expect("an answer") > 0);
    let address = client.local_addr().expect("an address").to_string();
    let mut tab = browser.tab(1_280, 900);
    tab.open(&server.url("/ui/clients"));
    let button = format!("document.querySelector('[aria-label=\"Close the connection from {address}\"]')");
    tab.until(&button);
    tab.eval(&format!("{button}.click()"));
    tab.until("document.querySelector('#close').open");
    let command = tab.text("document.querySelector('#close [data-command]').innerText");
    let listed = server.call("GET", "/connections", &Value::Null);
    let listed = listed["connections"].as_array().expect("a list").clone();
    let one = listed.iter().find(|one| one["address"] == address.as_str()).expect("it is listed");
    assert_eq!(command, format!("forebay connections close {}", one["id"].as_str().expect("an id")));
    tab.eval("document.querySelector('#close [type=submit]').click()");
    assert_eq!(client.read(&mut [0; 16]).expect("the end"), 0, "the server has closed the connection");
    tab.until(&format!("!{button}"));
    assert_eq!(complaints(&mut tab), Vec::<String>::new());
}

/// How long a page may take from the click to its first paint, in milliseconds, and how often each is tried.
const PAGE_WITHIN: f64 = 200.0;
const TRIES: usize = 5;

#[test]
fn pages_of_ten_thousand_groups_come_soon() {
    let Some(mut browser) = browser() else { return };
    let server = Server::start();
    let mut client = server.client();
    for n in 0..10_000 {
        let path = format!("/subscriptions/stream-{:03}/group-{:03}", n / 100, n % 100);
        assert!(matches!(client.call("PUT", &path, &json!({})), Some((200..300, _))), "{path}");
    }
    let mut tab = browser.tab(1_280, 900);
    // The first look at all of them is over.
    tab.open(&server.url("/ui/groups"));
    tab.until("document.querySelector('.search .hint').innerText === '10,000 groups'");
    let mut slow = Vec::new();
    for path in [
        "/",
        "/ui/streams",
        "/ui/groups",
        "/ui/groups?sort=lag",
        "/ui/groups?q=group-07",
        "/ui/parked",
        "/ui/delayed",
        "/ui/clients",
        "/ui/node",
        "/ui/streams/stream-007",
        "/ui/streams/stream-007/groups/group-007",
    ] {
        let (mut whole, mut painted) = (f64::MAX, f64::MAX);
        for _ in 0..TRIES {
            tab.open(&server.url(path));
            tab.until("performance.getEntriesByName('first-contentful-paint').length > 0");
            let end = tab.eval("performance.getEntriesByType('navigation')[0].responseEnd");
            let paint = tab.eval("performance.getEntriesByName('first-contentful-paint')[0].startTime");
            whole = whole.min(end.as_f64().expect("a time"));
            painted = painted.min(paint.as_f64().expect("a time"));
        }
        eprintln!("{path}: whole after {whole:.0} ms, painted after {painted:.0} ms");
        if painted > PAGE_WITHIN {
            slow.push(format!("{path} was painted after {painted:.0} ms"));
        }
    }
    assert!(slow.is_empty(), "{slow:#?}");
    assert_eq!(complaints(&mut tab), Vec::<String>::new());
}

/// Dashboards that are open at once, on so many groups, and how long they are watched.
const DASHBOARDS: usize = 20;
const WATCHED: Duration = Duration::from_secs(30);
/// The part of a core that they may cost when nothing happens.
const COST_MAX: f64 = 0.03;

#[test]
fn twenty_open_dashboards_cost_little_when_nothing_happens() {
    let server = Server::start();
    let mut client = server.client();
    for n in 0..1_000 {
        let path = format!("/subscriptions/stream-{:03}/group-{:03}", n / 50, n % 50);
        assert!(matches!(client.call("PUT", &path, &json!({})), Some((200..300, _))), "{path}");
    }
    let pages = ["/", "/ui/groups", "/ui/streams", "/ui/streams/stream-007/groups/group-007", "/ui/node"];
    let read = Arc::new(AtomicU64::new(0));
    for n in 0..DASHBOARDS {
        let read = read.clone();
        let mut page = TcpStream::connect(&server.address).expect("the server listens");
        let (path, host) = (pages[n % pages.len()], &server.address);
        let request = format!("GET {path} HTTP/1.1\r\nhost: {host}\r\naccept: text/event-stream\r\n\r\n");
        page.write_all(request.as_bytes()).expect("it is taken");
        std::thread::spawn(move || {
            let mut bytes = [0; 65_536];
            while let Ok(some @ 1..) = page.read(&mut bytes) {
                read.fetch_add(some as u64, Ordering::Relaxed);
            }
        });
    }
    // Every page has come, and the figures of the last seconds are at rest.
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let (before, cpu) = (read.load(Ordering::Relaxed), server.cpu_seconds());
        std::thread::sleep(Duration::from_secs(3));
        let grown = read.load(Ordering::Relaxed) - before;
        if before > 0 && grown < 100_000 && server.cpu_seconds() - cpu < 3.0 * COST_MAX {
            break;
        }
        assert!(Instant::now() < until, "the pages never come to rest: {grown} bytes in 3 seconds");
    }
    let (bytes, cpu, began) = (read.load(Ordering::Relaxed), server.cpu_seconds(), Instant::now());
    std::thread::sleep(WATCHED);
    let seconds = began.elapsed().as_secs_f64();
    let bytes = (read.load(Ordering::Relaxed) - bytes) as f64 / seconds;
    let cpu = (server.cpu_seconds() - cpu) / seconds;
    eprintln!(
        "{DASHBOARDS} dashboards on 1,000 groups at rest: {:.2}% of a core, {bytes:.0} bytes a second",
        cpu * 100.0
    );
    assert!(cpu < COST_MAX, "{:.1}% of a core", cpu * 100.0);
    // The same under work, for the figure. Messages that wait grow older, which the pages show every second.
    let (bytes, cpu, began) = (read.load(Ordering::Relaxed), server.cpu_seconds(), Instant::now());
    while began.elapsed() < WATCHED / 3 {
        publish(&server, "stream-007", 10);
        std::thread::sleep(Duration::from_millis(100));
    }
    let seconds = began.elapsed().as_secs_f64();
    let bytes = (read.load(Ordering::Relaxed) - bytes) as f64 / seconds;
    let cpu = (server.cpu_seconds() - cpu) / seconds;
    eprintln!(
        "the same while 100 messages a second are published to 50 groups: {:.1}% of a core, {bytes:.0} bytes a second",
        cpu * 100.0
    );
}

#[test]
fn colours_are_kept_and_a_test_message_is_published() {
    let Some(mut browser) = browser() else { return };
    let server = Server::start();
    server.call("PUT", "/subscriptions/orders/billing", &json!({}));
    let mut tab = browser.tab(1_280, 900);
    tab.open(&server.url("/ui/streams/orders"));
    let ground = "getComputedStyle(document.body).backgroundColor";
    tab.theme("light");
    let light = tab.text(ground);
    // From the system's to light, and to dark.
    tab.eval("document.querySelector('[data-theme-toggle]').click()");
    tab.eval("document.querySelector('[data-theme-toggle]').click()");
    assert_ne!(tab.text(ground), light, "dark, against the system");
    tab.open(&server.url("/ui/streams/orders?from=1"));
    assert_ne!(tab.text(ground), light, "still dark on the next page");
    tab.eval("document.querySelector('[data-open=publish]').click()");
    tab.eval("document.querySelector('#publish-messages-0-key').focus()");
    tab.type_text("it's me");
    let command = tab.text("document.querySelector('#publish [data-command]').innerText");
    assert!(command.ends_with(r"--key 'it'\''s me'"), "{command}");
    tab.eval("document.querySelector('#publish [type=submit]').click()");
    let stored = server.until("/streams/orders/messages", |list| {
        list["messages"].as_array().is_some_and(|all| all.len() == 1)
    });
    assert_eq!(stored["messages"][0]["key"], "it's me");
    tab.until("document.querySelector('.listing').innerText.includes(\"it's me\")");
    // The API's own words about a wrong value.
    tab.eval("document.querySelector('[data-open=publish]').click()");
    tab.eval("document.querySelector('#publish-messages-0-delay').focus()");
    tab.type_text("soon");
    tab.eval("document.querySelector('#publish [type=submit]').click()");
    tab.until("document.querySelector('#publish [data-error]').innerText.includes('delay')");
}

#[test]
fn everything_works_below_a_path_of_a_proxy() {
    let Some(mut browser) = browser() else { return };
    let server = Server::start();
    server.call("PUT", "/subscriptions/orders/billing", &json!({}));
    publish(&server, "orders", 3);
    park(&server, "/subscriptions/orders/billing", 1, "no reason");
    let proxy = proxy::below("/tools/forebay", &server.address);
    let url = |path: &str| format!("http://{proxy}/tools/forebay{path}");
    let mut tab = browser.tab(1_280, 900);
    let mut all = pages();
    all.push(("parked-one", "/ui/streams/orders/groups/billing/parked/1".to_owned()));
    all.push(("message", "/ui/streams/orders/messages/1".to_owned()));
    for (name, path) in &all {
        tab.open(&url(path));
        let astray = "[...document.querySelectorAll('a[href], link[href], script[src], form[action]')]\
                      .map(e => e.href || e.src || e.action)\
                      .filter(a => new URL(a).origin === location.origin)\
                      .filter(a => !new URL(a).pathname.startsWith('/tools/forebay/'))";
        assert_eq!(tab.eval(astray), json!([]), "{name}");
        assert_eq!(complaints(&mut tab), Vec::<String>::new(), "{name}");
    }
    // Updates arrive, a call is made, and a link leads on.
    tab.open(&url("/ui/streams/orders/groups/billing"));
    publish(&server, "orders", 5);
    tab.until("document.querySelector('.figures').innerText.includes('7')");
    tab.eval("document.querySelector('[data-open=pause]').click()");
    tab.until("document.querySelector('#pause').open");
    tab.eval("document.querySelector('#pause [type=submit]').click()");
    server.until("/subscriptions/orders/billing", |group| group["status"] == "paused");
    // Keys go to the dialog as long as it is open.
    tab.until("document.querySelector('.heading .buttons').innerText.includes('Resume')");
    tab.until("!document.querySelector('dialog[open]')");
    tab.press("g");
    tab.press("s");
    tab.until("location.pathname === '/tools/forebay/ui/streams'");
    assert_eq!(complaints(&mut tab), Vec::<String>::new());
}

#[test]
fn the_page_of_a_group_shows_its_times_and_what_each_consumer_holds() {
    let Some(mut browser) = browser() else { return };
    let server = Server::start();
    let group = "/subscriptions/orders/billing";
    server.call("PUT", group, &json!({}));
    publish(&server, "orders", 20);
    for _ in 0..6 {
        let taken =
            server.call("POST", &format!("{group}/receive"), &json!({ "max": 2, "consumer": "mill" }));
        let lease = &taken["messages"][0]["lease"];
        server.call("POST", &format!("{group}/ack"), &json!({ "leases": [lease] }));
    }
    let mut tab = browser.tab(1_280, 900);
    tab.open(&server.url("/ui/streams/orders/groups/billing"));
    let row = "[...document.querySelectorAll('tbody tr')].find(r => r.innerText.includes('mill'))";
    // Of each pair the first was acked, and the second is held: 2, 4 and so on.
    tab.until(&format!("/6\\s+2 for/.test({row}.querySelector('.held').closest('td').innerText)"));
    let share = tab.text(&format!("{row}.querySelector('.share').innerText"));
    assert_eq!(share.trim(), "100%");
    tab.eval(&format!("{row}.querySelector('.held a').click()"));
    tab.until("location.pathname.endsWith('/messages/2') && document.readyState === 'complete'");
    assert!(tab.text("document.querySelector('.lives').innerText").contains("mill"));
    tab.open(&server.url("/ui/streams/orders/groups/billing"));
    let report = server.call("GET", group, &Value::Null);
    assert_eq!(report["processing_time"]["count"], 6);
    let shown = tab.text("document.querySelector('.percentiles').innerText");
    assert!(["p50", "p90", "p99"].iter().all(|name| shown.contains(name)), "{shown}");
    // Messages that were settled before the dashboard looked for the first time have no time on the map.
    std::thread::sleep(Duration::from_secs(2));
    let taken = server.call("POST", &format!("{group}/receive"), &json!({ "max": 1, "consumer": "mill" }));
    let lease = &taken["messages"][0]["lease"];
    server.call("POST", &format!("{group}/ack"), &json!({ "leases": [lease] }));
    tab.until("document.querySelectorAll('.heat svg path').length > 0");
    assert_eq!(complaints(&mut tab), Vec::<String>::new());
}

/// Not a test of anything: writes pictures of every page, where a folder for them is named.
#[test]
fn screenshots() {
    let Ok(folder) = std::env::var("FOREBAY_SCREENSHOTS") else { return };
    let Some(mut browser) = browser() else { return };
    let folder = PathBuf::from(folder);
    std::fs::create_dir_all(&folder).expect("a folder");
    let server = Server::start();
    let scene = Scene::play(&server);
    // The charts need something to show.
    let seconds =
        std::env::var("FOREBAY_SCREENSHOTS_AFTER").ok().and_then(|text| text.parse().ok()).unwrap_or(240);
    std::thread::sleep(Duration::from_secs(seconds));
    let parked =
        server.until("/subscriptions/orders/billing/parked", |list| list["parked"][0]["seq"].is_u64());
    let mut all = pages();
    let seq = &parked["parked"][0]["seq"];
    all.push(("parked-message", format!("/ui/streams/orders/groups/billing/parked/{seq}")));
    all.push(("message", format!("/ui/streams/orders/messages/{seq}")));
    // The pictures of the README are of one size, and of pages that are in the others too.
    for (name, path, theme) in [
        ("overview", "/", "light"),
        ("group", "/ui/streams/orders/groups/billing", "dark"),
        ("parked-messages", "/ui/streams/orders/groups/billing/parked", "light"),
    ] {
        let mut tab = browser.tab(1_440, 960);
        tab.theme(theme);
        tab.open(&server.url(path));
        tab.picture(&folder.join(format!("readme-{name}.png")), false);
    }
    let long = "a-very-long-name-".repeat(12);
    let group = format!("/subscriptions/{long}/{long}");
    server.call("PUT", &group, &json!({}));
    publish(&server, &long, 3);
    park(&server, &group, 2, &"a long reason ".repeat(40));
    let long = format!("/ui/streams/{long}/groups/{long}");
    all.push(("long-parked", format!("{long}/parked")));
    all.push(("long", long));
    let unused = Server::start();
    let empty = [
        ("empty-overview", "/"),
        ("empty-streams", "/ui/streams"),
        ("empty-groups", "/ui/groups"),
        ("empty-parked", "/ui/parked"),
        ("empty-delayed", "/ui/delayed"),
        ("empty-clients", "/ui/clients"),
    ];
    let all = all.into_iter().map(|(name, path)| (name, server.url(&path)));
    let all: Vec<_> = all.chain(empty.map(|(name, path)| (name, unused.url(path)))).collect();
    for theme in ["light", "dark"] {
        for (size, width, height) in [("wide", 1_440, 900), ("phone", 390, 844)] {
            let mut tab = browser.tab(width, height);
            tab.theme(theme);
            for (name, url) in &all {
                tab.open(url);
                // Parts below the fold get their height when they are in view.
                for _ in 0..2 {
                    let whole = tab.eval("document.documentElement.scrollHeight").as_u64().unwrap_or(900);
                    tab.resize(width, u32::try_from(whole.min(4_000)).expect("a height"));
                }
                tab.picture(&folder.join(format!("{name}-{size}-{theme}.png")), false);
                tab.resize(width, height);
            }
        }
    }
    drop(scene);
}
