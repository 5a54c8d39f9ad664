//! The bare disk: a back-end that is nothing but a ring and a read.
//!
//! One thread sleeps until a driver kicks, takes the requests from the ring, reads from a file, and
//! interrupts the driver. There is no policy, no share, no limit and no second disk. So the process
//! shows what waking up, reading and interrupting cost on a machine, and how much a back-end could
//! save at most.
//!
//! The bytes go through a buffer of the process, because only the storage engine reads into the
//! memory of guests. That copy takes some tenths of a microsecond for 4 KiB.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use load::cpu;
use ring::RingConfig;
use ring::io_chain::IoChain;
use ring::request_ring::RequestRing;
use ring::split::requests::SplitRequests;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, poll};
use unix_socket::{Listener, Permissions};
use vhost_user::blk::feature::bit;
use vhost_user::transport::server::listener;

use super::BenchError;
use super::ceiling::{End, Guest};
use crate::bare_process::BareProcess;

/// The features that are offered: just what the driver asks for.
const FEATURES: u64 =
    bit::VERSION_1 | bit::PROTOCOL_FEATURES | bit::EVENT_IDX | bit::INDIRECT_DESC | bit::MQ;

/// Bytes of a sector, the unit of places on a disk (virtio 1.2, 5.2.6).
const SECTOR: u64 = 512;

/// Status of a request that was carried out, and of one that failed (virtio 1.2, 5.2.6).
const OK: u8 = 0;
const IO_ERROR: u8 = 1;

/// The number of the connection among the descriptors that are watched; those of rings follow.
const CONNECTION: u64 = 0;

/// Options of the process.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// CPU that the only thread runs on
    #[arg(long, value_name = "CPU")]
    pub cpu: usize,

    /// File whose bytes are read
    #[arg(long, value_name = "FILE")]
    pub image: PathBuf,

    /// Socket to listen on
    #[arg(value_name = "SOCKET")]
    pub socket: PathBuf,
}

/// Serves drivers for ever, one after the other: the process of the bare disk.
///
/// # Errors
/// When the socket cannot be made, or the file cannot be opened.
pub fn run(args: &Args) -> Result<(), BenchError> {
    let failed = |what| move |source| BenchError::Start { what, source };
    let image = File::open(&args.image).map_err(failed("open the image"))?;
    let door = Listener::bind(&args.socket, listener(Permissions::default()))
        .map_err(io::Error::other)
        .map_err(failed("listen"))?;
    // The driver reports a CPU that it cannot be pinned to, and also fails.
    let _ = cpu::pin(args.cpu);
    loop {
        // A wait that a signal ended is begun anew.
        let _ = poll(&mut [PollFd::new(&door, PollFlags::IN)], None);
        if let Some(socket) = door.accept().map_err(failed("accept"))? {
            // The driver reports the end of a connection.
            let _ = serve(Guest::new(socket, FEATURES), &image);
        }
    }
}

/// Serves one driver until it leaves.
fn serve(mut guest: Guest, image: &File) -> Result<(), End> {
    let events = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(io::Error::from)?;
    watch(&events, &guest, CONNECTION, EventFlags::IN)?;
    let (mut queues, mut ready) = (Vec::<Queue>::new(), Vec::with_capacity(16));
    loop {
        let mut is_quiet = true;
        for queue in &mut queues {
            is_quiet &= !queue.carry_out(image)?;
        }
        if !is_quiet {
            continue;
        }
        for queue in &mut queues {
            is_quiet &= !queue.ring.arm()?;
        }
        ready.clear();
        if is_quiet {
            let _ = epoll::wait(&events, spare_capacity(&mut ready), None);
        }
        queues.iter_mut().for_each(|queue| queue.ring.disarm());
        if ready.iter().any(|event| event.data.u64() == CONNECTION) && guest.listen()? {
            queues = started(&guest, &events)?;
        }
    }
}

/// The queues that are set up completely. Their kicks are watched.
fn started(guest: &Guest, events: &OwnedFd) -> Result<Vec<Queue>, End> {
    let mut queues = Vec::new();
    for index in 0..guest.rings() {
        let Some((memory, config)) = guest.ring(index)? else { continue };
        let Some((kick, call)) = guest.events(index) else { continue };
        let config = RingConfig { event_idx: true, indirect: true, ..config };
        let (ring, _) = SplitRequests::start(memory, &config, None)?;
        // Only the first message about a ring watches its kicks.
        match watch(events, &kick, index as u64 + 1, EventFlags::IN | EventFlags::ET) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error.into()),
            _ => {}
        }
        queues.push(Queue { ring, call, chain: IoChain::default(), buffer: Vec::new() });
    }
    Ok(queues)
}

fn watch(events: &OwnedFd, fd: impl AsFd, number: u64, flags: EventFlags) -> io::Result<()> {
    Ok(epoll::add(events, fd, EventData::new_u64(number), flags)?)
}

/// One queue.
struct Queue {
    ring: SplitRequests,
    call: Arc<OwnedFd>,
    chain: IoChain,
    buffer: Vec<u8>,
}

impl Queue {
    /// Carries out all requests that are there. False: there was none.
    fn carry_out(&mut self, image: &File) -> Result<bool, End> {
        while let Some(token) = self.ring.take(&mut self.chain)? {
            let read = self.read(image);
            self.chain.set_status(if read.is_some() { OK } else { IO_ERROR });
            self.ring.complete(token, read.unwrap_or(0) + 1);
        }
        let published = self.ring.publish();
        if published == Some(true) {
            rustix::io::write(&self.call, &1u64.to_ne_bytes()).map_err(io::Error::from)?;
        }
        Ok(published.is_some())
    }

    /// Reads what the request asks for. Returns the number of bytes.
    fn read(&mut self, image: &File) -> Option<u32> {
        let mut header = [0; 16];
        if !self.chain.read(&mut header) || !self.chain.split_status() {
            return None;
        }
        let sector = u64::from_le_bytes(header[8..].try_into().ok()?);
        self.buffer.resize(self.chain.writable_len() as usize, 0);
        image.read_exact_at(&mut self.buffer, sector * SECTOR).ok()?;
        Some(self.chain.write(&self.buffer))
    }
}

/// The running process, which ends when this value is dropped.
pub(super) struct BareDisk(BareProcess);

impl BareDisk {
    /// Starts a bare disk on a CPU, and waits until it listens.
    ///
    /// # Errors
    /// When the process cannot be started, or does not listen.
    pub(super) fn start(cpu: usize, image: &Path) -> io::Result<Self> {
        let dir = BareProcess::folder()?;
        let (cpu, socket) = (cpu.to_string(), socket(dir.path()));
        let fixed = ["bare-disk", "--cpu", &cpu, "--image"].map(OsStr::new);
        let arguments = fixed.into_iter().chain([image.as_os_str(), socket.as_os_str()]);
        BareProcess::start(dir, arguments, std::slice::from_ref(&socket)).map(BareDisk)
    }

    /// The socket that it listens on.
    pub(super) fn socket(&self) -> PathBuf {
        socket(self.0.dir())
    }

    /// The process.
    pub(super) fn id(&self) -> u32 {
        self.0.id()
    }
}

fn socket(dir: &Path) -> PathBuf {
    dir.join("disk.sock")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::disk_load::{self, Operation, Order, Place, Span, Workload};

    /// Requests to a bare disk in this process are answered. The driver ends at one that fails.
    #[test]
    fn requests_are_carried_out() {
        const BLOCKS: u64 = 64;
        let dir = tempfile::tempdir().unwrap();
        let (image, socket) = (dir.path().join("image"), dir.path().join("disk.sock"));
        std::fs::write(&image, vec![0; BLOCKS as usize * 4096]).unwrap();
        let args = Args { cpu: 0, image, socket: socket.clone() };
        // The thread ends with the process of the tests.
        std::thread::spawn(move || run(&args));
        while !socket.exists() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let place = Place { socket, length: BLOCKS * 4096, cpu: None, backend: std::process::id() };
        for (queues, sleeps) in [(1, true), (4, true), (1, false)] {
            let workload = Workload {
                queues,
                sleeps,
                ..Workload::new(Operation::Read, Order::Random, 4096, 8)
            };
            let time = Duration::from_millis(50);
            let report = disk_load::run(
                &place,
                &workload,
                Span::Time { warm_up: Duration::ZERO, measured: time },
            );
            assert!(report.unwrap().iops() > 0.0, "{queues} queues");
        }
    }
}
