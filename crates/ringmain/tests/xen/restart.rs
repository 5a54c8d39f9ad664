//! A daemon that is killed, and one that takes up what it left.

use super::exchange::Exchange;
use super::host::Scene;
use super::traffic::{LIMIT, ping_both};
use control::api::Stats;
use lab::guest::Shell;
use lab::xen::CONFIGURATION;

/// Bytes that each guest receives after each event.
const PROGRESS: u64 = 4 << 20;

/// Starts a second daemon with the same configuration, whose control socket is its own. It has no
/// vifs while the first one has them, and says why.
fn check_that_a_second_daemon_has_no_vifs(scene: &Scene) {
    const SOCKET: &str = "/run/second.sock";
    let serve = format!("exec ringmain serve --config {CONFIGURATION} --control {SOCKET} 2>&1");
    let second = scene.dom0.spawn(&serve).unwrap();
    let answers = format!("until ringmain stats --control {SOCKET}; do usleep 50000; done");
    scene.dom0.must(&answers, LIMIT).unwrap();
    let stats = format!("ringmain stats --json --control {SOCKET}");
    let stats: Stats = serde_json::from_str(&scene.dom0.must(&stats, LIMIT).unwrap()).unwrap();
    let said = second.stop(LIMIT).unwrap().text;
    let reasons: Vec<_> = stats.ports.iter().map(|port| port.reason.as_deref()).collect();
    let reason = "another process serves the vifs of this domain already";
    assert!(matches!(reasons[..], [Some(given)] if given.contains(reason)), "{reasons:?}, {said}");
}

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
    exchange.go_on(PROGRESS);
    let before = store();
    check_that_a_second_daemon_has_no_vifs(&scene);
    for time in 1..=3 {
        scene.kill();
        scene.go_on();
        exchange.go_on(PROGRESS);
        assert_eq!(store(), before, "the store was written to");
        let resumed = scene.log().matches("resumed=true").count();
        assert_eq!(resumed, 2 * time, "{}", scene.log());
        let ports = scene.stats().ports;
        assert_eq!(ports.iter().filter(|port| port.queues.len() == 4).count(), 2, "{ports:#?}");
    }
    exchange.finish();
    ping_both((a, 0), (b, 1), 4000);
}
