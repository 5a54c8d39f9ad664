use super::*;
use crate::config::Host;

fn config(text: &str) -> Config {
    Config::parse("f", text, &Host { cpus: vec![0, 1] }).unwrap()
}

fn port(name: &str, more: &str) -> String {
    format!(
        "[[port]]\nname = \"{name}\"\nkind = \"vhost-user\"\nsocket = \"/run/{name}\"\n{more}\n"
    )
}

fn budget(name: &str, more: &str) -> String {
    format!("[[budget]]\nname = \"{name}\"\n{more}\n")
}

/// A daemon that runs the objects of a file, and `added` by commands.
fn running(file: &Config, added: &Config) -> Running {
    Running {
        ports: file.ports.iter().chain(&added.ports).cloned().collect(),
        budgets: file.budgets.iter().chain(&added.budgets).cloned().collect(),
        overlays: file.overlays.clone(),
        disks: file.disks.iter().chain(&added.disks).map(in_service).collect(),
        xen_disks: file.xen_disks.clone(),
        security: file.security.clone(),
        of_file: FileNames::of(file),
        vif_budgets: Vec::new(),
    }
}

fn disk(name: &str, more: &str) -> String {
    let (image, socket) = (format!("/srv/{name}"), format!("/run/{name}.disk"));
    format!(
        "[[disk]]\nname = {name:?}\nkind = \"vhost-user\"\nimage = {image:?}\nsocket = {socket:?}\n{more}\n"
    )
}

fn in_service(spec: &DiskSpec) -> RunningDisk {
    RunningDisk { spec: spec.clone(), in_service: true, has_grown: false }
}

/// The changes between two files, in words.
fn between(old: &str, new: &str) -> Vec<String> {
    beside(old, "", new)
}

/// The same with something that commands have added.
fn beside(old: &str, added: &str, new: &str) -> Vec<String> {
    let line = |change: &Change| {
        let ReloadChange { action, subject, name, keys, .. } = change.report();
        let words = [action.name(), subject.name(), &name].join(" ");
        if keys.is_empty() { words } else { format!("{words}: {}", keys.join(" ")) }
    };
    let running = running(&config(old), &config(added));
    changes(&running, &config(new)).iter().map(line).collect()
}

#[test]
fn the_same_file_changes_nothing() {
    let file = budget("b", "tx-rate = \"1Gbit\"") + &port("a", "budget = \"b\"");
    assert!(between(&file, &file).is_empty());
    let other_order = port("a", "budget = \"b\"") + &budget("b", "tx-rate = \"1000Mbit\" # same");
    assert!(between(&file, &other_order).is_empty());
}

#[test]
fn ports_come_and_go() {
    let [a, b, c] = ["a", "b", "c"].map(|name| port(name, ""));
    assert_eq!(between(&format!("{a}{b}"), &format!("{c}{a}")), ["add port c", "remove port b"]);
}

#[test]
fn settings_are_set_and_other_keys_replace_the_port() {
    let old = port("a", "tx-rate = \"1Gbit\"");
    assert_eq!(
        between(&old, &port("a", "addresses = [\"10.0.0.2\"]")),
        ["set port a: addresses tx_rate"]
    );
    assert_eq!(
        between(&old, &port("a", "vlan = 7\nqueues = 1")),
        ["replace port a: queues tx_rate vlan"]
    );
    let socket = old.replace("/run/a", "/run/x");
    assert_eq!(between(&old, &socket), ["replace port a: socket"]);
}

#[test]
fn budgets_come_change_and_go() {
    let old = budget("b", "tx-rate = \"1Gbit\"") + &budget("c", "rx-frames = 50");
    let new = budget("b", "tx-rate = \"2Gbit\"") + &budget("d", "rx-frames = 50");
    assert_eq!(between(&old, &new), ["set budget b: tx_rate", "add budget d", "remove budget c"]);
}

#[test]
fn what_commands_have_added_stays_unless_the_file_has_it_now() {
    let [a, b] = ["a", "b"].map(|name| port(name, ""));
    assert!(beside(&a, &b, &a).is_empty());
    assert_eq!(beside(&a, &b, ""), ["remove port a"]);
    // The file takes the port over unchanged.
    assert!(beside(&a, &b, &format!("{a}{b}")).is_empty());
    let slower = port("b", "tx-rate = \"1Mbit\"");
    assert_eq!(beside(&a, &b, &format!("{a}{slower}")), ["set port b: tx_rate"]);
}

#[test]
fn what_commands_have_removed_comes_back() {
    let file = config(&port("a", ""));
    let running = Running { of_file: FileNames::of(&file), ..Running::default() };
    assert_eq!(changes(&running, &file), [Change::AddPort(file.ports[0].clone())]);
    assert!(changes(&running, &config("")).is_empty());
}

#[test]
fn a_budget_that_something_shares_which_stays_cannot_go() {
    let old = config(&(budget("b", "tx-rate = \"1Gbit\"") + &port("a", "budget = \"b\"")));
    let mut running = running(&old, &config(""));
    assert!(running.conflicts(&config("")).is_empty(), "its port goes, too");
    let mut added = config(&port("c", "")).ports[0].clone();
    added.settings.budget = Some("b".into());
    running.ports.push(added);
    running.vif_budgets.push(("vif1.0".into(), "b".into()));
    let line = |sharing| {
        format!(
            "budget \"b\" is not there any more, and these share it: {sharing}; set their budget \
             first"
        )
    };
    assert_eq!(running.conflicts(&config("")), [line("c")], "no port serves vifs");
    let vifs = config("[[port]]\nname = \"vifs\"\nkind = \"xen\"\n");
    assert_eq!(running.conflicts(&vifs), [line("c, vif1.0")]);
    assert!(running.conflicts(&old).is_empty());
}

#[test]
fn disks_come_go_and_change_in_what_can_change_in_service() {
    let old = disk("a", "iops = 500") + &disk("b", "") + &disk("c", "");
    let new = disk("b", "bandwidth = \"1MB\"") + &disk("d", "") + &disk("a", "");
    assert_eq!(
        between(&old, &new),
        ["set disk b: bandwidth", "add disk d", "set disk a: iops", "remove disk c"]
    );
    assert!(between(&old, &old).is_empty());
    assert!(beside(&disk("a", ""), &disk("b", ""), &disk("a", "")).is_empty(), "a command's");
    let running = running(&config(&disk("a", "")), &config(&disk("b", "")));
    let empty = config("");
    let kept: Vec<_> = running.kept_disks(&empty).map(|disk| disk.name.as_str()).collect();
    assert_eq!(kept, ["b"]);
}

#[test]
fn a_disk_whose_image_has_grown_is_told() {
    let file = config(&disk("a", ""));
    let mut running = running(&file, &config(""));
    running.disks[0].has_grown = true;
    let [Change::SetDisk(spec, keys)] = &changes(&running, &file)[..] else { panic!() };
    assert_eq!((spec, &keys[..]), (&file.disks[0], &["size".to_owned()][..]));
}

#[test]
fn other_keys_of_a_disk_are_fixed_while_it_is_in_service() {
    let old = config(&(disk("a", "") + &disk("b", "") + &disk("c", "")));
    let text = disk("a", "iops = 5").replace("/srv/a", "/srv/x")
        + &disk("b", "read-only = true\nqueues = 4")
        + &disk("c", "iops = 7");
    let (new, mut running) = (config(&text), running(&old, &config("")));
    let want = [("a", vec!["image"]), ("b", vec!["queues", "read_only"])];
    let strings = |keys: Vec<&str>| keys.into_iter().map(str::to_owned).collect::<Vec<_>>();
    let want = want.map(|(name, keys)| (name.to_owned(), strings(keys)));
    assert_eq!(running.fixed_disks(&new), want);
    assert!(running.fixed_disks(&old).is_empty());
    // The other disks are not in service.
    running.disks.iter_mut().for_each(|disk| disk.in_service = false);
    assert!(running.fixed_disks(&new).is_empty());
    let replaced = changes(&running, &new);
    assert!(replaced.iter().all(|change| matches!(change, Change::ReplaceDisk(..))));
    assert_eq!(replaced.len(), 3);
}

#[test]
fn every_key_outside_ports_and_budgets_is_fixed() {
    let old = config("");
    let cases = [
        ("workers", "count = 1", "workers.count"),
        ("workers", "cpus = [1, 0]", "workers.cpus"),
        ("workers", "interrupt-cpu = 1", "workers.interrupt-cpu"),
        ("workers", "polling = \"eco\"", "workers.polling"),
        ("workers", "balance = false", "workers.balance"),
        ("control", "socket = \"/x\"", "control.socket"),
        ("control", "mode = \"660\"", "control.mode"),
        ("control", "owner = \"4000123\"", "control.owner"),
        ("control", "group = \"4000123\"", "control.group"),
        ("metrics", "listen = \"127.0.0.1:1\"", "metrics.listen"),
        ("sandbox", "enabled = false", "sandbox.enabled"),
        ("sandbox", "user = \"4000123\"", "sandbox.user"),
        ("sandbox", "folders = [\"/srv/x\"]", "sandbox.folders"),
        ("sandbox", "live = [\"tap\"]", "sandbox.live"),
        ("sandbox", "without = [\"user\"]", "sandbox.without"),
    ];
    for (table, line, key) in cases {
        assert_eq!(fixed_keys(&old, &config(&format!("[{table}]\n{line}\n"))), [key]);
    }
    assert!(fixed_keys(&old, &config("[workers]\nbalance = true\n")).is_empty());
    let listener = "[metrics]\nlisten = \"127.0.0.1:1\"\n";
    let with = config(&format!("{listener}dashboard = true\n"));
    assert_eq!(fixed_keys(&config(listener), &with), ["metrics.dashboard"]);
}

#[test]
fn disks_of_xen_guests_change_in_their_limits_only() {
    let vbds = |more: &str| {
        format!("[[disk]]\nname = \"vbds\"\nkind = \"xen\"\nimages = [\"/srv\"]\n{more}\n")
    };
    let (old, new) = (vbds("iops = 500"), vbds("bandwidth = \"1MB\""));
    assert_eq!(between(&old, &new), ["set disk vbds: bandwidth iops"]);
    assert!(between(&old, &old).is_empty());
    let fixed = |old: &str, new: &str| fixed_xen_disks(&config(old), &config(new));
    assert_eq!(fixed(&old, &new), None);
    for other in ["", &vbds("queues = 2"), &new.replace("/srv", "/images")] {
        assert_eq!(fixed(&old, other), Some("vbds".to_owned()));
        assert_eq!(fixed(other, &old), Some("vbds".to_owned()));
    }
    assert_eq!(fixed("", ""), None);
}

#[test]
fn groups_are_compared_with_those_that_run() {
    let groups = |addresses: &str, rules: &str| {
        format!(
            "[[address-group]]\nname = \"admins\"\naddresses = [{addresses:?}]\n\
             [[security-group]]\nname = \"web\"\nrules = [{rules:?}]\n"
        )
    };
    let member = port("a", "security-groups = [\"web\"]");
    let old = groups("10.0.0.1", "in tcp 80") + &member;
    assert!(between(&old, &old).is_empty());
    assert_eq!(
        between(&old, &(groups("10.0.0.2", "in tcp 80") + &member)),
        ["set address_group admins: addresses"]
    );
    assert_eq!(
        between(&old, &(groups("10.0.0.1", "in tcp 81") + &member)),
        ["set security_group web: rules"]
    );
    assert_eq!(
        between(&old, &port("a", "")),
        ["remove address_group admins", "remove security_group web", "set port a: security_groups"]
    );
    // A port that a command has added still needs the group.
    let added =
        config(&(groups("10.0.0.1", "in tcp 80") + &port("b", "security-groups = [\"web\"]")));
    let running = running(&config(&old), &Config { budgets: Vec::new(), ..added });
    let conflicts = running.conflicts(&config(&port("a", "")));
    assert_eq!(conflicts.len(), 1);
    assert!(conflicts[0].contains("\"web\" is not there any more, and port \"b\" is in it"));
}

#[test]
fn peers_of_an_overlay_change_in_service_and_all_else_needs_a_new_one() {
    let net = |more: &str| format!("[[overlay]]\nname = \"net\"\nlocal = \"10.0.0.1\"\n{more}\n");
    let (none, one) = (net("vni = 1"), net("vni = 1\npeers = [\"10.0.0.2\"]"));
    assert_eq!(between("", &one), ["add overlay net"]);
    assert_eq!(between(&one, &one), [""; 0]);
    assert_eq!(between(&one, &none), ["set overlay net: peers"]);
    assert_eq!(
        between(&one, &net("vni = 2\nport = 8472")),
        ["replace overlay net: vni port peers"]
    );
    assert_eq!(between(&one, ""), ["remove overlay net"]);
}
