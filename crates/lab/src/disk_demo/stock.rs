//! A stock guest under QEMU, with the disks of a site and with fio.

use std::time::Duration;

use super::point::{Figures, Phase};
use super::site::{QUEUES, Site, Used, name};
use super::{Args, DiskDemoError, DiskGuest, fio};
use crate::guest::{Accel, DiskLink, Guest, Image, Shell, Spec};
use crate::progress::Progress;

/// Longest boot and longest command, on a machine that does much else at the same time.
const TIMEOUT: Duration = Duration::from_secs(240);

/// MiB of the guest's memory, of which fio and its libraries take a part.
const MEMORY: u32 = 768;

/// The guest.
pub(super) struct StockGuest<'a> {
    guest: Guest,
    site: &'a Site,
    time: Duration,
}

/// Boots the guest.
pub(super) fn boot<'a>(
    args: &Args,
    site: &'a Site,
    progress: &Progress,
) -> Result<(StockGuest<'a>, Accel), DiskDemoError> {
    let stage = progress.stage("what the guest is made of");
    let image = Image::prepare(&args.cache)?;
    let accel = Accel::probe(&image, &args.cache)?;
    let image = Image::prepare_with_fio(&args.cache)?;
    stage.done(match accel {
        Accel::Kvm => "the guest runs on KVM",
        Accel::Tcg => {
            "no working KVM here: the guest runs in software, far slower than on hardware"
        }
    });
    let stage = progress.stage("booting the guest");
    let link = |queues| DiskLink { socket: site.socket(queues), queues, options: Vec::new() };
    let spec = Spec {
        cpus: args.cpus,
        memory: MEMORY,
        disks: QUEUES.map(link).into(),
        ..Spec::new("disks")
    };
    let guest = Guest::start(&image, accel, &spec)?;
    guest.ready(TIMEOUT)?;
    stage.done("");
    Ok((StockGuest { guest, site, time: args.time() }, accel))
}

impl StockGuest<'_> {
    /// The device of the disk with this number of queues, found by its serial number.
    fn device(&self, queues: u16) -> Result<String, DiskDemoError> {
        let find = format!(
            "cd /sys/block && for disk in vd*; do \
             [ \"$(cat $disk/serial)\" = {} ] && echo $disk $(ls $disk/mq | wc -l); done; true",
            name(queues)
        );
        let said = self.guest.must(&find, TIMEOUT)?;
        match said.split_whitespace().collect::<Vec<_>>()[..] {
            [device, found] if found == queues.to_string() => Ok(format!("/dev/{device}")),
            _ => Err(DiskDemoError::Queues { wanted: queues, found: said }),
        }
    }
}

impl DiskGuest for StockGuest<'_> {
    fn verify(&self, queues: u16) -> Result<u64, DiskDemoError> {
        fio::verify(&self.guest, &self.device(queues)?, queues, self.site.length(), TIMEOUT)
    }

    fn measure(&self, queues: u16, phase: &Phase) -> Result<Figures, DiskDemoError> {
        let device = self.device(queues)?;
        let command = fio::phase(&device, queues, self.site.length(), phase, self.time);
        let limit = TIMEOUT + self.time;
        fio::figures(&self.guest.must(&command, limit)?, phase.operation)
    }

    fn used(&self, queues: u16) -> Result<Used, DiskDemoError> {
        Ok(self.site.used(queues)?)
    }

    fn processes(&self) -> Vec<u32> {
        vec![self.site.id(), self.guest.id()]
    }
}
