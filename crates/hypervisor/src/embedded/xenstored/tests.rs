use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::thread;

use super::*;
use crate::DomId;
use crate::embedded::{Design, Machine};
use crate::xen::XenStore;

/// A connection of domain 1 and one of domain 0 over a socket, as long as `with` runs.
fn connected(with: impl FnOnce(UnixStream, &Machine)) {
    let machine = Machine::new(Design::default()).unwrap();
    let _guest = machine.guest(DomId(1), 1, crate::embedded::Version::V1).unwrap();
    let store = DomainStore::new(machine.host.store.clone(), DomId(1));
    let account = StoreAccount::default();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let stop = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| serve(theirs.into(), &store, &account, stop.as_fd()));
        with(ours, &machine);
        rustix::io::write(&stop, &1u64.to_ne_bytes()).unwrap();
    });
}

/// Makes the directory `data` of domain 1 its own; domain 0's store.
fn give_data(machine: &Machine) -> Arc<dyn Store> {
    let dom0 = machine.hypervisor(DomId(0)).unwrap().store;
    dom0.nodes().make("/local/domain/1/data").unwrap();
    let own = Permission { domain: DomId(1), access: crate::store::Access::None };
    dom0.nodes().set_permissions("/local/domain/1/data", &[own]).unwrap();
    dom0
}

#[test]
fn a_client_gets_what_its_domain_may() {
    connected(|end, machine| {
        give_data(machine);
        let store = XenStore::over(end.into()).unwrap();
        let nodes = Store::nodes(&store);
        nodes.put("data/x", 5).unwrap();
        assert_eq!(nodes.number("data/x").unwrap(), Some(5));
        assert!(matches!(nodes.put("/other", 5), Err(StoreError::Denied { .. })));
        for n in 0..900 {
            nodes.put(&format!("data/a-rather-long-name-{n}"), n).unwrap();
        }
        assert_eq!(nodes.directory("data").unwrap().len(), 901, "in several pieces");
        assert!(
            (0..200).any(|n| matches!(
                nodes.put(&format!("data/{n}"), n),
                Err(StoreError::Quota { .. })
            ))
        );
        let begun: Vec<_> = (0..20).map_while(|_| store.begin().ok()).collect();
        assert_eq!(begun.len(), TRANSACTIONS);
        drop(begun);
        let watches: Vec<_> = (0..500)
            .map_while(|n| store.watch(&format!("data/{n}"), Box::new(|_| ())).ok())
            .collect();
        assert_eq!(watches.len(), WATCHES);
    });
}

/// A guest with its full number of watches on a node that it writes all the time. Its connection
/// may be closed, if its thread does not keep up, but events of other domains do not wait for long.
#[test]
fn a_storm_of_events_is_bounded() {
    connected(|end, machine| {
        let dom0 = give_data(machine);
        let store = XenStore::over(end.into()).unwrap();
        let _watches: Vec<_> =
            (0..WATCHES).map(|_| store.watch("data", Box::new(|_| ())).unwrap()).collect();
        let nodes = Store::nodes(&store);
        let written =
            (0..2000).take_while(|n| nodes.put(&format!("data/{}", n % 500), *n).is_ok()).count();
        assert!(written > 0);
        let (sender, told) = std::sync::mpsc::channel();
        let _watch =
            dom0.watch("/other", Box::new(move |path| _ = sender.send(path.to_owned()))).unwrap();
        dom0.nodes().put("/other", 1).unwrap();
        for _ in 0..2 {
            told.recv_timeout(std::time::Duration::from_secs(30)).unwrap();
        }
    });
}

#[test]
fn who_breaks_the_protocol_is_cut_off() {
    connected(|mut end, _| {
        let header = Header { kind: 2, request: 1, transaction: 0, len: 5000 };
        end.write_all(&header.encode()).unwrap();
        let mut rest = Vec::new();
        assert_eq!(end.read_to_end(&mut rest).unwrap_or(0), 0);
    });
}

#[test]
fn nonsense_is_answered_with_errors() {
    connected(|mut end, _| {
        for (kind, payload) in
            [(99, &b"x\0"[..]), (4, b"only-a-path\0"), (5, b"x\0y\0"), (7, b"T\0"), (2, b"\xff\0")]
        {
            end.write_all(&wire_message(kind, payload)).unwrap();
            let mut header = [0; wire::HEADER];
            end.read_exact(&mut header).unwrap();
            let header = Header::decode(&header);
            assert_eq!(header.kind, Kind::Error as u32, "{kind}");
            end.read_exact(&mut vec![0; header.len as usize]).unwrap();
        }
    });
}

fn wire_message(kind: u32, payload: &[u8]) -> Vec<u8> {
    let header = Header { kind, request: 1, transaction: 0, len: payload.len() as u32 };
    [&header.encode(), payload].concat()
}
