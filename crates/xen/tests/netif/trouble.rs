//! Failures that no guest has caused: a store that cannot be reached for a while; and what is left
//! of vifs that are removed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::front::netfront::Netfront;
use crate::front::{Front, FrontSpec, Host, frame, introduce, wait, what};
use hypervisor::store::{OnChange, Permission};
use hypervisor::{DomId, Nodes, Store, StoreError, Transaction, Watch};
use xen::netif::options::PortOptions;
use xen::netif::service::{Service, ServiceConfig};

/// A store that is lost from time to time.
#[derive(Debug)]
struct Shaky {
    store: Arc<dyn Store>,
    trouble: Arc<Trouble>,
}

/// What has become of the store.
#[derive(Debug, Default)]
struct Trouble {
    /// Nobody answers.
    lost: AtomicBool,
    /// It holds nothing.
    emptied: AtomicBool,
    losses: AtomicU64,
}

impl Shaky {
    fn ask<T>(
        &self,
        ask: impl FnOnce(&dyn Nodes) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.there()?;
        if self.trouble.emptied.load(Ordering::Relaxed) {
            return Err(StoreError::NotFound { path: "/".into() });
        }
        ask(self.store.nodes())
    }

    fn there(&self) -> Result<(), StoreError> {
        let lost = || StoreError::Lost(std::io::ErrorKind::BrokenPipe.into());
        if self.trouble.lost.load(Ordering::Relaxed) { Err(lost()) } else { Ok(()) }
    }
}

impl Nodes for Shaky {
    fn read(&self, path: &str) -> Result<Vec<u8>, StoreError> {
        self.ask(|nodes| nodes.read(path))
    }

    fn write(&self, path: &str, value: &[u8]) -> Result<(), StoreError> {
        self.ask(|nodes| nodes.write(path, value))
    }

    fn make(&self, path: &str) -> Result<(), StoreError> {
        self.ask(|nodes| nodes.make(path))
    }

    fn remove(&self, path: &str) -> Result<(), StoreError> {
        self.ask(|nodes| nodes.remove(path))
    }

    fn directory(&self, path: &str) -> Result<Vec<String>, StoreError> {
        self.ask(|nodes| nodes.directory(path))
    }

    fn permissions(&self, path: &str) -> Result<Vec<Permission>, StoreError> {
        self.ask(|nodes| nodes.permissions(path))
    }

    fn set_permissions(&self, path: &str, permissions: &[Permission]) -> Result<(), StoreError> {
        self.ask(|nodes| nodes.set_permissions(path, permissions))
    }
}

impl Store for Shaky {
    fn nodes(&self) -> &dyn Nodes {
        self
    }

    fn losses(&self) -> u64 {
        self.trouble.losses.load(Ordering::Relaxed)
    }

    fn begin(&self) -> Result<Box<dyn Transaction + '_>, StoreError> {
        self.there()?;
        self.store.begin()
    }

    fn watch(&self, path: &str, on_change: OnChange) -> Result<Watch, StoreError> {
        self.there()?;
        self.store.watch(path, on_change)
    }
}

/// Traffic goes on, the status names the problem, and everything works again once the store is
/// back.
#[test]
fn traffic_goes_on_without_the_store() {
    let mut host = Host::bare();
    let trouble = Arc::<Trouble>::default();
    let mut hypervisor = host.machine.hypervisor(DomId(0));
    hypervisor.store =
        Arc::new(Shaky { store: Arc::clone(&hypervisor.store), trouble: Arc::clone(&trouble) });
    let config = ServiceConfig {
        queues: 4,
        stall: Duration::from_millis(200),
        options: PortOptions::default(),
        ..ServiceConfig::default()
    };
    host.service = Some(Service::start(Arc::clone(&host.fabric), hypervisor, config).unwrap());
    let (mut a, b) = (
        Netfront::connected(&host, 1, FrontSpec::default()),
        Netfront::connected(&host, 2, FrontSpec::default()),
    );
    introduce((&a, 1), (&b, 2));
    trouble.lost.store(true, Ordering::Relaxed);
    // Something has to happen for anybody to look.
    a.put("request-multicast-control", 0);
    wait(|| host.vif(&a).unwrap().reason.is_some());
    assert_eq!(host.vif(&a).unwrap().reason.unwrap(), "the store can't be reached: broken pipe");
    for n in 0..50 {
        a.send(&frame(1, 2, 1400, n));
        assert_eq!(what(&b.expect(1)[0].frame), n);
    }
    assert!(host.connected(&a) && host.connected(&b));
    // One that comes meanwhile is found afterwards.
    let mut c = Netfront::attached(&host, 3, FrontSpec::default());
    trouble.lost.store(false, Ordering::Relaxed);
    c.connect();
    introduce((&c, 3), (&b, 2));
    wait(|| host.vif(&a).unwrap().reason.is_none());
    a.begin_anew();
    a.connect();
    wait(|| host.connected(&a));
    introduce((&a, 1), (&b, 2));
    assert_eq!(host.vif(&a).unwrap().violations, 0);

    // A store that was started anew holds nothing: that cuts nobody off.
    let reason = || host.vif(&a).unwrap().reason;
    trouble.lost.store(true, Ordering::Relaxed);
    a.put("request-multicast-control", 1);
    wait(|| reason().is_some_and(|reason| reason.contains("can't be reached")));
    trouble.emptied.store(true, Ordering::Relaxed);
    trouble.losses.fetch_add(1, Ordering::Relaxed);
    trouble.lost.store(false, Ordering::Relaxed);
    wait(|| reason().is_some_and(|reason| reason.contains("started anew")));
    introduce((&a, 1), (&b, 2));
    assert!(host.connected(&a) && host.connected(&b) && host.connected(&c));
    trouble.emptied.store(false, Ordering::Relaxed);
    wait(|| reason().is_none());
    introduce((&c, 3), (&a, 1));
    assert_eq!(host.vif(&a).unwrap().connections, 2);
}

/// The sum over present and removed vifs is complete at any time, and counts nothing twice.
#[test]
fn counters_of_removed_vifs_are_found_once() {
    let host = Host::new();
    let b = Netfront::connected(&host, 2, FrontSpec::default());
    let service = host.service.as_ref().unwrap();
    let mut gone = 0;
    let mut sum = || {
        let mut held = service.removed();
        gone +=
            held.drain(..).map(|queue| queue.tx.frames.get() + queue.rx.frames.get()).sum::<u64>();
        let ports = service.vifs().into_iter().filter_map(|vif| vif.port);
        let there = ports.flat_map(|port| host.fabric.counters(port));
        gone + there.map(|queue| queue.tx.frames.get() + queue.rx.frames.get()).sum::<u64>()
    };
    let mut last = 0;
    for round in 0..10u16 {
        let a = Netfront::connected(
            &host,
            10 + round,
            FrontSpec { queues: 1 + u32::from(round) % 4, ..FrontSpec::default() },
        );
        introduce((&a, 1), (&b, 2));
        for n in 0..20 {
            a.send(&frame(1, 2, 60, n));
        }
        b.expect(20);
        // Counters follow when a burst is complete.
        wait(|| {
            let now = sum();
            assert!(now >= last, "{now} after {last}");
            last = now;
            now == u64::from(round + 1) * 44
        });
        host.machine.destroy(a.guest.id());
        wait(|| a.back_state() == Some(6));
        a.device(|device| host.machine.forget(device)).unwrap();
        wait(|| {
            assert_eq!(sum(), last);
            host.vif(&a).is_none()
        });
    }
    assert_eq!(sum(), last);
}

/// The error of a vif goes with the vif, and the directory of a domain's errors with its last vif.
#[test]
fn errors_of_removed_vifs_are_removed() {
    let host = Host::new();
    let first = Front::attached(&host, 3, FrontSpec::default());
    let second = first.sibling(1, FrontSpec::default());
    let vifs = [&first, &second];
    for vif in vifs {
        wait(|| vif.back_state() == Some(2));
        // Without any keys.
        vif.put("state", 4);
        host.stopped(vif);
    }
    let store = host.machine.hypervisor(DomId(0)).store;
    let errors = |of: &str| {
        store.nodes().directory(&format!("/local/domain/0/error/backend/vif{of}")).unwrap()
    };
    let remove = |vif: &Front| {
        vif.device(|device| host.machine.forget(device)).unwrap();
        wait(|| host.vif(vif).is_none());
    };
    assert_eq!(errors("/3"), ["0", "1"]);
    remove(&first);
    assert_eq!(errors("/3"), ["1"]);
    remove(&second);
    assert_eq!(errors(""), [""; 0]);
}
