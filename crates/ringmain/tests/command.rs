//! The command as a user has it: a daemon, commands that ask it, a generator that goes through it.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use control::api::{LimitsReport, Request};
use control::client::Client;
use lab::load;
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

    /// Runs a command that must fail; its error line.
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
fn a_bad_configuration_is_refused_with_its_line() {
    let dir = tempfile::tempdir().unwrap();
    let file = configure(&dir, "[workers]\ncount = \"many\"\n");
    let output = ringmain().args(["serve", "--config"]).arg(&file).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let want = r#"workers.count: "many" is not a number; give 1 to 64 or "auto""#;
    assert_eq!(err(&output), format!("ringmain: {}:4: {want}\n", file.display()));

    let missing =
        ringmain().args(["serve", "--config", "/nowhere/ringmain.toml"]).output().unwrap();
    assert_eq!(missing.status.code(), Some(2));
    assert!(
        err(&missing).starts_with("ringmain: cannot read /nowhere/ringmain.toml: "),
        "{}",
        err(&missing)
    );
}

#[test]
fn a_configuration_can_be_checked_alone() {
    let dir = tempfile::tempdir().unwrap();
    let file = configure(&dir, PORTS);
    let output = ringmain().args(["serve", "--check", "--config"]).arg(&file).output().unwrap();
    assert!(output.status.success(), "{}", err(&output));
    assert!(!dir.path().join("control.sock").exists());
}

#[test]
fn the_sample_configuration_is_right() {
    let sample = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/ringmain.toml");
    let output = ringmain().args(["serve", "--check", "--config", sample]).output().unwrap();
    assert!(output.status.success(), "{}", err(&output));
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

/// One line gives the reason, and what to do. Other ports are served.
#[test]
fn without_xen_there_are_no_vifs() {
    if std::path::Path::new("/dev/xen/gntdev").exists() {
        return;
    }
    let is_reason = |text: &str| {
        assert!(text.contains("Xen can't be used: /dev/xen/evtchn: No such file"), "{text}");
        assert!(
            text.contains("; this is no domain of a Xen host")
                || text.contains("; try modprobe xen-evtchn"),
            "{text}"
        );
    };
    let xen = "[[port]]\nname = \"vifs\"\nkind = \"xen\"\n";
    let dir = tempfile::tempdir().unwrap();
    let file = configure(&dir, xen);
    let output = ringmain().args(["serve", "--check", "--config"]).arg(&file).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(err(&output).starts_with(&format!("ringmain: {}: port \"vifs\": ", file.display())));
    is_reason(&err(&output));

    let daemon = Daemon::start(&format!("{PORTS}{xen}"));
    let port = daemon.json(&["port", "show", "vifs", "--json"]);
    assert_eq!(port["state"], "stopped");
    is_reason(port["reason"].as_str().unwrap());
    is_reason(&daemon.log());
    daemon.ask(&["port", "remove", "vifs"]);
    let refused = daemon.refuse(1, &["port", "add", "vifs", "--kind", "xen"]);
    assert!(refused.starts_with("ringmain: port \"vifs\": ") && refused.lines().count() == 1);
    is_reason(&refused);
    let flag = daemon.refuse(2, &["port", "add", "vifs", "--kind", "xen", "--mtu", "1500"]);
    assert!(flag.starts_with("ringmain: --mtu: each vif has its own"), "{flag}");
    assert_eq!(daemon.json(&["port", "list", "--json"])["ports"].as_array().unwrap().len(), 2);
}

#[test]
fn the_command_line_says_where_a_daemon_listens() {
    let mut first = Daemon::start("");
    let second = tempfile::tempdir().unwrap();
    let socket = second.path().join("own.sock");
    // The same file: without the option it would be refused.
    let mut other = ringmain();
    other
        .args(["serve", "--config"])
        .arg(first.path("ringmain.toml"))
        .arg("--control")
        .arg(&socket);
    let mut other = other.stderr(log(&second)).spawn().unwrap();
    let answers = || {
        ringmain()
            .arg("--control")
            .arg(&socket)
            .args(["port", "list"])
            .output()
            .unwrap()
            .status
            .success()
    };
    while !answers() {
        assert!(
            other.try_wait().unwrap().is_none(),
            "{}",
            fs::read_to_string(second.path().join("log")).unwrap()
        );
        std::thread::yield_now();
    }
    assert!(first.end().success());
    assert!(answers());
    kill_process(Pid::from_child(&other), Signal::TERM).unwrap();
    assert!(other.wait().unwrap().success());
}

#[test]
fn a_second_daemon_disturbs_nothing() {
    let daemon = Daemon::start(PORTS);
    let output =
        ringmain().args(["serve", "--config"]).arg(daemon.path("ringmain.toml")).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).contains("another daemon is listening"), "{}", err(&output));
    assert_eq!(daemon.json(&["port", "list", "--json"])["ports"].as_array().unwrap().len(), 2);
    assert!(daemon.path("vm-a.sock").exists());
}

#[test]
fn a_daemon_removes_its_sockets_and_starts_again_after_a_crash() {
    let mut daemon = Daemon::start(PORTS);
    assert!(daemon.end().success());
    for socket in ["control.sock", "vm-a.sock", "vm-b.sock"] {
        assert!(!daemon.path(socket).exists(), "{socket} was left behind");
    }

    let start = |daemon: &Daemon| {
        ringmain()
            .arg("serve")
            .arg("--config")
            .arg(daemon.path("ringmain.toml"))
            .stderr(log(&daemon.dir))
            .spawn()
            .unwrap()
    };
    daemon.child = start(&daemon);
    while !daemon.run(&["port", "list"]).status.success() {
        assert!(daemon.child.try_wait().unwrap().is_none(), "{}", daemon.log());
    }
    daemon.child.kill().unwrap();
    daemon.child.wait().unwrap();
    assert!(daemon.path("control.sock").exists(), "a crash leaves its sockets");

    daemon.child = start(&daemon);
    while !daemon.run(&["port", "list"]).status.success() {
        assert!(daemon.child.try_wait().unwrap().is_none(), "{}", daemon.log());
    }
    assert_eq!(daemon.json(&["port", "list", "--json"])["ports"].as_array().unwrap().len(), 2);
}

/// The port is tried again until it is in service.
#[test]
fn a_port_that_cannot_start_is_stopped_and_the_others_are_served() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("vm-b.sock"), "not a socket").unwrap();
    let mut daemon = Daemon::start_in(dir, PORTS);
    let port = |daemon: &Daemon, name| daemon.json(&["port", "show", name, "--json"]);
    assert_eq!(port(&daemon, "vm-a")["state"], "listening");
    let stopped = port(&daemon, "vm-b");
    assert_eq!(stopped["state"], "stopped");
    assert!(stopped["reason"].as_str().unwrap().contains("vm-b.sock"), "{stopped}");
    assert!(daemon.log().contains("port=vm-b reason="), "{}", daemon.log());
    fs::remove_file(daemon.path("vm-b.sock")).unwrap();
    while port(&daemon, "vm-b")["state"] != "listening" {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(daemon.end().success());
}

/// A check finds out without a daemon what the host lacks.
#[test]
fn a_check_looks_at_the_host() {
    let dir = tempfile::tempdir().unwrap();
    let check = |config: &str| {
        let file = configure(&dir, config);
        let output = ringmain().args(["serve", "--check", "--config"]).arg(file).output().unwrap();
        (output.status.code(), err(&output))
    };
    fs::write(dir.path().join("file"), "").unwrap();
    let two = "[[port]]\nname = \"a\"\nkind = \"vhost-user\"\nsocket = \"DIR/file\"\n\
               [[port]]\nname = \"b\"\nkind = \"vhost-user\"\nsocket = \"DIR/file/b.sock\"\n";
    let (code, said) = check(two);
    assert_eq!((code, said.lines().count()), (Some(2), 2), "{said}");
    assert!(said.contains("port \"a\": ") && said.contains("is not a socket"), "{said}");
    assert!(said.contains("port \"b\": ") && said.contains("is not a directory"), "{said}");
    let (code, said) = check("[[port]]\nname = \"a\"\nkind = \"tap\"\ndevice = \"lo\"\n");
    assert_eq!(code, Some(2), "{said}");

    let empty = dir.path().join("empty.toml");
    fs::write(&empty, "# nothing\n\n").unwrap();
    let output = ringmain().args(["serve", "--check", "--config"]).arg(&empty).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(err(&output).contains("the file has no keys"), "{}", err(&output));
    let latin = dir.path().join("latin.toml");
    fs::write(&latin, b"[workers]\n# gr\xfcn\n").unwrap();
    let output = ringmain().args(["serve", "--check", "--config"]).arg(&latin).output().unwrap();
    let want = format!("{}:2: not UTF-8; save the file as UTF-8 text\n", latin.display());
    assert_eq!(err(&output), format!("ringmain: {want}"));
}

#[test]
fn all_mistakes_are_printed_a_line_each() {
    let dir = tempfile::tempdir().unwrap();
    let file = configure(&dir, "[workers]\ncount = 0\nthreads = 1\n");
    let output = ringmain().args(["serve", "--config"]).arg(&file).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let lines: Vec<String> = err(&output).lines().map(str::to_owned).collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines.iter().all(|line| line.starts_with(&format!("ringmain: {}:", file.display()))));
}

#[test]
fn waiting_ends_with_the_answer_or_the_time() {
    let daemon = Daemon::start(PORTS);
    daemon.ask(&["wait"]);
    let wait = ["--control", "/nowhere/control.sock", "wait", "--timeout", "0"];
    let output = ringmain().args(wait).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).starts_with("ringmain: no daemon answers at /nowhere/control.sock"));
}

#[test]
fn the_service_manager_is_told_of_the_start_and_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("notify");
    let manager = std::os::unix::net::UnixDatagram::bind(&socket).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let file = configure(&dir, PORTS);
    let mut command = ringmain();
    command.args(["serve", "--log-format", "journal", "--config"]).arg(file);
    let child = command.env("NOTIFY_SOCKET", &socket).stderr(log(&dir)).spawn().unwrap();
    let mut daemon = Daemon { child, dir };
    let received = || {
        let mut message = [0; 64];
        let length = manager.recv(&mut message).unwrap();
        String::from_utf8_lossy(&message[..length]).into_owned()
    };
    assert_eq!(received(), "READY=1");
    daemon.ask(&["port", "list"]);
    assert!(daemon.end().success());
    assert_eq!(received(), "STOPPING=1");
    assert!(daemon.log().lines().all(|line| line.starts_with("<6>")), "{}", daemon.log());
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

/// Sum of a counter over all ports.
fn sum(stats: &Json, counter: &str) -> u64 {
    let ports = stats["ports"].as_array().unwrap();
    ports.iter().map(|port| port["total"][counter].as_u64().unwrap()).sum()
}

fn drops(counts: &Json) -> u64 {
    counts["drops"].as_object().unwrap().values().map(|frames| frames.as_u64().unwrap()).sum()
}

#[test]
fn every_frame_is_delivered_or_dropped_for_a_reason() {
    let daemon = Daemon::start(PORTS);
    let sockets =
        format!("{},{}", daemon.path("vm-a.sock").display(), daemon.path("vm-b.sock").display());
    let options = "--direction both --queues 2 --duration 0.2 --warm-up 0";
    let words = ["--ports", &sockets].into_iter().chain(options.split(' '));
    let report = load::run(&load::Args::from_words(words).unwrap()).unwrap();
    assert!(report.directions.iter().all(|direction| direction.received > 0), "{report}");

    let stats = daemon.json(&["stats", "--json"]);
    let dropped: u64 =
        stats["ports"].as_array().unwrap().iter().map(|port| drops(&port["total"])).sum();
    assert!(sum(&stats, "tx_frames") > 0);
    assert_eq!(
        sum(&stats, "tx_frames") + sum(&stats, "copies"),
        sum(&stats, "rx_frames") + dropped,
        "{stats:#}"
    );

    // The counters of a port that goes are kept in a sum.
    daemon.ask(&["port", "remove", "vm-a"]);
    let after = daemon.json(&["stats", "--json"]);
    let removed = after["removed"]["tx_frames"].as_u64().unwrap();
    assert_eq!(removed + sum(&after, "tx_frames"), sum(&stats, "tx_frames"));
}

/// Memory of its own in KiB, threads, open descriptors.
fn footprint(daemon: &Daemon) -> (u64, u64, usize) {
    let process = format!("/proc/{}", daemon.child.id());
    let status = fs::read_to_string(format!("{process}/status")).unwrap();
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    (field("RssAnon:"), field("Threads:"), fs::read_dir(format!("{process}/fd")).unwrap().count())
}

#[test]
fn adding_and_removing_ports_leaks_nothing() {
    let daemon = Daemon::start(PORTS);
    let client = Client::new(daemon.path("control.sock"));
    let socket = daemon.path("x.sock");
    let mut port = serde_json::Map::new();
    port.insert("name".to_owned(), "x".into());
    port.insert("kind".to_owned(), "vhost-user".into());
    port.insert("socket".to_owned(), socket.to_str().into());
    port.insert("queues".to_owned(), 4.into());
    let cycles = |n| {
        for _ in 0..n {
            client.ask(&Request::PortAdd { port: port.clone() }).unwrap();
            client.ask(&Request::PortRemove { name: "x".to_owned() }).unwrap();
        }
    };
    // A thread of the last request may just be ending.
    let settled = || {
        let mut last = footprint(&daemon);
        loop {
            std::thread::sleep(Duration::from_millis(20));
            let now = footprint(&daemon);
            if (now.1, now.2) == (last.1, last.2) {
                return now;
            }
            last = now;
        }
    };
    // What the allocator keeps grows to some hundred KiB, and no further.
    cycles(5000);
    let (memory, threads, descriptors) = settled();
    cycles(10_000);
    let (memory_after, threads_after, descriptors_after) = settled();
    assert_eq!(threads_after, threads);
    assert!(
        descriptors_after <= descriptors + 2,
        "{descriptors} descriptors became {descriptors_after}"
    );
    assert!(memory_after <= memory + 512, "{memory} KiB became {memory_after} KiB");
}

/// As it is configured, and as a port is added that says nothing.
#[test]
fn a_port_shows_its_options() {
    let daemon = Daemon::start(
        "[[port]]\nname = \"guests\"\nkind = \"embedded\"\nsocket = \"DIR/guests.sock\"\n\
         interrupt-frames = 64\ninterrupt-microseconds = 100\nalign = true\n",
    );
    let words = |name: &str| -> Vec<Vec<String>> {
        let said = daemon.run(&["port", "show", name]);
        assert!(said.status.success(), "{said:?}");
        let text = String::from_utf8(said.stdout).unwrap();
        text.lines().map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
    };
    let shown = words("guests");
    for (key, value) in [
        ("interrupt-frames", "64"),
        ("interrupt-microseconds", "100"),
        ("align", "true"),
        ("cache", "0"),
        ("copy", "backend"),
        ("grants", "page"),
    ] {
        assert!(shown.iter().any(|line| *line == [key, value]), "{key} {value}: {shown:?}");
    }
    let socket = daemon.path("vm.sock");
    let add = [
        "port",
        "add",
        "vm",
        "--socket",
        socket.to_str().unwrap(),
        "--interrupt-microseconds",
        "50",
    ];
    assert!(daemon.run(&add).status.success());
    let shown = words("vm");
    assert!(shown.iter().any(|line| *line == ["interrupt-microseconds", "50"]), "{shown:?}");
    assert!(!shown.iter().any(|line| line.first().is_some_and(|key| key == "align")), "{shown:?}");
}

#[test]
fn limits_of_a_port_in_service_are_set_and_shown() {
    let daemon = Daemon::start(&format!(
        "[[budget]]\nname = \"web\"\ntx-rate = \"1Gbit\"\n{}",
        PORTS.replace("mtu = 1500", "rx-frames = 50000\nbudget = \"web\"")
    ));
    let limits = |port: &str| daemon.json(&["port", "show", port, "--json"])["limits"].clone();
    assert_eq!(limits("vm-b")["rx"]["frames_per_second"], 50_000);
    assert_eq!(limits("vm-a"), serde_json::to_value(LimitsReport::default()).unwrap());
    daemon.ask(&["port", "set", "vm-a", "tx-rate=1.5Gbit", "tx-burst=64KiB", "budget=web"]);
    let tx = limits("vm-a")["tx"].clone();
    assert_eq!(
        (&tx["bits_per_second"], &tx["burst_bytes"]),
        (&1_500_000_000u64.into(), &65_536.into())
    );
    let shown = daemon.ask(&["port", "show", "vm-a"]);
    assert!(shown.contains("sends        1.5Gbit/s (burst 64KiB)"), "{shown}");
    assert!(shown.contains("budget       web"), "{shown}");
    daemon.ask(&["port", "set", "vm-a", "addresses=10.0.0.2,2001:db8::/64", "tx-rate=none"]);
    let port = daemon.json(&["port", "show", "vm-a", "--json"]);
    assert_eq!(port["addresses"], serde_json::json!(["10.0.0.2", "2001:db8::/64"]));
    assert!(port["limits"]["tx"]["burst_bytes"].is_null(), "the burst goes with the rate");

    daemon.ask(&["budget", "set", "web", "rx-rate=2Gbit"]);
    let budgets = daemon.json(&["budget", "list", "--json"]);
    assert_eq!(budgets["budgets"][0]["ports"], serde_json::json!(["vm-a", "vm-b"]));
    assert_eq!(budgets["budgets"][0]["limits"]["rx"]["bits_per_second"], 2_000_000_000u64);
    assert!(daemon.ask(&["budget", "show", "web"]).contains("receives     2Gbit/s"));
    daemon.ask(&["budget", "add", "db", "tx-frames=1k"]);
    daemon.ask(&["port", "set", "vm-a", "budget=db"]);
    daemon.ask(&["port", "remove", "vm-a"]);
    daemon.ask(&["budget", "remove", "db"]);
}

#[test]
fn limits_that_make_no_sense_are_refused() {
    let daemon = Daemon::start(PORTS);
    let cases: [(i32, &[&str], &str); 8] = [
        (
            2,
            &["port", "set", "vm-a", "tx-rate=100M"],
            "tx-rate: \"100M\" may be bits or bytes; write \"100Mbit\", or \"800Mbit\" for bytes",
        ),
        (
            2,
            &["port", "set", "vm-a", "vlan=5"],
            "vlan: this cannot change in service; remove the port, and add it anew",
        ),
        (
            2,
            &["port", "set", "vm-a", "tx-rate"],
            "\"tx-rate\": give a key and a value, like tx-rate=100Mbit or tx-rate=none",
        ),
        (
            1,
            &["port", "set", "vm-a", "budget=web"],
            "budget: \"web\" is not a budget; there are none",
        ),
        (
            1,
            &["port", "set", "vm-a", "tx-burst=64KiB"],
            "tx_burst: a burst is of a rate; give tx-rate, too",
        ),
        (
            1,
            &["port", "set", "vm-x", "tx-rate=1Mbit"],
            "there is no port \"vm-x\"; `ringmain port list` shows those that are there",
        ),
        (
            1,
            &["budget", "set", "web", "tx-rate=1Mbit"],
            "there is no budget \"web\"; `ringmain budget list` shows those that are there",
        ),
        (
            2,
            &["budget", "add", "web", "tx-frames=50K"],
            "tx-frames: \"50K\" has an unknown unit; write \"50k\"",
        ),
    ];
    for (code, args, want) in cases {
        assert_eq!(daemon.refuse(code, args), format!("ringmain: {want}\n"), "{args:?}");
    }
}
