//! A reload of the configuration: what has changed in the file is applied, and nothing else.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use control::api::{DiskReport, PortReport, ReloadAction, ReloadReport, Reply, Request};
use lab::daemon::Daemon;
use rustix::process::{Pid, Signal, kill_process};

fn port(dir: &Path, name: &str, more: &str) -> String {
    let socket = dir.join(name).with_extension("sock");
    let socket = socket.display();
    format!("[[port]]\nname = \"{name}\"\nkind = \"vhost-user\"\nsocket = \"{socket}\"\n{more}\n")
}

/// Ports a, b and c, of which c has these keys.
fn three(dir: &Path, c: &str) -> String {
    let workers = "[workers]\ncount = 2\n".to_owned();
    workers + &port(dir, "a", "") + &port(dir, "b", "") + &port(dir, "c", c)
}

/// A disk, whose image is made where there is none.
fn disk(dir: &Path, name: &str, more: &str) -> String {
    let [socket, image] = ["sock", "raw"].map(|suffix| dir.join(name).with_extension(suffix));
    if !image.exists() {
        File::create(&image).unwrap().set_len(1 << 20).unwrap();
        // The daemon becomes another user.
        fs::set_permissions(&image, Permissions::from_mode(0o666)).unwrap();
    }
    let (socket, image) = (socket.display(), image.display());
    format!(
        "[[disk]]\nname = \"{name}\"\nkind = \"vhost-user\"\nsocket = \"{socket}\"\n\
         image = \"{image}\"\n{more}\n"
    )
}

fn disks(daemon: &Daemon) -> Vec<DiskReport> {
    daemon.stats().unwrap().disks
}

fn start(config: impl FnOnce(&Path) -> String) -> Daemon {
    Daemon::start(Path::new(env!("CARGO_BIN_EXE_ringmain")), config, None).unwrap()
}

/// Replaces the file as editors do: by another one of the same name.
fn write(daemon: &Daemon, text: &str) {
    let control = daemon.dir().join("control.sock");
    let text = format!("{text}\n[control]\nsocket = \"{}\"\n", control.display());
    std::fs::write(daemon.dir().join("new"), text).unwrap();
    std::fs::rename(daemon.dir().join("new"), daemon.dir().join("ringmain.toml")).unwrap();
}

fn hang_up(daemon: &Daemon) {
    let id = Pid::from_raw(daemon.id().try_into().unwrap()).unwrap();
    kill_process(id, Signal::HUP).unwrap();
}

/// Waits until the log has so many lines with this text.
fn wait_for(daemon: &Daemon, text: &str, lines: usize) {
    while daemon.log().lines().filter(|line| line.contains(text)).count() < lines {
        daemon.stats().expect("the daemon runs");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn ringmain(daemon: &Daemon, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringmain"));
    command.arg("--control").arg(daemon.dir().join("control.sock")).args(args).output().unwrap()
}

/// The output of the command, which succeeds.
fn reload(daemon: &Daemon, args: &[&str]) -> String {
    let output = ringmain(daemon, &[&["reload"], args].concat());
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The standard error of the command, which is refused. The daemon stays as it was.
fn refused(daemon: &Daemon) -> String {
    let before = ports(daemon);
    let output = ringmain(daemon, &["reload"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(ports(daemon), before);
    String::from_utf8(output.stderr).unwrap()
}

fn ports(daemon: &Daemon) -> Vec<PortReport> {
    daemon.stats().unwrap().ports
}

fn names(daemon: &Daemon) -> Vec<String> {
    ports(daemon).into_iter().map(|port| port.name).collect()
}

#[test]
fn the_session_of_a_port_that_has_not_changed_goes_on() {
    let daemon = start(|dir| three(dir, ""));
    let sockets = ["a", "b"].map(|name| daemon.dir().join(name).with_extension("sock"));
    let line = format!(
        "--ports {},{} --warm-up 0 --duration 2 --window 16 --verify full --direction both",
        sockets[0].display(),
        sockets[1].display()
    );
    let args = load::Args::from_words(line.split_whitespace()).unwrap();
    let traffic = std::thread::spawn(move || load::run(&args).unwrap());
    let frames = |daemon: &Daemon| ports(daemon)[0].total.tx_frames;
    while frames(&daemon) == 0 {
        assert!(!traffic.is_finished(), "{}", daemon.log());
    }
    let changed = ["vlan = 7", "vlan = 7\ntx-rate = \"1Mbit\"", "mtu = 1500"];
    for (number, keys) in changed.into_iter().enumerate() {
        let before = frames(&daemon);
        write(&daemon, &three(daemon.dir(), keys));
        hang_up(&daemon);
        wait_for(&daemon, "the configuration is reloaded", number + 1);
        assert!(frames(&daemon) >= before, "counters are kept");
    }
    let report = traffic.join().unwrap();
    assert!(report.is_right(), "{report}");
    assert!(report.directions.iter().all(|it| it.received > 0 && it.lost == 0), "{report}");
    let ports = ports(&daemon);
    for port in &ports[..2] {
        assert_eq!((port.connections, port.violations), (1, 0), "{}", port.name);
    }
    assert!(ports[0].total.tx_frames > 0);
    assert_eq!((ports[2].mtu, ports[2].vlan), (Some(1500), None));
}

#[test]
fn a_dry_run_tells_what_would_change_and_changes_nothing() {
    let daemon = start(|dir| {
        "[[budget]]\nname = \"old\"\ntx-rate = \"1Gbit\"\n".to_owned() + &three(dir, "")
    });
    let dir = daemon.dir();
    let text = "[workers]\ncount = 2\n[[budget]]\nname = \"new\"\nrx-rate = \"1Gbit\"\n".to_owned()
        + &port(dir, "a", "budget = \"new\"\ntx-frames = 50")
        + &port(dir, "b", "vlan = 5")
        + &port(dir, "d", "");
    write(&daemon, &text);
    let before = ports(&daemon);
    let plan = reload(&daemon, &["--dry-run"]);
    let want = "\
add budget new
remove budget old
set port a: budget, tx-frames
replace port b: vlan; it is removed and added anew, so its sessions end
add port d
remove port c
";
    assert_eq!(plan, want);
    assert_eq!(ports(&daemon), before);
    let json = reload(&daemon, &["--dry-run", "--json"]);
    let report: ReloadReport = serde_json::from_str(&json).unwrap();
    assert!(!report.applied && report.changes.len() == 6);
    assert_eq!(report.changes[3].action, ReloadAction::Replace);

    assert_eq!(reload(&daemon, &[]), want);
    assert_eq!(names(&daemon), ["a", "b", "d"]);
    let now = ports(&daemon);
    assert_eq!(now[0].budget.as_deref(), Some("new"));
    assert_eq!(now[0].limits.tx.frames_per_second, Some(50));
    assert_eq!(now[1].vlan, Some(5));
    assert!(!dir.join("c.sock").exists() && dir.join("d.sock").exists());
    assert_eq!(reload(&daemon, &[]), "nothing to change\n");
}

#[test]
fn what_cannot_change_is_refused_with_file_line_and_key() {
    let daemon = start(|dir| three(dir, ""));
    let file = daemon.dir().join("ringmain.toml");
    let text = "[sandbox]\nlive = [\"tap\"]\n".to_owned()
        + &three(daemon.dir(), "vlan = 7").replace("count = 2", "count = 1");
    write(&daemon, &text);
    let cannot = "this cannot change while the daemon runs; restart it, or undo this";
    let place = |line, key| format!("ringmain: {}:{line}: {key}: {cannot}\n", file.display());
    assert_eq!(refused(&daemon), place(4, "workers.count") + &place(2, "sandbox.live"));
    // The sandbox leaves nothing for TAPs, which this daemon did not have at the start.
    let tap = "[[port]]\nname = \"t\"\nkind = \"tap\"\ndevice = \"rm-reload\"\n";
    write(&daemon, &(three(daemon.dir(), "") + tap));
    let forbidden = "port \"t\": the sandbox leaves nothing for it; give sandbox.live = [\"tap\"]";
    assert!(refused(&daemon).contains(forbidden));
    let add = ["port", "add", "t", "--kind", "tap", "--device", "rm-reload"];
    let added = ringmain(&daemon, &add);
    assert!(String::from_utf8_lossy(&added.stderr).contains(forbidden), "{added:?}");
    // What was given, and is not any more, has no line.
    write(&daemon, &three(daemon.dir(), "").replace("count = 2", "polling = \"eco\""));
    assert!(refused(&daemon).contains(&format!(":2: workers.polling: {cannot}\n")));
}

#[test]
fn a_file_with_mistakes_changes_nothing() {
    let daemon = start(|dir| three(dir, ""));
    write(&daemon, &three(daemon.dir(), "vlan = 5000").replace("name = \"a\"", "nam = \"a\""));
    let said = refused(&daemon);
    assert!(said.contains("ringmain.toml:4: port[0].nam: unknown key"), "{said}");
    assert!(said.contains("ringmain.toml:17: port[2].vlan: 5000 is out of range"), "{said}");
    hang_up(&daemon);
    wait_for(&daemon, "the configuration is not reloaded, and nothing has changed", 3);
    assert!(daemon.log().contains("port[2].vlan: 5000 is out of range"), "{}", daemon.log());
    std::fs::remove_file(daemon.dir().join("ringmain.toml")).unwrap();
    assert!(refused(&daemon).contains("No such file"));
}

#[test]
fn ports_of_commands_stay_and_get_along_with_the_file() {
    let daemon = start(|dir| three(dir, ""));
    let socket = daemon.dir().join("x.sock").display().to_string();
    let added = ringmain(&daemon, &["port", "add", "x", "--socket", &socket]);
    assert!(added.status.success(), "{added:?}");
    assert_eq!(reload(&daemon, &[]), "nothing to change\n");
    write(
        &daemon,
        &(three(daemon.dir(), "") + &port(daemon.dir(), "y", "").replace("y.sock", "x.sock")),
    );
    let said = refused(&daemon);
    let taken = "belongs to port \"x\", which a command has added, already; give another path";
    assert!(said.contains("port[3].socket: ") && said.contains(taken), "{said}");
    // A port that a command has removed is back, and one that a command has set is as in the file.
    assert!(ringmain(&daemon, &["port", "remove", "a"]).status.success());
    assert!(ringmain(&daemon, &["port", "set", "b", "tx-rate=1Mbit"]).status.success());
    write(&daemon, &three(daemon.dir(), ""));
    assert_eq!(reload(&daemon, &[]), "add port a\nset port b: tx-rate\n");
    assert_eq!(names(&daemon), ["a", "b", "c", "x"]);
}

#[test]
fn a_port_that_cannot_be_served_does_not_end_the_daemon() {
    let daemon = start(|dir| {
        let nowhere = port(Path::new("/proc/nope"), "nowhere", "");
        let blocked = port(dir, "blocked", "");
        std::fs::create_dir(dir.join("blocked.sock")).unwrap();
        three(dir, "") + &nowhere + &blocked
    });
    let reason = |name: &str| {
        let show = Request::PortShow { name: name.to_owned() };
        let Reply::Port(port) = daemon.client().ask(&show).unwrap() else { panic!() };
        port.reason.unwrap_or_default()
    };
    assert!(reason("nowhere").contains("/proc/nope"), "{}", reason("nowhere"));
    assert!(reason("blocked").contains("exists and is not a socket"), "{}", reason("blocked"));
    std::fs::remove_dir(daemon.dir().join("blocked.sock")).unwrap();
    wait_for(&daemon, "in service now", 1);
    // A reload adds such a port likewise.
    let other = port(Path::new("/proc/nope"), "other", "");
    write(&daemon, &(three(daemon.dir(), "") + &other));
    let said = reload(&daemon, &[]);
    let [gone, added] = ["remove port blocked", "add port other; not in service yet: "];
    assert!(said.contains(gone) && said.contains(added), "{said}");

    let check = Command::new(env!("CARGO_BIN_EXE_ringmain"))
        .args(["serve", "--check", "--config"])
        .arg(daemon.dir().join("ringmain.toml"))
        .output()
        .unwrap();
    assert_eq!(check.status.code(), Some(2));
    let said = String::from_utf8(check.stderr).unwrap();
    assert!(said.contains("port \"other\": cannot create /proc/nope/other.sock"), "{said}");
}

#[test]
fn disks_come_go_and_change_in_service() {
    let workers = "[workers]\ncount = 2\n".to_owned();
    let daemon = start(|dir| workers.clone() + &disk(dir, "a", "iops = 500") + &disk(dir, "b", ""));
    let dir = daemon.dir();
    let bandwidth = "bandwidth = \"1MB\"";
    write(&daemon, &(workers.clone() + &disk(dir, "a", bandwidth) + &disk(dir, "c", "")));
    File::options().write(true).open(dir.join("a.raw")).unwrap().set_len(2 << 20).unwrap();
    let before = disks(&daemon);
    assert_eq!(before[0].limits.requests_per_second, Some(500));
    let want = "set disk a: bandwidth, iops, size\nadd disk c\nremove disk b\n";
    assert_eq!(reload(&daemon, &["--dry-run"]), want);
    assert_eq!(disks(&daemon), before);
    assert_eq!(reload(&daemon, &[]), want);
    let after = disks(&daemon);
    let names: Vec<_> = after.iter().map(|disk| (&disk.name[..], disk.bytes)).collect();
    assert_eq!(names, [("a", Some(2 << 20)), ("c", Some(1 << 20))]);
    let limits = after[0].limits;
    assert_eq!((limits.requests_per_second, limits.bytes_per_second), (None, Some(1_000_000)));
    assert!(dir.join("c.sock").exists() && !dir.join("b.sock").exists());
    assert_eq!(reload(&daemon, &[]), "nothing to change\n");

    // What the socket or the image is cannot change under a guest, and then nothing does.
    let other = disk(dir, "a", bandwidth).replace("a.raw", "b.raw");
    write(&daemon, &(workers.clone() + &other));
    let said = refused(&daemon);
    assert!(said.contains(":3: disk \"a\": image: this cannot change while"), "{said}");
    assert_eq!(disks(&daemon), after);
    // An image that nobody has locked, on a socket that is free.
    assert!(ringmain(&daemon, &["disk", "remove", "a"]).status.success());
    assert_eq!(reload(&daemon, &[]), "add disk a\nremove disk c\n");
    assert_eq!(disks(&daemon)[0].image, dir.join("b.raw").display().to_string());

    // Those of commands stay, and get along with the file.
    let [socket, image] = ["x.sock", "c.raw"].map(|name| dir.join(name).display().to_string());
    let add = ["disk", "add", "x", "--socket", &socket, "--image", &image];
    let added = ringmain(&daemon, &add);
    assert!(added.status.success(), "{added:?}");
    assert_eq!(reload(&daemon, &[]), "nothing to change\n");
    let y = disk(dir, "y", "").replace("y.sock", "x.sock");
    write(&daemon, &(workers + &other + &y));
    let taken = "belongs to disk \"x\", which a command has added, already; give another path";
    assert!(refused(&daemon).contains(taken));
}

#[test]
fn a_disk_cannot_be_added_where_the_sandbox_leaves_nothing_for_it() {
    let daemon = start(|dir| three(dir, ""));
    write(&daemon, &(three(daemon.dir(), "") + &disk(daemon.dir(), "d", "")));
    let said = refused(&daemon);
    assert!(said.contains("give sandbox.live = [\"disk\"], and restart it"), "{said}");
}

/// Where there is no Xen, the entry itself is shown.
#[test]
fn limits_of_disks_of_xen_guests_change_in_service() {
    if Path::new("/dev/xen/gntdev").exists() {
        return;
    }
    let vbds = |dir: &Path, more: &str| {
        let image = dir.display();
        format!("[[disk]]\nname = \"vbds\"\nkind = \"xen\"\nimages = [\"{image}\"]\n{more}\n")
    };
    let daemon = start(|dir| vbds(dir, "iops = 500"));
    let limits = || {
        let limits = disks(&daemon)[0].limits;
        (limits.requests_per_second, limits.bytes_per_second)
    };
    assert_eq!((limits(), disks(&daemon).len()), ((Some(500), None), 1));
    let set = ringmain(&daemon, &["disk", "set", "vbds", "iops=2k", "bandwidth=1MB"]);
    assert!(set.status.success(), "{set:?}");
    assert_eq!(limits(), (Some(2000), Some(1_000_000)));
    let memory = ringmain(&daemon, &["disk", "set", "vbds", "memory=1GiB"]);
    let said = String::from_utf8(memory.stderr).unwrap();
    assert!(said.contains("memory: only a disk of kind \"vhost-user\" has one"), "{said}");
    let unknown = ringmain(&daemon, &["disk", "set", "vbd5.51712", "iops=1"]);
    let said = String::from_utf8(unknown.stderr).unwrap();
    assert!(said.contains("there is no disk \"vbd5.51712\""), "{said}");
    // The file's state is restored.
    assert_eq!(reload(&daemon, &["--dry-run"]), "set disk vbds: bandwidth, iops\n");
    assert_eq!(reload(&daemon, &[]), "set disk vbds: bandwidth, iops\n");
    assert_eq!(limits(), (Some(500), None));
    write(&daemon, &vbds(daemon.dir(), "iops = 500\nqueues = 1"));
    let said = refused(&daemon);
    assert!(said.contains("a reload can change limits of disks of Xen guests only"), "{said}");
}
