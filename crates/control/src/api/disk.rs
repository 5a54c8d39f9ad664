//! Disks, their queues and their counters.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Durations, MemoryReport, PortState};

/// Everything about a disk.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DiskReport {
    /// Its name.
    pub name: String,
    /// The kind of attachment: `vhost_user`.
    pub kind: String,
    /// Its socket.
    pub socket: String,
    /// Its image.
    pub image: String,
    /// The format of the image: `raw` or `qcow2`.
    pub format: String,
    /// Whether a front-end is connected, or why none can be.
    pub state: PortState,
    /// Why it is stopped, or what ended its last session.
    pub reason: Option<String>,
    /// Process id of the front-end.
    pub peer: Option<i32>,
    /// Connections so far.
    pub connections: u64,
    /// Connections that ended because the front-end or the guest broke the protocol.
    pub violations: u64,
    /// Messages of front-ends that waited because the disk's control budget was used up. For Xen:
    /// changes of the frontend's state.
    #[serde(default)]
    pub control_delayed: u64,
    /// Rings that continued at another position than the front-end's, as their in-flight records
    /// showed.
    pub recovered_rings: u64,
    /// Rings whose position could not be determined.
    pub unclear_rings: u64,
    /// Length in bytes; null while the image is not open.
    pub bytes: Option<u64>,
    /// Bytes of a block; null while the image is not open.
    pub block_bytes: Option<u32>,
    /// Bytes of a physical block, the best unit of writes; null while the image is not open.
    pub physical_block_bytes: Option<u32>,
    /// Whether the guest can only read.
    pub read_only: bool,
    /// Whether the host's page cache is bypassed; null while the image is not open.
    pub direct: Option<bool>,
    /// Writes are stable only after a flush; null while the image is not open.
    pub write_cache: Option<bool>,
    /// The serial number.
    pub serial: String,
    /// The features that were negotiated with the front-end, by name.
    pub features: Vec<String>,
    /// Queues that the disk offers.
    pub queues_offered: u16,
    /// An upper bound of the peer's memory that this process has allocated; null while the disk is
    /// not in service.
    pub memory: Option<MemoryReport>,
    /// The limits of the disk, with the default bursts where none are set.
    pub limits: DiskLimitsReport,
    /// Latency of requests by type: from the pass that fetched a request to the pass that completed
    /// it. Empty while the disk is not in service.
    #[serde(default)]
    pub latency: BTreeMap<String, Durations>,
    /// Sum over all queues.
    pub total: DiskCounts,
    /// Queues that were in use since the disk was added.
    pub queues: Vec<DiskQueueReport>,
}

/// The limits of a disk; null: no limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DiskLimitsReport {
    /// Requests per second.
    pub requests_per_second: Option<u64>,
    /// Requests that may begin at once after a pause.
    pub burst_requests: Option<u64>,
    /// Bytes per second.
    pub bytes_per_second: Option<u64>,
    /// Bytes that may be moved at once after a pause.
    pub burst_bytes: Option<u64>,
}

/// One queue of a disk.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DiskQueueReport {
    /// Number of the queue in its disk.
    pub index: usize,
    /// The worker that serves it; null if no guest uses it.
    pub worker: Option<usize>,
    /// Its counters.
    #[serde(flatten)]
    pub counts: DiskCounts,
}

macro_rules! counts {
    ($($(#[doc = $doc:literal])* $name:ident = $($of:ident).+,)*) => {
        /// Counters of a queue of a disk, or a sum of such.
        #[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
        pub struct DiskCounts {
            $($(#[doc = $doc])* pub $name: u64,)*
            /// Requests that failed, by reason.
            pub errors: BTreeMap<String, u64>,
        }

        impl DiskCounts {
            /// Adds another's counters to these.
            pub fn add(&mut self, other: &DiskCounts) {
                $(self.$name += other.$name;)*
                for (reason, requests) in &other.errors {
                    *self.errors.entry(reason.clone()).or_default() += requests;
                }
            }
        }

        /// The counters of a queue at this moment.
        impl From<&storage::count::QueueCounters> for DiskCounts {
            fn from(queue: &storage::count::QueueCounters) -> Self {
                let errors = storage::count::ErrorReason::ALL.iter();
                let errors = errors.map(|reason| (reason.name().to_owned(), queue.failed(*reason)));
                DiskCounts { $($name: queue.$($of).+.get(),)* errors: errors.collect() }
            }
        }
    };
}

counts! {
    /// Requests to read.
    reads = requests.reads,
    /// Bytes of those.
    read_bytes = requests.read_bytes,
    /// Requests to write.
    writes = requests.writes,
    /// Bytes of those.
    write_bytes = requests.write_bytes,
    /// Requests to make completed writes stable.
    flushes = requests.flushes,
    /// Requests to discard a range.
    discards = requests.discards,
    /// Requests to write zeros.
    zeroes = requests.zeroes,
    /// Other requests, and those that were refused.
    others = requests.others,
    /// Bursts that fetched at least one request.
    bursts = bursts,
    /// Interrupts sent for completed requests.
    interrupts = interrupts.sent,
    /// Times that completed requests were published without an interrupt, as the guest asked.
    suppressed = interrupts.suppressed,
    /// Processor time of the thread of a qcow2 image, in nanoseconds.
    image_thread_ns = image_thread_ns,
    /// Page faults while the guest's memory was used, counted while a worker has many.
    page_faults = page_faults,
    /// Interrupts that took long to send.
    slow_interrupts = interrupts.slow,
    /// Wake-ups by the guest.
    kicks = kicks,
    /// Requests that began in the host's page cache.
    buffered = buffered,
    /// Times that the queue began to wait because the disk's limits were used up.
    limited = limited,
}

impl DiskCounts {
    /// Requests that failed for any reason.
    pub fn failed(&self) -> u64 {
        self.errors.values().sum()
    }
}
