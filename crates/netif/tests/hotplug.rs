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
    /// Runs the script for a vif with these keys; `settings` is the operator's file.
    fn new(action: &str, keys: &[(&str, &str)], settings: &str) -> Run {
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
        let status = Command::new(script)
            .args([action, "type_if=vif"])
            .env("PATH", path)
            .env("STORE", store.path())
            .env("XENBUS_PATH", PATH)
            .env("RINGMAIN_VIF_SETTINGS", store.path().join("settings"))
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
fn a_plain_vif_is_plugged_in() {
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
    assert_eq!(Run::new("online", &[("bridge", "net:10:20")], "").get("ringmain/trunk").unwrap(), "10:20");
    assert_eq!(Run::new("online", &[("bridge", ".7")], "").get("ringmain/vlan").unwrap(), "7");
}

#[test]
fn the_operators_file_has_the_last_word() {
    let settings = "case $name in web*) vlan=$((domain + 95)) queues=2 lock_mac=1 mtu=9000 rate=1000,50 ;; esac";
    let run = Run::new("online", &[("bridge", "net.10"), ("frontend", "front")], settings);
    let keys = ["vlan", "queues", "lock-mac", "mtu", "rate"].map(|key| run.get(&format!("ringmain/{key}")).unwrap());
    assert_eq!(keys, ["100", "2", "1", "9000", "1000,50"]);
    assert_eq!(fs::read_to_string(run.store.path().join("front/mtu")).unwrap(), "9000");
}

#[test]
fn nonsense_is_refused_in_words() {
    let error = |keys: &[(&str, &str)], settings| Run::new("online", keys, settings).error();
    assert_eq!(error(&[("bridge", "net.ten")], ""), "vlan is \"ten\", which is not a number from 1 to 4094");
    assert_eq!(error(&[("bridge", "net.4095")], ""), "vlan is 4095, possible is 1 to 4094");
    assert_eq!(error(&[("bridge", "net:1:0")], ""), "trunk is 0, possible is 1 to 4094");
    assert_eq!(error(&[("bridge", "net.1")], "trunk=2:3"), "vlan and trunk are both set");
    assert_eq!(error(&[], "rate=fast"), "rate is \"fast\", which is not BYTES,MICROSECONDS");
    assert_eq!(error(&[], "queues=99999999999999"), "queues is \"99999999999999\", which is not a number from 1 to 16");
}

#[test]
fn going_is_simple() {
    let run = Run::new("offline", &[("hotplug-status", "connected")], "");
    assert!(run.ok && run.get("hotplug-status").is_none());
}
