//! An AF_XDP socket that receives, and perhaps sends: the kernel copies the frames of one receive
//! queue of a device, as a program directs them here, into pages that we name.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use thiserror::Error;

use super::{Completed, Descriptor, Entry, Fill, Frames, Layout, PAGE, Ring, Transmit};
use crate::region::{MapError, Memory};
use crate::violation::Violation;

/// How often to try a queue that is busy.
const INTERVAL: Duration = Duration::from_millis(2);

/// Why there is no socket.
#[derive(Debug, Error)]
pub enum SocketError {
    /// The pages can't be used.
    #[error(transparent)]
    Pages(#[from] Violation),
    /// A ring can't be mapped.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The kernel refuses.
    #[error("{what}: {error}")]
    Os {
        /// The operation that failed.
        what: &'static str,
        /// The kernel's error.
        error: io::Error,
    },
}

/// Frames that a socket's device could not deliver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Frames lost because there was no empty page.
    pub no_page: u64,
    /// Frames lost for other reasons, most often because they were too long for a page.
    pub other: u64,
}

/// A socket, and the pages that the kernel writes into as long as it is open.
#[derive(Debug)]
pub struct Socket {
    // Dropped in this order: the socket is closed before the memory that it writes into is
    // released.
    fd: OwnedFd,
    _pages: Arc<Memory>,
}

/// A socket with its rings.
#[derive(Debug)]
pub struct Receiver {
    // Dropped in this order, because mapped rings keep the socket open.
    /// Where empty pages go.
    pub fill: Fill,
    /// Where frames come from.
    pub frames: Frames,
    socket: Arc<Socket>,
}

/// The sending end of a socket that also receives.
#[derive(Debug)]
pub struct Sender {
    /// Where frames to be sent go.
    pub transmit: Transmit,
    /// Where the addresses of sent frames come from.
    pub completed: Completed,
    socket: Arc<Socket>,
}

/// A socket that is not bound yet, with its pages.
struct Unbound {
    fd: OwnedFd,
    pages: Arc<Memory>,
    offsets: libc::xdp_mmap_offsets,
}

impl Unbound {
    /// A socket that receives into the first `receive` pages, with room for `send` frames to be
    /// sent from the pages behind these.
    fn new(pages: Arc<Memory>, receive: u32, send: u32) -> Result<Self, SocketError> {
        let fd = new_socket()?;
        register(&fd, &pages, u64::from(receive + send) * PAGE)?;
        // The kernel requires a completion ring, which only senders use.
        let rings = [
            (libc::XDP_UMEM_FILL_RING, receive),
            (libc::XDP_UMEM_COMPLETION_RING, send.max(2)),
            (libc::XDP_RX_RING, receive),
            (libc::XDP_TX_RING, send),
        ];
        for (ring, size) in rings.into_iter().filter(|(_, size)| *size > 0) {
            set(&fd, ring, &size.next_power_of_two(), "making a ring")?;
        }
        let offsets = get(&fd, libc::XDP_MMAP_OFFSETS, "asking for the layout of rings")?;
        Ok(Unbound { fd, pages, offsets })
    }

    /// Maps one of its rings, of `size` entries.
    fn map<E: Entry>(
        &self,
        at: &libc::xdp_ring_offset,
        offset: u64,
        size: u32,
    ) -> Result<Ring, MapError> {
        map(&self.fd, at, offset, size.next_power_of_two(), E::BYTES as usize)
    }

    fn fill(&self, size: u32) -> Result<Ring, MapError> {
        self.map::<u64>(&self.offsets.fr, libc::XDP_UMEM_PGOFF_FILL_RING, size)
    }

    fn frames(&self, size: u32) -> Result<Ring, MapError> {
        self.map::<Descriptor>(&self.offsets.rx, libc::XDP_PGOFF_RX_RING as u64, size)
    }

    fn transmit(&self, size: u32) -> Result<Ring, MapError> {
        self.map::<Descriptor>(&self.offsets.tx, libc::XDP_PGOFF_TX_RING as u64, size)
    }

    fn completed(&self, size: u32) -> Result<Ring, MapError> {
        self.map::<u64>(&self.offsets.cr, libc::XDP_UMEM_PGOFF_COMPLETION_RING, size)
    }

    fn bind(self, device: u32, queue: u32, until: Instant) -> Result<Socket, SocketError> {
        bind(&self.fd, device, queue, until)?;
        Ok(Socket { fd: self.fd, _pages: self.pages })
    }
}

impl Sender {
    /// Both ends of a socket on queue number `queue` of device number `device`: it receives into
    /// the first `receive` of `pages`, which lie at address 0, and can send up to `send` frames at
    /// a time, a power of two, from the pages behind these. Waits as [`Receiver::open`] does.
    ///
    /// # Errors
    /// When the pages are not there, or the kernel refuses.
    pub fn open(
        device: u32,
        queue: u32,
        pages: Arc<Memory>,
        [receive, send]: [u32; 2],
        until: Instant,
    ) -> Result<(Receiver, Sender), SocketError> {
        let unbound = Unbound::new(pages, receive, send)?;
        let (fill, frames) = (unbound.fill(receive)?, unbound.frames(receive)?);
        let (transmit, completed) = (unbound.transmit(send)?, unbound.completed(send)?);
        let receiver = Receiver::over(fill, frames, unbound.bind(device, queue, until)?);
        let sender = Sender::over(transmit, completed, &receiver);
        Ok((receiver, sender))
    }

    /// The sending end of the receiver's socket, over existing rings.
    pub fn over(transmit: Ring, completed: Ring, receiver: &Receiver) -> Self {
        let (transmit, completed) = (Transmit::new(transmit), Completed::new(completed));
        Sender { transmit, completed, socket: Arc::clone(&receiver.socket) }
    }

    /// Publishes the frames to the kernel, which sends them.
    ///
    /// # Errors
    /// Never, while the ring is there.
    pub fn publish(&mut self) -> Result<(), Violation> {
        if !self.transmit.has_unpublished() || !self.transmit.publish()? {
            return Ok(());
        }
        // The kernel requires this request. It sends a limited number of frames at a time, 32 or
        // more, and says so. After another error, frames wait for the next request.
        let requests = 1 + self.transmit.ring.size / 32;
        for _ in 0..requests {
            let sent = rustix::net::send(&self.socket.fd, &[], rustix::net::SendFlags::DONTWAIT);
            if sent != Err(rustix::io::Errno::AGAIN) {
                break;
            }
        }
        Ok(())
    }
}

impl Receiver {
    /// A receiver from queue number `queue` of device number `device` into the first `count` of
    /// `pages`, which lie at address 0.
    /// No frame comes before a program directs it here. Waits until `until` for a queue that is
    /// busy: a closed socket writes nothing any more, but the kernel frees its queue later.
    ///
    /// Frames are copied, even by devices that could write them to the pages themselves: such a
    /// device would write every frame of the queue, before any program can tell for whom it is. The
    /// kernel makes the copy.
    ///
    /// # Errors
    /// When the pages are not there, or the kernel refuses.
    pub fn open(
        device: u32,
        queue: u32,
        pages: Arc<Memory>,
        count: u32,
        until: Instant,
    ) -> Result<Self, SocketError> {
        let unbound = Unbound::new(pages, count, 0)?;
        let (fill, frames) = (unbound.fill(count)?, unbound.frames(count)?);
        Ok(Self::over(fill, frames, unbound.bind(device, queue, until)?))
    }

    /// A receiver over existing rings.
    pub fn over(fill: Ring, frames: Ring, socket: Socket) -> Self {
        Receiver { fill: Fill::new(fill), frames: Frames::new(frames), socket: Arc::new(socket) }
    }

    /// The descriptor that becomes readable when there is a frame.
    pub fn waker(&self) -> BorrowedFd<'_> {
        self.socket.fd.as_fd()
    }

    /// A weak reference to the socket, for its statistics, which does not keep it open.
    pub fn socket(&self) -> Weak<Socket> {
        Arc::downgrade(&self.socket)
    }

    /// Publishes the empty pages to the kernel.
    ///
    /// # Errors
    /// Never, while the ring is there.
    pub fn publish(&mut self) -> Result<(), Violation> {
        if self.fill.publish()? {
            // The kernel requires this request; its result does not matter.
            let _ =
                rustix::net::recv(&self.socket.fd, &mut [0u8; 0], rustix::net::RecvFlags::DONTWAIT);
        }
        Ok(())
    }
}

impl Socket {
    /// A stand-in for a socket whose other side of the rings is in this process: `fd` is readable
    /// when there is a frame.
    pub fn stand_in(fd: OwnedFd, pages: Arc<Memory>) -> Self {
        Socket { fd, _pages: pages }
    }

    /// The frames lost so far.
    pub fn losses(&self) -> Losses {
        let statistics =
            get::<libc::xdp_statistics>(&self.fd, libc::XDP_STATISTICS, "asking for statistics");
        statistics.map_or(Losses::default(), |it| Losses {
            no_page: it.rx_fill_ring_empty_descs,
            // Frames without a page are also counted in `rx_dropped`.
            other: it.rx_dropped.saturating_sub(it.rx_fill_ring_empty_descs) + it.rx_ring_full,
        })
    }

    /// The descriptor, for the map that directs frames here.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn os(what: &'static str) -> SocketError {
    SocketError::Os { what, error: io::Error::last_os_error() }
}

fn new_socket() -> Result<OwnedFd, SocketError> {
    // SAFETY: takes numbers only.
    let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(os("opening an AF_XDP socket"));
    }
    // SAFETY: just opened, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Names the pages that the kernel is to write into.
fn register(socket: &OwnedFd, pages: &Memory, len: u64) -> Result<(), SocketError> {
    let base = pages.host(0, len, PAGE)?;
    // SAFETY: numbers, all of which may be zero.
    let mut umem: libc::xdp_umem_reg = unsafe { std::mem::zeroed() };
    (umem.addr, umem.len, umem.chunk_size) = (base.as_ptr() as u64, len, PAGE as u32);
    // The kernel pins these pages and writes to them until the socket is closed. They are mapped
    // longer than that, since a `Socket` closes first and lets go of them then, and nothing
    // here ever forms a reference to bytes of a `Memory`.
    set(socket, libc::XDP_UMEM_REG, &umem, "naming the pages to receive into")
}

/// Binds to the device's queue, and waits for that as long as the queue is busy.
fn bind(socket: &OwnedFd, device: u32, queue: u32, until: Instant) -> Result<(), SocketError> {
    while let Err(error) = bind_once(socket, device, queue) {
        if error.raw_os_error() != Some(libc::EBUSY) || Instant::now() > until {
            return Err(SocketError::Os { what: "binding to the queue", error });
        }
        std::thread::sleep(INTERVAL);
    }
    Ok(())
}

fn bind_once(socket: &OwnedFd, device: u32, queue: u32) -> io::Result<()> {
    let address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: libc::XDP_COPY | libc::XDP_USE_NEED_WAKEUP,
        sxdp_ifindex: device,
        sxdp_queue_id: queue,
        sxdp_shared_umem_fd: 0,
    };
    let len = size_of::<libc::sockaddr_xdp>() as libc::socklen_t;
    // SAFETY: an address of that length, which is only read.
    let done = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn map(
    socket: &OwnedFd,
    at: &libc::xdp_ring_offset,
    offset: u64,
    size: u32,
    entry: usize,
) -> Result<Ring, MapError> {
    let layout =
        Layout { producer: at.producer, consumer: at.consumer, flags: at.flags, entries: at.desc };
    let len = at.desc as usize + size as usize * entry;
    let memory = Memory::of_kernel(socket.as_fd(), offset, len)?;
    Ok(Ring::new(Arc::new(memory), layout, size))
}

fn set<T>(
    socket: &OwnedFd,
    option: libc::c_int,
    value: &T,
    what: &'static str,
) -> Result<(), SocketError> {
    let (at, len) = ((&raw const *value).cast(), size_of::<T>() as libc::socklen_t);
    // SAFETY: the kernel reads no more than `len` bytes there, all of which are initialised: the
    // types that this module passes are numbers without padding between them, or were zeroed.
    let done = unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_XDP, option, at, len) };
    if done < 0 { Err(os(what)) } else { Ok(()) }
}

/// `T` has to be one of libc's plain structures.
fn get<T: Plain>(
    socket: &OwnedFd,
    option: libc::c_int,
    what: &'static str,
) -> Result<T, SocketError> {
    // SAFETY: numbers, all of which may be zero.
    let mut value: T = unsafe { std::mem::zeroed() };
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes no more than `len` bytes there.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_XDP,
            option,
            (&raw mut value).cast(),
            &raw mut len,
        )
    };
    if done < 0 { Err(os(what)) } else { Ok(value) }
}

/// Types that consist of numbers, of which any bits make sense.
trait Plain {}

impl Plain for libc::xdp_mmap_offsets {}
impl Plain for libc::xdp_statistics {}
