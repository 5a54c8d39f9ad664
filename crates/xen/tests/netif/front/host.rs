//! A host with a daemon.

use std::sync::Arc;
use std::time::Duration;

use hypervisor::DomId;
use hypervisor::test::{Design, Machine};
use network::fabric::{Fabric, Workers};
use xen::netif::options::PortOptions;
use xen::netif::service::{Service, ServiceConfig};
use xen::netif::status::{Condition, VifStatus};

use super::{Vif, wait};

/// A host with a daemon.
pub struct Host {
    pub machine: Machine,
    pub fabric: Arc<Fabric>,
    pub service: Option<Service>,
    pub options: PortOptions,
}

impl Host {
    pub fn new() -> Host {
        Host::with(4, Duration::from_secs(60))
    }

    pub fn with(queues: u16, stall: Duration) -> Host {
        Host::on(Machine::new(), queues, stall)
    }

    /// A host of that inner design.
    pub fn of(design: Design) -> Host {
        Host::on(Machine::of(design), 4, Duration::from_secs(60))
    }

    fn on(machine: Machine, queues: u16, stall: Duration) -> Host {
        let mut host =
            Host { machine, fabric: fabric(), service: None, options: PortOptions::default() };
        host.serve(queues, stall);
        host
    }

    /// A host that serves with these options.
    pub fn switched(options: PortOptions) -> Host {
        Host::designed(Design::default(), options)
    }

    /// A host of that inner design that serves with these options.
    pub fn designed(design: Design, options: PortOptions) -> Host {
        let mut host = Host { machine: Machine::of(design), options, ..Host::bare() };
        host.serve(4, Duration::from_secs(60));
        host
    }

    /// A host with a daemon on that datapath.
    pub fn over(fabric: Arc<Fabric>) -> Host {
        let mut host = Host { fabric, ..Host::bare() };
        host.serve(4, Duration::from_secs(60));
        host
    }

    /// A host without a daemon.
    pub fn bare() -> Host {
        Host {
            machine: Machine::new(),
            fabric: fabric(),
            service: None,
            options: PortOptions::default(),
        }
    }

    fn serve(&mut self, queues: u16, stall: Duration) {
        let config =
            ServiceConfig { queues, stall, options: self.options, ..ServiceConfig::default() };
        let hypervisor = self.machine.hypervisor(DomId(0));
        self.service = Some(Service::start(Arc::clone(&self.fabric), hypervisor, config).unwrap());
    }

    /// Ends the daemon, and starts another without any of its state.
    pub fn restart(&mut self) {
        self.service = None;
        self.fabric = fabric();
        self.serve(4, Duration::from_secs(60));
    }

    pub fn vif(&self, front: &Vif) -> Option<VifStatus> {
        let vifs = self.service.as_ref().unwrap().vifs();
        vifs.into_iter()
            .find(|vif| vif.id.domain == front.guest.id() && vif.id.handle == front.handle)
    }

    /// Waits until the vif is stopped, and returns the reason.
    #[track_caller]
    pub fn stopped(&self, front: &Vif) -> String {
        wait(|| self.vif(front).is_some_and(|vif| vif.violations > 0));
        let node = format!(
            "/local/domain/0/error/backend/vif/{}/{}/error",
            front.guest.id(),
            front.handle
        );
        let store = self.machine.hypervisor(DomId(0)).store;
        let reason = self.vif(front).unwrap().reason.unwrap();
        assert_eq!(store.nodes().text(&node).unwrap(), reason, "the error node");
        assert_eq!(self.vif(front).unwrap().condition, Condition::Stopped);
        assert_eq!(front.back_state(), Some(5));
        reason
    }

    pub fn connected(&self, front: &Vif) -> bool {
        self.vif(front).is_some_and(|vif| vif.condition == Condition::Connected)
    }
}

fn fabric() -> Arc<Fabric> {
    Arc::new(Fabric::start(&Workers { count: 2, ..Workers::default() }).unwrap())
}
