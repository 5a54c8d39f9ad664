//! Vifs beside ports of other kinds in one datapath: guests on vhost-user, and ports whose memory
//! is their own.

#[path = "../../../network/tests/peer/mod.rs"]
pub mod peer;
#[allow(dead_code)] // Its hostile side is not for us.
#[path = "../../../vhost_user/tests/hostile/station.rs"]
mod station;

use std::sync::Arc;

use crate::front::netfront::Netfront;
use crate::front::tcp::{is_right, tcp};
use crate::front::{CSUM_BLANK, FrontSpec, Host, frame, introduce, mac, wait};
use frame::Accepts;
use peer::Peer;
use ring::packed::driver::PackedDriver;
use ring::split::driver::SplitDriver;
use station::{Station, address};
use switch::{PortRule, Vlan};
use vhost_user::net::{Port, PortConfig};
use vhost_user::transport::server::Mode;

/// Waits for a condition, as the stations' module does.
fn eventually(what: &str, there: impl FnMut() -> bool) {
    println!("{what}");
    wait(there);
}

/// A frame to a station: as they make them.
fn numbered(to: [u8; 6], from: [u8; 6], number: u64, len: usize) -> Vec<u8> {
    let mut frame = [&to[..], &from, &[0x88, 0xb5, 5], &number.to_le_bytes()].concat();
    frame.resize(len, number as u8);
    frame
}

/// Both ways, through one worker or across two, in order and whole; and the one copy is one with an
/// end that is granted.
#[test]
fn a_vif_and_a_guest_on_vhost_user() {
    let host = Host::new();
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("vm.sock");
    let config = PortConfig {
        name: "vm".into(),
        socket: socket.clone(),
        mode: Mode::Server,
        permissions: Default::default(),
        queues: 2,
        mtu: None,
        rule: PortRule::default(),
        coalescing: None,
        policy: None,
        restrictions: network::restrictions::Restrictions::default(),
        memory: vhost_user::net::port::DEFAULT_MEMORY,
    };
    let _device = Port::start(Arc::clone(&host.fabric), config).unwrap();
    let mut split = Station::<SplitDriver>::connect(&socket, 9, 2, 0);
    talk(&host, &mut split, 1);
    drop(split);
    let mut packed =
        Station::<PackedDriver>::connect(&socket, 9, 2, vhost_user::net::feature::bit::RING_PACKED);
    talk(&host, &mut packed, 2);
    assert_eq!(host.machine.refusals(), []);
}

fn talk<R: ring::driver::DriverRing>(host: &Host, station: &mut Station<R>, domain: u8) {
    let a =
        Netfront::connected(host, domain.into(), FrontSpec { queues: 2, ..FrontSpec::default() });
    let (vm, own) = (address(9), mac(domain));
    // Each learns where the other is.
    wait(|| {
        a.send(&numbered(vm, own, 0, 60));
        let mut came = false;
        station.receive(|frame| came |= frame[..12] == [vm, own].concat());
        came && station.send(0, own, 5, 0, 60) && {
            std::thread::sleep(std::time::Duration::from_millis(2));
            a.received().iter().any(|got| got.frame[6..12] == vm)
        }
    });
    a.received();
    while station.receive(|_| ()) {}
    wait(|| a.queues.iter().all(|queue| queue.is_idle()));
    let before = host.machine.counts();
    for n in 1..=50u64 {
        for queue in &a.queues {
            queue.send(&numbered(vm, own, n, 60 + n as usize * 28), 0, None);
            let mut got = Vec::new();
            wait(|| {
                station.receive(|frame| got.push(frame.to_vec()));
                !got.is_empty()
            });
            assert_eq!(got, [numbered(vm, own, n, 60 + n as usize * 28)]);
        }
    }
    let counts = host.machine.counts();
    let heads = |n: u64| 128.min(60 + n * 28);
    let bodies: u64 = (1..=50).map(|n| 60 + n * 28 - heads(n)).sum();
    let once = 2 * (bodies + (1..=50).map(heads).sum::<u64>());
    // A frame that has to wait while its flow changes queues is fetched again once a millisecond,
    // for ten at most since this guest does not tell what it has taken: its head is, never what
    // is behind that. Each pair's flow may have to.
    let (copied, again) = (counts.bytes - before.bytes, 2 * 10 * 128);
    assert!((once..=once + again).contains(&copied), "each byte once: {copied} of {once}");
    for n in 1..=50u64 {
        for pair in 0..2 {
            assert!(station.send(pair, own, 5, n, 60 + n as usize * 28));
            let got = a.expect(1);
            assert_eq!((got[0].frame.len(), &got[0].frame[6..12]), (60 + n as usize * 28, &vm[..]));
            assert_eq!(got[0].frame[15..23], n.to_le_bytes());
        }
    }
    let after = host.machine.counts();
    assert_eq!(
        after.bytes - counts.bytes,
        2 * (1..=50).map(|n| 60 + n * 28).sum::<u64>(),
        "each byte once"
    );
    assert_eq!(
        (after.maps, after.both_granted),
        (before.maps, before.both_granted),
        "one end is granted, none mapped"
    );
    // One that takes no offloads gets finished frames.
    let payload = 1400;
    let mut blank = tcp(domain, 0, payload);
    blank[..6].copy_from_slice(&vm);
    a.queues[0].send(&blank, CSUM_BLANK, None);
    let mut got = Vec::new();
    wait(|| {
        station.receive(|frame| got.push(frame.to_vec()));
        !got.is_empty()
    });
    assert!(is_right(&got[0]) && got[0][54..] == blank[54..]);
}

/// Ports that have their frames in memory of their own, as a TAP has: any offload, any VLAN,
/// several workers.
#[test]
fn a_vif_and_a_local_port() {
    let host = Host::new();
    let (port, breaches) = peer::port(&host.fabric, PortRule::default());
    let local = Peer::attach(&host.fabric, port, 0, Accepts::ALL, 10_000);
    let a = Netfront::connected(&host, 1, FrontSpec::default());
    let plain = Netfront::connected(
        &host,
        2,
        FrontSpec { sg: false, gso: false, csum: false, ..FrontSpec::default() },
    );
    introduce((&a, 1), (&plain, 2));
    local.send([frame(7, 1, 60, 0)]);
    a.expect(1);
    local.received();
    for len in [60, 1500, 4096, 9000, 60_000] {
        a.send(&frame(1, 7, len, 3));
        assert_eq!(local.expect(1), [frame(1, 7, len, 3)]);
        local.send([frame(7, 1, len, 4)]);
        assert_eq!(a.expect(1)[0].frame, frame(7, 1, len, 4));
    }
    local.left_to_do();
    // Offloads go along as they are,
    a.queues[0].send(&tcp(1, 7, 30_000), CSUM_BLANK, Some((1, 1448)));
    assert_eq!(local.expect(1), [tcp(1, 7, 30_000)]);
    let left = local.left_to_do().remove(0);
    assert_eq!(left.gso.map(|gso| gso.size), Some(1448));
    let vnet = frame::vnet::encode(&left, 54);
    local.send_with(vnet, &tcp(7, 1, 30_000));
    let got = a.expect(1).remove(0);
    assert_eq!((got.gso, got.blank), (Some((1, 1448)), true));
    assert!(got.frame == tcp(7, 1, 30_000));
    // or are worked off for one who takes none.
    local.send_with(vnet, &tcp(7, 2, 30_000));
    let got = plain.expect(30_000usize.div_ceil(1448));
    assert!(got.iter().all(|got| !got.blank && got.gso.is_none() && is_right(&got.frame)));
    assert_eq!(
        got.iter().flat_map(|got| got.frame[54..].to_vec()).collect::<Vec<_>>(),
        tcp(7, 2, 30_000)[54..]
    );
    wait(|| local.completed() == 8);
    assert!(breaches.lock().is_empty());
}

/// A tag is put on and taken off on the way; the payload is still copied once.
#[test]
fn a_vif_in_a_vlan_and_a_trunk() {
    let host = Host::new();
    let (port, _) =
        peer::port(&host.fabric, PortRule { vlan: Vlan::Trunk(vec![10, 20]), mac: None });
    let local = Peer::attach(&host.fabric, port, 0, Accepts::ALL, 10_000);
    let a = Netfront::connected(
        &host,
        1,
        FrontSpec { back_keys: vec![("ringmain/vlan", "10")], ..FrontSpec::default() },
    );
    let b = Netfront::connected(
        &host,
        2,
        FrontSpec { back_keys: vec![("ringmain/vlan", "20")], ..FrontSpec::default() },
    );
    let tagged =
        |vlan: u8, frame: Vec<u8>| [&frame[..12], &[0x81, 0, 0, vlan], &frame[12..]].concat();
    local.send([
        tagged(10, frame(7, 1, 3000, 1)),
        tagged(20, frame(7, 2, 3000, 2)),
        tagged(30, frame(7, 1, 3000, 3)),
    ]);
    assert_eq!(a.expect(1)[0].frame, frame(7, 1, 3000, 1));
    assert_eq!(b.expect(1)[0].frame, frame(7, 2, 3000, 2));
    a.send(&frame(1, 7, 3000, 4));
    assert_eq!(local.expect(1), [tagged(10, frame(1, 7, 3000, 4))]);
    b.send(&frame(2, 7, 3000, 5));
    assert_eq!(local.expect(1), [tagged(20, frame(2, 7, 3000, 5))]);
    assert!(a.received().is_empty() && b.received().is_empty());
}

/// A source that is not the vif's own is not let in, when that is asked for.
#[test]
fn a_locked_source_address() {
    let host = Host::new();
    let keys = vec![("ringmain/lock-mac", "1"), ("mac", "02:00:00:00:00:01")];
    let a = Netfront::connected(&host, 1, FrontSpec { back_keys: keys, ..FrontSpec::default() });
    let b = Netfront::connected(&host, 2, FrontSpec::default());
    introduce((&a, 1), (&b, 2));
    a.send(&frame(9, 2, 60, 1));
    a.send(&frame(1, 2, 60, 2));
    assert_eq!(crate::front::what(&b.expect(1)[0].frame), 2);
    // Nobody else may have it either.
    b.send(&frame(1, 2, 60, 3));
    b.send(&frame(2, 1, 60, 4));
    assert_eq!(crate::front::what(&a.expect(1)[0].frame), 4);
}
