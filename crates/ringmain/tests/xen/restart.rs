//! A daemon that is killed, and one that takes up what it left.

use super::host::Scene;
use super::traffic::{LIMIT, address, eventually, ping, ping_both, stream};
use lab::guest::Shell;

#[test]
#[ignore = "boots Xen"]
fn streams_survive_a_daemon_that_is_killed() {
    let scene = Scene::new("");
    let [a, b] = scene.plugged(["", ""]);
    ping(a, &address(1));
    for guest in [a, b] {
        guest.must("head -c 1m /dev/urandom >/tmp/noise", LIMIT).unwrap();
    }
    let forth = stream(a, b, &address(1), "until [ -e /tmp/stop ]; do cat /tmp/noise; done");
    let back = stream(b, a, &address(0), "until [ -e /tmp/stop ]; do cat /tmp/noise; done");
    // Everything about vifs that the guests, or the toolstack, could notice.
    let store = || {
        let at = [a, b].map(|guest| format!("/local/domain/{}/device/vif", guest.id())).join(" ");
        let list =
            format!("for at in {at} /local/domain/0/backend/vif; do xenstore-ls -f $at; done");
        scene.dom0.must(&list, LIMIT).unwrap()
    };
    let carried = || [a, b].map(|guest| scene.port(guest, 0).map_or(0, |port| port.total.rx_bytes));
    let both = |more: u64| {
        let before = carried();
        eventually("both streams", || {
            carried().iter().zip(before).all(|(now, then)| *now > then + more)
        });
    };
    both(4 << 20);
    let before = store();
    for time in 1..=3 {
        scene.kill();
        scene.go_on();
        both(4 << 20);
        assert_eq!(store(), before, "the store was written to");
        let resumed = scene.log().matches("resumed=true").count();
        assert_eq!(resumed, 2 * time, "{}", scene.log());
        assert!(
            [a, b].iter().all(|guest| scene.port(guest, 0).unwrap().queues.len() == 4),
            "{:#?}",
            scene.stats()
        );
    }
    for guest in [a, b] {
        guest.must("touch /tmp/stop", LIMIT).unwrap();
    }
    forth.finish();
    back.finish();
    ping_both((a, 0), (b, 1), 4000);
}
