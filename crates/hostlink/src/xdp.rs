//! Receive queues of a device, each assigned to one station. The kernel copies frames for the
//! station straight into the station's pages.
//!
//! A small XDP program sees each frame before the kernel's network stack. A frame goes to a
//! station's socket if its destination is the station's address and it came in through the
//! station's queue. All other frames, including broadcasts and multicasts, pass on to the kernel as
//! without the program. The program is detached with the [`Uplink`], and also when this process is
//! killed, because a descriptor of this process holds it.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use frame::Mac;
use parking_lot::{Mutex, MutexGuard};
use ring::Memory;
use ring::xdp::{Receiver, SocketError};
use thiserror::Error;

use crate::tun::{self, IfName};

pub(crate) mod bpf;
pub(crate) mod program;

use bpf::{Attach, Map};
use program::Key;

/// Why no queue of a device can be used.
#[derive(Debug, Error)]
pub enum XdpError {
    /// Not a name that an interface can have.
    #[error("`{0}` can't be an interface's name")]
    Name(String),
    /// The kernel refuses.
    #[error("{device}: {what}: {error}{}", hint(.error))]
    Os {
        /// The device.
        device: String,
        /// The operation that failed.
        what: &'static str,
        /// The kernel's error.
        error: io::Error,
    },
    /// No socket.
    #[error("{device}, receive queue {queue}: {error}")]
    Socket {
        /// The device.
        device: String,
        /// Its queue.
        queue: u32,
        /// The reason.
        error: SocketError,
    },
    /// All queues are assigned.
    #[error("{device} has {queues} receive queue{}, and each is a guest's already", if *.queues == 1 { "" } else { "s" })]
    Taken {
        /// The device.
        device: String,
        /// How many it has.
        queues: u32,
    },
    /// The address is not the address of one station.
    #[error("{device}: {mac} {why}")]
    Address {
        /// The device.
        device: String,
        /// The address.
        mac: Mac,
        /// The reason.
        why: &'static str,
    },
}

fn hint(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "; run as root or with CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF"
        }
        Some(libc::EBUSY | libc::EEXIST) => "; it has another XDP program",
        Some(libc::ERANGE) => {
            "; its MTU, or its other end's, is too large for XDP (of a veth: more than 3506)"
        }
        _ => "",
    }
}

/// A device whose receive queues can be assigned to stations.
pub struct Uplink {
    device: Arc<Device>,
}

struct Device {
    name: String,
    index: u32,
    /// Its own address.
    mac: Mac,
    queues: u32,
    attach: Attach,
    /// The number of the socket for each address and queue; and the sockets, by number.
    stations: Map<Key, u32>,
    sockets: Map<u32, u32>,
    /// Reserved queues, and those that were.
    reserved: Mutex<Reserved>,
    /// Keeps the program attached.
    _link: OwnedFd,
}

struct Reserved {
    /// Reserved queues, and their stations.
    stations: BTreeMap<u32, Mac>,
    /// When queues were last returned.
    returned: BTreeMap<u32, Instant>,
    /// When the device was opened. An earlier process may have had its queues until then.
    opened: Instant,
}

impl Reserved {
    fn returned(&self, queue: u32) -> Instant {
        self.returned.get(&queue).copied().unwrap_or(self.opened)
    }
}

impl fmt::Debug for Uplink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} queues, {})", self.device.name, self.device.queues, self.device.attach)
    }
}

impl Uplink {
    /// Attaches the program to a device: in its driver, or as generic XDP if the driver cannot run
    /// programs.
    ///
    /// # Errors
    /// When there is no such device, or the kernel refuses.
    pub fn open(name: &str) -> Result<Uplink, XdpError> {
        let at = tun::if_name(name).ok_or_else(|| XdpError::Name(name.into()))?;
        let failed = |what| move |error| XdpError::Os { device: name.into(), what, error };
        let index = tun::index(at).map_err(failed("finding the device"))?;
        let mac = tun::mac(at).map_err(failed("asking for its address"))?;
        let queues = queues(at);
        let stations = Map::hash(queues).map_err(failed("making a map"))?;
        let sockets = Map::sockets(queues).map_err(failed("making a map"))?;
        let program = bpf::load(&program::redirect(stations.fd(), sockets.fd()))
            .map_err(failed("loading the program"))?;
        let (link, attach) =
            bpf::attach(&program, index).map_err(failed("attaching the program"))?;
        let name = name.to_owned();
        let (opened, returned) = (Instant::now(), BTreeMap::new());
        let reserved = Mutex::new(Reserved { stations: BTreeMap::new(), returned, opened });
        let device =
            Device { name, index, mac, queues, attach, stations, sockets, reserved, _link: link };
        Ok(Uplink { device: Arc::new(device) })
    }

    /// The device's name.
    pub fn name(&self) -> &str {
        &self.device.name
    }

    /// Reserves a queue for the station with address `mac`: frames for it are written into the
    /// first `count` of `pages`, which begin at address 0. Waits for a queue that was returned a
    /// moment ago and that the kernel has not freed yet.
    ///
    /// # Errors
    /// When no queue is free, the address is no station's or another's, or the kernel refuses.
    pub fn add_queue(
        &self,
        mac: Mac,
        pages: Arc<Memory>,
        count: u32,
    ) -> Result<UplinkQueue, XdpError> {
        let reservation = Reservation::new(&self.device, mac)?;
        let Reservation { device, queue, until } = &reservation;
        let failed = |error| XdpError::Socket { device: device.name.clone(), queue: *queue, error };
        let receiver = Receiver::open(device.index, *queue, pages, count, *until);
        let receiver = receiver.map_err(failed)?;
        let failed =
            |error| XdpError::Os { device: device.name.clone(), what: "directing frames", error };
        receiver
            .socket()
            .upgrade()
            .map_or(Ok(()), |socket| device.sockets.set_fd(*queue, socket.fd()))
            .map_err(failed)?;
        let station = Station::new(device, mac, *queue).map_err(failed)?;
        let name = format!("{} queue {queue}, {}", device.name, device.attach);
        Ok(UplinkQueue { _station: station, receiver, _reservation: reservation, name })
    }
}

impl Device {
    fn reserved(&self) -> MutexGuard<'_, Reserved> {
        self.reserved.lock()
    }
}

/// A receive queue that is assigned to a station until this value is dropped.
pub struct UplinkQueue {
    // Dropped in this order: no frame is directed to a socket that is being closed, and its queue
    // is free only after that.
    _station: Station,
    /// Its AF_XDP socket.
    pub receiver: Receiver,
    _reservation: Reservation,
    /// The device, the queue's number, and how the program is attached.
    pub name: String,
}

/// A queue that is reserved, until this is dropped.
struct Reservation {
    device: Arc<Device>,
    queue: u32,
    /// Until when the kernel may take to free it.
    until: Instant,
}

impl Reservation {
    /// Reserves the free queue that was returned first.
    fn new(device: &Arc<Device>, mac: Mac) -> Result<Self, XdpError> {
        let address = |why| XdpError::Address { device: device.name.clone(), mac, why };
        if mac.is_multicast() || mac.is_zero() {
            return Err(address("is no station's address"));
        }
        if mac == device.mac {
            return Err(address("is the device's own address"));
        }
        let mut reserved = device.reserved();
        if reserved.stations.values().any(|other| *other == mac) {
            return Err(address("has a queue already"));
        }
        let free = (0..device.queues).filter(|queue| !reserved.stations.contains_key(queue));
        let queue = free.min_by_key(|queue| reserved.returned(*queue));
        let queue = queue.ok_or_else(|| XdpError::Taken {
            device: device.name.clone(),
            queues: device.queues,
        })?;
        reserved.stations.insert(queue, mac);
        let until = reserved.returned(queue) + BUSY;
        Ok(Reservation { device: Arc::clone(device), queue, until })
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut reserved = self.device.reserved();
        reserved.stations.remove(&self.queue);
        reserved.returned.insert(self.queue, Instant::now());
    }
}

/// An address whose frames are directed to a socket.
struct Station {
    device: Arc<Device>,
    key: Key,
}

impl Station {
    fn new(device: &Arc<Device>, mac: Mac, queue: u32) -> io::Result<Station> {
        let key = program::key(mac, queue);
        device.stations.set(&key, &queue)?;
        Ok(Station { device: Arc::clone(device), key })
    }
}

impl Drop for Station {
    fn drop(&mut self) {
        // An entry that stays would lead to a closed socket: the program passes such frames on to
        // the kernel.
        let _ = self.device.stations.remove(&self.key);
    }
}

/// The number of receive queues; one for a device that does not report it.
pub(crate) fn queues(name: IfName) -> u32 {
    tun::receive_queues(name).map_or(1, |queues| queues.clamp(1, MAX_QUEUES))
}

/// How long the kernel may take to free a queue whose socket was closed. It needs the lock of all
/// network configuration for that, which others may hold for long.
pub(crate) const BUSY: Duration = Duration::from_secs(5);

/// Most receive queues of a device that are used: the program has 16 bits for their numbers.
const MAX_QUEUES: u32 = 1 << 12;
