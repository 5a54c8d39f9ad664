//! Daemons that start, that cannot, and that start again.

use super::*;

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
