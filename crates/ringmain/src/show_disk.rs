//! Reports of disks, for people.

use control::api::{DiskCounts, DiskLimitsReport, DiskReport};
use control::config::{BurstBytes, ByteRate, Requests};

use crate::limits;
use crate::table::Table;

/// `ringmain disk list`.
pub fn disks(disks: &[DiskReport]) -> String {
    if disks.is_empty() {
        return "no disks; add one with `ringmain disk add`\n".to_owned();
    }
    let mut table = Table::new(&["DISK", "STATE", ">QUEUES", ">SIZE", "ACCESS", "IMAGE", "SOCKET"]);
    for disk in disks {
        table.row([
            disk.name.clone(),
            disk.state.name().to_owned(),
            format!("{}/{}", in_use(disk), disk.queues_offered),
            disk.bytes.map(length).unwrap_or_default(),
            access(disk).to_owned(),
            disk.image.clone(),
            disk.socket.clone(),
        ]);
    }
    table.render()
}

/// `ringmain disk show`.
pub fn disk(disk: &DiskReport) -> String {
    let mut lines = vec![
        ("disk", disk.name.clone()),
        ("kind", disk.kind.replace('_', "-")),
        ("socket", disk.socket.clone()),
        ("image", format!("{} ({}, {})", disk.image, disk.format, access(disk))),
        ("state", disk.state.name().to_owned()),
    ];
    // Xen's disks have no socket.
    lines.retain(|(what, value)| *what != "socket" || !value.is_empty());
    if let Some(reason) = &disk.reason {
        lines.push(("reason", reason.clone()));
    }
    if let Some(peer) = disk.peer {
        lines.push(("peer", format!("process {peer}, connection {}", disk.connections)));
    }
    if disk.violations > 0 {
        lines.push(("violations", disk.violations.to_string()));
    }
    if disk.control_delayed > 0 {
        let delayed = format!("{} messages or changes of state", disk.control_delayed);
        lines.push(("delayed", delayed));
    }
    if disk.recovered_rings > 0 {
        lines.push(("recovered", format!("{} rings", disk.recovered_rings)));
    }
    lines.push(("queues", format!("{} in use, {} at most", in_use(disk), disk.queues_offered)));
    if let (Some(bytes), Some(block)) = (disk.bytes, disk.block_bytes) {
        let physical = disk.physical_block_bytes.filter(|physical| *physical != block);
        let physical =
            physical.map_or(String::new(), |it| format!(", physical ones of {it} bytes"));
        lines.push(("size", format!("{}, blocks of {block} bytes{physical}", length(bytes))));
    }
    if let Some(direct) = disk.direct {
        let way = if direct { "passed by (direct I/O)" } else { "used" };
        lines.push(("page cache", way.to_owned()));
    }
    if let Some(write_cache) = disk.write_cache {
        let word = if write_cache {
            "on: flushes make writes stable"
        } else {
            "off: each write is stable"
        };
        lines.push(("write cache", word.to_owned()));
    }
    lines.extend(disk.memory.as_ref().map(|memory| ("memory", limits::memory(memory))));
    lines.extend(limits(&disk.limits).map(|limits| ("limits", limits)));
    if disk.total.limited > 0 {
        lines.push(("limited", format!("requests waited {} times", disk.total.limited)));
    }
    if !disk.serial.is_empty() {
        lines.push(("serial", disk.serial.clone()));
    }
    if !disk.features.is_empty() {
        lines.push(("features", disk.features.join(" ")));
    }
    let mut text: String =
        lines.into_iter().map(|(what, value)| format!("{what:<12} {value}\n")).collect();
    let counters = queues(std::slice::from_ref(disk));
    if !counters.is_empty() {
        text.push('\n');
        text.push_str(&counters);
    }
    text + &errors(std::slice::from_ref(disk))
}

/// The limits, as `20k requests/s (burst 200), 200MB/s (burst 2MB)`, if there are any.
fn limits(limits: &DiskLimitsReport) -> Option<String> {
    let burst = |burst: Option<String>| burst.map_or(String::new(), |it| format!(" (burst {it})"));
    let requests = limits.requests_per_second.map(|rate| {
        let requests = limits.burst_requests.map(|requests| Requests(requests).to_string());
        format!("{} requests/s{}", Requests(rate), burst(requests))
    });
    let bytes = limits.bytes_per_second.map(|rate| {
        let bytes = limits.burst_bytes.map(|bytes| BurstBytes(bytes).to_string());
        format!("{}/s{}", ByteRate(rate), burst(bytes))
    });
    let all: Vec<String> = requests.into_iter().chain(bytes).collect();
    (!all.is_empty()).then(|| all.join(", "))
}

/// A line for each queue, and a sum for disks with several; nothing if there are none.
pub fn queues(disks: &[DiskReport]) -> String {
    let mut table = Table::new(&[
        "DISK",
        ">QUEUE",
        ">WORKER",
        ">READS",
        ">READ BYTES",
        ">WRITES",
        ">WRITTEN BYTES",
        ">FLUSHES",
        ">DISCARDS",
        ">INTERRUPTS",
        ">ERRORS",
    ]);
    for disk in disks {
        for queue in &disk.queues {
            let worker = queue.worker.map(|worker| worker.to_string()).unwrap_or_default();
            let place = [disk.name.clone(), queue.index.to_string(), worker];
            table.row(place.into_iter().chain(counts(&queue.counts)));
        }
        if disk.queues.len() > 1 {
            let place = [disk.name.clone(), "all".to_owned(), String::new()];
            table.row(place.into_iter().chain(counts(&disk.total)));
        }
    }
    if table.is_empty() { String::new() } else { table.render() }
}

/// Errors by reason; nothing if there are none.
pub fn errors(disks: &[DiskReport]) -> String {
    let mut table = Table::new(&["DISK", "ERROR REASON", ">REQUESTS"]);
    for disk in disks {
        for (reason, requests) in disk.total.errors.iter().filter(|(_, requests)| **requests > 0) {
            table.row([disk.name.clone(), reason.clone(), requests.to_string()]);
        }
    }
    if table.is_empty() { String::new() } else { format!("\n{}", table.render()) }
}

fn counts(counts: &DiskCounts) -> [String; 8] {
    [
        counts.reads,
        counts.read_bytes,
        counts.writes,
        counts.write_bytes,
        counts.flushes,
        counts.discards + counts.zeroes,
        counts.interrupts,
        counts.failed(),
    ]
    .map(|number| number.to_string())
}

fn access(disk: &DiskReport) -> &'static str {
    if disk.read_only { "read-only" } else { "read-write" }
}

fn in_use(disk: &DiskReport) -> usize {
    disk.queues.iter().filter(|queue| queue.worker.is_some()).count()
}

/// A number of bytes in the largest unit that divides it.
fn length(bytes: u64) -> String {
    let units = [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let found = units.into_iter().find(|(unit, _)| bytes >= *unit && bytes.is_multiple_of(*unit));
    found
        .map_or_else(|| format!("{bytes} bytes"), |(unit, name)| format!("{} {name}", bytes / unit))
}

#[cfg(test)]
mod tests {
    use control::api::DiskQueueReport;

    use super::*;

    #[test]
    fn a_disk_is_shown_with_its_queues_and_errors() {
        let counts = DiskCounts {
            reads: 5,
            limited: 3,
            errors: [("no_space".to_owned(), 2), ("io".to_owned(), 0)].into(),
            ..DiskCounts::default()
        };
        let report = DiskReport {
            name: "a".into(),
            bytes: Some(3 << 29),
            block_bytes: Some(512),
            total: counts.clone(),
            queues: vec![DiskQueueReport { index: 0, worker: Some(1), counts }],
            queues_offered: 16,
            limits: DiskLimitsReport {
                requests_per_second: Some(20_000),
                burst_requests: Some(200),
                bytes_per_second: Some(200_000_000),
                burst_bytes: Some(2 << 20),
            },
            ..DiskReport::default()
        };
        let text = disk(&report);
        assert!(text.contains("size         1536 MiB, blocks of 512 bytes\n"), "{text}");
        assert!(text.contains("requests waited 3 times"), "{text}");
        let limits = "limits       20k requests/s (burst 200), 200MB/s (burst 2MiB)\n";
        assert!(text.contains(limits), "{text}");
        assert!(text.contains("no_space") && !text.contains("\na     io"), "{text}");
        assert!(disks(&[report]).contains("1/16"));
        assert_eq!(length(1000), "1000 bytes");
    }
}
