//! Counters of disks: one writer each, readable by anyone at any time.
//!
//! Every request is accounted for. Over a queue, at rest:
//!
//! `reads + writes + flushes + discards + zeroes + others = ` requests fetched,
//! of which those under `errors` failed.

pub use runtime::{Counter, Histogram, RunCounters};

use crate::command::Refusal;

macro_rules! errors {
    ($($variant:ident $name:literal $meaning:literal,)*) => {
        /// Why a request failed.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(usize)]
        pub enum ErrorReason { $(#[doc = $meaning] $variant,)* }

        impl ErrorReason {
            /// All reasons, in the order of their numbers.
            pub const ALL: &[ErrorReason] = &[$(ErrorReason::$variant,)*];

            /// The name under which the reason is counted and shown.
            pub fn name(self) -> &'static str {
                match self { $(ErrorReason::$variant => $name,)* }
            }

            /// The meaning of the reason, in one line.
            pub fn meaning(self) -> &'static str {
                match self { $(ErrorReason::$variant => $meaning,)* }
            }
        }
    };
}

errors! {
    Unsupported "unsupported" "A type of request, or a flag, that is not offered.",
    OutOfRange "out_of_range" "The request reaches beyond the end of the disk.",
    BadLength "bad_length" "The data is not a whole number of sectors, or a range is too long.",
    Unaligned "unaligned" "The request begins or ends within a block.",
    ReadOnly "read_only" "The request would change a read-only disk.",
    Grant "grant" "A page of the guest's was not granted (Xen).",
    NoSpace "no_space" "The file system with the image is full.",
    Truncated "truncated" "The image is shorter than the disk: somebody has cut it off.",
    Io "io" "The system reported an error of the image.",
}

impl From<Refusal> for ErrorReason {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Unsupported => ErrorReason::Unsupported,
            Refusal::OutOfRange => ErrorReason::OutOfRange,
            Refusal::BadLength => ErrorReason::BadLength,
            Refusal::Unaligned => ErrorReason::Unaligned,
            Refusal::ReadOnly => ErrorReason::ReadOnly,
            Refusal::Grant => ErrorReason::Grant,
        }
    }
}

/// Types of requests whose latency is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum RequestType {
    /// A request to read.
    Read,
    /// A request to write.
    Write,
    /// A request to make completed writes stable.
    Flush,
    /// A request to discard a range.
    Discard,
    /// A request to write zeros.
    WriteZeroes,
}

impl RequestType {
    /// All types, in the order of their numbers.
    pub const ALL: [RequestType; 5] = [
        RequestType::Read,
        RequestType::Write,
        RequestType::Flush,
        RequestType::Discard,
        RequestType::WriteZeroes,
    ];

    /// The name under which the latency is shown.
    pub fn name(self) -> &'static str {
        match self {
            RequestType::Read => "read",
            RequestType::Write => "write",
            RequestType::Flush => "flush",
            RequestType::Discard => "discard",
            RequestType::WriteZeroes => "write_zeroes",
        }
    }
}

/// Number of reasons.
const REASONS: usize = ErrorReason::ALL.len();

/// Requests that were fetched, by type.
#[derive(Debug, Default)]
pub struct RequestCounters {
    /// Requests to read.
    pub reads: Counter,
    /// Bytes of them.
    pub read_bytes: Counter,
    /// Requests to write.
    pub writes: Counter,
    /// Bytes of them.
    pub write_bytes: Counter,
    /// Requests to make writes stable.
    pub flushes: Counter,
    /// Requests to discard a range.
    pub discards: Counter,
    /// Requests to write zeros.
    pub zeroes: Counter,
    /// Other requests, and those that were refused.
    pub others: Counter,
}

/// Counters of notifications to the guest about completed requests.
#[derive(Debug, Default)]
pub struct InterruptCounters {
    /// Interrupts sent for completed requests.
    pub sent: Counter,
    /// Times that completed requests were published without an interrupt, as the guest asked.
    pub suppressed: Counter,
    /// Interrupts that took long to send.
    pub slow: Counter,
}

/// Counters of one queue of a disk. Written by the worker that has the queue.
#[derive(Debug, Default)]
pub struct QueueCounters {
    /// Requests.
    pub requests: RequestCounters,
    /// Bursts that fetched at least one request.
    pub bursts: Counter,
    /// Interrupts.
    pub interrupts: InterruptCounters,
    /// Processor time of the thread of a qcow2 image for the queue's requests, in nanoseconds.
    pub image_thread_ns: Counter,
    /// Page faults while a worker used the guest's memory, counted while a worker has many.
    pub page_faults: Counter,
    /// Wake-ups by the guest.
    pub kicks: Counter,
    /// Steps of requests that passed through the host's page cache.
    pub buffered: Counter,
    /// Times that the queue began to wait because the disk's limits were used up.
    pub limited: Counter,
    errors: [Counter; REASONS],
    latency: [Histogram; RequestType::ALL.len()],
}

impl QueueCounters {
    /// Counts a failed request.
    pub(crate) fn fail(&self, reason: ErrorReason) {
        self.fail_many(reason, 1);
    }

    /// Counts failed requests.
    pub(crate) fn fail_many(&self, reason: ErrorReason, requests: u64) {
        self.errors[reason as usize].add(requests);
    }

    /// The latency of requests of a type that the kernel carried out, or an image's thread: from
    /// the start of the worker's pass that fetched the request to the start of the pass that
    /// completed it. Failed requests count as well.
    pub fn latency(&self, kind: RequestType) -> &Histogram {
        &self.latency[kind as usize]
    }

    /// Requests that failed for a reason.
    pub fn failed(&self, reason: ErrorReason) -> u64 {
        self.errors[reason as usize].get()
    }
}
