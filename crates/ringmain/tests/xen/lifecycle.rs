//! What a toolstack does with a guest that exchanges data: pause, save and restore, reboot.

use super::exchange::send_noise;
use super::host::{QUEUES, Scene, VIF};
use super::traffic::{LIMIT, address, address_it, eventually, finish, ping, ping_both};
use control::api::PortState;
use lab::guest::Shell;
use lab::xen::{Domain, DomainSpec};

/// Where dom0 keeps the state of a saved guest.
const SAVED: &str = "/root/saved";

/// What a stream carries at least while it goes on, in bytes. That nothing of it was lost shows at
/// its end.
const PROGRESS: u64 = 256 << 10;

/// Bytes that a guest received and sent on its only vif.
fn carried(scene: &Scene, guest: &Domain) -> [u64; 2] {
    let total = scene.port(guest, 0).unwrap().total;
    [total.rx_bytes, total.tx_bytes]
}

/// Waits until streams from and to a guest have gone on.
fn go_on(scene: &Scene, neighbour: &Domain) {
    let before = carried(scene, neighbour);
    eventually("both streams", || {
        let now = carried(scene, neighbour);
        now.iter().zip(before).all(|(now, before)| *now > before + PROGRESS)
    });
}

/// Checks that a guest's vif is connected, with all its queues.
fn check_connected(scene: &Scene, guest: &Domain) {
    let port = scene.port(guest, 0).unwrap();
    assert_eq!(
        (port.state, port.queues.len()),
        (PortState::Connected, usize::from(QUEUES)),
        "{port:#?}"
    );
}

#[test]
#[ignore = "boots Xen"]
fn streams_survive_pause_save_and_restore() {
    let scene = Scene::new("");
    let spec = DomainSpec { max_queues: Some(QUEUES), reboots: true, ..DomainSpec::new("mover") };
    let mut mover = scene.dom0.create(&spec.vif(VIF)).unwrap();
    let [neighbour, _] = scene.guests();
    address_it(neighbour, &scene.plug(neighbour, ""), 1);
    mover.ready(LIMIT).unwrap();
    address_it(&mover, "eth0", 2);
    ping(&mover, &address(1));
    let streams = [send_noise(&mover, neighbour, 1), send_noise(neighbour, &mover, 2)];
    go_on(&scene, neighbour);

    scene.dom0.must(&format!("xl pause {}", mover.id()), LIMIT).unwrap();
    let sent = || scene.port(&mover, 0).unwrap().total.tx_frames;
    // What it had put on its rings before is carried still.
    eventually("silence", || {
        let before = sent();
        scene.dom0.must("sleep 1", LIMIT).unwrap();
        sent() == before
    });
    scene.dom0.must(&format!("xl unpause {}", mover.id()), LIMIT).unwrap();
    go_on(&scene, neighbour);

    let name = format!("vif{}.0", mover.id());
    mover.save(SAVED).unwrap();
    eventually("the port to go", || scene.stats().ports.iter().all(|port| port.name != name));
    mover.restore(SAVED).unwrap();
    scene.dom0.must(&format!("rm {SAVED}"), LIMIT).unwrap();
    go_on(&scene, neighbour);
    check_connected(&scene, &mover);

    finish([&mover, neighbour], streams);
    let failed: Vec<_> =
        scene.stats().ports.into_iter().filter(|port| port.violations > 0).collect();
    assert!(failed.is_empty(), "{failed:#?}");

    mover.reboot(LIMIT).unwrap();
    address_it(&mover, "eth0", 2);
    ping_both((&mover, 2), (neighbour, 1), 4000);
    check_connected(&scene, &mover);
    scene.check_balance();
}
