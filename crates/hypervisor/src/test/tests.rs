use std::sync::mpsc;
use std::time::Duration;

use ring::copies::{Copies, Place, Status};
use ring::grant::Granted;

use super::*;
use crate::store::tests::eventually;
use crate::{Channel, EventError, GrantError, RemotePort, StoreError};

const LONG: Duration = Duration::from_secs(30);

/// Copies four bytes to a granted place, and returns the status.
fn write(hypervisor: &Hypervisor, domain: DomId, reference: GrantRef, offset: u16) -> Status {
    let mut copies = Copies::new(1, 64).unwrap();
    let from = copies.stage(b"data").unwrap();
    copies.push(from, Place::Granted(Granted { domain, reference, offset }), 4, 0).unwrap();
    hypervisor.grants.copy(&mut copies).unwrap();
    copies.segments()[0].status()
}

#[test]
fn each_use_of_a_grant_is_checked() {
    let machine = Machine::new();
    let (dom0, dom2) = (machine.hypervisor(DomId(0)), machine.hypervisor(DomId(2)));
    let guest = machine.guest(DomId(1), 4).unwrap();
    let (writable, read_only) = (guest.grant(DomId(0), 1, true), guest.grant(DomId(0), 2, false));
    let revoked = guest.grant(DomId(0), 3, true);
    assert_eq!(write(&dom0, guest.id(), revoked, 0), Status::DONE);
    assert!(guest.revoke(revoked));
    assert_eq!(write(&dom0, guest.id(), writable, 100), Status::DONE);
    let mut bytes = [0; 4];
    guest.memory().read(4096 + 100, &mut bytes).unwrap();
    assert_eq!(&bytes, b"data");
    assert!(machine.refusals().is_empty());

    let never = GrantRef(100);
    assert_eq!(write(&dom0, guest.id(), read_only, 0), Status::REFUSED);
    assert_eq!(write(&dom0, guest.id(), revoked, 0), Status::REFUSED);
    assert_eq!(write(&dom0, guest.id(), never, 0), Status::REFUSED);
    assert_eq!(write(&dom0, guest.id(), GrantRef(7), 0), Status::REFUSED);
    assert_eq!(write(&dom0, guest.id(), GrantRef(512), 0), Status::BAD_REFERENCE);
    assert_eq!(write(&dom2, guest.id(), writable, 0), Status::REFUSED);
    assert_eq!(write(&dom0, DomId(9), writable, 0), Status::BAD_DOMAIN);
    let reasons: Vec<Reason> = machine.refusals().iter().map(|refusal| refusal.reason).collect();
    use Reason::{BeyondTable, NeverGranted, NoDomain, NotToUs, ReadOnly, Revoked};
    assert_eq!(
        reasons,
        [ReadOnly, Revoked, NeverGranted, NeverGranted, BeyondTable, NotToUs, NoDomain]
    );

    for reference in [read_only, revoked, never] {
        assert!(matches!(
            dom0.grants.map(guest.id(), &[writable, reference]),
            Err(GrantError::Refused { .. })
        ));
    }
    assert_eq!(guest.mapped(), 0, "all or none");
    assert!(matches!(dom2.grants.map(guest.id(), &[writable]), Err(GrantError::Refused { .. })));
}

#[test]
fn a_grant_in_use_is_not_revoked() {
    let machine = Machine::new();
    let dom0 = machine.hypervisor(DomId(0));
    let guest = machine.guest(DomId(1), 2).unwrap();
    let reference = guest.grant(DomId(0), 1, true);
    let mapped = dom0.grants.map(guest.id(), &[reference]).unwrap();
    let again = dom0.grants.map(guest.id(), &[reference, reference]).unwrap();
    assert_eq!(guest.mapped(), 3);
    assert!(!guest.revoke(reference));
    drop(again);
    assert!(!guest.revoke(reference));
    mapped.write(8, b"still").unwrap();
    drop(mapped);
    assert!(guest.revoke(reference));
    assert_eq!(guest.grant(DomId(0), 0, false), reference, "used again");
    let counts = machine.counts();
    assert_eq!((counts.maps, counts.copies), (3, 0));
}

#[test]
fn a_page_is_mapped_for_what_is_granted() {
    let machine = Machine::new();
    let (dom0, dom2) = (machine.hypervisor(DomId(0)), machine.hypervisor(DomId(2)));
    let guest = machine.guest(DomId(1), 4).unwrap();
    let (writable, read_only) = (guest.grant(DomId(0), 1, true), guest.grant(DomId(0), 2, false));
    guest.memory().write(2 * 4096 + 5, b"read").unwrap();
    let page = dom0.grants.map_page(guest.id(), read_only, false).unwrap();
    let mut bytes = [0; 4];
    assert!(page.read(5, &mut bytes) && bytes == *b"read");
    assert!(!page.write(5, b"gone") && !page.is_writable());
    let other = dom0.grants.map_page(guest.id(), writable, true).unwrap();
    assert!(other.write(4092, b"both"));
    guest.memory().read(4096 + 4092, &mut bytes).unwrap();
    assert_eq!(&bytes, b"both");
    // A page that may be written can also be mapped for reading only.
    let less = dom0.grants.map_page(guest.id(), writable, false).unwrap();
    assert!(less.read(4092, &mut bytes) && !less.write(0, b"x"));
    assert_eq!(guest.mapped(), 3);
    assert!(!guest.revoke(writable) && !guest.revoke(read_only));
    for (host, reference, write) in
        [(&dom0, read_only, true), (&dom2, writable, false), (&dom0, GrantRef(300), false)]
    {
        let refused = host.grants.map_page(guest.id(), reference, write);
        assert!(matches!(refused, Err(GrantError::Page { .. })), "{refused:?}");
    }
    let words = dom0.grants.map_page(guest.id(), read_only, true).unwrap_err().to_string();
    assert_eq!(words, format!("domain 1 has not granted page {read_only} to us for writing"));
    drop((page, other, less));
    assert!(guest.revoke(writable) && guest.revoke(read_only));
}

#[test]
fn a_domain_that_is_gone_leaves_its_pages_to_those_who_mapped_them() {
    let machine = Machine::new();
    let dom0 = machine.hypervisor(DomId(0));
    let guest = machine.guest(DomId(1), 1).unwrap();
    let reference = guest.grant(DomId(0), 0, true);
    let mapped = dom0.grants.map(guest.id(), &[reference]).unwrap();
    machine.destroy(DomId(1));
    drop(guest);
    mapped.write(0, b"here").unwrap();
    assert!(dom0.grants.map(DomId(1), &[reference]).is_err());
    // As on Xen, the domain is dying but not gone yet.
    assert_eq!(write(&dom0, DomId(1), reference, 0), Status::BAD_PAGE);
    drop(mapped);
    assert_eq!(write(&dom0, DomId(1), reference, 0), Status::BAD_DOMAIN);
    // A new domain of the same number has none of the old one's grants.
    let guest = machine.guest(DomId(1), 1).unwrap();
    assert_eq!(write(&dom0, DomId(1), reference, 0), Status::REFUSED);
    let mut bytes = [0; 4];
    guest.memory().read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 4]);
}

#[test]
fn copies_are_counted() {
    let machine = Machine::new();
    let dom0 = machine.hypervisor(DomId(0));
    let guests = [1, 2].map(|id| machine.guest(DomId(id), 1).unwrap());
    let places = guests.each_ref().map(|guest| {
        Place::Granted(Granted {
            domain: guest.id(),
            reference: guest.grant(DomId(0), 0, true),
            offset: 0,
        })
    });
    let mut copies = Copies::new(4, 64).unwrap();
    let from = copies.stage(b"0123456789").unwrap();
    copies.push(from, places[0], 10, 0).unwrap();
    copies.push(places[0], places[1], 8, 0).unwrap();
    dom0.grants.copy(&mut copies).unwrap();
    dom0.grants.copy(&mut copies).unwrap();
    let expected =
        Counts { batches: 1, copies: 2, both_granted: 1, bytes: 18, ..Counts::default() };
    assert_eq!(machine.counts(), expected);
    let mut bytes = [0; 10];
    guests[1].memory().read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"01234567\0\0");
}

#[test]
fn signals_wait_until_they_are_taken() {
    let machine = Machine::new();
    let events = machine.hypervisor(DomId(0)).events;
    let guest = machine.guest(DomId(1), 1).unwrap();
    let port = guest.open(DomId(0)).unwrap();
    port.notify();
    let channel = events.bind(guest.id(), port.number()).unwrap();
    assert!(channel.take(), "one waits from the start");
    assert!(!channel.take());
    port.notify();
    port.notify();
    assert!(channel.take(), "both at once, since neither was taken");
    assert!(!channel.take());
    assert!(!port.take());
    channel.notify();
    assert!(port.wait(LONG));
    assert!(!port.take());
}

#[test]
fn channels_are_bound_once_at_a_time() {
    let machine = Machine::new();
    let (dom0, dom2) = (machine.hypervisor(DomId(0)).events, machine.hypervisor(DomId(2)).events);
    let guest = machine.guest(DomId(1), 1).unwrap();
    let port = guest.open(DomId(0)).unwrap();
    let refused = |outcome| matches!(outcome, Err(EventError::Refused { domain: DomId(1), .. }));
    assert!(refused(dom2.bind(DomId(1), port.number())), "not for them");
    assert!(refused(dom0.bind(DomId(1), RemotePort(999))));
    let channel = dom0.bind(DomId(1), port.number()).unwrap();
    assert!(refused(dom0.bind(DomId(1), port.number())), "bound");
    // The bound end is closed, as when a daemon dies. The guest's port stays, and can be bound
    // again.
    drop(channel);
    port.notify();
    let channel = dom0.bind(DomId(1), port.number()).unwrap();
    assert!(channel.take());
    port.notify();
    assert!(channel.take());
    machine.destroy(DomId(1));
    channel.notify();
    port.notify();
    assert!(!channel.take());
    assert!(refused(dom0.bind(DomId(1), port.number())));
}

#[test]
fn a_toolstack_writes_both_directories() {
    let machine = Machine::new();
    let guest = machine.guest(DomId(1), 1).unwrap();
    let backend = machine.hypervisor(DomId(0)).store;
    let (frontend_keys, backend_keys) =
        (&[("mac", "00:16:3e:00:00:01")], &[("script", "vif-ringmain")]);
    let device = Device {
        class: "vif",
        handle: 2,
        frontend: DomId(1),
        backend: DomId(0),
        frontend_keys,
        backend_keys,
    };
    let (sender, events) = mpsc::channel();
    let watch = backend.watch(
        "/local/domain/0/backend/vif",
        Box::new(move |path| sender.send(path.to_owned()).unwrap()),
    );
    let _watch = watch.unwrap();
    machine.attach(&device).unwrap();
    let (front, back) = (device.frontend_path(), device.backend_path());
    assert_eq!(
        (&*front, &*back),
        ("/local/domain/1/device/vif/2", "/local/domain/0/backend/vif/1/2")
    );
    assert_eq!(backend.nodes().text(&format!("{back}/frontend")).unwrap(), front);
    assert_eq!(backend.nodes().text(&format!("{back}/script")).unwrap(), "vif-ringmain");
    eventually(|| events.try_iter().any(|path| path == back));
    // Each writes its own directory, and reads the other's.
    let own = guest.store().nodes();
    assert_eq!(own.number("device/vif/2/state").unwrap(), Some(1));
    own.put("device/vif/2/state", 4).unwrap();
    assert_eq!(own.number(&format!("{back}/state")).unwrap(), Some(1));
    assert!(matches!(own.put(&format!("{back}/state"), 4), Err(StoreError::Denied { .. })));
    assert!(matches!(own.put("name", "me"), Err(StoreError::Denied { .. })), "domain 0's");
    machine.detach(&device).unwrap();
    assert_eq!(own.number(&format!("{back}/online")).unwrap(), Some(0));
    // The directory of a destroyed domain is removed, and nothing else.
    let (sender, gone) = mpsc::channel();
    let _released =
        backend.watch("@releaseDomain", Box::new(move |_| sender.send(()).unwrap())).unwrap();
    gone.recv_timeout(LONG).unwrap();
    machine.destroy(DomId(1));
    gone.recv_timeout(LONG).unwrap();
    assert!(backend.nodes().read(&front).unwrap_err().is_not_found());
    assert!(backend.nodes().find(&format!("{back}/state")).unwrap().is_some());
    machine.forget(&device).unwrap();
    assert!(backend.nodes().read(&back).unwrap_err().is_not_found());
}

#[test]
fn a_watch_reports_only_readable_nodes() {
    let machine = Machine::new();
    let guest = machine.guest(DomId(1), 1).unwrap();
    let backend = machine.hypervisor(DomId(0)).store;
    let (sender, events) = mpsc::channel();
    let all = sender.clone();
    let _root =
        guest.store().watch("/", Box::new(move |path| all.send(path.to_owned()).unwrap())).unwrap();
    let _own = guest
        .store()
        .watch("domid", Box::new(move |path| sender.send(path.to_owned()).unwrap()))
        .unwrap();
    backend.nodes().write("/secret", b"").unwrap();
    let hidden =
        [crate::store::Permission { domain: DomId(0), access: crate::store::Access::None }];
    backend.nodes().set_permissions("/secret", &hidden).unwrap();
    backend.nodes().write("/secret", b"1").unwrap();
    backend.nodes().write("/local/domain/1/domid", b"1").unwrap();
    let mut told = Vec::new();
    eventually(|| {
        told.extend(events.try_iter());
        told.iter().any(|path| path == "/local/domain/1/domid")
            && told.iter().filter(|p| *p == "domid").count() == 2
    });
    assert_eq!(
        told.iter().filter(|path| *path == "/secret").count(),
        1,
        "as long as all could read it"
    );
}
