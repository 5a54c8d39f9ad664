//! What the traits promise, tried in the same way on the hypervisor for tests and on real Xen.
//!
//! On Xen the other side are stock guests: this executable is run in domain 0 with `--ignored`, xen-netback is not
//! loaded, and two domains with one network interface each (of one queue, up as soon as it can be) are created while it
//! waits for them. On the hypervisor for tests, a small imitation of their driver plays the same part.

mod suite;
mod wire;

use hypervisor::test::{Device, Machine};
use hypervisor::{DomId, xen};
use suite::Suite;
use suite::front::Front;

#[test]
fn on_the_hypervisor_for_tests() {
    let machine = Machine::new();
    let fronts: Vec<Front> = [1, 2].map(|id| Front::start(&machine, DomId(id))).into();
    let devices: Vec<Device<'_>> = fronts.iter().map(|front| suite::front::device(front.id)).collect();
    devices.iter().for_each(|device| machine.attach(device).unwrap());
    Suite::new(machine.hypervisor(DomId(0))).run();
    drop(fronts);
}

#[test]
#[ignore = "needs to run in domain 0 of a Xen host"]
fn on_xen() {
    Suite::new(xen::open().expect("running on Xen")).run();
}

#[test]
#[ignore = "needs to run in domain 0 of a Xen host"]
fn on_xen_through_the_kernels_store_device() {
    let mut hypervisor = xen::open().expect("running on Xen");
    hypervisor.store = std::sync::Arc::new(xen::XenStore::open_device().expect("the kernel's device"));
    suite::store::all(&hypervisor);
}
