//! A Chromium that is driven over its debugging pipe.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use serde_json::{Value, json};

use crate::{ChildGuard, LONG};

/// A browser with one page.
pub struct Browser {
    _process: ChildGuard,
    requests: ChildStdin,
    /// Answers and events.
    messages: Receiver<Value>,
    last: u64,
    /// The session of the page.
    session: Option<String>,
    /// Errors and warnings that the page's console has shown.
    complaints: Vec<String>,
}

impl Browser {
    /// Starts the browser, which keeps its state in `folder`.
    pub fn start(folder: &Path) -> Browser {
        // It reads requests from descriptor 3, and writes to descriptor 4.
        let program = "exec chromium \"$@\" 3<&0 4>&1 </dev/null >/dev/null";
        let mut command = Command::new("sh");
        command.args(["-c", program, "sh", "--headless=new", "--no-sandbox", "--disable-gpu"]);
        command.args(["--disable-dev-shm-usage", "--no-first-run", "--remote-debugging-pipe"]);
        command.args(["--disable-background-networking", "--disable-component-update"]);
        command.arg(format!("--user-data-dir={}", folder.display())).arg("about:blank");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process: Child = command.spawn().unwrap();
        let (requests, answers) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        let (sender, messages) = channel();
        std::thread::spawn(move || {
            for message in BufReader::new(answers).split(0) {
                let Ok(message) = message else { return };
                if sender.send(serde_json::from_slice(&message).unwrap()).is_err() {
                    return;
                }
            }
        });
        let mut browser = Browser {
            _process: ChildGuard(process),
            requests,
            messages,
            last: 0,
            session: None,
            complaints: Vec::new(),
        };
        let page = browser.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": page["targetId"], "flatten": true });
        let attached = browser.call("Target.attachToTarget", attach);
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Runtime", "Log", "Page"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    /// Carries out a method of the DevTools protocol.
    pub fn call(&mut self, method: &str, params: Value) -> Value {
        self.last += 1;
        let mut request = json!({ "id": self.last, "method": method, "params": params });
        if let Some(session) = &self.session {
            request["sessionId"] = session.as_str().into();
        }
        self.requests.write_all(format!("{request}\0").as_bytes()).unwrap();
        loop {
            let message = self.messages.recv_timeout(LONG);
            let mut message = message.unwrap_or_else(|error| {
                panic!("{method}: {error}; does chromium run? scripts/deps browser installs it")
            });
            if message["id"] == self.last {
                assert!(message["error"].is_null(), "{method}: {message}");
                return message["result"].take();
            }
            self.note(&message);
        }
    }

    /// Keeps what the page's console shows.
    fn note(&mut self, message: &Value) {
        let params = &message["params"];
        let is_complaint = match message["method"].as_str() {
            Some("Runtime.exceptionThrown") => true,
            Some("Runtime.consoleAPICalled") => params["type"] == "error",
            Some("Log.entryAdded") => params["entry"]["level"] != "verbose",
            _ => false,
        };
        if is_complaint {
            self.complaints.push(params.to_string());
        }
    }

    /// The value of a JavaScript expression on the page.
    pub fn evaluate(&mut self, expression: &str) -> Value {
        let params = json!({ "expression": expression, "returnByValue": true });
        let mut answer = self.call("Runtime.evaluate", params);
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {answer}");
        answer["result"]["value"].take()
    }

    /// Presses a key.
    pub fn press(&mut self, key: &str, code: u32, text: &str) {
        let mut event = json!({ "key": key, "code": key, "windowsVirtualKeyCode": code });
        event["type"] = "keyDown".into();
        event["text"] = text.into();
        self.call("Input.dispatchKeyEvent", event.clone());
        event["type"] = "keyUp".into();
        event["text"] = "".into();
        self.call("Input.dispatchKeyEvent", event);
    }

    /// Shows the page in a window of that width, in a dark or light scheme.
    pub fn look(&mut self, width: u32, scheme: &str) {
        let size =
            json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", size);
        let feature = json!({ "name": "prefers-color-scheme", "value": scheme });
        self.call("Emulation.setEmulatedMedia", json!({ "features": [feature] }));
    }

    /// What the console has shown so far.
    pub fn complaints(&mut self) -> &[String] {
        // What was said before the answer is there then.
        self.evaluate("0");
        &self.complaints
    }
}
