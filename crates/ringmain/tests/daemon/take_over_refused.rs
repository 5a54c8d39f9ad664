//! A take-over that does not come about: the running daemon goes on, and every frame arrives.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use lab::daemon::Daemon;

fn port(dir: &Path, name: &str, more: &str) -> String {
    let socket = dir.join(name).with_extension("sock");
    let socket = socket.display();
    format!("[[port]]\nname = \"{name}\"\nkind = \"vhost-user\"\nsocket = \"{socket}\"\n{more}\n")
}

fn daemon() -> Daemon {
    let ports = |dir: &Path| ["a", "b"].map(|name| port(dir, name, "queues = 1")).concat();
    let config = |dir: &Path| format!("[workers]\ncount = 2\n{}", ports(dir));
    Daemon::start(Path::new(env!("CARGO_BIN_EXE_ringmain")), config, None).unwrap()
}

/// Does something while frames are exchanged, each of which has to arrive.
fn under_load(daemon: &Daemon, work: impl FnOnce()) {
    let sockets = ["a", "b"].map(|name| daemon.dir().join(name).with_extension("sock"));
    let sockets = sockets.map(|path| path.display().to_string()).join(",");
    let line = format!(
        "--ports {sockets} --warm-up 0.05 --duration 4 --window 16 --verify full --direction both"
    );
    let args = load::Args::from_words(line.split_whitespace()).unwrap();
    std::thread::scope(|scope| {
        let generator = scope.spawn(|| load::run(&args));
        while daemon.stats().unwrap().ports.iter().any(|port| port.total.rx_frames == 0) {
            std::thread::sleep(Duration::from_millis(5));
        }
        work();
        let report = generator.join().unwrap().unwrap();
        assert!(report.is_right() && report.lost() == 0, "{report}\n{}", daemon.log());
    });
    assert!(daemon.stats().is_ok(), "{}", daemon.log());
}

/// A process that takes over, as far as a step.
struct Taker(UnixStream);

impl Taker {
    fn new(daemon: &Daemon, formats: &str) -> (Taker, String) {
        let mut stream = UnixStream::connect(daemon.dir().join("control.sock")).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let request = format!("{{\"version\":2,\"do\":\"take-over\",\"formats\":{formats}}}\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        while answer.last() != Some(&b'\n') {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            answer.push(byte[0]);
        }
        (Taker(stream), String::from_utf8(answer).unwrap())
    }

    fn say(&mut self, word: &str) {
        let json = format!("\"{word}\"");
        let header = [json.len() as u32, 0, 0].map(u32::to_le_bytes);
        self.0.write_all(header.as_flattened()).unwrap();
        self.0.write_all(json.as_bytes()).unwrap();
    }

    /// Reads a message; its descriptors are lost.
    fn hear(&mut self) -> String {
        let mut numbers = [[0; 4]; 3];
        self.0.read_exact(numbers.as_flattened_mut()).unwrap();
        let [json, bytes, files] = numbers.map(|n| u32::from_le_bytes(n) as usize);
        let mut body = vec![0; files.div_ceil(128) + json + bytes];
        self.0.read_exact(&mut body).unwrap();
        let from = files.div_ceil(128);
        String::from_utf8(body[from..from + json].to_vec()).unwrap()
    }

    fn hear_until(&mut self, key: &str) {
        while !self.hear().starts_with(&format!("{{\"{key}\"")) {}
    }
}

#[test]
fn a_taker_that_goes_away_changes_nothing() {
    let daemon = daemon();
    for step in 0..5 {
        under_load(&daemon, || {
            let (mut taker, answer) = Taker::new(&daemon, "[2]");
            assert!(answer.contains("\"take_over\""), "{answer}");
            if step > 0 {
                taker.say("prepare");
            }
            if step > 1 {
                taker.hear_until("stations");
            }
            if step > 2 {
                taker.say("ready");
            }
            if step > 3 {
                taker.hear_until("positions");
            }
            drop(taker);
        });
        // The next one is let in once this one is over.
        while daemon.log().matches("this daemon goes on").count() <= step {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The rings are the giver's again after two seconds; what the taker says later is not heard.
#[test]
fn a_taker_that_hangs_is_cut_off() {
    let daemon = daemon();
    under_load(&daemon, || {
        let (mut taker, _) = Taker::new(&daemon, "[2]");
        taker.say("prepare");
        taker.hear_until("stations");
        taker.say("ready");
        taker.hear_until("positions");
        while !daemon.log().contains("this daemon goes on") {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(taker.0.write_all(b"anything").is_err());
    });
}

#[test]
fn what_breaks_the_protocol_changes_nothing() {
    let daemon = daemon();
    for (at, garbage) in [&b"\xff\xff\xff\xff\0\0\0\0\0\0\0\0"[..], b"\x02\0\0\0\0\0\0\0\0\0\0\0{}"]
        .into_iter()
        .enumerate()
    {
        let (mut taker, _) = Taker::new(&daemon, "[2]");
        taker.0.write_all(garbage).unwrap();
        while daemon.log().matches("this daemon goes on").count() <= at {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    let (mut taker, _) = Taker::new(&daemon, "[2]");
    taker.say("taken");
    while daemon.log().matches("this daemon goes on").count() <= 2 {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(daemon.stats().is_ok());
}

#[test]
fn another_format_is_refused_by_name() {
    let daemon = daemon();
    for formats in ["[]", "[1,3]"] {
        let (_, answer) = Taker::new(&daemon, formats);
        assert!(answer.contains("hands over state of format 2"), "{answer}");
    }
}

/// Tries to take over with another configuration.
fn take_over_with(daemon: &Daemon, text: &str) -> Output {
    let file = daemon.dir().join("other.toml");
    let control = daemon.dir().join("control.sock");
    let text = format!("{text}\n[control]\nsocket = \"{}\"\n", control.display());
    std::fs::write(&file, text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringmain"));
    command.args(["serve", "--take-over", "--config"]).arg(file);
    command.env_remove("RINGMAIN_CONTROL").output().unwrap()
}

#[test]
fn a_configuration_that_does_not_go_on_with_a_port_is_refused_by_name() {
    let daemon = daemon();
    let dir = daemon.dir().to_owned();
    let (a, b) = (port(&dir, "a", "queues = 1"), port(&dir, "b", "queues = 1"));
    under_load(&daemon, || {
        for (text, reason) in [
            (a.clone(), "serves port \"b\", which the configuration does not have"),
            (
                a.clone() + &port(&dir, "b", "queues = 4"),
                "has 1 queues in the running daemon, and 4",
            ),
            (a.clone() + &b.replace("b.sock", "c.sock"), "c.sock (server) in the configuration"),
            (
                a.clone() + &port(&dir, "b", "mode = \"client\"\nqueues = 1"),
                "(client) in the configuration",
            ),
        ] {
            let output = take_over_with(&daemon, &format!("[workers]\ncount = 2\n{text}"));
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!output.status.success() && error.contains(reason), "{reason}: {error}");
            assert!(error.contains("the running daemon goes on"), "{error}");
        }
    });
}

/// What a new process needs for itself is opened before it takes anything.
#[test]
fn a_metrics_socket_that_cannot_be_opened_leaves_the_daemon_as_it_is() {
    let daemon = daemon();
    let dir = daemon.dir().to_owned();
    let ports = ["a", "b"].map(|name| port(&dir, name, "queues = 1")).concat();
    under_load(&daemon, || {
        let file = dir.join("no-socket");
        std::fs::write(&file, "").unwrap();
        let metrics = format!("[metrics]\nlisten = \"{}\"", file.display());
        let output = take_over_with(&daemon, &format!("[workers]\ncount = 2\n{ports}{metrics}"));
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains("metrics.listen"), "{error}");
    });
}

fn image(dir: &Path) -> String {
    let image = dir.join("image.raw");
    std::fs::File::create(&image).unwrap().set_len(1 << 20).unwrap();
    image.display().to_string()
}

#[test]
fn a_disk_that_comes_while_the_new_process_starts_is_refused_by_name() {
    let config = |dir: &Path| port(dir, "a", "[sandbox]\nlive = [\"disk\"]");
    let daemon = Daemon::start(Path::new(env!("CARGO_BIN_EXE_ringmain")), config, None).unwrap();
    let dir = daemon.dir();
    let (mut taker, answer) = Taker::new(&daemon, "[2]");
    assert!(answer.contains("\"take_over\""), "{answer}");
    let mut add = Command::new(env!("CARGO_BIN_EXE_ringmain"));
    add.arg("--control").arg(dir.join("control.sock")).args(["disk", "add", "late"]);
    add.arg("--socket").arg(dir.join("late.sock")).arg("--image").arg(image(dir));
    let added = add.output().unwrap();
    assert!(added.status.success(), "{}", String::from_utf8_lossy(&added.stderr));
    taker.say("prepare");
    let refusal = taker.hear();
    assert!(refusal.contains("late") && refusal.starts_with("{\"refused\""), "{refusal}");
    assert!(daemon.stats().is_ok());
}

#[test]
fn a_disk_is_refused_by_name() {
    let disk = |dir: &Path| {
        let (socket, image) = (dir.join("disk.sock"), image(dir));
        let socket = socket.display();
        format!(
            "[[disk]]\nname = \"root\"\nkind = \"vhost-user\"\nsocket = \"{socket}\"\n\
             image = \"{image}\"\n{}",
            port(dir, "a", "")
        )
    };
    let mut daemon = Daemon::start(Path::new(env!("CARGO_BIN_EXE_ringmain")), disk, None).unwrap();
    let error = daemon.take_over().unwrap_err().to_string();
    assert!(error.contains("disk \"root\" cannot be handed over"), "{error}");
    assert!(daemon.stats().is_ok());
}

#[test]
fn without_a_running_daemon_there_is_nothing_to_take_over() {
    let daemon = daemon();
    let text = "[workers]\ncount = 1\n[control]\nsocket = \"/nonexistent/control.sock\"\n";
    let file = daemon.dir().join("nobody.toml");
    std::fs::write(&file, text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringmain"));
    command.args(["serve", "--take-over", "--config"]).arg(file);
    let output = command.env_remove("RINGMAIN_CONTROL").output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("no daemon answers at"), "{error}");
}
