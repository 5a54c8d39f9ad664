//! A disk beside ports on the same workers: its configuration, a guest that floods it with
//! requests, and one that has nothing under way but one request.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use vhost_user_driver::DriverError;

use super::innocents::Figures;
use super::neighbour::{Neighbour, Sockets};
use crate::disk_load::{
    DiskLoadError, Flood, Operation, Order, Place, Report, Span, Workload, make_image, run,
};

/// Bytes of the image.
const LENGTH: u64 = 16 << 20;

/// Bytes of a request of the innocent guest.
const BLOCK: u32 = 4096;

/// How often a flood is kept up.
const PAUSE: Duration = Duration::from_micros(200);

/// The requests of a guest that keeps its ring full.
#[derive(Clone, Copy, Debug)]
pub struct Requests {
    /// Bytes of each.
    pub bytes: u32,
    /// How many are under way.
    pub depth: u16,
}

/// The path of the disk's socket.
pub fn socket(dir: &Path) -> PathBuf {
    dir.join("disk.sock")
}

/// Makes an image, and returns the table of a disk.
///
/// # Errors
/// When the image cannot be written.
pub fn table(dir: &Path) -> io::Result<String> {
    let (socket, image) = (socket(dir), dir.join("disk.img"));
    make_image(&image, LENGTH)?;
    Ok(format!(
        "[[disk]]\nname = \"disk\"\nkind = \"vhost-user\"\nsocket = \"{}\"\nimage = \"{}\"\n",
        socket.display(),
        image.display()
    ))
}

fn place(dir: &Path, cpu: Option<usize>) -> Place {
    Place { socket: socket(dir), length: LENGTH, cpu, backend: std::process::id() }
}

/// A guest that floods the disk.
pub struct Flooding(Flood);

impl Flooding {
    /// Connects to the disk.
    ///
    /// # Errors
    /// When the daemon refuses it.
    pub fn connect(sockets: &Sockets, requests: Requests) -> Result<Flooding, DriverError> {
        let Requests { bytes, depth } = requests;
        let workload = Workload::new(Operation::Read, Order::Random, bytes, depth);
        Flood::connect(&place(&sockets.shared, None), &workload).map(Flooding).map_err(refused)
    }
}

impl Neighbour for Flooding {
    fn step(&mut self) -> Result<Duration, DriverError> {
        self.0.pass().map_err(refused)?;
        Ok(PAUSE)
    }
}

fn refused(error: DiskLoadError) -> DriverError {
    match error {
        DiskLoadError::Driver(error) => error,
        _ => DriverError::Refused("a request"),
    }
}

/// Reads blocks of the disk in random order, one at a time, for `time`, at a rate or as fast as
/// they are answered.
///
/// # Errors
/// When the daemon refuses a request, or answers none.
pub fn read(
    dir: &Path,
    rate: Option<u64>,
    time: Duration,
    cpu: Option<usize>,
) -> Result<Figures, DiskLoadError> {
    let workload = Workload { rate, ..Workload::new(Operation::Read, Order::Random, BLOCK, 1) };
    let span = Span::Time { warm_up: time / 4, measured: time };
    Ok(figures(&run(&place(dir, cpu), &workload, span)?))
}

/// Reads each block of the disk once, one at a time. Returns how many there were.
///
/// # Errors
/// When the daemon refuses a request, or does not answer one.
pub fn read_each(dir: &Path) -> Result<u64, DiskLoadError> {
    let workload = Workload::new(Operation::Read, Order::Random, BLOCK, 1);
    Ok(run(&place(dir, None), &workload, Span::EachBlockOnce)?.requests)
}

/// How many blocks there are.
pub fn blocks() -> u64 {
    LENGTH / u64::from(BLOCK)
}

/// Every request is answered, or reading fails.
fn figures(report: &Report) -> Figures {
    Figures {
        due: report.requests,
        arrived: report.requests,
        rate: report.iops(),
        p50: report.latency.p50,
        p99: report.latency.p99,
    }
}
