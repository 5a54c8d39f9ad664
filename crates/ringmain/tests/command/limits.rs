//! Limits and options of ports.

use super::*;

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
        ("cache", "8192"),
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
