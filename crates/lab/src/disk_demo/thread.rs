//! A guest that is a thread of this program: it drives the rings of a disk itself.

use std::time::Duration;

use super::point::{Figures, Phase};
use super::site::{Site, Used};
use super::{Args, DiskDemoError, DiskGuest};
use crate::disk_load::{self, Operation, Order, Place, Span, Workload};

/// How long requests are sent before they are measured.
const WARM_UP: Duration = Duration::from_millis(300);

/// The guest.
pub(super) struct ThreadGuest<'a> {
    site: &'a Site,
    time: Duration,
}

impl ThreadGuest<'_> {
    pub(super) fn new<'a>(args: &Args, site: &'a Site) -> ThreadGuest<'a> {
        ThreadGuest { site, time: args.time() }
    }

    fn place(&self, queues: u16) -> Place {
        Place {
            socket: self.site.socket(queues),
            length: self.site.length(),
            cpu: None,
            backend: self.site.id(),
        }
    }
}

impl DiskGuest for ThreadGuest<'_> {
    fn verify(&self, queues: u16) -> Result<u64, DiskDemoError> {
        let workload = Workload {
            queues,
            sleeps: true,
            ..Workload::new(Operation::Write, Order::Random, 4096, 32)
        };
        Ok(disk_load::verify(&self.place(queues), &workload, queues.into())?)
    }

    /// The thread sleeps until it is interrupted, as a guest does.
    fn measure(&self, queues: u16, phase: &Phase) -> Result<Figures, DiskDemoError> {
        let workload = Workload {
            queues,
            sleeps: true,
            ..Workload::new(phase.operation, phase.order, phase.bytes, phase.depth)
        };
        let span = Span::Time { warm_up: WARM_UP, measured: self.time };
        let report = disk_load::run(&self.place(queues), &workload, span)?;
        let (iops, megabytes) = (report.iops(), report.megabytes());
        Ok(Figures { iops, megabytes, latency: report.latency })
    }

    fn used(&self, queues: u16) -> Result<Used, DiskDemoError> {
        Ok(self.site.used(queues)?)
    }

    fn processes(&self) -> Vec<u32> {
        vec![self.site.id(), std::process::id()]
    }
}
