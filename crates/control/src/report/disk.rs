//! The report of a disk in service, for any kind of guest.

use storage::count::RequestType;
use storage::disks::DiskId;
use storage::{Disk, Disks};

use crate::api::{DiskCounts, DiskQueueReport, DiskReport};

/// Adds the image, and the queues of disk `id` of `disks`, to a report.
pub fn describe_disk(report: &mut DiskReport, disk: &Disk, disks: Option<&Disks>, id: DiskId) {
    let image = disk.image();
    report.format = image.format().name().to_owned();
    report.bytes = Some(image.bytes());
    report.block_bytes = Some(image.block());
    report.physical_block_bytes = Some(image.physical_block());
    report.direct = Some(image.alignment().is_some());
    report.write_cache = Some(!disk.is_write_through());
    let counters = disks.map(|disks| disks.counters(id)).unwrap_or_default();
    for (index, (counters, worker)) in counters.into_iter().enumerate() {
        let counts = DiskCounts::from(&*counters);
        report.total.add(&counts);
        for kind in RequestType::ALL {
            let latency = report.latency.entry(kind.name().to_owned()).or_default();
            latency.add(counters.latency(kind));
        }
        report.queues.push(DiskQueueReport { index, worker, counts });
    }
}
