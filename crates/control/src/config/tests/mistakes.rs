//! Several mistakes, and mistakes about access.

use super::*;

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
    let again =
        PortSpec::from_request(&request, std::iter::empty(), Known::default(), control).unwrap();
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
        ("live = [\"floppy\"]", r#""tap", "client", "xen", "device-queue", "disk" or "overlay""#),
        ("folders = [\"x\"]", r#"is not a folder; give an absolute path, like "/run/vms""#),
        ("without = [\"x\"]", "is not a layer; give a layer: ipc-namespace, mount-namespace, "),
        ("user = \"no such user\"", r#"there is no user "no such user" on this host"#),
    ];
    for (line, want) in sandbox {
        let error = parse(&format!("[sandbox]\n{line}")).unwrap_err().to_string();
        assert!(error.contains(want), "{error}");
    }
}
