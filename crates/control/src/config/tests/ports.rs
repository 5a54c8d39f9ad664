//! Entries of ports that are wrong.

use super::*;

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
            "colour: unknown key; known here: name, kind, socket, mode, socket-mode, socket-owner, socket-group, device, queues, mtu, vlan, trunk, device-queue, mac, cache, align, interrupt-frames, interrupt-microseconds, polling, copy, grants, tx-rate, tx-burst, tx-frames, tx-frames-burst, rx-rate, rx-burst, rx-frames, rx-frames-burst, budget, memory, mirror, addresses, security-groups",
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
