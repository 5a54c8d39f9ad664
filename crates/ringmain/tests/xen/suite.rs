//! The suite that runs on every hypervisor, on Xen itself: in dom0, in the daemon's place.

use super::executable::executable;
use super::host::Scene;
use super::traffic::LIMIT;
use lab::guest::Shell;

#[test]
#[ignore = "boots Xen"]
fn the_suite_of_all_hypervisors_passes() {
    let scene = Scene::without_daemon();
    scene.dom0.copy(&executable("hosts"), "/tmp/hosts").unwrap();
    let run = |filter: &str| {
        format!("chmod 755 /tmp/hosts && /tmp/hosts --ignored --nocapture --exact {filter} 2>&1")
    };
    let passed = |said: &str| assert!(said.contains("test result: ok. 1 passed"), "{said}");
    // The backend with our own frontend, both in dom0.
    passed(&scene.dom0.must(&run("the_backend_on_xen"), LIMIT).unwrap());

    // It waits for two vifs with one queue each, whose guests make themselves heard, and destroys
    // one of these.
    let guests = scene.guests();
    guests.iter().for_each(|guest| guest.load_frontend(1, LIMIT).unwrap());
    let suite = scene.dom0.spawn(&run("on_xen")).unwrap();
    for guest in guests {
        let interface = scene.plug(guest, "");
        guest.must(&format!("ip link set {interface} up"), LIMIT).unwrap();
    }
    passed(&suite.wait(LIMIT).unwrap().text);
    passed(&scene.dom0.must(&run("on_xen_through_the_kernels_store_device"), LIMIT).unwrap());
    // Nobody serves the vifs any more. The toolstack would wait ten seconds for each backend to
    // close.
    for guest in guests {
        let state = format!("/local/domain/0/backend/vif/{}/0/state", guest.id());
        let close = format!("! xenstore-exists {state} || xenstore-write {state} 6");
        scene.dom0.must(&close, LIMIT).unwrap();
    }
}
