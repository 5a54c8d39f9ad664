use std::path::Path;
use std::time::Duration;

mod settings;

use super::workers::ranges;
use super::*;
use frame::Mac;
use network::coalescing::CoalescingLimits;
use network::poll::PollingPolicy;
use serde_json::{Value as Json, json};
use switch::Vlan;
use xen::netif::options::PortOptions;

fn host() -> Host {
    Host { cpus: vec![0, 1, 2, 3, 8] }
}

fn parse(text: &str) -> Result<Config, String> {
    Config::parse("ringmain.toml", text, &host()).map_err(|error| error.to_string())
}

/// The port that a request with all of this port's keys describes.
fn read_back(port: &PortSpec) -> Result<PortSpec, ConfigErrors> {
    PortSpec::from_request(&port.to_request(), std::iter::empty(), &[], Path::new("/c"))
}

const WHOLE: &str = r#"
[workers]
count = 2
cpus = [0, 8]
polling = "latency"
balance = false

[control]
socket = "/tmp/control.sock"

[[port]]
name = "vm-a"
kind = "vhost-user"
socket = "/tmp/vm-a.sock"
mode = "client"
polling = "eco"
interrupt-frames = 64
interrupt-microseconds = 100
queues = 4
mac = "52:54:00:00:00:01"
vlan = 10
mtu = 1500
memory = "512MiB"

[[port]]
name = "uplink"
kind = "tap"
device = "rm0"
trunk = [20, 10]
"#;

#[test]
fn a_whole_file() {
    let config = parse(WHOLE).unwrap();
    let vm = PortSpec {
        name: "vm-a".into(),
        kind: PortKind::VhostUser { socket: "/tmp/vm-a.sock".into(), mode: Mode::Client },
        permissions: Permissions::default(),
        queues: Some(4),
        mac: Some(Mac([0x52, 0x54, 0, 0, 0, 1])),
        vlan: Vlan::Access(10),
        mtu: Some(1500),
        options: PortOptions {
            coalescing: CoalescingLimits::new(Some(64), Duration::from_micros(100)),
            policy: Some(PollingPolicy::Eco),
            ..PortOptions::default()
        },
        settings: PortSettings { memory: MemorySize(512 << 20), ..PortSettings::default() },
    };
    let uplink = PortSpec {
        name: "uplink".into(),
        kind: PortKind::Tap { device: "rm0".into() },
        permissions: Permissions::default(),
        queues: None,
        mac: None,
        vlan: Vlan::Trunk(vec![10, 20]),
        mtu: None,
        options: PortOptions::default(),
        settings: PortSettings::default(),
    };
    let socket = PathBuf::from("/tmp/control.sock");
    let (policy, balance) = (PollingPolicy::Latency, false);
    assert_eq!(
        config,
        Config {
            workers: 2,
            cpus: vec![0, 8],
            policy,
            balance,
            socket,
            permissions: Permissions::default(),
            disks: Vec::new(),
            xen_disks: None,
            metrics: None,
            sandbox: SandboxSettings::default(),
            budgets: vec![],
            ports: vec![vm, uplink],
        }
    );
}

#[test]
fn an_empty_file_is_all_defaults() {
    let (policy, balance) = (PollingPolicy::Balanced, true);
    let want = Config {
        workers: 5,
        cpus: vec![],
        policy,
        balance,
        socket: DEFAULT_SOCKET.into(),
        permissions: Permissions::default(),
        disks: Vec::new(),
        xen_disks: None,
        metrics: None,
        sandbox: SandboxSettings::default(),
        budgets: vec![],
        ports: vec![],
    };
    assert_eq!(parse(""), Ok(want.clone()));
    assert_eq!(parse("[workers]\ncount = \"auto\"\n"), Ok(want));
}

#[test]
fn automatic_workers_follow_the_cpus() {
    let many = Host { cpus: (0..40).collect() };
    assert_eq!(Config::parse("f", "", &many).unwrap().workers, 16);
    let pinned = Config::parse("f", "[workers]\ncpus = [7, 5, 6]", &many).unwrap();
    assert_eq!((pinned.workers, pinned.cpus), (3, vec![7, 5, 6]));
}

#[test]
fn queues_default_to_workers() {
    let config = parse(WHOLE).unwrap();
    let [vm, uplink] = config.ports.as_slice() else { panic!() };
    assert_eq!((vm.queue_pairs(2), uplink.queue_pairs(2), uplink.queue_pairs(40)), (4, 2, 16));
}

/// Checks that a text is refused with this error.
fn refused(text: &str, want: &str) {
    assert_eq!(parse(text).unwrap_err(), want, "for {text:?}");
}

#[test]
fn impossible_workers_are_refused() {
    let cases = [
        ("workers = 3", r#"1: workers: 3 is not a table; write [workers]"#),
        (
            "[workers]\ncount = \"two\"",
            r#"2: workers.count: "two" is not a number; give 1 to 64 or "auto""#,
        ),
        (
            "[workers]\n\ncount = 0",
            r#"3: workers.count: 0 is out of range; give 1 to 64 or "auto""#,
        ),
        (
            "[workers]\ncount = 65",
            r#"2: workers.count: 65 is out of range; give 1 to 64 or "auto""#,
        ),
        (
            "[workers]\ncount = 2.0",
            r#"2: workers.count: 2.0 is not a number; give 1 to 64 or "auto""#,
        ),
        (
            "[workers]\ncpus = 1",
            "2: workers.cpus: 1 is not a list; give one CPU for each worker, out of 0-3, 8",
        ),
        (
            "[workers]\ncpus = []",
            "2: workers.cpus: the list is empty; give one CPU for each worker, out of 0-3, 8",
        ),
        (
            "[workers]\ncpus = [\n 0,\n 4,\n]",
            "4: workers.cpus: CPU 4 is not available to this process; give one CPU for each worker, out of 0-3, 8",
        ),
        (
            "[workers]\ncpus = [0, 1, 0]",
            "2: workers.cpus: CPU 0 is listed twice; give one CPU for each worker, out of 0-3, 8",
        ),
        (
            "[workers]\ncount = 3\ncpus = [0, 1]",
            "3: workers.cpus: 2 CPUs for 3 workers; give one CPU for each worker, out of 0-3, 8",
        ),
        (
            "[workers]\ncpus = [0, -1]",
            "2: workers.cpus: -1 is out of range; give one CPU for each worker, out of 0-3, 8",
        ),
        ("[workers]\nbalance = 1", "2: workers.balance: 1 is not a boolean; give true or false"),
        (
            "[workers]\ncount = 3\ncpus = [0]",
            "3: workers.cpus: 1 CPU for 3 workers; give one CPU for each worker, out of 0-3, 8",
        ),
        ("[workers]\ncuont = 3", r#"2: workers.cuont: unknown key; did you mean "count"?"#),
        (
            "[workers]\nthreads = 3",
            "2: workers.threads: unknown key; known here: count, cpus, polling, balance",
        ),
    ];
    for (text, want) in cases {
        refused(text, &format!("ringmain.toml:{want}"));
    }
}

#[test]
fn impossible_files_are_refused() {
    let long = format!("[control]\nsocket = \"/{}\"", "x".repeat(107));
    let cases = [
        ("[worker]\ncount = 1", r#"1: worker: unknown key; did you mean "workers"?"#),
        (
            "speed = 1",
            "1: speed: unknown key; known here: workers, control, metrics, sandbox, budget, port, disk",
        ),
        ("[port]\nname = \"a\"", r#"1: port: [port] is not a list of tables; write [[port]]"#),
        ("port = [1]", "1: port: 1 is not a list of tables; write [[port]]"),
        (
            "[control]\nsocket = 5",
            r#"2: control.socket: 5 is not a string; give the path of a socket, like "/run/ringmain/control.sock""#,
        ),
        (
            "[control]\nsocket = \"\"",
            r#"2: control.socket: "" is not the path of a socket; give one of 1 to 107 bytes"#,
        ),
        (&long, "2: control.socket: the path is 108 bytes long; give one of at most 107"),
    ];
    for (text, want) in cases {
        refused(text, &format!("ringmain.toml:{want}"));
    }
}

#[test]
fn a_syntax_error_has_a_line_too() {
    let error = parse("[workers]\ncount = \n").unwrap_err();
    assert!(error.starts_with("ringmain.toml:2: ") && !error.contains('\n'), "{error}");
    let twice = parse("[workers]\ncount = 1\ncount = 2\n").unwrap_err();
    assert!(twice.starts_with("ringmain.toml:3: "), "{twice}");
}

/// A port without what is given in `extra`.
fn guest(extra: &str) -> String {
    format!("[[port]]\nname = \"a\"\nkind = \"vhost-user\"\nsocket = \"/a\"\n{extra}")
}

#[test]
fn impossible_ports_are_refused() {
    let cases = [
        ("queues = \"four\"", r#"queues: "four" is not a number; give 1 to 16"#),
        ("queues = 0", "queues: 0 is out of range; give 1 to 16"),
        ("queues = 17", "queues: 17 is out of range; give 1 to 16"),
        (
            "queues = 99999999999999999999",
            "queues: 99999999999999999999 is out of range; give 1 to 16",
        ),
        ("queues = true", "queues: true is not a number; give 1 to 16"),
        ("mtu = 67", "mtu: 67 is out of range; give 68 to 65535"),
        ("mtu = 65536", "mtu: 65536 is out of range; give 68 to 65535"),
        ("vlan = 0", "vlan: 0 is out of range; give 1 to 4094"),
        ("vlan = 4095", "vlan: 4095 is out of range; give 1 to 4094"),
        (
            "trunk = 10",
            "trunk: 10 is not a list; give a list of VLANs from 1 to 4094, like [10, 20]",
        ),
        (
            "trunk = []",
            "trunk: the list is empty; give a list of VLANs from 1 to 4094, like [10, 20]",
        ),
        (
            "trunk = [10, 4095]",
            "trunk: 4095 is out of range; give a list of VLANs from 1 to 4094, like [10, 20]",
        ),
        (
            "trunk = [\"x\"]",
            r#"trunk: "x" is not a number; give a list of VLANs from 1 to 4094, like [10, 20]"#,
        ),
        (
            "trunk = [20, 10, 20]",
            "trunk: VLAN 20 is listed twice; give a list of VLANs from 1 to 4094, like [10, 20]",
        ),
        (
            "trunk = [1]\nvlan = 2",
            "trunk: a port has either one VLAN or a trunk; give vlan or trunk, not both",
        ),
        (
            "mac = \"52:54:00\"",
            r#"mac: "52:54:00" is not a MAC address; give the address of one station, like "52:54:00:00:00:01""#,
        ),
        (
            "mac = \"01:00:5e:00:00:01\"",
            r#"mac: "01:00:5e:00:00:01" is a group address; give the address of one station, like "52:54:00:00:00:01""#,
        ),
        (
            "mac = \"00:00:00:00:00:00\"",
            r#"mac: "00:00:00:00:00:00" is nobody's address; give the address of one station, like "52:54:00:00:00:01""#,
        ),
        ("mode = \"sever\"", r#"mode: "sever" is not a mode; give "server" or "client""#),
        ("mode = 1", r#"mode: 1 is not a string; give "server" or "client""#),
        ("device = \"rm0\"", r#"device: only a port of kind "tap" has one; leave it out"#),
        ("queue = 4", r#"queue: unknown key; did you mean "queues"?"#),
        ("sokcet = \"/b\"", r#"sokcet: unknown key; did you mean "socket"?"#),
        (
            "colour = 4",
            "colour: unknown key; known here: name, kind, socket, mode, socket-mode, socket-owner, socket-group, device, queues, mtu, vlan, trunk, device-queue, mac, cache, align, interrupt-frames, interrupt-microseconds, polling, copy, grants, tx-rate, tx-burst, tx-frames, tx-frames-burst, rx-rate, rx-burst, rx-frames, rx-frames-burst, budget, memory, addresses",
        ),
    ];
    for (extra, want) in cases {
        refused(&guest(extra), &format!("ringmain.toml:5: port[0].{want}"));
    }
}

#[test]
fn missing_and_malformed_keys_are_refused() {
    let port = |body: &str| format!("\n\n[[port]]\n{body}");
    let cases = [
        (
            "kind = \"tap\"\ndevice = \"rm0\"",
            r#"3: port[0].name: missing; give 1 to 32 letters, digits, "_", "." or "-""#,
        ),
        (
            "name = \"a\"",
            r#"3: port[0].kind: missing; give "vhost-user", "tap", "xen" or "embedded""#,
        ),
        (
            "name = \"a\"\nkind = \"vhost-user\"",
            r#"3: port[0].socket: missing; give the path of a socket, like "/run/ringmain/vm.sock""#,
        ),
        (
            "name = \"a\"\nkind = \"tap\"",
            r#"3: port[0].device: missing; give the name of an interface, 1 to 15 letters, digits, "_", "." or "-""#,
        ),
        (
            "name = \"a b\"\nkind = \"tap\"\ndevice = \"rm0\"",
            r#"4: port[0].name: "a b" cannot be a name; give 1 to 32 letters, digits, "_", "." or "-""#,
        ),
        (
            "name = \"-a\"\nkind = \"tap\"\ndevice = \"rm0\"",
            r#"4: port[0].name: "-a" cannot be a name; give 1 to 32 letters, digits, "_", "." or "-""#,
        ),
        (
            "name = \"a\"\nkind = \"vhost\"",
            r#"5: port[0].kind: "vhost" is not a kind of port; give "vhost-user", "tap", "xen" or "embedded""#,
        ),
        (
            "name = \"a\"\nkind = \"tap\"\ndevice = \"much-too-long-for-one\"",
            r#"6: port[0].device: "much-too-long-for-one" cannot be an interface; give the name of an interface, 1 to 15 letters, digits, "_", "." or "-""#,
        ),
        (
            "name = \"a\"\nkind = \"tap\"\ndevice = \"rm0\"\nsocket = \"/a\"",
            r#"7: port[0].socket: only a port of kind "vhost-user" or "embedded" has one; leave it out"#,
        ),
        (
            "name = \"a\"\nkind = \"tap\"\ndevice = \"rm0\"\nmtu = 65522",
            "7: port[0].mtu: 65522 is out of range; give 68 to 65521",
        ),
    ];
    for (body, want) in cases {
        refused(&port(body), &format!("ringmain.toml:{want}"));
    }
}

#[test]
fn conflicting_ports_are_refused() {
    let other = |name: &str, rest: &str| {
        let first = guest("mac = \"52:54:00:00:00:01\"\nvlan = 5\n");
        format!("{first}[[port]]\nname = \"{name}\"\n{rest}\n")
    };
    let second_guest = |socket: &str, rest: &str| {
        other("b", &format!("kind = \"vhost-user\"\nsocket = \"{socket}\"\n{rest}"))
    };
    refused(
        &other("a", "kind = \"tap\"\ndevice = \"rm0\""),
        r#"ringmain.toml:8: port[1].name: "a" belongs to port[0] already; give another name"#,
    );
    refused(
        &second_guest("/a", ""),
        r#"ringmain.toml:10: port[1].socket: "/a" belongs to port[0] already; give another path"#,
    );
    refused(
        &second_guest(DEFAULT_SOCKET, ""),
        r#"ringmain.toml:10: port[1].socket: "/run/ringmain/control.sock" belongs to control.socket already; give another path"#,
    );
    refused(
        &second_guest("/b", "mac = \"52:54:00:00:00:01\"\ntrunk = [4, 5]"),
        r#"ringmain.toml:11: port[1].mac: "52:54:00:00:00:01" belongs to port[0] already; give another address"#,
    );
    assert!(
        parse(&second_guest("/b", "mac = \"52:54:00:00:00:01\"\nvlan = 6")).is_ok(),
        "another network, another station"
    );
    let taps = "[[port]]\nname = \"a\"\nkind = \"tap\"\ndevice = \"rm0\"\n[[port]]\nname = \"b\"\nkind = \"tap\"\ndevice = \"rm0\"\n";
    refused(
        taps,
        r#"ringmain.toml:8: port[1].device: "rm0" belongs to port[0] already; give another interface"#,
    );
}

fn flags(list: &[(&str, Json)]) -> Result<PortSpec, String> {
    let flags = list.iter().map(|(flag, value)| ((*flag).to_owned(), value.clone())).collect();
    PortSpec::from_flags(&flags).map_err(|error| error.to_string())
}

#[test]
fn flags_are_read_like_the_file_and_errors_name_the_flag() {
    let base = [("name", json!("a")), ("kind", json!("vhost-user")), ("socket", json!("/a"))];
    let with = |flag, value| flags(&[&base[..], &[(flag, value)]].concat());
    assert_eq!(with("queues", json!(4)).unwrap().queues, Some(4));
    assert_eq!(with("trunk", json!([20, 10])).unwrap().vlan, Vlan::Trunk(vec![10, 20]));
    let cases = [
        ("queues", json!("four"), r#"--queues: "four" is not a number; give 1 to 16"#),
        ("queues", json!(40), "--queues: 40 is out of range; give 1 to 16"),
        (
            "trunk",
            json!([10, "x"]),
            r#"--trunk: "x" is not a number; give a list of VLANs from 1 to 4094, like [10, 20]"#,
        ),
        ("device", json!("rm0"), r#"--device: only a port of kind "tap" has one; leave it out"#),
    ];
    for (flag, value, want) in cases {
        assert_eq!(with(flag, value).unwrap_err(), want);
    }
    let want = r#"--socket: missing; give the path of a socket, like "/run/ringmain/vm.sock""#;
    assert_eq!(flags(&base[..2]).unwrap_err(), want);
}

#[test]
fn a_request_has_all_keys_of_the_file() {
    for port in parse(WHOLE).unwrap().ports {
        assert_eq!(read_back(&port), Ok(port));
    }
}

#[test]
fn requests_are_checked_against_what_is_there() {
    let there = parse(WHOLE).unwrap().ports;
    let ask = |json: &str| {
        let object: serde_json::Map<_, _> = serde_json::from_str(json).unwrap();
        PortSpec::from_request(&object, there.iter(), &[], "/c".as_ref()).unwrap_err().to_string()
    };
    assert_eq!(
        ask(r#"{"name":"vm-a","kind":"tap"}"#),
        "device: missing; give the name of an interface, 1 to 15 letters, digits, \"_\", \".\" or \"-\"\n\
         name: \"vm-a\" belongs to port \"vm-a\" already; give another name"
    );
    assert_eq!(
        ask(r#"{"name":"x","kind":"vhost-user","socket":"/c"}"#),
        r#"socket: "/c" belongs to control.socket already; give another path"#
    );
    assert_eq!(
        ask(r#"{"name":"x","kind":"vhost-user","socket":"/x","queues":"4"}"#),
        r#"queues: "4" is not a number; give 1 to 16"#
    );
    assert_eq!(
        ask(r#"{"name":null,"kind":"xen"}"#),
        r#"name: missing; give 1 to 32 letters, digits, "_", "." or "-""#,
        "null is a value that is not set, as in replies"
    );
    assert_eq!(
        ask(r#"{"name":"x","kind":"xen","interrupt_frames":5}"#),
        "interrupt_frames: the last frames would wait for ever; give interrupt-microseconds, too"
    );
    assert!(
        ask(r#"{"name":"x","kind":"tap","device":"y","a\nb":1}"#).starts_with("a b: unknown key;"),
        "always one line"
    );
}

#[test]
fn lists_of_cpus_are_written_as_ranges() {
    assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), "0-2, 5, 7-8");
    assert_eq!(ranges(&[]), "");
}

#[test]
fn one_xen_port_stands_for_all_vifs() {
    let xen = |more: &str| {
        Config::parse("f", &format!("[[port]]\nname = \"vifs\"\nkind = \"xen\"\n{more}"), &host())
    };
    let port = xen("queues = 4").unwrap().ports.remove(0);
    assert_eq!((&port.kind, port.queues), (&PortKind::Xen, Some(4)));
    let wrong = |more: &str| xen(more).unwrap_err().to_string();
    assert_eq!(
        wrong("device = \"rm0\""),
        "f:4: port[0].device: only a port of kind \"tap\" has one; leave it out"
    );
    let own = "each vif has its own, in the keys of its hotplug script; leave it out";
    for (key, value) in
        [("vlan", "10"), ("trunk", "[1]"), ("mtu", "1500"), ("mac", "\"52:54:00:00:00:01\"")]
    {
        assert_eq!(wrong(&format!("{key} = {value}")), format!("f:4: port[0].{key}: {own}"));
    }
    for (key, value, kinds) in
        [("socket", "/x", r#""vhost-user" or "embedded""#), ("mode", "server", r#""vhost-user""#)]
    {
        let reason = format!("only a port of kind {kinds} has one; leave it out");
        assert_eq!(wrong(&format!("{key} = \"{value}\"")), format!("f:4: port[0].{key}: {reason}"));
    }
    assert_eq!(wrong("queues = 17"), "f:4: port[0].queues: 17 is out of range; give 1 to 16");
    assert!(
        wrong("queue = 2").starts_with("f:4: port[0].queue: unknown key; did you mean \"queues\"?")
    );
    let twice = "[[port]]\nname = \"more\"\nkind = \"xen\"";
    assert_eq!(wrong(twice), "f:6: port[1].kind: port[0] serves all vifs already");
}

/// By flags and by request it is the same entry, with the same rules.
#[test]
fn a_xen_port_can_be_added_by_flags_and_by_request() {
    let flags = |more: &[(&str, Json)]| {
        flags(&[&[("name", json!("vifs")), ("kind", json!("xen"))], more].concat())
    };
    let port = flags(&[("queues", json!(4))]).unwrap();
    assert_eq!((&port.kind, port.queues), (&PortKind::Xen, Some(4)));
    let own = "each vif has its own, in the keys of its hotplug script; leave it out";
    assert_eq!(flags(&[("vlan", json!(10))]).unwrap_err(), format!("--vlan: {own}"));
    let request = port.to_request();
    let again =
        |there: &[PortSpec]| PortSpec::from_request(&request, there.iter(), &[], Path::new("/c"));
    assert_eq!(again(&[]), Ok(port.clone()));
    let other = PortSpec { name: "other".into(), ..port };
    assert_eq!(
        again(&[other]).unwrap_err().to_string(),
        "kind: port \"other\" serves all vifs already"
    );
}

#[test]
fn an_embedded_port_is_parsed() {
    use hypervisor::embedded::Design;
    use xen::netif::extensions::Extensions;
    let parse = |more: &str| {
        let text = format!("[[port]]\nname = \"guests\"\nkind = \"embedded\"\n{more}");
        Config::parse("f", &text, &host()).map(|mut config| config.ports.remove(0))
    };
    let socket = "socket = \"/run/guests.sock\"\n";
    let port = parse(&format!("{socket}vlan = 5\nqueues = 4")).unwrap();
    let with = |design, extensions| {
        let socket = "/run/guests.sock".into();
        PortKind::Embedded { socket, design, extensions, device_queue: None, lock_mac: false }
    };
    let kind = |design| with(design, Extensions::default());
    assert_eq!((&port.kind, port.queues), (&kind(Design::default()), Some(4)));
    assert_eq!(read_back(&port).unwrap(), port);
    for (more, ranges, guest_copy) in [
        ("copy = \"backend\"\ngrants = \"page\"", false, false),
        ("grants = \"range\"", true, false),
        ("copy = \"guest\"", true, true),
    ] {
        let port = parse(&format!("{socket}{more}")).unwrap();
        assert_eq!(port.kind, with(Design::default(), Extensions { ranges, guest_copy }));
        assert_eq!(read_back(&port).unwrap(), port);
    }
    let wrong = |more: &str| parse(more).unwrap_err().to_string();
    assert!(wrong(&format!("{socket}copy = \"nobody\"")).contains("give \"backend\" or \"guest\""));
    assert!(wrong(&format!("{socket}grants = \"some\"")).contains("give \"page\" or \"range\""));
    assert!(
        wrong(&format!("{socket}copy = \"guest\"\ngrants = \"page\""))
            .contains("would reach whole pages")
    );
    assert!(wrong("").contains("port[0].socket: missing"));
    for key in ["locking", "maptrack", "flush", "copying"] {
        assert!(wrong(&format!("{socket}{key} = \"table\"")).contains("ringmain-lab serve"));
    }
}

#[test]
fn guests_of_an_embedded_port_are_locked_to_an_address_or_to_their_own() {
    let port = |mac: &str| {
        let text = format!(
            "[[port]]\nname = \"g\"\nkind = \"embedded\"\nsocket = \"/g\"\nmac = \"{mac}\""
        );
        let port = Config::parse("f", &text, &host()).unwrap().ports.remove(0);
        assert_eq!(read_back(&port).as_ref(), Ok(&port));
        let PortKind::Embedded { lock_mac, .. } = port.kind else { panic!("{port:?}") };
        (port.mac.map(|mac| mac.to_string()), lock_mac)
    };
    assert_eq!(port("own"), (None, true));
    assert_eq!(port("02:00:00:00:00:01"), (Some("02:00:00:00:00:01".into()), true));
    let problem = "only guests of a port of kind \"embedded\" have their own; give the address of one \
                   station, like \"52:54:00:00:00:01\"";
    refused(&guest("mac = \"own\""), &format!("ringmain.toml:5: port[0].mac: {problem}"));
}

#[test]
fn alignment_is_an_option_of_ports_with_grants() {
    let parse = |kind: &str, more: &str| {
        let text = format!("[[port]]\nname = \"a\"\nkind = {kind}\n{more}");
        Config::parse("f", &text, &host()).map(|mut config| config.ports.remove(0))
    };
    for kind in ["\"xen\"", "\"embedded\"\nsocket = \"/a\""] {
        let port = parse(kind, "align = true").unwrap();
        assert!(port.options.align && !parse(kind, "align = false").unwrap().options.align);
        assert_eq!(read_back(&port), Ok(port));
        let wrong = parse(kind, "align = 64").unwrap_err().to_string();
        assert!(
            wrong.ends_with("port[0].align: 64 is not a boolean; give true or false"),
            "{wrong}"
        );
    }
    let wrong = parse("\"tap\"\ndevice = \"rm0\"", "align = true").unwrap_err().to_string();
    assert_eq!(wrong, "f:5: port[0].align: a port of kind \"tap\" has no grants; leave it out");
    let flags = [("name", json!("a")), ("kind", json!("xen")), ("align", json!(true))];
    assert!(self::flags(&flags).unwrap().options.align);
}

#[test]
fn a_device_queue_excludes_vlans_and_other_ports() {
    let parse = |more: &str| {
        let text = format!("[[port]]\nname = \"a\"\nkind = \"embedded\"\nsocket = \"/a\"\n{more}");
        Config::parse("f", &text, &host()).map(|mut config| config.ports.remove(0))
    };
    let port = parse("device-queue = \"eth1\"").unwrap();
    assert!(
        matches!(&port.kind, PortKind::Embedded { device_queue: Some(device), .. } if device == "eth1")
    );
    assert_eq!(read_back(&port), Ok(port));
    let wrong = |more: &str| parse(more).unwrap_err().to_string();
    assert!(
        wrong("device-queue = \"a/b\"")
            .starts_with("f:5: port[0].device-queue: \"a/b\" cannot be an interface")
    );
    assert_eq!(
        wrong("device-queue = \"eth1\"\nvlan = 5"),
        "f:5: port[0].device-queue: its frames bypass the switch and its VLANs; leave out vlan and trunk, or this"
    );
    let second = "device-queue = \"eth1\"\n[[port]]\nname = \"b\"\nkind = \"embedded\"\nsocket = \"/b\"\ndevice-queue = \"eth1\"";
    assert!(
        wrong(second).starts_with("f:10: port[1].device-queue: \"eth1\" belongs to port[0]"),
        "{}",
        wrong(second)
    );
    let text = "[[port]]\nname = \"a\"\nkind = \"tap\"\ndevice = \"rm0\"\ndevice-queue = \"eth1\"";
    assert_eq!(
        Config::parse("f", text, &host()).unwrap_err().to_string(),
        "f:5: port[0].device-queue: only a port of kind \"embedded\" has one; leave it out"
    );
}

#[test]
fn polling_policies_are_parsed() {
    let parse = |word: &str| {
        let port = "[[port]]\nname = \"a\"\nkind = \"tap\"\ndevice = \"rm0\"";
        let text = format!("[workers]\npolling = {word}\n{port}\npolling = {word}");
        let config = Config::parse("f", &text, &host());
        config.map(|config| (config.policy, config.ports[0].options.policy))
    };
    for word in ["eco", "balanced", "latency", "always", "never", "50us"] {
        let policy = word.parse().unwrap();
        assert_eq!(parse(&format!("{word:?}")), Ok((policy, Some(policy))));
    }
    let wrong = |word| parse(word).unwrap_err().to_string();
    assert!(
        wrong("\"lazy\"").starts_with("f:2: workers.polling: \"lazy\" is not known; give \"eco\","),
        "{}",
        wrong("\"lazy\"")
    );
    assert!(
        wrong("5").starts_with("f:2: workers.polling: 5 is not a string; give \"eco\","),
        "{}",
        wrong("5")
    );
}

#[test]
fn coalescing_needs_a_time_limit() {
    let parse = |kind: &str, more: &str| {
        let text = format!("[[port]]\nname = \"a\"\n{kind}\n{more}");
        Config::parse("f", &text, &host())
            .map(|mut config| config.ports.remove(0).options.coalescing)
    };
    let guest = "kind = \"vhost-user\"\nsocket = \"/a\"";
    let tap = "kind = \"tap\"\ndevice = \"rm0\"";
    assert_eq!(parse(guest, ""), Ok(None));
    for kind in [guest, "kind = \"xen\"", "kind = \"embedded\"\nsocket = \"/a\""] {
        let time = Duration::from_micros(10_000);
        assert_eq!(
            parse(kind, "interrupt-microseconds = 10000"),
            Ok(CoalescingLimits::new(None, time))
        );
        let both = "interrupt-frames = 6\ninterrupt-microseconds = 10000";
        assert_eq!(parse(kind, both), Ok(CoalescingLimits::new(Some(6), time)));
    }
    let wrong = |kind, more| parse(kind, more).unwrap_err().to_string();
    assert_eq!(
        wrong(guest, "interrupt-frames = 6"),
        "f:5: port[0].interrupt-frames: the last frames would wait for ever; give interrupt-microseconds, too"
    );
    assert_eq!(
        wrong(guest, "interrupt-microseconds = 10001"),
        "f:5: port[0].interrupt-microseconds: 10001 is out of range; give 1 to 10000"
    );
    assert!(wrong(guest, "interrupt-frames = 0").contains("give 1 to 1024"));
    assert_eq!(
        wrong(tap, "interrupt-microseconds = 50"),
        "f:5: port[0].interrupt-microseconds: a port of kind \"tap\" has no interrupts; leave it out"
    );
}

#[test]
fn the_page_cache_is_an_option_of_ports_with_grants() {
    let parse = |kind: &str, more: &str| {
        let text = format!("[[port]]\nname = \"a\"\n{kind}\n{more}");
        Config::parse("f", &text, &host()).map(|mut config| config.ports.remove(0))
    };
    for kind in ["kind = \"xen\"", "kind = \"embedded\"\nsocket = \"/a\""] {
        assert_eq!(parse(kind, "").unwrap().options.cache, 0);
        let port = parse(kind, "cache = 16384").unwrap();
        assert_eq!(port.options.cache, 16384);
        assert_eq!(read_back(&port).unwrap(), port);
        assert!(parse(kind, "cache = 16385").unwrap_err().to_string().contains("give 0 to 16384"));
    }
    for (kind, name) in
        [("vhost-user\"\nsocket = \"/a", "vhost-user"), ("tap\"\ndevice = \"rm0", "tap")]
    {
        assert_eq!(
            parse(&format!("kind = \"{kind}\""), "cache = 1").unwrap_err().to_string(),
            format!("f:5: port[0].cache: a port of kind {name:?} has no grants; leave it out")
        );
    }
}

#[test]
fn all_mistakes_are_reported_at_once_in_the_order_of_the_file() {
    let text = "[worker]\ncount = 1\n[workers]\ncount = 0\ncpus = [0, 0, 9]\n\
                [[port]]\nname = \"a\"\nkind = \"tap\"\nqueues = 17\nvlna = 5\nmode = \"server\"\n\
                [[port]]\nname = \"b\"\nkind = \"vhost-user\"\nsocket = 5\n\
                [[port]]\nname = \"a\"\nkind = \"xen\"\n[[port]]\nkind = \"xen\"\nname = \"c\"\n";
    let want = r#"
ringmain.toml:1: worker: unknown key; did you mean "workers"?
ringmain.toml:4: workers.count: 0 is out of range; give 1 to 64 or "auto"
ringmain.toml:5: workers.cpus: CPU 0 is listed twice; give one CPU for each worker, out of 0-3, 8
ringmain.toml:5: workers.cpus: CPU 9 is not available to this process; give one CPU for each worker, out of 0-3, 8
ringmain.toml:6: port[0].device: missing; give the name of an interface, 1 to 15 letters, digits, "_", "." or "-"
ringmain.toml:9: port[0].queues: 17 is out of range; give 1 to 16
ringmain.toml:10: port[0].vlna: unknown key; did you mean "vlan"?
ringmain.toml:11: port[0].mode: only a port of kind "vhost-user" has one; leave it out
ringmain.toml:15: port[1].socket: 5 is not a string; give the path of a socket, like "/run/ringmain/vm.sock"
ringmain.toml:20: port[3].kind: port[2] serves all vifs already"#;
    refused(text, want.trim_start());
}

#[test]
fn mistakes_of_syntax_are_reported_together_too() {
    let error = parse("[workers]\ncount = \n[control]\nsocket = /tmp/x\n").unwrap_err();
    let lines: Vec<&str> = error.lines().collect();
    assert_eq!(lines.len(), 2, "{error}");
    assert!(lines[0].starts_with("ringmain.toml:2: ") && lines[1].starts_with("ringmain.toml:4: "));
}

#[test]
fn the_number_of_reported_mistakes_is_bounded() {
    let keys: String = (0..1000).map(|n| format!("key-{n} = 1\n")).collect();
    assert!(parse(&keys).unwrap_err().lines().count() <= 21);
}

#[test]
fn lists_are_not_tables() {
    refused("workers = [2]", "ringmain.toml:1: workers: [2] is not a table; write [workers]");
    refused("port = [[1]]", "ringmain.toml:1: port: [1] is not a list of tables; write [[port]]");
}

#[test]
fn sockets_have_modes_owners_and_groups() {
    let text = "[control]\nmode = \"660\"\nowner = \"4000123\"\ngroup = \"4000124\"\n\
                [[port]]\nname = \"a\"\nkind = \"vhost-user\"\nsocket = \"/a\"\nsocket-mode = \"0640\"\n\
                socket-owner = \"4000125\"\nsocket-group = \"4000126\"";
    let config = parse(text).unwrap();
    let mode = |bits| Some(rustix::fs::Mode::from_bits_truncate(bits));
    let want = Permissions { mode: mode(0o660), owner: Some(4_000_123), group: Some(4_000_124) };
    assert_eq!(config.permissions, want);
    let want = Permissions { mode: mode(0o640), owner: Some(4_000_125), group: Some(4_000_126) };
    assert_eq!(config.ports[0].permissions, want);
    let request = config.ports[0].to_request();
    let control = std::path::Path::new("/run/control.sock");
    let again = PortSpec::from_request(&request, std::iter::empty(), &[], control).unwrap();
    assert_eq!(again, config.ports[0]);
}

#[test]
fn mistakes_about_access_are_named() {
    let cases = [
        (
            "socket-mode = \"rw\"",
            r#"socket-mode: "rw" is not a mode; give three octal digits, like "660""#,
        ),
        (
            "socket-mode = \"4755\"",
            r#"socket-mode: "4755" is not a mode; give three octal digits, like "660""#,
        ),
        (
            "socket-group = \"no such group\"",
            r#"socket-group: there is no group "no such group" on this host; create it, or give its number"#,
        ),
        (
            "socket-mode = \"660\"\nmode = \"client\"",
            "socket-mode: the front-end creates the socket of a client; leave it out",
        ),
    ];
    for (extra, want) in cases {
        let text =
            format!("[[port]]\nname = \"a\"\nkind = \"vhost-user\"\nsocket = \"/a\"\n{extra}");
        let error = parse(&text).unwrap_err().to_string();
        assert!(error.contains(want), "{error}");
    }
    let sandbox = [
        ("live = [\"floppy\"]", r#""tap", "client", "xen", "device-queue" or "disk""#),
        ("folders = [\"x\"]", r#"is not a folder; give an absolute path, like "/run/vms""#),
        ("without = [\"x\"]", "is not a layer; give a layer: ipc-namespace, mount-namespace, "),
        ("user = \"no such user\"", r#"there is no user "no such user" on this host"#),
    ];
    for (line, want) in sandbox {
        let error = parse(&format!("[sandbox]\n{line}")).unwrap_err().to_string();
        assert!(error.contains(want), "{error}");
    }
}
