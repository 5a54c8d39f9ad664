//! What becomes of traffic when the store's daemon is replaced, and when it ends.

use super::exchange::Exchange;
use super::host::Scene;
use super::traffic::{LIMIT, eventually, ping_both};
use lab::guest::Shell;

/// Bytes that each guest receives meanwhile.
const PROGRESS: u64 = 1 << 20;

/// Whether every vif gives this reason, or, with `None`, no reason at all.
fn says(scene: &Scene, reason: Option<&str>) -> bool {
    let ports = scene.stats().ports;
    let vifs: Vec<_> = ports.iter().filter(|port| port.name.contains('.')).collect();
    let is_so = |said: Option<&str>| match (said, reason) {
        (Some(said), Some(reason)) => said.contains(reason),
        (said, reason) => said == reason,
    };
    !vifs.is_empty() && vifs.iter().all(|port| is_so(port.reason.as_deref()))
}

// In a module that comes after all others: the host's toolstack is of no more use then.
#[test]
#[ignore = "boots Xen"]
fn streams_outlive_the_stores_daemon() {
    let scene = Scene::new("");
    let exchange = Exchange::start(&scene);
    exchange.go_on(PROGRESS);

    // Replaced by a new process, which takes over the connections.
    let update = "xenstore-control live-update /usr/lib/xen-4.17/bin/xenstored";
    scene.dom0.must(update, LIMIT).unwrap();
    exchange.go_on(PROGRESS);
    let [a, b] = exchange.guests;
    let second = scene.plug(a, "");
    eventually("a second vif", || scene.port(a, 1).is_some_and(|port| !port.queues.is_empty()));
    assert_eq!(second, "eth1");
    ping_both((a, 0), (b, 1), 2000);
    assert!(says(&scene, None), "{:#?}", scene.stats().ports);

    // Killed, so that all that the store held is lost. The guests' consoles go with it.
    scene.dom0.must("kill -9 $(pidof xenstored)", LIMIT).unwrap();
    eventually("the loss to be said", || says(&scene, Some("the store can't be reached")));
    exchange.go_on(PROGRESS);
    scene
        .dom0
        .must("xenstored --pid-file=/run/xenstored.pid </dev/null >/dev/null 2>&1", LIMIT)
        .unwrap();
    eventually("the new store to be said", || says(&scene, Some("the store was started anew")));
    exchange.go_on(PROGRESS);
    let ports = scene.stats().ports;
    assert!(ports.iter().all(|port| port.violations == 0), "{ports:#?}");
    drop(exchange);
    scene.end_host();
}
