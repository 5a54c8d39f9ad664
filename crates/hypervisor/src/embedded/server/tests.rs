use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use ring::Memory;
use ring::copies::{Copies, Place, Status};
use ring::grant::Granted;

use super::super::client::{ConnectError, become_guest};
use rustix::net::{SocketAddrUnix, connect, socket_with};

use super::*;
use crate::embedded::{Design, Version};
use crate::{Domain, Extent, GrantRef, Hypervisor, PAGE, StoreError};

const DOM0: DomId = DomId(0);
const LONG: Duration = Duration::from_secs(30);

struct Site {
    machine: Machine,
    server: Server,
    socket: PathBuf,
    _dir: tempfile::TempDir,
}

fn place() -> Site {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("guests.sock");
    let machine = Machine::new(Design::default()).unwrap();
    let keys = vec![("script".into(), "vif-ringmain".into())];
    let config = ServerConfig {
        socket: socket.clone(),
        keys,
        version: Version::V1,
        permissions: Permissions::default(),
        mac: None,
    };
    let server = Server::start(machine.clone(), config).unwrap();
    Site { machine, server, socket, _dir: dir }
}

fn hello_of(name: &str) -> Hello {
    Hello { pages: 16, version: Version::V1, mac: [2, 0, 0, 0, 0, 1], name: name.into() }
}

#[track_caller]
fn eventually(mut there: impl FnMut() -> bool) {
    let start = Instant::now();
    while !there() {
        assert!(start.elapsed() < LONG, "in vain");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn copy(
    dom0: &Hypervisor,
    domain: DomId,
    reference: GrantRef,
    len: usize,
) -> Result<Vec<u8>, Status> {
    let mut copies = Copies::new(1, PAGE).unwrap();
    let (stage, to) = copies.reserve(len).unwrap();
    copies
        .push(Place::Granted(Granted { domain, reference, offset: 0 }), to, len as u32, 0)
        .unwrap();
    dom0.grants.copy(&mut copies).unwrap();
    let mut bytes = vec![0; len];
    copies.read(stage, 0, &mut bytes);
    match copies.segments()[0].status() {
        Status::DONE => Ok(bytes),
        status => Err(status),
    }
}

#[test]
fn grants_and_signals_of_a_guest_arrive() {
    let place = place();
    let dom0 = place.machine.hypervisor(DOM0).unwrap();
    let (guest, _line) = become_guest(&place.socket, hello_of("a")).unwrap();
    let id = guest.id();
    assert_eq!(
        place.server.guest_processes()[&id],
        GuestProcess {
            name: "a".into(),
            process: std::process::id() as i32,
            copy_usage: CopyUsage::default(),
            store_usage: StoreUsage::default()
        }
    );
    guest.memory().write(3 * PAGE as u64, b"frame").unwrap();
    let reference = guest.grant(DOM0, 3, Extent::Whole, true).unwrap();
    assert_eq!(copy(&dom0, id, reference, 5), Ok(b"frame".to_vec()));
    let mapped = dom0.grants.map(id, &[reference]).unwrap();
    assert!(!guest.revoke(reference));
    mapped.write(0, b"other").unwrap();
    drop(mapped);
    assert!(guest.revoke(reference));
    assert_eq!(copy(&dom0, id, reference, 5), Err(Status::REFUSED));
    // More than fit into one page of the table.
    let all: Vec<GrantRef> =
        (0..2000).map(|_| guest.grant(DOM0, 3, Extent::Whole, false).unwrap()).collect();
    assert_eq!(copy(&dom0, id, all[1999], 5), Ok(b"other".to_vec()));

    let (number, port) = guest.open(DOM0).unwrap();
    port.notify();
    let channel = dom0.events.bind(id, number).unwrap();
    assert!(channel.take() && !channel.take());
    port.notify();
    assert!(channel.take());
    channel.notify();
    assert!(port.take() && !port.take());
    drop(port);
    channel.notify();
    assert!(dom0.events.bind(id, number).is_err());
}

#[test]
fn a_guest_finds_its_interface_in_the_store() {
    let place = place();
    let (guest, _line) = become_guest(&place.socket, hello_of("a")).unwrap();
    let nodes = guest.store().nodes();
    let back = nodes.text("device/vif/0/backend").unwrap();
    assert_eq!(nodes.text("device/vif/0/mac").unwrap(), "02:00:00:00:00:01");
    assert_eq!(nodes.text(&format!("{back}/script")).unwrap(), "vif-ringmain");
    assert!(nodes.put(&format!("{back}/state"), 4).is_err());
    nodes.put("device/vif/0/state", 3).unwrap();
}

/// All messages of a guest process to its hypervisor about resources of another guest.
#[test]
fn a_guest_reaches_nothing_that_it_was_not_granted() {
    let place = place();
    let dom0 = place.machine.hypervisor(DOM0).unwrap();
    let able = |name: &str| Hello { version: Version::V2, ..hello_of(name) };
    let (victim, _one) = become_guest(&place.socket, able("victim")).unwrap();
    let (evil, _other) = become_guest(&place.socket, able("evil")).unwrap();
    victim.memory().write(3 * PAGE as u64, b"secret").unwrap();
    let reference = victim.grant(DOM0, 3, Extent::Whole, true).unwrap();
    // A grant to another domain cannot be passed on, however its entry is written, and neither can
    // a page of another domain.
    for writable in [false, true] {
        let stolen = evil.grant_transitive(DOM0, victim.id(), reference, writable).unwrap();
        assert_eq!(copy(&dom0, evil.id(), stolen, 6), Err(Status::REFUSED));
        assert!(dom0.grants.map(evil.id(), &[stolen]).is_err());
    }
    assert!(evil.grant(DOM0, 16, Extent::Whole, false).is_err(), "it has pages 0 to 15");
    // Only domain 0 can bind a channel that is for domain 0.
    let (number, _port) = victim.open(DOM0).unwrap();
    assert!(place.machine.hypervisor(evil.id()).unwrap().events.bind(victim.id(), number).is_err());
    // The keys of the other guest, and of its backend, can be neither read nor written.
    let nodes = evil.store().nodes();
    let theirs = format!("/local/domain/{}/device/vif/0", victim.id());
    let back = victim.store().nodes().text("device/vif/0/backend").unwrap();
    for path in [&theirs, &back] {
        let key = format!("{path}/state");
        assert!(matches!(nodes.text(&key), Err(StoreError::Denied { .. })), "{key}");
        assert!(matches!(nodes.put(&key, 6), Err(StoreError::Denied { .. })), "{key}");
        assert!(matches!(nodes.remove(path), Err(StoreError::Denied { .. })), "{path}");
    }
    // Nothing has changed.
    assert_eq!(copy(&dom0, victim.id(), reference, 6), Ok(b"secret".to_vec()));
    assert_eq!(victim.store().nodes().text("device/vif/0/state").unwrap(), "1");
}

#[test]
fn nothing_of_a_guest_stays_after_its_end() {
    let place = place();
    let dom0 = place.machine.hypervisor(DOM0).unwrap();
    let (guest, line) = become_guest(&place.socket, hello_of("a")).unwrap();
    let id = guest.id();
    let reference = guest.grant(DOM0, 3, Extent::Whole, true).unwrap();
    let mapped = dom0.grants.map(id, &[reference]).unwrap();
    assert!(
        matches!(become_guest(&place.socket, hello_of("a")), Err(ConnectError::Refused(_))),
        "a name of its own"
    );
    drop((guest, line));
    eventually(|| place.server.guest_processes().is_empty());
    mapped.write(0, b"still").unwrap();
    assert_eq!(copy(&dom0, id, reference, 5), Err(Status::BAD_PAGE));
    drop(mapped);
    assert_eq!(copy(&dom0, id, reference, 5), Err(Status::BAD_DOMAIN));
    assert!(
        dom0.store.nodes().directory(&format!("/local/domain/{id}")).unwrap_err().is_not_found()
    );
    assert!(dom0.store.nodes().directory("/local/domain/0/backend/vif").unwrap().is_empty());
    let (next, _line) = become_guest(&place.socket, hello_of("a")).unwrap();
    assert_ne!(next.id(), id);
}

#[test]
fn guests_notice_that_their_host_is_gone() {
    let place = place();
    let (guest, line) = become_guest(&place.socket, hello_of("a")).unwrap();
    drop(place.server);
    assert!(!place.socket.exists());
    let mut fds = [PollFd::from_borrowed_fd(line.end(), PollFlags::IN)];
    poll(&mut fds, None).unwrap();
    assert!(guest.open(DOM0).is_err());
    assert!(guest.store().nodes().text("name").is_err());
}

#[test]
fn a_guest_of_another_address_than_the_ports_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("guests.sock");
    let config = ServerConfig {
        socket: socket.clone(),
        keys: Vec::new(),
        version: Version::V1,
        permissions: Permissions::default(),
        mac: Some([2, 0, 0, 0, 0, 1]),
    };
    let _server = Server::start(Machine::new(Design::default()).unwrap(), config).unwrap();
    let other = Hello { mac: [2, 0, 0, 0, 0, 2], ..hello_of("a") };
    let error = become_guest(&socket, other).unwrap_err().to_string();
    assert!(error.contains("guests of this port have the address 02:00:00:00:00:01"), "{error}");
    assert!(become_guest(&socket, hello_of("a")).is_ok());
}

#[test]
fn two_do_not_listen_at_one_place() {
    let place = place();
    let config = ServerConfig {
        socket: place.socket.clone(),
        keys: Vec::new(),
        version: Version::V1,
        permissions: Permissions::default(),
        mac: None,
    };
    assert!(matches!(Server::start(place.machine.clone(), config), Err(SocketError::InUse(_))));
}

/// Sends a first message. Returns the answer, if there is one.
fn say(place: &Site, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Option<Reply> {
    let socket =
        socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .unwrap();
    connect(&socket, &SocketAddrUnix::new(&place.socket).unwrap()).unwrap();
    protocol::send(socket.as_fd(), bytes, fds).unwrap();
    let (bytes, _) = protocol::receive(socket.as_fd()).unwrap()?;
    Reply::decode(&bytes)
}

/// A memory file of huge pages that cannot shrink, if the kernel supports it.
fn huge() -> Option<std::os::fd::OwnedFd> {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
    let file = memfd_create(c"huge", flags).ok()?;
    ftruncate(&file, 1 << 30).ok()?;
    fcntl_add_seals(&file, SealFlags::SHRINK).ok()?;
    Some(file)
}

#[test]
fn what_makes_no_sense_is_refused() {
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    let place = place();
    let hello = |hello: Hello| Request::Hello(hello).encode();
    let (_memory, good) = Memory::shared((Layout { pages: 16 }).total() * PAGE).unwrap();
    let (_memory, short) = Memory::shared(16 * PAGE).unwrap();
    let soft = memfd_create(c"soft", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&soft, 1 << 20).unwrap();
    let refused = |bytes: &[u8], fds: &[BorrowedFd<'_>]| {
        matches!(say(&place, bytes, fds), Some(Reply::Refused(_)))
    };
    assert!(refused(&hello(hello_of("a")), &[]), "no memory");
    assert!(refused(&hello(hello_of("a")), &[short.as_fd()]), "too short");
    assert!(refused(&hello(hello_of("a")), &[soft.as_fd()]), "can be cut off");
    if let Some(huge) = huge() {
        assert!(refused(&hello(hello_of("a")), &[huge.as_fd()]), "huge pages");
    }
    assert!(refused(&hello(Hello { pages: 0, ..hello_of("a") }), &[good.as_fd()]));
    assert!(refused(&hello(Hello { pages: u32::MAX, ..hello_of("a") }), &[good.as_fd()]));
    assert!(refused(&hello(Hello { mac: [1; 6], ..hello_of("a") }), &[good.as_fd()]), "a group");
    assert_eq!(say(&place, b"what?", &[good.as_fd()]), None);
    assert_eq!(say(&place, &Request::Open(DOM0).encode(), &[]), None, "who is it?");
    assert_eq!(
        say(&place, &hello(Hello { name: "a b".into(), ..hello_of("a") }), &[good.as_fd()]),
        None
    );
    assert!(place.server.guest_processes().is_empty());
    assert!(matches!(
        say(&place, &hello(hello_of("a")), &[good.as_fd()]),
        Some(Reply::Welcome(_, Version::V1))
    ));
    eventually(|| place.server.guest_processes().is_empty());
}

/// A guest that fills the counter that it is woken by, and lets it block, is not woken any more,
/// and delays nobody.
#[test]
fn a_guest_that_makes_its_waker_block() {
    let place = place();
    let dom0 = place.machine.hypervisor(DOM0).unwrap();
    let (guest, _line) = become_guest(&place.socket, hello_of("a")).unwrap();
    let (number, port) = guest.open(DOM0).unwrap();
    let channel = dom0.events.bind(guest.id(), number).unwrap();
    rustix::io::write(port.waker(), &(u64::MAX - 1).to_ne_bytes()).unwrap();
    rustix::io::ioctl_fionbio(port.waker(), false).unwrap();
    channel.notify();
    channel.notify();
    // Only our own word decides whether a signal waits.
    assert!(channel.take() && !channel.take());
}

#[test]
fn guests_copy_passed_grants() {
    let place = place();
    let (sender, _line) =
        become_guest(&place.socket, Hello { version: Version::V2, ..hello_of("a") }).unwrap();
    let (receiver, _line) = become_guest(&place.socket, hello_of("b")).unwrap();
    let before = place.machine.counts();
    crate::embedded::hypercall_tests::exchange(&place.machine, &sender, &receiver);
    let usage = place.server.guest_processes()[&receiver.id()].copy_usage;
    assert!(usage.calls > 0 && usage.bytes > 0 && usage.time > Duration::ZERO, "{usage:?}");
    assert_eq!(place.server.guest_processes()[&sender.id()].copy_usage.bytes, 0);
    let after = place.machine.counts();
    assert_eq!(
        (after.bytes, after.guest_copied_bytes),
        (before.bytes, usage.bytes),
        "domain 0 has copied nothing"
    );
}

#[test]
fn a_bounded_number_of_virtual_cpus() {
    let place = place();
    let (guest, _line) = become_guest(&place.socket, hello_of("a")).unwrap();
    let mut all: Vec<_> = std::iter::from_fn(|| guest.hypercalls().ok()).collect();
    assert_eq!(all.len(), 16);
    let mut outcomes = Vec::new();
    for hypercalls in &mut all {
        hypercalls.grant_copy(&[], &mut outcomes).unwrap();
    }
    drop(all);
    assert!(guest.hypercalls().is_ok());
}

#[test]
fn the_host_says_what_tables_are_like() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("guests.sock");
    let config = ServerConfig {
        socket: socket.clone(),
        keys: Vec::new(),
        version: Version::V2,
        permissions: Permissions::default(),
        mac: None,
    };
    let _server = Server::start(Machine::new(Design::default()).unwrap(), config).unwrap();
    let (guest, _line) = become_guest(&socket, hello_of("a")).unwrap();
    assert!(guest.has_sub_page_grants());
}

#[test]
fn a_bounded_number_of_channels() {
    let place = place();
    let (guest, _line) = become_guest(&place.socket, hello_of("a")).unwrap();
    let all: Vec<_> = std::iter::from_fn(|| guest.open(DOM0).ok()).collect();
    assert_eq!(all.len(), 128);
    drop(all);
    assert!(guest.open(DOM0).is_ok());
}
