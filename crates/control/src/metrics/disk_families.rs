//! The families of metrics of disks.

use super::family::{Family, counter, gauge, nanoseconds, number};
use crate::api::{DiskCounts, DiskReport};

/// Families of disks, with the label `disk`.
pub const DISK: &[Family<DiskReport>] = &[
    counter("ringmain_disk_connections_total", "Connections of front-ends.", |it| {
        number(it.connections)
    }),
    counter(
        "ringmain_disk_violations_total",
        "Connections that were ended because the peer broke the protocol.",
        |it| number(it.violations),
    ),
    counter(
        "ringmain_disk_control_delayed_total",
        "Messages of the front-end that waited for the control budget.",
        |it| number(it.control_delayed),
    ),
    gauge("ringmain_disk_size_bytes", "Length of the image.", |it| it.bytes.and_then(number)),
    gauge(
        "ringmain_disk_allocated_memory_bytes",
        "Upper bound of the guest memory that is charged to the daemon.",
        |it| number(it.memory?.allocated_bytes),
    ),
    gauge(
        "ringmain_disk_memory_limit_bytes",
        "Limit of the guest memory that is charged to the daemon.",
        |it| number(it.memory?.limit_bytes),
    ),
];

/// Families of queues of disks, with the labels `disk` and `queue`.
pub const DISK_QUEUE: &[Family<DiskCounts>] = &[
    counter("ringmain_disk_reads_total", "Requests to read.", |it| number(it.reads)),
    counter("ringmain_disk_read_bytes_total", "Bytes that were read.", |it| number(it.read_bytes)),
    counter("ringmain_disk_writes_total", "Requests to write.", |it| number(it.writes)),
    counter("ringmain_disk_written_bytes_total", "Bytes that were written.", |it| {
        number(it.write_bytes)
    }),
    counter("ringmain_disk_flushes_total", "Requests to make completed writes stable.", |it| {
        number(it.flushes)
    }),
    counter("ringmain_disk_discards_total", "Requests to discard a range.", |it| {
        number(it.discards)
    }),
    counter("ringmain_disk_zeroes_total", "Requests to write zeros.", |it| number(it.zeroes)),
    counter("ringmain_disk_other_requests_total", "Other requests, and refused requests.", |it| {
        number(it.others)
    }),
    counter("ringmain_disk_bursts_total", "Bursts that fetched at least one request.", |it| {
        number(it.bursts)
    }),
    counter("ringmain_disk_interrupts_total", "Interrupts sent for completed requests.", |it| {
        number(it.interrupts)
    }),
    counter(
        "ringmain_disk_interrupts_suppressed_total",
        "Times that completed requests were published without an interrupt, as the guest asked.",
        |it| number(it.suppressed),
    ),
    counter(
        "ringmain_disk_image_thread_seconds_total",
        "Processor time of the thread of a qcow2 image.",
        |it| nanoseconds(it.image_thread_ns),
    ),
    counter(
        "ringmain_disk_page_faults_total",
        "Page faults in the guest's memory, counted only while a worker has many page faults.",
        |it| number(it.page_faults),
    ),
    counter("ringmain_disk_slow_interrupts_total", "Interrupts that took long to send.", |it| {
        number(it.slow_interrupts)
    }),
    counter("ringmain_disk_kicks_total", "Notifications from the guest.", |it| number(it.kicks)),
    counter(
        "ringmain_disk_buffered_requests_total",
        "Requests that passed through the host's page cache.",
        |it| number(it.buffered),
    ),
    counter(
        "ringmain_disk_limited_total",
        "Times that the queue waited because of a limit of the disk.",
        |it| number(it.limited),
    ),
];
