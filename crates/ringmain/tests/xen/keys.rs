//! A frontend whose keys make no sense. No stock guest writes such, so dom0 does in its place.

use super::host::Scene;
use super::traffic::{LIMIT, address_it, eventually, tcp_both};
use control::api::PortState;
use lab::guest::Shell;

#[test]
#[ignore = "boots Xen"]
fn wrong_keys_are_refused_with_a_reason_and_right_ones_taken_afterwards() {
    let scene = Scene::new("");
    let [a, b] = scene.guests();
    let id = a.id();
    a.must("rmmod xen_netfront", LIMIT).unwrap();
    scene.dom0.must(&format!("xl network-attach {id} script=vif-ringmain"), LIMIT).unwrap();
    let front = format!("/local/domain/{id}/device/vif/0");
    let keys = |keys: &[(&str, &str)]| {
        let keys: String =
            keys.iter().map(|(key, value)| format!(" {front}/{key} '{value}'")).collect();
        scene.dom0.must(&format!("xenstore-write{keys}"), LIMIT).unwrap();
    };
    keys(&[
        ("tx-ring-ref", "a page"),
        ("rx-ring-ref", "7"),
        ("event-channel", "9"),
        ("request-rx-copy", "1"),
    ]);
    keys(&[("state", "4")]);
    eventually("the vif to be refused", || {
        scene.port(a, 0).is_some_and(|port| port.reason.is_some())
    });
    let error = format!("/local/domain/0/error/backend/vif/{id}/0/error");
    let reason = scene.dom0.must(&format!("xenstore-read {error}"), LIMIT).unwrap();
    assert!(reason.contains("tx-ring-ref") && reason.contains("a page"), "{reason}");
    assert_ne!(scene.port(a, 0).unwrap().state, PortState::Connected);

    // A page that was never granted.
    keys(&[("state", "1")]);
    let state = format!("[ $(xenstore-read /local/domain/0/backend/vif/{id}/0/state) = 2 ]");
    scene.dom0.must(&format!("until {state}; do usleep 50000; done"), LIMIT).unwrap();
    keys(&[
        ("tx-ring-ref", "4000"),
        ("rx-ring-ref", "4001"),
        ("event-channel", "9"),
        ("request-rx-copy", "1"),
    ]);
    keys(&[("state", "4")]);
    let granted = format!(
        "until xenstore-read {error} | grep -q 'not granted page 4000'; do usleep 50000; done"
    );
    scene.dom0.must(&granted, LIMIT).unwrap();

    // And then the guest's own frontend.
    scene
        .dom0
        .must(
            &format!(
                "for key in tx-ring-ref rx-ring-ref event-channel request-rx-copy; do xenstore-rm {front}/$key; done"
            ),
            LIMIT,
        )
        .unwrap();
    keys(&[("state", "1")]);
    scene.dom0.must(&format!("until {state}; do usleep 50000; done"), LIMIT).unwrap();
    a.must(
        "insmod /modules/xen-netfront.ko max_queues=4; until [ -d /sys/class/net/eth0 ]; do usleep 50000; done",
        LIMIT,
    )
    .unwrap();
    address_it(a, "eth0", 0);
    let interface = scene.plug(b, "");
    address_it(b, &interface, 1);
    tcp_both((a, 0), (b, 1), 1);
}
