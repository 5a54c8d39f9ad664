//! The command as a user has it: a daemon, commands that ask it, a generator that goes through it.

mod accounting;
mod configuration;
mod limits;
mod overlay;
mod starting;

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use control::api::{LimitsReport, Request};
use control::client::Client;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value as Json;
use tempfile::TempDir;

const PORTS: &str = r#"
[workers]
count = 2

[[port]]
name = "vm-a"
kind = "vhost-user"
socket = "DIR/vm-a.sock"

[[port]]
name = "vm-b"
kind = "vhost-user"
socket = "DIR/vm-b.sock"
mtu = 1500
"#;

/// A daemon in a folder of its own.
struct Daemon {
    child: Child,
    dir: TempDir,
}

impl Daemon {
    /// Starts one and waits until it answers.
    fn start(config: &str) -> Daemon {
        Daemon::start_in(tempfile::tempdir().unwrap(), config)
    }

    /// The same in a folder with something in it.
    fn start_in(dir: TempDir, config: &str) -> Daemon {
        let file = configure(&dir, config);
        let child =
            ringmain().arg("serve").arg("--config").arg(file).stderr(log(&dir)).spawn().unwrap();
        let mut daemon = Daemon { child, dir };
        while !daemon.run(&["port", "list"]).status.success() {
            assert!(daemon.child.try_wait().unwrap().is_none(), "{}", daemon.log());
            std::thread::yield_now();
        }
        daemon
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap()
    }

    /// Runs a command that asks this daemon.
    fn run(&self, args: &[&str]) -> Output {
        ringmain().arg("--control").arg(self.path("control.sock")).args(args).output().unwrap()
    }

    /// Runs a command that must succeed; what it prints.
    fn ask(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?}: {}", err(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&self, args: &[&str]) -> Json {
        serde_json::from_str(&self.ask(args)).unwrap()
    }

    /// Runs a command that must fail; its error line. The code is 2 where the command line alone is
    /// wrong, and 1 where the daemon refuses.
    fn refuse(&self, code: i32, args: &[&str]) -> String {
        let output = self.run(args);
        assert_eq!(output.status.code(), Some(code), "{args:?}");
        err(&output)
    }

    /// Ends it in an orderly way.
    fn end(&mut self) -> ExitStatus {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        self.child.wait().unwrap()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn ringmain() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringmain"));
    command.env_remove("RINGMAIN_CONTROL").stdin(Stdio::null());
    command
}

fn log(dir: &TempDir) -> fs::File {
    fs::File::create(dir.path().join("log")).unwrap()
}

fn configure(dir: &TempDir, config: &str) -> PathBuf {
    let path = dir.path().display().to_string();
    let control = format!("[control]\nsocket = \"{path}/control.sock\"\n");
    let file = dir.path().join("ringmain.toml");
    fs::write(&file, control + &config.replace("DIR", &path)).unwrap();
    file
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn without_a_daemon_commands_say_what_to_do() {
    let output = ringmain().args(["--control", "/nowhere/control.sock", "stats"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let want = "ringmain: no daemon answers at /nowhere/control.sock: start one with `ringmain serve`, \
                or give its socket with --control\n";
    assert_eq!(err(&output), want);
}

#[test]
fn ports_are_added_and_removed() {
    let mut daemon = Daemon::start(PORTS);
    let socket = daemon.path("new/vm-c.sock");
    let add = [
        "port",
        "add",
        "vm-c",
        "--socket",
        socket.to_str().unwrap(),
        "--vlan",
        "7",
        "--mac",
        "52:54:00:00:00:03",
    ];
    daemon.ask(&add);
    assert!(socket.exists());
    let list = daemon.json(&["port", "list", "--json"]);
    assert_eq!(list["version"], 2);
    let names: Vec<&str> = list["ports"]
        .as_array()
        .unwrap()
        .iter()
        .map(|port| port["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["vm-a", "vm-b", "vm-c"]);

    let port = daemon.json(&["port", "show", "vm-c", "--json"]);
    assert_eq!(
        (&port["state"], &port["vlan"], &port["queue_pairs"]),
        (&"listening".into(), &7.into(), &2.into())
    );
    assert_eq!((&port["version"], &port["kind"]), (&2.into(), &"vhost_user".into()));
    assert_eq!(port["total"]["drops"]["rx_full"], 0, "reasons without frames are there, too");
    assert!(port["mtu"].is_null() && port.as_object().unwrap().contains_key("mtu"));
    assert_eq!(port["options"]["polling"], "balanced", "the policy in force");
    assert!(daemon.ask(&["mac"]).contains("7  52:54:00:00:00:03  vm-c      locked"));

    let refused = daemon.refuse(1, &add);
    let taken = |key: &str, value: &str, noun: &str| {
        let problem = format!("\"{value}\" belongs to port \"vm-c\" already; give another {noun}");
        format!("ringmain: {key}: {problem}\n")
    };
    let expected = [
        taken("mac", "52:54:00:00:00:03", "address"),
        taken("name", "vm-c", "name"),
        taken("socket", socket.to_str().unwrap(), "path"),
    ];
    assert_eq!(refused, expected.concat());
    let flag = daemon.refuse(2, &["port", "add", "x", "--socket", "/x", "--queues", "no"]);
    assert_eq!(flag, "ringmain: --queues: \"no\" is not a number; give 1 to 16\n");
    let name = daemon.refuse(2, &["port", "add", "a/b", "--socket", "/x"]);
    assert!(name.starts_with("ringmain: NAME: \"a/b\" cannot be a name; give "), "{name}");

    daemon.ask(&["port", "remove", "vm-c"]);
    assert!(!socket.exists());
    let gone = daemon.refuse(1, &["port", "show", "vm-c"]);
    assert_eq!(
        gone,
        "ringmain: there is no port \"vm-c\"; `ringmain port list` shows those that are there\n"
    );
    assert!(daemon.end().success());
}

#[test]
fn a_json_log_has_an_object_a_line() {
    let dir = tempfile::tempdir().unwrap();
    let file = configure(&dir, PORTS);
    let mut command = ringmain();
    command.args(["serve", "--log-format", "json", "--config"]).arg(file);
    let child = command.stderr(log(&dir)).spawn().unwrap();
    let mut daemon = Daemon { child, dir };
    daemon.ask(&["wait"]);
    assert!(daemon.end().success());
    let log = daemon.log();
    let lines: Vec<Json> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.iter().any(|line| line["message"] == "added" && line["port"] == "vm-a"), "{log}");
}

#[test]
fn completions_are_printed_for_each_shell() {
    for shell in ["bash", "zsh", "fish"] {
        let output = ringmain().args(["completions", shell]).output().unwrap();
        assert!(output.status.success(), "{}", err(&output));
        let script = String::from_utf8(output.stdout).unwrap();
        assert!(script.contains("interrupt-frames"), "{shell}");
    }
}

#[test]
fn the_environment_does_not_show_in_usage_errors() {
    let mut command = ringmain();
    let output = command.env("RINGMAIN_CONTROL", "/x").args(["port", "remove"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(!err(&output).contains("--control"), "{}", err(&output));
}

/// Rates of a daemon that is stopped and started again, for somebody who watches.
#[test]
fn watching_survives_a_restart_of_the_daemon() {
    let mut daemon = Daemon::start(PORTS);
    let out = daemon.path("out");
    let mut watch = ringmain();
    watch.arg("--control").arg(daemon.path("control.sock")).args(["stats", "--watch"]);
    let mut watch = watch.stdout(fs::File::create(&out).unwrap()).spawn().unwrap();
    let mut shown = |text: &str| {
        while !fs::read_to_string(&out).unwrap().contains(text) {
            assert!(watch.try_wait().unwrap().is_none(), "it ended before it showed {text:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    shown("total");
    assert!(daemon.end().success());
    shown("waiting for it");
    let mut command = ringmain();
    command.arg("serve").arg("--config").arg(daemon.path("ringmain.toml"));
    daemon.child = command.stderr(log(&daemon.dir)).spawn().unwrap();
    shown("the daemon was restarted");
    watch.kill().unwrap();
    watch.wait().unwrap();
}
