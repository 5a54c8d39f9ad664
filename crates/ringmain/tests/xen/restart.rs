//! A daemon that is killed, and one that takes up what it left.

use super::host::{PAUSE, Scene};
use super::traffic::{LIMIT, address, eventually, noise, ping, ping_both, stream};
use lab::guest::Shell;

#[test]
#[ignore = "boots Xen"]
fn streams_survive_a_daemon_that_is_killed() {
    let scene = Scene::new("");
    let [a, b] = scene.plugged(["", ""]);
    ping(a, &address(1));
    for guest in [a, b] {
        guest.must("head -c 64k /dev/urandom >/tmp/noise", LIMIT).unwrap();
    }
    let forth = stream(a, b, &address(1), &noise(PAUSE));
    let back = stream(b, a, &address(0), &noise(PAUSE));
    // Everything about vifs that the guests, or the toolstack, could notice.
    let store = || {
        let at = [a, b].map(|guest| format!("/local/domain/{}/device/vif", guest.id())).join(" ");
        let list =
            format!("for at in {at} /local/domain/0/backend/vif; do xenstore-ls -f $at; done");
        scene.dom0.must(&list, LIMIT).unwrap()
    };
    let go_on = || {
        let before = scene.received([a, b]);
        eventually("both streams", || {
            scene.received([a, b]).iter().zip(before).all(|(now, then)| *now > then + (1 << 20))
        });
    };
    go_on();
    let before = store();
    for time in 1..=3 {
        scene.kill();
        scene.go_on();
        go_on();
        assert_eq!(store(), before, "the store was written to");
        let resumed = scene.log().matches("resumed=true").count();
        assert_eq!(resumed, 2 * time, "{}", scene.log());
        let ports = scene.stats().ports;
        assert_eq!(ports.iter().filter(|port| port.queues.len() == 4).count(), 2, "{ports:#?}");
    }
    for guest in [a, b] {
        guest.must("touch /tmp/stop", LIMIT).unwrap();
    }
    forth.finish();
    back.finish();
    ping_both((a, 0), (b, 1), 4000);
}
