//! One suite for every hypervisor: what the traits promise, and the backend of vifs over them,
//! tried in the same way on the embedded hypervisor and on real Xen.
//!
//! On Xen this executable is run in domain 0 with `--ignored`, while xen-netback is not loaded. For
//! the traits, the other side are stock guests: two domains with one network interface each (of one
//! queue, up as soon as it can be) are created while it waits for them. On the embedded hypervisor,
//! a small imitation of their driver plays the same part. For the backend, the other side is our
//! own frontend: of domain 0 itself on Xen, of guests elsewhere.

mod backend;
#[path = "../netif/front/mod.rs"]
mod front;
mod suite;
mod wire;

use std::process::Command;
use std::sync::Arc;

use ::xen::netif::frontend::Frontend;
use hypervisor::test::{Design, Device, Machine};
use hypervisor::{DomId, Domain, xen};
use suite::Suite;
use suite::front::Front;

#[test]
fn on_the_embedded_hypervisor() {
    for design in [Design::OLD, Design::default()] {
        let machine = Machine::of(design);
        let fronts: Vec<Front> = [1, 2].map(|id| Front::start(&machine, DomId(id))).into();
        let devices: Vec<Device<'_>> =
            fronts.iter().map(|front| suite::front::device(front.id)).collect();
        devices.iter().for_each(|device| machine.attach(device).unwrap());
        let toolstack = machine.clone();
        Suite::new(machine.hypervisor(DomId(0)), move |domain| toolstack.destroy(domain)).run();
        drop(fronts);
    }
}

#[test]
fn the_backend_on_the_embedded_hypervisor() {
    for design in [Design::OLD, Design::default()] {
        let machine = Machine::of(design);
        let host = machine.hypervisor(DomId(0));
        let fronts = [1, 2].map(|id| {
            let guest = machine.guest(DomId(id), Frontend::pages(2)).unwrap();
            let device = Device {
                class: "vif",
                handle: 0,
                frontend: DomId(id),
                backend: DomId(0),
                frontend_keys: &[],
                backend_keys: &[],
            };
            // It makes the directories with a guest's rights; the keys are the same everywhere.
            machine.attach(&device).unwrap();
            backend::plug(&host, DomId(id), 0);
            (Arc::clone(guest.domain()) as Arc<dyn Domain>, 0)
        });
        backend::all(&host, fronts);
        assert_eq!(machine.refusals(), []);
    }
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
fn the_backend_on_xen() {
    // Numbers that no other interface has.
    const HANDLES: [u32; 2] = [70, 71];
    let host = xen::open().expect("running on Xen");
    // The kernel limits such pages to four megabytes by default.
    std::fs::write("/sys/module/xen_gntalloc/parameters/limit", "16384")
        .expect("the module for pages to be granted");
    let fronts = HANDLES.map(|handle| {
        backend::plug(&host, host.domain, handle);
        let domain: Arc<dyn Domain> =
            Arc::new(xen::OwnDomain::open(Frontend::pages(2)).expect("pages of our own"));
        (domain, handle)
    });
    backend::all(&host, fronts);
    HANDLES.iter().for_each(|handle| backend::unplug(&host, host.domain, *handle));
}

#[test]
#[ignore = "needs to run in domain 0 of a Xen host"]
fn on_xen_through_the_kernels_store_device() {
    let mut hypervisor = xen::open().expect("running on Xen");
    hypervisor.store =
        std::sync::Arc::new(xen::XenStore::open_device().expect("the kernel's device"));
    suite::store::all(&hypervisor);
}
