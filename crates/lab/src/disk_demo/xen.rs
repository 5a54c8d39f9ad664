//! A stock guest on a real Xen host, with one disk after the other, and with fio.

use std::cell::Cell;
use std::time::Duration;

use super::point::{Figures, Phase};
use super::site::{QUEUES, Used};
use super::{Args, DiskDemoError, DiskGuest, fio};
use crate::guest::{GuestError, Image, Shell};
use crate::progress::Progress;
use crate::xen::{DISK, DISK_NUMBER, Dom0, Domain, DomainSpec, Options, Service, Testbed};

/// Longest boot and longest command, on a machine that does much else at the same time.
const TIMEOUT: Duration = Duration::from_secs(600);

/// MiB of the guest's memory, of which fio and its libraries take a part.
const MEMORY: u32 = 640;

/// The folder of images in dom0.
const IMAGES: &str = "/var/lib/xen/images";

/// The guest.
pub(super) struct XenGuest {
    // The order of drops matters: the guest ends before the daemon and the host.
    guest: Domain,
    service: Service,
    dom0: Dom0,
    length: u64,
    time: Duration,
    /// Queues of the disk that the guest has.
    attached: Cell<Option<u16>>,
}

/// Boots the host, starts the daemon in its dom0, and boots the guest.
pub(super) fn boot(args: &Args, progress: &Progress) -> Result<XenGuest, DiskDemoError> {
    let find = |source| DiskDemoError::File { what: "cannot find ringmain".into(), source };
    let binary = args.program.find().map_err(find)?;
    let testbed = Testbed::find(&args.cache)?;
    let fio = Image::prepare_fio_alone(&args.cache)?;
    let stage = progress.stage("booting Xen and its dom0, in software");
    let dom0 = Dom0::boot(&testbed, &Options::default())?;
    stage.done("");

    let stage = progress.stage("starting Ringmain in dom0");
    dom0.install(&binary)?;
    dom0.must(&format!("mkdir -p {IMAGES}"), TIMEOUT)?;
    let most = QUEUES.into_iter().fold(1, u16::max);
    let service = dom0.serve(&format!(
        "[workers]\ncount = 2\n[[disk]]\nname = \"vbds\"\nkind = \"xen\"\nimages = [\"{IMAGES}\"]\nqueues = {most}\n"
    ))?;
    stage.done("");

    let stage = progress.stage("booting the guest");
    let spec = DomainSpec {
        cpus: args.cpus,
        memory: MEMORY,
        ramdisk: dom0.ramdisk_with_fio(&fio)?,
        ..DomainSpec::new("disks")
    };
    let guest = dom0.create(&spec)?;
    guest.ready(TIMEOUT)?;
    stage.done("");
    let length = u64::from(args.size) << 20;
    Ok(XenGuest { guest, service, dom0, length, time: args.time(), attached: Cell::new(None) })
}

impl XenGuest {
    /// Detaches the disk that the guest has, and removes its image.
    fn detach(&self) -> Result<(), DiskDemoError> {
        let Some(queues) = self.attached.take() else { return Ok(()) };
        self.guest.detach_disk(TIMEOUT)?;
        self.dom0.must(&format!("rm {}", image(queues)), TIMEOUT)?;
        Ok(())
    }
}

impl DiskGuest for XenGuest {
    fn attach(&self, queues: u16) -> Result<(), DiskDemoError> {
        self.detach()?;
        let (image, length) = (image(queues), self.length);
        // Every block holds data, so that reads are no holes.
        let make = format!("yes Ringmain | head -c {length} >{image} && sync {image}");
        self.dom0.must(&make, TIMEOUT)?;
        let words = format!("script=block-ringmain,target={image}");
        let found = self.guest.attach_disk(&words, queues, TIMEOUT)?;
        self.attached.set(Some(queues));
        match found == queues {
            true => Ok(()),
            false => Err(DiskDemoError::Queues { wanted: queues, found: found.to_string() }),
        }
    }

    fn verify(&self, queues: u16) -> Result<u64, DiskDemoError> {
        fio::verify(&self.guest, DISK, queues, self.length, TIMEOUT)
    }

    fn measure(&self, queues: u16, phase: &Phase) -> Result<Figures, DiskDemoError> {
        let command = fio::phase(DISK, queues, self.length, phase, self.time);
        let limit = TIMEOUT + self.time;
        fio::figures(&self.guest.must(&command, limit)?, phase.operation)
    }

    /// In dom0's time.
    fn used(&self, _: u16) -> Result<Used, DiskDemoError> {
        let name = format!("vbd{}.{DISK_NUMBER}", self.guest.id());
        let stats = self.service.stats()?;
        let disk = stats.disks.iter().find(|disk| disk.name == name);
        let missing = || GuestError::Tool {
            tool: "ringmain stats in dom0".into(),
            stderr: format!("there is no {name}"),
        };
        let [cpu, _] = self.service.used()?;
        Ok(Used::new(&disk.ok_or_else(missing)?.total, cpu))
    }

    fn processes(&self) -> Vec<u32> {
        vec![self.dom0.id()]
    }
}

/// The image of the disk with this number of queues.
fn image(queues: u16) -> String {
    format!("{IMAGES}/disk-{queues}.raw")
}
