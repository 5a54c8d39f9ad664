//! A host with a daemon that serves vbds.

use std::path::PathBuf;
use std::sync::Arc;

use hypervisor::DomId;
use hypervisor::test::Machine;
use runtime::{Group, ThreadUsage, group};
use storage::count::{ErrorReason, QueueCounters};
use storage::limits::DiskRates;
use storage::{BlockPipeline, Disks, engine};
use xen::blkif::service::{BlkbackConfig, Service};
use xen::blkif::status::VbdStatus;

use super::{Front, SECTOR, SECTORS};

/// A host with a daemon.
pub struct Host {
    pub machine: Machine,
    pub service: Option<Service>,
    pub disks: Arc<Disks>,
    images: tempfile::TempDir,
    queues: u16,
    limits: DiskRates,
}

impl Host {
    /// A daemon with two workers that offers so many queues.
    pub fn new(queues: u16) -> Host {
        Host::limited(queues, DiskRates::default())
    }

    /// The same, where each vbd has these limits.
    pub fn limited(queues: u16, limits: DiskRates) -> Host {
        let mut host = Host {
            machine: Machine::new(),
            service: None,
            disks: disks(),
            images: tempfile::tempdir().unwrap(),
            queues,
            limits,
        };
        host.serve();
        host
    }

    fn serve(&mut self) {
        let config = BlkbackConfig {
            queues: self.queues,
            folders: vec![self.images.path().to_owned()],
            limits: self.limits,
            ..BlkbackConfig::default()
        };
        let hypervisor = self.machine.hypervisor(DomId(0));
        self.service = Some(Service::start(Arc::clone(&self.disks), hypervisor, config).unwrap());
    }

    /// Ends the daemon.
    pub fn stop(&mut self) {
        self.service = None;
    }

    /// Starts another daemon, without any state of one before.
    pub fn start(&mut self) {
        self.disks = disks();
        self.serve();
    }

    /// Where the image of this name is to be.
    pub fn image(&self, name: &str) -> PathBuf {
        self.images.path().join(name)
    }

    /// A new image of zeros.
    pub fn new_image(&self, name: &str) -> PathBuf {
        let path = self.image(name);
        let file = std::fs::File::create(&path).unwrap();
        file.set_len(SECTORS * SECTOR as u64).unwrap();
        path
    }

    pub fn vbd(&self, front: &Front) -> Option<VbdStatus> {
        let vbds = self.service.as_ref()?.vbds();
        vbds.into_iter().find(|vbd| vbd.bus.id.domain == front.guest.id())
    }

    pub fn is_connected(&self, front: &Front) -> bool {
        self.vbd(front).is_some_and(|vbd| vbd.connected.is_some())
    }

    /// Requests of a vbd that failed for a reason.
    pub fn failed(&self, front: &Front, reason: ErrorReason) -> u64 {
        self.sum(front, |queue| queue.failed(reason))
    }

    /// A sum over all queues of a vbd.
    pub fn sum(&self, front: &Front, counter: impl Fn(&QueueCounters) -> u64) -> u64 {
        let Some((id, _)) = self.vbd(front).and_then(|vbd| vbd.disk) else { return 0 };
        self.disks.counters(id).iter().map(|(queue, _)| counter(queue)).sum()
    }
}

fn disks() -> Arc<Disks> {
    let doorbells = group::doorbells(2).unwrap();
    let pipelines =
        (0..2).map(|_| BlockPipeline::new(engine::best().unwrap(), ThreadUsage::default)).collect();
    let workers = Group::start(doorbells, pipelines, &[], Default::default()).unwrap();
    Arc::new(Disks::new(Arc::new(workers)))
}
