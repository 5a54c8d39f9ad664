//! Xen ports and embedded ports.

use super::*;

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
    let again = |there: &[PortSpec]| {
        PortSpec::from_request(&request, there.iter(), Known::default(), Path::new("/c"))
    };
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
fn the_page_cache_is_an_option_of_ports_with_grants() {
    let parse = |kind: &str, more: &str| {
        let text = format!("[[port]]\nname = \"a\"\n{kind}\n{more}");
        Config::parse("f", &text, &host()).map(|mut config| config.ports.remove(0))
    };
    let kinds = [("kind = \"xen\"", 0), ("kind = \"embedded\"\nsocket = \"/a\"", 8192)];
    for (kind, default) in kinds {
        assert_eq!(parse(kind, "").unwrap().options.cache, default);
        for pages in [0, 16384] {
            let port = parse(kind, &format!("cache = {pages}")).unwrap();
            assert_eq!(port.options.cache, pages);
            assert_eq!(read_back(&port).unwrap(), port);
        }
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
