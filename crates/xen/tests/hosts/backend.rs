//! The backend of vifs and our own frontend, over whatever hypervisor there is.

use std::sync::Arc;
use std::time::Duration;

use ::xen::netif::frontend::FrontendConfig;
use ::xen::netif::options::PortOptions;
use ::xen::netif::service::{Service, ServiceConfig};
use ::xen::netif::status::Condition;
use hypervisor::{DomId, Domain, Hypervisor};
use network::fabric::{Fabric, Workers};

use crate::front::station::{Station, introduce, offload, spread, talk};
use crate::front::{frame, wait, what};

/// The two interfaces: whose they are, and which number they have there.
pub type Fronts = [(Arc<dyn Domain>, u32); 2];

/// A daemon without anything but vifs.
struct Daemon {
    service: Service,
    fabric: Arc<Fabric>,
}

impl Daemon {
    fn start(host: &Hypervisor) -> Daemon {
        let fabric = Arc::new(Fabric::start(&Workers { count: 2, ..Workers::default() }).unwrap());
        let config = ServiceConfig {
            queues: 2,
            stall: Duration::from_secs(60),
            options: PortOptions::default(),
            ..ServiceConfig::default()
        };
        Daemon {
            service: Service::start(Arc::clone(&fabric), host.clone(), config).unwrap(),
            fabric,
        }
    }

    /// Both are connected, and nobody broke a rule.
    fn check(&self, queues: [usize; 2]) {
        let connected = || {
            let vifs = self.service.vifs();
            let count = vifs.iter().filter(|vif| vif.condition == Condition::Connected).count();
            (count == 2).then_some(vifs)
        };
        wait(|| connected().is_some());
        let vifs = connected().unwrap();
        assert_eq!(vifs.iter().map(|vif| vif.violations).sum::<u64>(), 0, "{vifs:?}");
        assert_eq!([vifs[0].queues, vifs[1].queues], queues);
    }
}

/// Makes both directories of an interface, as toolstack and hotplug script do.
pub fn plug(host: &Hypervisor, frontend: DomId, handle: u32) {
    let back = format!("/local/domain/{}/backend/vif/{frontend}/{handle}", host.domain);
    let front = format!("/local/domain/{frontend}/device/vif/{handle}");
    hypervisor::transaction(&*host.store, |nodes| {
        nodes.put(&format!("{front}/backend"), &back)?;
        nodes.put(&format!("{front}/backend-id"), host.domain)?;
        nodes.put(&format!("{front}/state"), 1)?;
        let keys = [
            ("script", "vif-ringmain"),
            ("hotplug-status", "connected"),
            ("online", "1"),
            ("state", "1"),
        ];
        keys.iter().try_for_each(|(key, value)| nodes.put(&format!("{back}/{key}"), value))?;
        nodes.put(&format!("{back}/frontend"), &front)?;
        nodes.put(&format!("{back}/frontend-id"), frontend)
    })
    .unwrap();
}

/// Takes them away.
pub fn unplug(host: &Hypervisor, frontend: DomId, handle: u32) {
    let back = format!("/local/domain/{}/backend/vif/{frontend}/{handle}", host.domain);
    for path in [back, format!("/local/domain/{frontend}/device/vif/{handle}")] {
        host.store.nodes().remove(&path).unwrap();
    }
}

/// Everything, between two interfaces that are plugged in and wait.
pub fn all(host: &Hypervisor, [a, b]: Fronts) {
    let mut daemon = Daemon::start(host);
    let one = FrontendConfig::default();
    let two = FrontendConfig { queues: 2, ..FrontendConfig::default() };
    let mut a = Station::of(a.0, a.1, &FrontendConfig { split: false, control: false, ..one });
    let mut b = Station::of(b.0, b.1, &two);
    daemon.check([1, 2]);
    talk(&mut a, &mut b);
    println!("suite: frames of all lengths go both ways");
    offload((&mut a, 1), (&mut b, 2));
    offload((&mut b, 2), (&mut a, 1));
    println!("suite: what is left to be done goes along");
    spread(&mut a, &mut b);
    println!("suite: the control ring is obeyed");
    many(&mut a, &mut b);
    for queues in [2, 1] {
        a.close();
        a.begin_anew(queues);
        daemon.check([queues.into(), 2]);
        talk(&mut a, &mut b);
    }
    println!("suite: a frontend closes and begins anew");
    for _ in 0..2 {
        drop(daemon);
        // Nobody is there to take it; the next one is.
        a.send(&frame(1, 2, 2000, 77));
        daemon = Daemon::start(host);
        daemon.check([1, 2]);
        wait(|| b.received().iter().any(|(_, bytes, _)| what(bytes) == 77));
        talk(&mut a, &mut b);
    }
    println!("suite: the next daemon goes on where the rings stand");
    a.close();
    b.close();
    wait(|| daemon.service.vifs().iter().all(|vif| vif.condition == Condition::Waiting));
    assert!(daemon.service.vifs().iter().all(|vif| vif.violations == 0));
    println!(
        "suite: all passed with a backend on domain {}, {} workers",
        host.domain,
        daemon.fabric.worker_count()
    );
}

/// More than fit the rings at a time, of all lengths: in order, and none is lost.
fn many<G>(a: &mut Station<G>, b: &mut Station<G>) {
    introduce(a, b);
    const COUNT: u32 = 2000;
    let mut numbers = Vec::new();
    for n in 0..COUNT {
        a.send(&frame(1, 2, n as usize * 41 % 6000, n));
        // No more under way than there are buffers: a receiver that is full for long loses frames.
        wait(|| {
            numbers.extend(b.received().iter().map(|(_, bytes, _)| what(bytes)));
            numbers.len() + 32 >= n as usize
        });
    }
    wait(|| {
        numbers.extend(b.received().iter().map(|(_, bytes, _)| what(bytes)));
        numbers.len() >= COUNT as usize
    });
    assert_eq!(numbers, (0..COUNT).collect::<Vec<_>>());
    a.wait_until_idle();
    println!("suite: many frames, in order");
}
