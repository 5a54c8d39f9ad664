//! Overlays whose control plane is EVPN by stock FRR: two hosts with daemons of ours, and one with
//! FRR and the kernel's own VXLAN device and bridge. Needs root, FRR, iperf, ping, tcpdump
//! and ethtool.

mod pings;
mod requests;
mod site;

use lab::fixture::{Amount, Ends, Flow, carry};
use lab::frr::Daemon;
use lab::guest::{GuestError, Namespace};

use pings::Pings;
use requests::Requests;
use site::{Family, KERNEL, MACS, Site, Underlay, guest};

/// Pairs of hosts, each in both directions.
const PAIRS: [(usize, usize); 6] = [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)];

/// Until all hosts know all guests, by types 2 and 3.
fn until_all_is_known(site: &Site) {
    for (from, to) in PAIRS {
        site.until("guests reach each other", |site| site.ping(from, to, false, 56));
        match from {
            KERNEL => site.until("FRR has our guests", |site| {
                site.known(KERNEL, MACS[to])["remoteVtep"] == site.address(to)
            }),
            _ => site.until("we have the guests that FRR announces", |site| {
                site.has(from, MACS[to], to) && site.peer(from, to)["flood"] == true
            }),
        }
    }
}

fn fabric() -> Site {
    fabric_with("")
}

/// The same with more keys of our overlays.
fn fabric_with(keys: &str) -> Site {
    fabric_over(Underlay::Sockets, Family::V4, keys)
}

fn fabric_over(underlay: Underlay, family: Family, keys: &str) -> Site {
    let site = Site::start(underlay, family, keys);
    until_all_is_known(&site);
    site
}

/// TCP streams between guests.
fn stream(site: &Site, from: usize, to: usize, v6: bool) {
    let ends = [from, to].map(|host| &site.guests[host]);
    let address = guest(to, v6);
    let flow = Flow { from: ends[0], to: ends[1], address, streams: 2, batches: None };
    let carried = carry(&[flow], Amount::Bytes(4 << 20), |_| Ok::<_, GuestError>(())).unwrap();
    assert!(carried.ends.iter().all(Ends::complete), "{from} to {to}: {:?}", carried.ends);
}

/// Streams between all hosts that FRR announces, over an underlay of this name.
fn carries_what_frr_announces(underlay: Underlay, family: Family, name: &str) {
    let site = fabric_over(underlay, family, "");
    stream(&site, 0, KERNEL, true);
    stream(&site, KERNEL, 1, false);
    stream(&site, 1, 0, false);
    for host in 0..KERNEL {
        let overlay = site.overlay(host);
        assert_eq!(
            (&overlay["underlay"], &overlay["drops"]["checksum"]),
            (&name.into(), &0.into())
        );
    }
}

/// The hosts are reached without the kernel's network stack.
#[test]
#[ignore = "needs root, FRR, iperf and ping"]
fn queues_of_cards_carry_what_frr_announces() {
    carries_what_frr_announces(Underlay::Card, Family::V4, "xdp");
}

/// The same between IPv6 addresses.
#[test]
#[ignore = "needs root, FRR of Debian testing, iperf and ping"]
fn queues_of_cards_with_ipv6_addresses_carry_what_frr_announces() {
    carries_what_frr_announces(Underlay::Card, Family::V6, "xdp");
}

/// The hosts have addresses of their own for their guests' frames.
#[test]
#[ignore = "needs root, Linux 6.17, FRR, iperf and ping"]
fn tap_devices_carry_what_frr_announces() {
    carries_what_frr_announces(Underlay::Tap, Family::V4, "tap");
}

/// The same between IPv6 addresses.
#[test]
#[ignore = "needs root, Linux 6.17, FRR of Debian testing, iperf and ping"]
fn tap_devices_with_ipv6_addresses_carry_what_frr_announces() {
    carries_what_frr_announces(Underlay::Tap, Family::V6, "tap");
}

#[test]
#[ignore = "needs root, FRR, iperf and ping"]
fn guests_of_three_hosts_are_neighbours() {
    are_neighbours(&fabric());
}

/// FRR announces hosts by IPv6 addresses since 10.6.
#[test]
#[ignore = "needs root, FRR of Debian testing, iperf and ping"]
fn guests_of_three_hosts_with_ipv6_addresses_are_neighbours() {
    are_neighbours(&fabric_over(Underlay::Sockets, Family::V6, ""));
}

fn are_neighbours(site: &Site) {
    for (from, to) in PAIRS {
        for v6 in [false, true] {
            site.until("both versions", |site| site.ping(from, to, v6, 1300));
        }
    }
    stream(site, 0, KERNEL, true);
    stream(site, KERNEL, 1, false);
    stream(site, 1, 0, false);
    // Our hosts have shadows with another port, and their traffic does not go there.
    let shadow = site.hosts[0].run("ip", ["-details", "-s", "link", "show", "rmvx100"]).unwrap();
    assert!(shadow.contains("dstport 14789") && shadow.contains("nolearning"), "{shadow}");
    let lines: Vec<&str> = shadow.lines().collect();
    let received = lines.iter().position(|line| line.contains("RX:")).unwrap();
    assert!(lines[received + 1].trim_start().starts_with("0 "), "{shadow}");
    // The guest of a port without a lock may move; the other one may not.
    let sticky = [0, 1].map(|host| site.is_sticky(KERNEL, MACS[host]));
    assert_eq!(sticky, [false, true]);
}

fn give_address(site: &Site, host: usize, mac: &str) {
    site.guests[host].ip(&format!("link set rm-vm address {mac}")).unwrap();
}

/// A guest's address moves from our host to the kernel's, and back, as in a migration.
#[test]
#[ignore = "needs root, FRR and ping"]
fn a_guest_moves_between_hosts_and_is_followed() {
    moves_and_is_followed(&fabric());
}

/// The same between IPv6 addresses.
#[test]
#[ignore = "needs root, FRR of Debian testing, and ping"]
fn a_guest_moves_between_hosts_with_ipv6_addresses_and_is_followed() {
    moves_and_is_followed(&fabric_over(Underlay::Sockets, Family::V6, ""));
}

fn moves_and_is_followed(site: &Site) {
    for round in 1..=2 {
        give_address(site, 0, "02:00:00:00:00:99");
        give_address(site, KERNEL, MACS[0]);
        site.until("it is at the kernel's host", |site| {
            site.ping(KERNEL, 1, false, 56)
                && [0, 1].into_iter().all(|host| site.has(host, MACS[0], KERNEL))
        });
        give_address(site, KERNEL, MACS[KERNEL]);
        give_address(site, 0, MACS[0]);
        site.until("it is back", |site| {
            site.ping(0, 1, false, 56)
                && site.has(1, MACS[0], 0)
                && site.known(KERNEL, MACS[0])["remoteVtep"] == site.address(0)
        });
        let known = site.known(KERNEL, MACS[0]);
        assert!(known["remoteSequence"].as_u64() >= Some(2 * round), "{known}\n{}", site.state());
    }
}

/// While another host has not heard of a move, its frames are sent on.
#[test]
#[ignore = "needs root, FRR and ping"]
fn frames_that_come_to_the_old_host_are_sent_on() {
    let site = fabric();
    let pings = Pings::start(&site, 1, 0);
    let suspended = site.frr[1].suspend(Daemon::Bgpd).unwrap();
    give_address(&site, 0, "02:00:00:00:00:99");
    site.guests[0].ip("link set rm-vm down").unwrap();
    // Answers that come from now on are the guest's at its new place.
    let before = pings.settled();
    // It goes on at the kernel's host, with its addresses.
    give_address(&site, KERNEL, MACS[0]);
    let address = format!("address add {}/24 dev rm-vm", guest(0, false));
    site.guests[KERNEL].ip(&address).unwrap();
    site.until("it is at the kernel's host", |site| {
        site.ping(KERNEL, 1, false, 56) && site.has(0, MACS[0], KERNEL)
    });
    site.until("answers come again", |_| pings.answered() > before);
    assert!(!site.has(1, MACS[0], KERNEL), "the second host knows");
    drop(suspended);
    site.until("the second host knows", |site| site.has(1, MACS[0], KERNEL));
}

/// The second host announces the addresses that its guest's port may claim, the kernel's those that
/// an administrator gives it. Requests for them are answered where they are made.
#[test]
#[ignore = "needs root, FRR, ping and tcpdump"]
fn requests_for_announced_addresses_are_answered_and_go_nowhere() {
    let site = fabric_with("announce-addresses = true\n");
    for v6 in [false, true] {
        let row = format!("neigh replace {} lladdr {} dev br100", guest(KERNEL, v6), MACS[KERNEL]);
        site.hosts[KERNEL].ip(&format!("{row} nud permanent")).unwrap();
    }
    site.until("we have the addresses", |site| site.overlay(0)["neighbours"] == 4);
    for v6 in [false, true] {
        site.until("FRR has the address", |site| {
            site.owner(KERNEL, &guest(1, v6))["mac"] == MACS[1]
        });
    }
    let mut listeners = [1, KERNEL].map(|host| Requests::start(&site, host));
    for v6 in [false, true] {
        let nobody = if v6 { "fd20::77" } else { "10.20.0.77" };
        site.guests[0].ip("neigh flush dev rm-vm").unwrap();
        site.until("it is answered", |site| site.ping(0, KERNEL, v6, 56));
        // What is asked for later, and that nobody has, comes to all: also to the owner.
        let ask = || ask_in_vain(&site, 0, nobody);
        ask();
        for listener in &mut listeners {
            listener.skip_to(nobody, &guest(KERNEL, v6), ask);
        }
    }
    assert!(site.port(0)["total"]["answered_requests"].as_u64() >= Some(2));
    // Addresses that are announced no more are asked for everywhere.
    for v6 in [false, true] {
        let row = format!("neigh del {} dev br100", guest(KERNEL, v6));
        site.hosts[KERNEL].ip(&row).unwrap();
    }
    site.until("they are gone", |site| site.overlay(0)["neighbours"] == 2);
    let ask = || {
        site.guests[0].ip("neigh flush dev rm-vm").unwrap();
        site.until("it is answered", |site| site.ping(0, KERNEL, false, 56));
    };
    ask();
    for listener in &mut listeners {
        listener.skip_to(&guest(KERNEL, false), "no address", ask);
    }
    // An address that the port may claim no more is withdrawn.
    site.ask(1, &["port", "set", "vm", &format!("addresses={}", guest(1, false))]);
    site.until("it is withdrawn", |site| {
        site.overlay(0)["neighbours"] == 1 && site.owner(KERNEL, &guest(1, true)).is_null()
    });
}

/// Has a guest ask for an address that nobody has.
fn ask_in_vain(site: &Site, host: usize, nobody: &str) {
    let mut ping = site.guests[host].command("ping");
    let asked = ping.args(["-n", "-c", "1", "-W", "1", nobody]).output().unwrap();
    assert!(!asked.status.success());
}

/// Has a guest show many addresses by gratuitous ARP.
fn show_many_addresses(site: &Site, host: usize, count: u8) {
    let guest = &site.guests[host];
    let add = |n| format!("address add 10.21.0.{n}/32 dev rm-vm\n");
    guest.ip(&(1..=count).map(add).collect::<String>()).unwrap();
    // With this, a device shows its addresses when it is given its MAC address.
    let notify = |on| {
        let write = format!("echo {on} >/proc/sys/net/ipv4/conf/rm-vm/arp_notify");
        assert!(guest.command("sh").args(["-c", &write]).status().unwrap().success());
    };
    notify(1);
    give_address(site, host, MACS[host]);
    notify(0);
}

/// The first host's port is not locked: its guest's addresses are those that the guest shows.
#[test]
#[ignore = "needs root, FRR, ping and tcpdump"]
fn addresses_that_guests_show_are_announced_and_go_with_them() {
    let mut site = fabric_with("announce-addresses = true\n");
    for v6 in [false, true] {
        site.until("FRR of another host has the address", |site| {
            site.ping(0, 1, v6, 56) && site.owner(KERNEL, &guest(0, v6))["mac"] == MACS[0]
        });
    }
    site.until("we have them", |site| site.overlay(1)["neighbours"] == 2);
    let shown = site.overlay(0);
    assert_eq!((&shown["announced"], &shown["learned"]), (&2.into(), &2.into()), "{shown}");
    // Whoever asks for them is answered where it asks.
    let mut listener = Requests::start(&site, 0);
    site.guests[1].ip("neigh flush dev rm-vm").unwrap();
    for (v6, nobody) in [(false, "10.20.0.77"), (true, "fd20::77")] {
        site.until("it is answered", |site| site.ping(1, 0, v6, 56));
        let ask = || ask_in_vain(&site, 1, nobody);
        ask();
        listener.skip_to(nobody, &guest(0, v6), ask);
    }
    // A process that takes over knows them, and the guest shows them to nobody meanwhile.
    for guest in &site.guests[..2] {
        guest.ip("link set rm-vm arp off").unwrap();
    }
    site.daemons[0].take_over().unwrap();
    site.until("the new process has them", |site| {
        let shown = site.overlay(0);
        shown["announced"] == 2 && shown["learned"] == 2
    });
    for v6 in [false, true] {
        assert_eq!(site.owner(KERNEL, &guest(0, v6))["mac"], MACS[0]);
    }
    for guest in &site.guests[..2] {
        guest.ip("link set rm-vm arp on").unwrap();
    }
    // A guest that claims many has its share, and keeps what it had.
    show_many_addresses(&site, 0, 200);
    site.until("it has its share", |site| site.overlay(0)["announced"] == 128);
    assert_eq!(site.overlay(0)["learned"], 128);
    assert!(site.port(0)["total"]["refused_addresses"].as_u64() >= Some(74));
    assert_eq!(site.owner(KERNEL, &guest(0, false))["mac"], MACS[0]);
    // It moves to another host, which does not know its addresses.
    give_address(&site, 0, "02:00:00:00:00:99");
    give_address(&site, KERNEL, MACS[0]);
    site.until("they are withdrawn", |site| {
        site.ping(KERNEL, 1, false, 56);
        [false, true].iter().all(|v6| site.owner(KERNEL, &guest(0, *v6))["mac"] != MACS[0])
    });
    // What the guest shows under its new MAC address goes with its port.
    site.until("it shows one", |site| {
        site.guests[0].ip("neigh flush dev rm-vm").unwrap();
        site.ping(0, 1, false, 56);
        site.owner(KERNEL, &guest(0, false))["mac"] == "02:00:00:00:00:99"
    });
    site.ask(0, &["port", "remove", "vm"]);
    site.until("nothing is left", |site| {
        site.overlay(0)["announced"] == 0 && site.owner(KERNEL, &guest(0, false)).is_null()
    });
    assert_eq!(site.overlay(0)["learned"], 0);
}

/// A second guest of the first host takes an address over from the first one, which goes on with
/// its other addresses.
#[test]
#[ignore = "needs root, FRR and ping"]
fn an_address_that_fails_over_is_announced_for_its_new_owner() {
    const SHARED: &str = "10.20.0.50";
    const STANDBY: &str = "02:00:00:00:00:21";
    let site = fabric_with("announce-addresses = true\n");
    site.ask(0, &["port", "add", "standby", "--kind", "tap", "--device", "rm-sb"]);
    let standby = Namespace::new().unwrap();
    site.hosts[0].ip(&format!("link set rm-sb netns {}", standby.id())).unwrap();
    standby.ip(&format!("link set rm-sb address {STANDBY} mtu 1450 up")).unwrap();
    site.guests[0].ip(&format!("address add {SHARED}/24 dev rm-vm")).unwrap();
    let reached = |site: &Site| {
        let mut ping = site.guests[1].command("ping");
        ping.args(["-n", "-c", "1", "-W", "2", SHARED]).output().unwrap().status.success()
    };
    let owner = |site: &Site| site.owner(KERNEL, SHARED)["mac"].clone();
    site.until("it is announced", |site| reached(site) && owner(site) == MACS[0]);

    site.guests[0].ip(&format!("address del {SHARED}/24 dev rm-vm")).unwrap();
    standby.ip(&format!("address add {SHARED}/24 dev rm-sb")).unwrap();
    // With this, a device shows its addresses when it is given its MAC address.
    let notify = "echo 1 >/proc/sys/net/ipv4/conf/rm-sb/arp_notify";
    standby.run("sh", ["-c", notify]).unwrap();
    standby.ip(&format!("link set rm-sb address {STANDBY}")).unwrap();
    // As long as both may have it, it is announced for neither.
    site.until("its owner is uncertain", |site| owner(site) != MACS[0]);
    // The first guest has a minute to show it again.
    site.until("it is announced for its new owner", |site| {
        site.ping(0, 1, false, 56) && owner(site) == STANDBY
    });
    site.guests[1].ip("neigh flush dev rm-vm").unwrap();
    site.until("it is reached", reached);
}

fn is_stale(site: &Site, host: usize, other: usize) -> bool {
    site.peer(host, other)["stale"] == true
}

#[test]
#[ignore = "needs root, FRR and ping"]
fn established_traffic_survives_the_control_plane() {
    let mut site = fabric();
    let pings = Pings::start(&site, 0, 1);
    // Its peers, and it itself, lose all that it knew.
    site.frr[0].kill(Daemon::Bgpd);
    site.until("all is stale", |site| {
        is_stale(site, 0, 1) && is_stale(site, 0, KERNEL) && is_stale(site, 1, 0)
    });
    assert!(site.row(0, MACS[1]).unwrap().contains("stale"));
    assert!(site.row(1, MACS[0]).unwrap().contains("stale"));
    assert!(!is_stale(&site, 1, KERNEL));
    site.frr[0].begin(Daemon::Bgpd).unwrap();
    let nothing_is_stale = |site: &Site| {
        PAIRS.iter().all(|&(from, to)| from == KERNEL || site.peer(from, to)["stale"] == false)
    };
    site.until("nothing is stale", nothing_is_stale);
    // Without zebra, nothing changes.
    site.frr[1].kill(Daemon::Zebra);
    assert!(site.ping(KERNEL, 1, false, 56) && nothing_is_stale(&site));
    site.frr[1].begin(Daemon::Zebra).unwrap();
    until_all_is_known(&site);
    for daemons in [[Daemon::Zebra, Daemon::Bgpd], [Daemon::Bgpd, Daemon::Zebra]] {
        daemons.into_iter().for_each(|daemon| site.frr[1].kill(daemon));
        site.until("it is stale", |site| is_stale(site, 0, 1));
        site.frr[1].begin(Daemon::Zebra).unwrap();
        site.frr[1].begin(Daemon::Bgpd).unwrap();
        site.until("it is back", nothing_is_stale);
    }
    pings.none_lost();
    until_all_is_known(&site);

    // A guest that is withdrawn alone is not kept.
    let deletes = ["fdb", "del", MACS[KERNEL], "dev", "vm", "master"];
    site.guests[KERNEL].ip("link set rm-vm down").unwrap();
    let _ = site.hosts[KERNEL].run("bridge", deletes);
    site.until("it is gone", |site| (0..KERNEL).all(|host| site.row(host, MACS[KERNEL]).is_none()));
    assert!(nothing_is_stale(&site));
    site.guests[KERNEL].ip("link set rm-vm up").unwrap();

    // Without the daemon, the control plane goes on; a new one finds all as it was.
    site.daemons[0].kill_and_start().unwrap();
    let tap = format!("link set rm-vm netns {}", site.guests[0].id());
    site.hosts[0].ip(&tap).unwrap();
    site.guests[0]
        .ip(&format!(
            "link set rm-vm address {}\naddress add 10.20.0.1/24 dev rm-vm\nlink set rm-vm up",
            MACS[0]
        ))
        .unwrap();
    until_all_is_known(&site);
}
