use std::path::Path;
use std::time::Duration;

mod grants;
mod mirror;
mod mistakes;
mod ports;
mod requests;
mod security;
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
    PortSpec::from_request(
        &port.to_request(),
        std::iter::empty(),
        Known::default(),
        Path::new("/c"),
    )
}

const WHOLE: &str = r#"
[workers]
count = 2
cpus = [0, 8]
interrupt-cpu = 3
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
            interrupt_cpu: Some(3),
            policy,
            balance,
            socket,
            permissions: Permissions::default(),
            overlays: Vec::new(),
            disks: Vec::new(),
            xen_disks: None,
            metrics: None,
            sandbox: SandboxSettings::default(),
            budgets: vec![],
            security: SecuritySpec::default(),
            ports: vec![vm, uplink],
        }
    );
}

/// A port without what is given in `extra`.
fn guest(extra: &str) -> String {
    format!("[[port]]\nname = \"a\"\nkind = \"vhost-user\"\nsocket = \"/a\"\n{extra}")
}

fn flags(list: &[(&str, Json)]) -> Result<PortSpec, String> {
    let flags = list.iter().map(|(flag, value)| ((*flag).to_owned(), value.clone())).collect();
    PortSpec::from_flags(&flags).map_err(|error| error.to_string())
}

#[test]
fn an_empty_file_is_all_defaults() {
    let (policy, balance) = (PollingPolicy::Balanced, true);
    let want = Config {
        workers: 5,
        cpus: vec![],
        interrupt_cpu: None,
        policy,
        balance,
        socket: DEFAULT_SOCKET.into(),
        permissions: Permissions::default(),
        overlays: Vec::new(),
        disks: Vec::new(),
        xen_disks: None,
        metrics: None,
        sandbox: SandboxSettings::default(),
        budgets: vec![],
        security: SecuritySpec::default(),
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
    assert_eq!(parse("[workers]\ninterrupt-cpu = 8").unwrap().workers, 4);
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
            "[workers]\ninterrupt-cpu = 4",
            "2: workers.interrupt-cpu: CPU 4 is not available to this process; give a CPU without a worker, out of 0-3, 8",
        ),
        (
            "[workers]\ncpus = [0, 1]\ninterrupt-cpu = 1",
            "3: workers.interrupt-cpu: CPU 1 is that of a worker; give a CPU without a worker, out of 0-3, 8",
        ),
        (
            "[workers]\ninterrupt-cpu = \"all\"",
            "2: workers.interrupt-cpu: \"all\" is not a number; give a CPU without a worker, out of 0-3, 8",
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
            "2: workers.threads: unknown key; known here: count, cpus, interrupt-cpu, polling, balance",
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
            "1: speed: unknown key; known here: workers, control, metrics, sandbox, budget, address-group, security-group, port, overlay, disk",
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

#[test]
fn lists_of_cpus_are_written_as_ranges() {
    assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), "0-2, 5, 7-8");
    assert_eq!(ranges(&[]), "");
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
