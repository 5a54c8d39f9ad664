//! What the traits promise, tried in the same way on the hypervisor for tests and on real Xen.
//!
//! On Xen the other side are stock guests: this executable is run in domain 0 with `--ignored`, xen-netback is not
//! loaded, and two domains with one network interface each (of one queue, up as soon as it can be) are created while it
//! waits for them. On the hypervisor for tests, a small imitation of their driver plays the same part.

mod suite;
mod wire;

use std::process::Command;

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
    let toolstack = machine.clone();
    Suite::new(machine.hypervisor(DomId(0)), move |domain| toolstack.destroy(domain)).run();
    drop(fronts);
}

#[test]
#[ignore = "needs to run in domain 0 of a Xen host"]
fn on_xen() {
    let destroy = |domain: DomId| {
        // It complains, since nobody closes the backend.
        Command::new("xl").args(["destroy", &domain.to_string()]).status().expect("the toolstack");
    };
    Suite::new(xen::open().expect("running on Xen"), destroy).run();
}

#[test]
#[ignore = "needs to run in domain 0 of a Xen host"]
fn on_xen_through_the_kernels_store_device() {
    let mut hypervisor = xen::open().expect("running on Xen");
    hypervisor.store = std::sync::Arc::new(xen::XenStore::open_device().expect("the kernel's device"));
    suite::store::all(&hypervisor);
}
