use super::*;
use crate::config::{Config, Host};

fn parse(text: &str) -> Result<Config, String> {
    Config::parse("f", text, &Host { cpus: vec![0] }).map_err(|errors| errors.to_string())
}

const NET: &str = "[[overlay]]\nname = \"net\"\nlocal = \"10.0.0.1\"\n";

fn net(rest: &str) -> Result<OverlaySpec, String> {
    parse(&format!("{NET}{rest}")).map(|mut config| config.overlays.remove(0))
}

#[test]
fn an_overlay_is_a_network_and_its_hosts() {
    let spec =
        net("vni = 100\nvlan = 10\ncontrol = \"static\"\npeers = [\"10.0.0.2\", \"10.0.0.3\"]\n\
         macs = [\"52:54:00:00:00:01=10.0.0.2\"]\nlearning = false\nport = 8472\nmtu = 1400\n")
        .unwrap();
    let want = OverlaySpec {
        name: "net".into(),
        networks: vec![(Vni::new(100).unwrap(), Some(10))],
        local: "10.0.0.1:8472".parse().unwrap(),
        transport: Transport::Sockets,
        control: ControlPlane::Static,
        peers: vec!["10.0.0.2".parse().unwrap(), "10.0.0.3".parse().unwrap()],
        macs: vec![("52:54:00:00:00:01".parse().unwrap(), "10.0.0.2".parse().unwrap())],
        learning: false,
        announce_addresses: false,
        mtu: Some(1400),
    };
    assert_eq!(spec, want);
    let least = net("vni = 16777215").unwrap();
    assert_eq!((least.local.port(), least.learning, least.peers.len()), (4789, true, 0));
    let several = net("vlans = [\"10=10010\", \"20 = 20\"]").unwrap();
    let networks = several.networks.iter().map(|(vni, vlan)| (vni.get(), *vlan));
    assert_eq!(networks.collect::<Vec<_>>(), [(10010, Some(10)), (20, Some(20))]);
}

#[test]
fn an_underlay_is_sockets_or_a_device() {
    let tap = net("vni = 1\nunderlay = \"tap\"\ndevice = \"rm-net\"").unwrap();
    assert_eq!(tap.transport, Transport::Tap("rm-net".into()));
    let card = net("vni = 1\nunderlay = \"xdp\"\ndevice = \"eth0\"").unwrap();
    assert_eq!(card.transport, Transport::Card("eth0".into()));
    let udp = net("vni = 1\nunderlay = \"udp\"").unwrap();
    assert_eq!(udp.transport, Transport::Sockets);
    assert_eq!(udp.changed_keys(&tap), ["underlay", "device"]);
    let second = "vni = 1\nunderlay = \"tap\"\ndevice = \"rm0\"\n[[overlay]]\nname = \"b\"\n\
                  local = \"10.0.0.9\"\nvni = 2\nunderlay = \"tap\"\ndevice = \"rm0\"";
    for (rest, error) in [
        ("vni = 1\nunderlay = \"tap\"", "f:1: overlay[0].device: missing; give the name of an"),
        ("vni = 1\ndevice = \"rm0\"", "f:5: overlay[0].device: only with underlay = \"tap\""),
        ("vni = 1\nunderlay = \"xdp\"", "f:1: overlay[0].device: missing; give the name of an"),
        ("vni = 1\nunderlay = \"x\"", "\"x\" is not an underlay; give \"udp\", \"tap\" or \"xdp\""),
        (second, "f:12: overlay[1].device: a port or an overlay has \"rm0\" already"),
    ] {
        let found = net(rest).unwrap_err();
        assert!(found.contains(error), "{found}");
    }
}

#[test]
fn with_evpn_nothing_is_learned_from_frames() {
    let spec = net("vni = 1\ncontrol = \"evpn\"").unwrap();
    assert_eq!((spec.control, spec.learning), (ControlPlane::Evpn, false));
    assert!(!spec.announce_addresses);
    let more = net("vni = 1\ncontrol = \"evpn\"\nannounce-addresses = true").unwrap();
    assert!(more.announce_addresses && !spec.can_become(&more));
    assert_eq!(spec.changed_keys(&more), ["announce_addresses"]);
    let v6 = parse(&(NET.replace("10.0.0.1", "fd00::1") + "vni = 1\ncontrol = \"evpn\"")).unwrap();
    let v6 = &v6.overlays[0];
    assert!(v6.local.is_ipv6() && v6.control == ControlPlane::Evpn);
    let other = net("vni = 1\nlearning = false").unwrap();
    assert!(!spec.can_become(&other) && spec.changed_keys(&other) == ["control"]);
}

#[test]
fn mistakes_are_told_with_their_place() {
    for (rest, error) in [
        ("", "f:1: overlay[0].vni: missing; give a number from 1 to 16777215"),
        ("vni = 16777216", "is not a VNI; give a number from 1 to 16777215"),
        ("vni = 1\nvlans = [\"1=1\"]", "give vni or vlans, not both"),
        ("vlans = []", "the list is empty"),
        ("vlans = [\"1=5\", \"2=5\"]", "VLAN 2 or VNI 5 is listed twice"),
        ("vlans = [\"4095=5\"]", "is not VLAN=VNI"),
        (
            "vlans = [\"1=5\"]\nmacs = [\"52:54:00:00:00:01=10.0.0.2\"]",
            "only an overlay with one vni",
        ),
        ("vni = 1\npeers = [\"10.0.0.1\"]", "is this host's own address"),
        ("vni = 1\npeers = [\"fd00::1\"]", "of another family"),
        ("vni = 1\npeers = [\"10.0.0.2\", \"10.0.0.2\"]", "listed twice"),
        ("vni = 1\npeers = [\"224.0.0.1\"]", "is not an address of one host"),
        ("vni = 1\nmacs = [\"52:54:00:00:00:01=10.0.0.2\"]", "10.0.0.2 is none of the peers"),
        (
            "vni = 1\npeers = [\"10.0.0.2\"]\nmacs = [\"01:00:5e:00:00:01=10.0.0.2\"]",
            "is not MAC=PEER",
        ),
        ("vni = 1\nport = 80", "is out of range; give 1024 to 65535"),
        ("vni = 1\ncontrol = \"bgp\"", "is not a control plane; give \"static\" or \"evpn\""),
        (
            "vni = 1\ncontrol = \"evpn\"\npeers = [\"10.0.0.2\"]",
            "f:6: overlay[0].peers: with control",
        ),
        ("vni = 1\ncontrol = \"evpn\"\nlearning = true", "overlay[0].learning: with control"),
        (
            "vni = 1\nannounce-addresses = true",
            "only with control = \"evpn\" is anything announced",
        ),
    ] {
        let found = net(rest).unwrap_err();
        assert!(found.contains(error), "{rest}: {found}");
    }
    let twice = parse(&format!("{NET}vni = 1\n{NET}vni = 2\n")).unwrap_err();
    assert!(twice.contains("there is a port or an overlay \"net\" already"), "{twice}");
    assert!(twice.contains("give its networks together, in vlans, or another port"), "{twice}");
}

#[test]
fn only_peers_and_stations_change_in_service() {
    let one = net("vni = 1\npeers = [\"10.0.0.2\"]").unwrap();
    let more =
        net("vni = 1\npeers = [\"10.0.0.3\"]\nmacs = [\"52:54:00:00:00:01=10.0.0.3\"]").unwrap();
    assert!(one.can_become(&more));
    assert_eq!(one.changed_keys(&more), ["peers", "macs"]);
    for (other, key) in [
        ("vni = 2", "vni"),
        ("vni = 1\nmtu = 900", "mtu"),
        ("vni = 1\nlearning = false", "learning"),
    ] {
        let other = net(&format!("{other}\npeers = [\"10.0.0.2\"]")).unwrap();
        assert!(!one.can_become(&other));
        assert_eq!(one.changed_keys(&other), [key]);
    }
}
