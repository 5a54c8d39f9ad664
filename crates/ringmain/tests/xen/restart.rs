//! A daemon that is killed, and one that takes up what it left.

use super::exchange::Exchange;
use super::host::Scene;
use super::traffic::{LIMIT, eventually, ping_both};
use lab::guest::Shell;

#[test]
#[ignore = "boots Xen"]
fn streams_survive_a_daemon_that_is_killed() {
    let scene = Scene::new("");
    let exchange = Exchange::start(&scene);
    let [a, b] = exchange.guests;
    // Everything about vifs that the guests, or the toolstack, could notice.
    let store = || {
        let at = [a, b].map(|guest| format!("/local/domain/{}/device/vif", guest.id())).join(" ");
        let list =
            format!("for at in {at} /local/domain/0/backend/vif; do xenstore-ls -f $at; done");
        scene.dom0.must(&list, LIMIT).unwrap()
    };
    let go_on = || {
        let before = scene.stats();
        eventually("both streams", || exchange.went_on(&before, &scene.stats(), 4 << 20));
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
    exchange.finish();
    ping_both((a, 0), (b, 1), 4000);
}
