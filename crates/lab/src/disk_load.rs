//! Requests of a guest with a disk: a driver of virtio-blk that is connected to a back-end over
//! vhost-user, and sends reads or writes to it at full rate, at a given rate, or not at all.
//!
//! The driver negotiates split rings with event index and indirect descriptors, as Linux does with
//! any back-end. A request is a header, one buffer of data, and a status.

mod alarm;
mod driver;
mod pattern;
mod queue;
mod workload;

use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use hdrhistogram::Histogram;
use ring::driver::BadUsed;
use serde::Serialize;
use vhost_user_driver::DriverError;

use driver::Driver;
use load::Latency;
use load::cpu;

pub use pattern::fill;
pub use workload::{Operation, Order, Workload};

/// Where requests go, and where the generator runs.
#[derive(Clone, Debug)]
pub struct Place {
    /// The socket of the back-end.
    pub socket: PathBuf,
    /// Length of the disk in bytes, a multiple of the requests' length.
    pub length: u64,
    /// The CPU of the generator; `None`: any.
    pub cpu: Option<usize>,
    /// The process of the back-end.
    pub backend: u32,
}

/// How long requests are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    /// This time, after a time that is not measured.
    Time {
        /// The time that is not measured.
        warm_up: Duration,
        /// The time that is measured.
        measured: Duration,
    },
    /// One request for each block of the disk.
    EachBlockOnce,
}

/// The result.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Requests that completed while measured.
    pub requests: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// Seconds that were measured.
    pub seconds: f64,
    /// Time from before a request was published until its completion was found.
    pub latency: Latency,
    /// CPUs that the back-end used while measured.
    pub backend: f64,
    /// CPUs that others took while measured, or a hypervisor below gave to others.
    pub others: f64,
}

impl Report {
    /// Requests per second.
    pub fn iops(&self) -> f64 {
        self.requests as f64 / self.seconds.max(1e-9)
    }

    /// Megabytes (10^6) per second.
    pub fn megabytes(&self) -> f64 {
        self.bytes as f64 / self.seconds.max(1e-9) / 1e6
    }

    /// CPU time of the back-end for each request, in microseconds.
    pub fn cpu_per_request(&self) -> f64 {
        self.backend * self.seconds * 1e6 / self.requests.max(1) as f64
    }
}

/// Why requests could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum DiskLoadError {
    /// The connection, or the rings.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The back-end broke the protocol of the ring.
    #[error("the back-end broke the protocol: {0}")]
    Ring(#[from] BadUsed),
    /// A request failed.
    #[error("a request at byte {offset} ended with status {status}")]
    Status {
        /// The offset on the disk.
        offset: u64,
        /// The status byte (virtio 1.2, 5.2.6).
        status: u8,
    },
    /// A block does not hold what was written to it.
    #[error("the block at byte {0} does not hold what was written to it")]
    Content(u64),
    /// Requests stay unanswered.
    #[error("{0} requests were not answered in time")]
    Silent(usize),
    /// The system refused something.
    #[error("{0}: {1}")]
    System(&'static str, #[source] io::Error),
    /// The user asked to stop.
    #[error("interrupted")]
    Interrupted,
}

/// Connects to a back-end, sends requests for a while, and disconnects when all are answered.
///
/// # Errors
/// When the back-end refuses the connection, breaks the protocol, fails a request, or the user
/// interrupts.
pub fn run(place: &Place, workload: &Workload, span: Span) -> Result<Report, DiskLoadError> {
    // A thread of its own: the affinity of the caller is passed on to the processes that it starts.
    let generate = || {
        if let Some(cpu) = place.cpu {
            cpu::pin(cpu).map_err(|error| DiskLoadError::System("pin the generator", error))?;
        }
        let mut driver = Driver::connect(place, workload)?;
        match span {
            Span::Time { warm_up, measured } => driver.run_for(warm_up, measured),
            Span::EachBlockOnce => driver.run_over_all_blocks(),
        }
    };
    thread::scope(|scope| {
        scope.spawn(generate).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// A driver that sends as many requests as are answered, one look at the rings at a time.
pub struct Flood(Driver);

impl Flood {
    /// Connects to a back-end.
    ///
    /// # Errors
    /// As [`run`].
    pub fn connect(place: &Place, workload: &Workload) -> Result<Flood, DiskLoadError> {
        Ok(Flood(Driver::connect(place, workload)?))
    }

    /// Collects what has completed, and sends as many again.
    ///
    /// # Errors
    /// As [`run`].
    pub fn pass(&mut self) -> Result<(), DiskLoadError> {
        self.0.pass(true, self.0.now()).map(|_| ())
    }
}

/// Writes each block of the disk once, in random order, then reads each in another order and
/// compares all bytes. Returns how many bytes were compared.
///
/// # Errors
/// As [`run`]; and when a block holds something else.
pub fn verify(place: &Place, workload: &Workload, generation: u32) -> Result<u64, DiskLoadError> {
    let whole = |operation| Workload {
        operation,
        order: Order::Random,
        generation: Some(generation),
        ..workload.clone()
    };
    run(place, &whole(Operation::Write), Span::EachBlockOnce)?;
    Ok(run(place, &whole(Operation::Read), Span::EachBlockOnce)?.bytes)
}

/// Makes an image of `length` bytes whose blocks all hold data, so that reads are no holes.
///
/// # Errors
/// When it cannot be written.
pub fn make_image(path: &Path, length: u64) -> io::Result<()> {
    use std::io::Write;
    const CHUNK: u64 = 1 << 20;
    let mut file = std::fs::File::create(path)?;
    let mut chunk = vec![0; CHUNK as usize];
    for number in 0..length.div_ceil(CHUNK) {
        fill(&mut chunk, number, u32::MAX);
        let bytes = (length - number * CHUNK).min(CHUNK) as usize;
        file.write_all(&chunk[..bytes])?;
    }
    file.sync_all()
}

/// Latencies of requests in ns, up to a minute.
fn histogram() -> Histogram<u64> {
    // The bounds are valid.
    Histogram::new_with_bounds(1, 60_000_000_000, 3).unwrap_or_else(|_| unreachable!())
}
