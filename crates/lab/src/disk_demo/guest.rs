//! A process that is a guest of the embedded hypervisor, with three disks: `ringmain-lab
//! disk-guest`, which the demonstration starts. Jobs come as lines of JSON on standard input, and
//! answers go to standard output.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hypervisor::Domain;
use hypervisor::embedded::Version;
use hypervisor::embedded::client::{GuestRequest, become_guest};
use serde::{Deserialize, Serialize};
use xen::xenbus::{FrontError, PageAllocator};

use super::point::Figures;
use super::site::QUEUES;
use super::{DiskDemoError, GuestArgs};
use crate::disk_load::{BlkifDisk, DiskLoadError, Operation, Order, Span, Workload};

/// The name of the guest.
pub(super) const NAME: &str = "disks";

/// The address of its network interface, which is not used.
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// How long requests are sent before they are measured.
const WARM_UP: Duration = Duration::from_millis(300);

/// How long the toolstack may take to give the guest a disk.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The number of the disk with so many queues: those of `xvda`, `xvdb` and so on.
pub(super) const fn handle(queues: u16) -> u32 {
    51712 + 16 * (queues as u32 - 1)
}

/// What the guest is to do with the disk of so many queues.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) enum Job {
    /// Write the whole disk, read it back, and compare.
    Verify { queues: u16 },
    /// Send requests of one kind.
    Measure {
        queues: u16,
        operation: Operation,
        order: Order,
        bytes: u32,
        depth: u16,
        time: Duration,
    },
}

/// What the guest has done.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(super) enum Done {
    /// So many bytes were compared.
    Verified(u64),
    /// The figures.
    Measured(Figures),
}

/// What the guest says to a job: what it has done, or why it has not.
pub(super) type Answer = Result<Done, String>;

/// Is a guest until standard input ends.
///
/// # Errors
/// When there is no such hypervisor, or a disk does not connect.
pub fn run(args: &GuestArgs) -> Result<(), DiskDemoError> {
    let failed = |what: &str, source| DiskDemoError::File { what: what.into(), source };
    let mut guest = DiskGuest::connect(&args.socket, args.backend)
        .map_err(|error| failed("cannot become a guest", error))?;
    let mut out = io::stdout();
    for line in io::stdin().lines() {
        let exchange = || -> io::Result<()> {
            let answer: Answer =
                guest.work(&serde_json::from_str(&line?)?).map_err(|error| error.to_string());
            writeln!(out, "{}", serde_json::to_string(&answer)?)?;
            out.flush()
        };
        exchange().map_err(|error| failed("cannot answer", error))?;
    }
    Ok(())
}

/// The guest.
struct DiskGuest {
    domain: Arc<dyn Domain>,
    pages: PageAllocator,
    /// By the number of queues.
    disks: BTreeMap<u16, BlkifDisk>,
    backend: u32,
}

impl DiskGuest {
    fn connect(socket: &Path, backend: u32) -> io::Result<DiskGuest> {
        let pages = QUEUES.into_iter().map(BlkifDisk::pages).sum();
        let request = GuestRequest { pages, version: Version::V1, mac: MAC, name: NAME.into() };
        // The guest ends with its connection, which the domain keeps.
        let (guest, _) = become_guest(socket, request).map_err(io::Error::other)?;
        let domain: Arc<dyn Domain> = Arc::new(guest);
        let pages = PageAllocator::new(0, domain.pages());
        Ok(DiskGuest { domain, pages, disks: BTreeMap::new(), backend })
    }

    /// The disk with so many queues, which is connected when it is first used.
    fn disk(&mut self, queues: u16) -> Result<&mut BlkifDisk, DiskLoadError> {
        if !self.disks.contains_key(&queues) {
            self.await_disk(queues)?;
            let disk = BlkifDisk::connect(&self.domain, &mut self.pages, handle(queues), queues)?;
            self.disks.insert(queues, disk);
        }
        let missing = DiskLoadError::System("find a disk", io::ErrorKind::NotFound.into());
        self.disks.get_mut(&queues).ok_or(missing)
    }

    /// Waits until the toolstack has created a disk.
    fn await_disk(&self, queues: u16) -> Result<(), DiskLoadError> {
        let (key, until) =
            (format!("device/vbd/{}/backend", handle(queues)), Instant::now() + TIMEOUT);
        loop {
            let found = self.domain.store().nodes().find(&key);
            let found = found.map_err(FrontError::from)?;
            if found.is_some() || Instant::now() > until {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Sleeps until it is interrupted, as a guest does.
    fn work(&mut self, job: &Job) -> Result<Done, DiskLoadError> {
        let backend = self.backend;
        match *job {
            Job::Verify { queues } => {
                let workload = Workload {
                    queues,
                    sleeps: true,
                    ..Workload::new(Operation::Write, Order::Random, 4096, 32)
                };
                let disk = self.disk(queues)?;
                Ok(Done::Verified(disk.verify(&workload, queues.into(), backend)?))
            }
            Job::Measure { queues, operation, order, bytes, depth, time } => {
                let workload = Workload {
                    queues,
                    sleeps: true,
                    ..Workload::new(operation, order, bytes, depth)
                };
                let span = Span::Time { warm_up: WARM_UP, measured: time };
                let report = self.disk(queues)?.run(&workload, span, backend)?;
                let (iops, megabytes) = (report.iops(), report.megabytes());
                Ok(Done::Measured(Figures { iops, megabytes, latency: report.latency }))
            }
        }
    }
}
