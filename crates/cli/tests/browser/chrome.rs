//! Chromium, driven over its debugging pipe: JSON with a zero byte after each message, on descriptors 3 and 4.

use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

/// How long anything may take. The machine may be busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// A browser without a window, with a profile of its own.
pub(crate) struct Browser {
    process: Child,
    to: ChildStdin,
    from: Receiver<Value>,
    next: u64,
    events: VecDeque<Value>,
    profile: std::path::PathBuf,
    _alone: MutexGuard<'static, ()>,
}

/// One browser at a time: each wants the whole machine.
static ALONE: Mutex<()> = Mutex::new(());
/// A profile has one browser. A second one would hand its work to the first and exit.
static PROFILES: AtomicU32 = AtomicU32::new(0);

impl Browser {
    pub(crate) fn start(program: &str) -> Browser {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let number = PROFILES.fetch_add(1, Ordering::Relaxed);
        let profile = std::env::temp_dir().join(format!("forebay-browser-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&profile).expect("a folder for the profile");
        // A shell can pass on descriptors 3 and 4 without unsafe code.
        let script = "exec \"$0\" \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>/dev/null";
        let mut process = Command::new("sh")
            .args(["-c", script, program, "--headless=new", "--remote-debugging-pipe", "--no-sandbox"])
            .args(["--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars"])
            .args([
                "--disable-background-networking",
                "--disable-component-update",
                "--force-device-scale-factor=1",
            ])
            .arg(format!("--user-data-dir={}", profile.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the browser starts");
        let to = process.stdin.take().expect("a pipe");
        let mut out = BufReader::new(process.stdout.take().expect("a pipe"));
        let (sender, from) = channel();
        std::thread::spawn(move || {
            let mut message = Vec::new();
            while out.read_until(0, &mut message).is_ok_and(|read| read > 0) {
                message.pop();
                let Ok(value) = serde_json::from_slice(&message) else { return };
                if sender.send(value).is_err() {
                    return;
                }
                message.clear();
            }
        });
        Browser { process, to, from, next: 0, events: VecDeque::new(), profile, _alone: alone }
    }

    fn call(&mut self, session: Option<&str>, method: &str, params: &Value) -> Value {
        self.next += 1;
        let id = self.next;
        let mut message = json!({ "id": id, "method": method, "params": params });
        if let Some(session) = session {
            message["sessionId"] = session.into();
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.to.write_all(&bytes).and_then(|()| self.to.flush()).expect("the browser listens");
        let until = Instant::now() + PATIENCE;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let said = match self.from.recv_timeout(left) {
                Ok(said) => said,
                Err(RecvTimeoutError::Timeout) => panic!("the browser did not answer {method}"),
                Err(RecvTimeoutError::Disconnected) => panic!("the browser is gone, at {method}"),
            };
            if said["id"] == id {
                assert!(said.get("error").is_none(), "{method}: {}", said["error"]);
                return said["result"].clone();
            }
            if said.get("method").is_some() {
                self.events.push_back(said);
            }
        }
    }

    /// A new tab of this size, with nothing in it.
    pub(crate) fn tab(&mut self, width: u32, height: u32) -> Tab<'_> {
        let target = self.call(None, "Target.createTarget", &json!({ "url": "about:blank" }));
        let target = target["targetId"].as_str().expect("a target").to_owned();
        let attached =
            self.call(None, "Target.attachToTarget", &json!({ "targetId": target, "flatten": true }));
        let session = attached["sessionId"].as_str().expect("a session").to_owned();
        let mut tab = Tab { browser: self, session, target, complaints: Vec::new() };
        for domain in ["Page.enable", "Runtime.enable", "Log.enable", "Network.enable"] {
            tab.call(domain, &json!({}));
        }
        tab.resize(width, height);
        tab
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.profile);
    }
}

/// One page, and everything that it complained about.
pub(crate) struct Tab<'a> {
    browser: &'a mut Browser,
    session: String,
    target: String,
    complaints: Vec<String>,
}

impl Tab<'_> {
    fn call(&mut self, method: &str, params: &Value) -> Value {
        let session = self.session.clone();
        let result = self.browser.call(Some(&session), method, params);
        self.hear();
        result
    }

    /// Keeps errors of the console, exceptions and failed requests.
    fn hear(&mut self) {
        for event in std::mem::take(&mut self.browser.events) {
            if event["sessionId"] != self.session.as_str() {
                continue;
            }
            let params = &event["params"];
            let complaint = match event["method"].as_str() {
                Some("Runtime.exceptionThrown") => Some(params["exceptionDetails"].to_string()),
                Some("Runtime.consoleAPICalled") if params["type"] == "error" => {
                    Some(params["args"].to_string())
                }
                Some("Log.entryAdded") if params["entry"]["level"] == "error" => {
                    Some(params["entry"].to_string())
                }
                Some("Page.javascriptDialogOpening") => Some(format!("a script ran: {params}")),
                _ => None,
            };
            self.complaints.extend(complaint);
        }
    }

    /// Everything that went wrong since the last time.
    pub(crate) fn complaints(&mut self) -> Vec<String> {
        self.eval("1");
        std::mem::take(&mut self.complaints)
    }

    pub(crate) fn resize(&mut self, width: u32, height: u32) {
        let metrics = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", &metrics);
    }

    pub(crate) fn theme(&mut self, theme: &str) {
        let features = json!([{ "name": "prefers-color-scheme", "value": theme }]);
        self.call("Emulation.setEmulatedMedia", &json!({ "features": features }));
    }

    /// Opens a page and waits until its script has run.
    pub(crate) fn open(&mut self, url: &str) {
        self.call("Page.navigate", &json!({ "url": url }));
        self.until(&format!("location.href === {} && document.readyState === 'complete'", json!(url)));
    }

    /// The value of an expression.
    pub(crate) fn eval(&mut self, expression: &str) -> Value {
        let params = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let result = self.call("Runtime.evaluate", &params);
        // A page that is being replaced has no answer.
        result["result"]["value"].clone()
    }

    pub(crate) fn text(&mut self, expression: &str) -> String {
        let value = self.eval(expression);
        value.as_str().map_or_else(|| value.to_string(), str::to_owned)
    }

    /// Waits until an expression is true.
    #[track_caller]
    pub(crate) fn until(&mut self, condition: &str) {
        let until = Instant::now() + PATIENCE;
        while self.eval(&format!("Boolean({condition})")) != true {
            if Instant::now() > until {
                let page = self.text("document.body.innerText");
                panic!("never came: {condition}\ncomplaints: {:?}\npage:\n{page}", self.complaints);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Presses a key, as a person does.
    pub(crate) fn press(&mut self, key: &str) {
        let (code, text) = match key {
            "Tab" => (9, ""),
            "Enter" => (13, "\r"),
            "Escape" => (27, ""),
            " " => (32, " "),
            other => (u32::from(other.to_uppercase().as_bytes()[0]), other),
        };
        let down = if text.is_empty() { "rawKeyDown" } else { "keyDown" };
        let key = json!({ "type": down, "key": key, "windowsVirtualKeyCode": code, "text": text });
        self.call("Input.dispatchKeyEvent", &key);
        let key = json!({ "type": "keyUp", "key": key["key"], "windowsVirtualKeyCode": code });
        self.call("Input.dispatchKeyEvent", &key);
    }

    /// Types a text into the field that has the focus.
    pub(crate) fn type_text(&mut self, text: &str) {
        self.call("Input.insertText", &json!({ "text": text }));
    }

    /// Writes a picture of the page.
    pub(crate) fn picture(&mut self, file: &Path, whole: bool) {
        let params = json!({ "format": "png", "captureBeyondViewport": whole });
        let picture = self.call("Page.captureScreenshot", &params);
        let bytes = STANDARD.decode(picture["data"].as_str().expect("a picture")).expect("base64");
        std::fs::write(file, bytes).expect("a file");
    }
}

impl Drop for Tab<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let target = json!({ "targetId": self.target });
            self.browser.call(None, "Target.closeTarget", &target);
        }
    }
}
