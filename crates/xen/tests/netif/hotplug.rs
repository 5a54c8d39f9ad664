//! The hotplug script, with a store made of files.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

const PATH: &str = "backend/vif/5/0";

const TOOLS: [(&str, &str); 3] = [
    ("xenstore-read", r#"cat "$STORE/$1""#),
    (
        "xenstore-write",
        r#"while [ $# -gt 1 ]; do mkdir -p "$STORE/${1%/*}" && printf %s "$2" > "$STORE/$1"; shift 2; done"#,
    ),
    ("xenstore-rm", r#"rm -rf "$STORE/$1""#),
];

struct Run {
    store: tempfile::TempDir,
    ok: bool,
}

impl Run {
    /// Runs the script for a vif with these keys, in each of the shells that `sh` may be;
    /// `settings` is the operator's file.
    fn new(action: &str, keys: &[(&str, &str)], settings: &str) -> Run {
        let runs = ["dash", "bash"].map(|shell| Run::under(shell, action, keys, settings));
        let [dash, bash] = runs
            .each_ref()
            .map(|run| (run.ok, run.get("hotplug-status"), run.get("hotplug-error")));
        assert_eq!(dash, bash);
        let [run, _] = runs;
        run
    }

    fn under(shell: &str, action: &str, keys: &[(&str, &str)], settings: &str) -> Run {
        let store = tempfile::tempdir().unwrap();
        let bin = store.path().join("bin");
        fs::create_dir(&bin).unwrap();
        for (name, body) in TOOLS {
            let tool = bin.join(name);
            fs::write(&tool, format!("#!/bin/sh\n{body}\n")).unwrap();
            fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let put = |path: &str, value: &str| {
            let node = store.path().join(path);
            fs::create_dir_all(node.parent().unwrap()).unwrap();
            fs::write(node, value).unwrap();
        };
        put(&format!("{PATH}/frontend-id"), "5");
        put(&format!("{PATH}/handle"), "0");
        put("local/domain/5/name", "web1");
        keys.iter().for_each(|(key, value)| put(&format!("{PATH}/{key}"), value));
        put("settings", settings);
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../xen/vif-ringmain");
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
        let status = Command::new(shell)
            .args(shell.contains("bash").then_some("--posix"))
            .arg(script)
            .args([action, "type_if=vif"])
            .env("PATH", path)
            .env("STORE", store.path())
            .env("XENBUS_PATH", PATH)
            .env("RINGMAIN_VIF_SETTINGS", "../settings")
            .current_dir(&bin)
            .stderr(std::process::Stdio::null())
            .status()
            .unwrap();
        Run { store, ok: status.success() }
    }

    fn get(&self, key: &str) -> Option<String> {
        fs::read_to_string(self.store.path().join(PATH).join(key)).ok()
    }

    fn error(&self) -> String {
        assert!(!self.ok);
        assert_eq!(self.get("hotplug-status").unwrap(), "error");
        self.get("hotplug-error").unwrap()
    }
}

#[test]
fn a_vif_without_settings_is_connected() {
    for bridge in ["", "xenbr0"] {
        let run = Run::new("online", &[("bridge", bridge)], "");
        assert!(run.ok);
        assert_eq!(run.get("hotplug-status").unwrap(), "connected");
        assert!(run.get("ringmain/vlan").is_none() && run.get("ringmain/trunk").is_none());
    }
}

#[test]
fn vlans_are_in_the_bridges_name() {
    assert_eq!(Run::new("online", &[("bridge", "net.10")], "").get("ringmain/vlan").unwrap(), "10");
    assert_eq!(
        Run::new("online", &[("bridge", "net:10:20")], "").get("ringmain/trunk").unwrap(),
        "10:20"
    );
    assert_eq!(Run::new("online", &[("bridge", ".7")], "").get("ringmain/vlan").unwrap(), "7");
}

#[test]
fn the_operators_file_overrides_keys() {
    let settings = "case $name in web*) vlan=$((domain + 95)) queues=2 lock_mac=1 mtu=9000 rate=1000,50 ;; esac";
    let run = Run::new("online", &[("bridge", "net.10"), ("frontend", "front")], settings);
    let keys = ["vlan", "queues", "lock-mac", "mtu", "rate"]
        .map(|key| run.get(&format!("ringmain/{key}")).unwrap());
    assert_eq!(keys, ["100", "2", "1", "9000", "1000,50"]);
    assert_eq!(fs::read_to_string(run.store.path().join("front/mtu")).unwrap(), "9000");
}

#[test]
fn invalid_keys_are_refused_with_a_message() {
    fn error(keys: &[(&str, &str)], settings: &str) -> String {
        Run::new("online", keys, settings).error()
    }
    assert_eq!(
        error(&[("bridge", "net.ten")], ""),
        "vlan is \"ten\", which is not a number from 1 to 4094"
    );
    assert_eq!(error(&[("bridge", "net.4095")], ""), "vlan is 4095, possible is 1 to 4094");
    assert_eq!(error(&[("bridge", "net:1:0")], ""), "trunk is 0, possible is 1 to 4094");
    assert_eq!(error(&[("bridge", "net.1")], "trunk=2:3"), "vlan and trunk are both set");
    let not_a_rate = |rate: &str| format!("rate is \"{rate}\", which is not BYTES,MICROSECONDS");
    for rate in
        ["fast", "1", "1,", ",1", "1,2,3", "x1,2y", "1,2;reboot", "-1,2", "1, 2", "12345678901,1"]
    {
        assert_eq!(error(&[], &format!("rate='{rate}'")), not_a_rate(rate));
    }
    for trunk in ["1:", ":1", "1::2", "1 2", "*", "1:x", "-1"] {
        let expected = format!("trunk is \"{trunk}\", which is not a list like 10:20");
        assert_eq!(error(&[], &format!("trunk='{trunk}'")), expected);
    }
    assert_eq!(
        error(&[], "lock_mac=yes"),
        "lock_mac is \"yes\", which is not a number from 0 to 1"
    );
    assert_eq!(error(&[], "mtu=67"), "mtu is 67, possible is 68 to 65535");
    let toolstack = [("mtu", "70000")];
    assert_eq!(error(&toolstack, ""), "mtu is 70000, possible is 68 to 65535");
    assert!(Run::new("online", &toolstack, "mtu=9000").ok);
    assert_eq!(
        error(&[], "queues=99999999999999"),
        "queues is \"99999999999999\", which is not a number from 1 to 16"
    );
}

#[test]
fn addresses_and_budgets_come_from_the_toolstack_or_the_operators_file() {
    let ip = ("ip", "10.0.0.5 2001:db8::/64");
    assert_eq!(Run::new("online", &[ip], "").get("ringmain/addresses").unwrap(), ip.1);
    let own = "addresses='10.0.0.6 ::/0'";
    assert_eq!(Run::new("online", &[ip], own).get("ringmain/addresses").unwrap(), "10.0.0.6 ::/0");
    assert_eq!(Run::new("online", &[ip], "addresses=").get("ringmain/addresses"), None);
    assert_eq!(Run::new("online", &[], "").get("ringmain/addresses"), None);
    let error = |list: &str| Run::new("online", &[("ip", list)], "").error();
    for wrong in
        ["host", "10.0.0", "10.0.0.0/8/9", "10.0.0.5,10.0.0.6", "/8", "*", "1.2.3.4;reboot"]
    {
        let expected = format!("addresses has \"{wrong}\", which is not an IP address or prefix");
        assert_eq!(error(&format!("10.0.0.1 {wrong}")), expected);
    }
    assert_eq!(
        Run::new("online", &[], "budget='a b'").error(),
        "budget is \"a b\", which is not a name"
    );
    assert_eq!(Run::new("online", &[], "budget=web").get("ringmain/budget").unwrap(), "web");
    assert_eq!(error(&"10.0.0.1 ".repeat(65)), "addresses has more than 64 entries");
    assert!(Run::new("online", &[("ip", &"10.0.0.1 ".repeat(64))], "").ok);
}

/// Every mistake in the operator's file is reported to the toolstack at once.
#[test]
fn mistakes_in_the_operators_file_are_reported() {
    for mistake in [
        "vlan=$nobody_set_this",
        "if [ 1",
        "case $name in",
        "exit 0",
        "exit 3",
        "vlan=10; . /no/such/file",
        "vlan=$((1/0))",
    ] {
        let error = Run::new("online", &[], mistake).error();
        assert!(
            error.starts_with("there is a mistake in ") && error.ends_with("settings"),
            "{mistake}: {error}"
        );
    }
    // What fails in it is its own business.
    assert!(Run::new("online", &[], "false").ok);
}

#[test]
fn old_keys_are_ignored() {
    let run = Run::new("online", &[("ringmain/vlan", "7"), ("ringmain/lock-mac", "1")], "queues=2");
    assert!(run.ok);
    let keys = ["vlan", "lock-mac", "queues"].map(|key| run.get(&format!("ringmain/{key}")));
    assert_eq!(keys, [None, None, Some("2".into())]);
}

#[test]
fn going_is_simple() {
    let run = Run::new("offline", &[("hotplug-status", "connected")], "");
    assert!(run.ok && run.get("hotplug-status").is_none());
}
