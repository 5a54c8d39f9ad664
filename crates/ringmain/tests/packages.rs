//! What Debian packages say, compared with what else says it.

use std::fs;
use std::path::Path;

fn read(name: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    fs::read_to_string(root.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The settings of a unit, each behind the section that it is in.
fn settings(unit: &str) -> Vec<(String, String)> {
    let mut section = String::new();
    let mut settings = Vec::new();
    for line in unit.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match line.starts_with('[') {
            true => line.clone_into(&mut section),
            false => settings.push((section.clone(), line.to_owned())),
        }
    }
    settings
}

#[test]
fn packages_have_the_version_of_the_programs() {
    let wanted = format!("ringmain ({}) ", env!("CARGO_PKG_VERSION"));
    let newest = read("debian/changelog").lines().next().unwrap().to_owned();
    assert!(newest.starts_with(&wanted), "debian/changelog begins with {newest:?}");
}

#[test]
fn the_service_of_a_xen_host_is_the_unit_for_xen() {
    let (kvm, xen) = (read("systemd/ringmain.service"), read("xen/ringmain.service"));
    let (kvm, xen) = (settings(&kvm), settings(&xen));
    // What a setting of the unit for KVM hosts has to become where the other unit lacks it.
    let undone = [
        ("User=ringmain", "User=root"),
        ("Group=ringmain", "Group=root"),
        ("AmbientCapabilities=CAP_NET_ADMIN", "AmbientCapabilities="),
        ("RemoveIPC=yes", "RemoveIPC=no"),
    ];
    let dropped = settings(&read("debian/10-xen.conf"));
    let has = |line: &str| dropped.iter().any(|(_, setting)| setting == line);
    for (_, line) in xen.iter().filter(|setting| !kvm.contains(setting)) {
        let is_default = line == "KillSignal=SIGTERM" || line.starts_with("Description=");
        assert!(is_default || has(line), "debian/10-xen.conf lacks {line}");
    }
    for (_, line) in kvm.iter().filter(|setting| !xen.contains(setting)) {
        let key = |line: &str| line.split('=').next().unwrap().to_owned();
        let replaced = xen.iter().any(|(_, other)| key(other) == key(line));
        let undone = undone.iter().find(|(from, _)| from == line);
        assert!(replaced || undone.is_some_and(|(_, to)| has(to)), "{line} stays in force");
    }
}
