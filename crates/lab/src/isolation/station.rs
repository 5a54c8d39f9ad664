//! One guest on a vhost-user port. The guest does what it is told to, good or bad, and nothing
//! else: receive buffers are posted and frames are sent only when a caller says so.

use std::os::unix::net::UnixStream;
use std::path::Path;

use ring::driver::{Direction, DriverRing, Piece, Used};
use ring::split::driver::SplitDriver;
use vhost_user::net::feature::bit;
use vhost_user_driver::{Driver, DriverError, FrontEnd, FrontEndConfig, Guest};

/// Bytes of `struct virtio_net_hdr_v1` before each frame.
pub const VNET: usize = 12;

/// Chains that are taken back at a time.
const COLLECTED: usize = 256;

/// The specification of a guest.
#[derive(Clone, Copy, Debug)]
pub struct StationSpec {
    /// Queue pairs.
    pub queues: u16,
    /// Descriptors of each ring.
    pub ring: u16,
    /// Bytes of a receive buffer, `virtio_net_hdr` included.
    pub rx_buffer: u32,
    /// Bytes of a transmit buffer, `virtio_net_hdr` included.
    pub tx_buffer: u64,
    /// Transmit buffers of each queue pair.
    pub tx_buffers: u16,
    /// Bytes of memory besides.
    pub spare: u64,
    /// Feature bits besides those that every guest negotiates.
    pub features: u64,
}

impl Default for StationSpec {
    fn default() -> Self {
        StationSpec {
            queues: 1,
            ring: 256,
            rx_buffer: 2048,
            tx_buffer: 2048,
            tx_buffers: 256,
            spare: 0,
            features: 0,
        }
    }
}

/// One queue pair and its buffers.
struct QueuePair {
    driver: Driver<SplitDriver>,
    /// Guest address of the buffer of each chain, by the chain's id.
    rx: Vec<u64>,
    tx: Vec<u64>,
    /// Guest addresses of buffers that the device does not have.
    rx_free: Vec<u64>,
    tx_free: Vec<u64>,
}

/// A guest.
pub struct Station {
    front: FrontEnd,
    guest: Guest,
    spec: StationSpec,
    pairs: Vec<QueuePair>,
}

impl Station {
    /// Connects to the port whose socket is `path`, and starts all queue pairs. No receive buffer
    /// is posted.
    ///
    /// # Errors
    /// When the back-end does not answer, or refuses something.
    pub fn connect(path: &Path, spec: &StationSpec) -> Result<Station, DriverError> {
        let required = bit::VERSION_1 | bit::MRG_RXBUF;
        let config = FrontEndConfig {
            features: required | spec.features,
            required,
            queue_pairs: spec.queues,
            mtu: None,
            protocol: FrontEndConfig::usual_protocol(),
        };
        let stream = UnixStream::connect(path).map_err(|e| DriverError::Io("socket", e))?;
        let mut front = FrontEnd::negotiate(stream, &config)?;
        let mut guest = Guest::new(bytes(spec), 1)?;
        front.share(&guest)?;
        let pairs = (0..spec.queues)
            .map(|index| QueuePair::start(&mut front, &mut guest, spec, index))
            .collect::<Result<_, _>>()?;
        Ok(Station { front, guest, spec: *spec, pairs })
    }

    /// The front-end of its connection.
    pub fn front(&mut self) -> &mut FrontEnd {
        &mut self.front
    }

    /// Announces the guest's memory to the back-end once more.
    ///
    /// # Errors
    /// When the back-end refuses it.
    pub fn share(&mut self) -> Result<(), DriverError> {
        self.front.share(&self.guest)
    }

    /// Its memory.
    pub fn guest(&self) -> &Guest {
        &self.guest
    }

    /// How many queue pairs it has.
    pub fn queues(&self) -> usize {
        self.pairs.len()
    }

    /// The rings of queue pair number `queue`.
    pub fn driver(&mut self, queue: usize) -> &mut Driver<SplitDriver> {
        &mut self.pairs[queue].driver
    }

    /// Posts up to `count` receive buffers, and returns how many.
    pub fn post(&mut self, queue: usize, count: usize) -> usize {
        let pair = &mut self.pairs[queue];
        let mut posted = 0;
        while posted < count {
            let Some(addr) = pair.rx_free.pop() else { break };
            let piece = Piece { addr, len: self.spec.rx_buffer };
            let Some(id) = pair.driver.rx.ring.add(&[piece], Direction::In) else {
                pair.rx_free.push(addr);
                break;
            };
            pair.rx[usize::from(id)] = addr;
            posted += 1;
        }
        if posted > 0 {
            pair.driver.rx.publish();
        }
        posted
    }

    /// Takes back receive buffers that were used, and calls `each` with the guest address of each
    /// and with the bytes written to it. Returns their number.
    ///
    /// # Errors
    /// When the device breaks the protocol.
    pub fn receive(
        &mut self,
        queue: usize,
        mut each: impl FnMut(&Guest, u64, u32),
    ) -> Result<usize, DriverError> {
        let pair = &mut self.pairs[queue];
        let mut used = [Used::default(); COLLECTED];
        let count = pair.driver.rx.ring.collect(&mut used).map_err(|_| BAD_USED)?;
        for used in &used[..count] {
            let addr = pair.rx[usize::from(used.id)];
            each(&self.guest, addr, used.len);
            pair.rx_free.push(addr);
        }
        Ok(count)
    }

    /// Takes back transmit buffers that were used.
    ///
    /// # Errors
    /// When the device breaks the protocol.
    pub fn reclaim(&mut self, queue: usize) -> Result<usize, DriverError> {
        let pair = &mut self.pairs[queue];
        let mut used = [Used::default(); COLLECTED];
        let count = pair.driver.tx.ring.collect(&mut used).map_err(|_| BAD_USED)?;
        for used in &used[..count] {
            pair.tx_free.push(pair.tx[usize::from(used.id)]);
        }
        Ok(count)
    }

    /// Writes `bytes`, `virtio_net_hdr` included, to every transmit buffer of every queue.
    ///
    /// # Panics
    /// When `bytes` are more than a buffer holds.
    pub fn fill(&mut self, bytes: &[u8]) {
        assert!(bytes.len() as u64 <= self.spec.tx_buffer, "a frame exceeds its buffer");
        for addr in self.pairs.iter().flat_map(|pair| &pair.tx_free) {
            self.write(*addr, bytes);
        }
    }

    /// Reserves `len` bytes of the spare memory, on pages that were never used.
    ///
    /// # Errors
    /// When there are none left.
    pub fn set_aside(&mut self, len: u64) -> Result<u64, DriverError> {
        self.guest.alloc(len, 4096)
    }

    /// Writes `bytes` at guest address `addr`, which the guest's memory contains.
    pub fn write(&self, addr: u64, bytes: &[u8]) {
        self.guest.memory().write(addr, bytes).unwrap_or_else(|e| panic!("a buffer of ours: {e}"));
    }

    /// A transmit buffer that is free. [`send`](Self::send) returns it to the device.
    pub fn buffer(&mut self, queue: usize) -> Option<u64> {
        self.pairs[queue].tx_free.pop()
    }

    /// Adds a chain of `pieces`, which lie in the buffer at `addr`. False: the ring is full, and
    /// the buffer is free again. The device sees the chain after [`publish`](Self::publish).
    pub fn send(&mut self, queue: usize, addr: u64, pieces: &[Piece]) -> bool {
        let pair = &mut self.pairs[queue];
        match pair.driver.tx.ring.add(pieces, Direction::Out) {
            Some(id) => {
                pair.tx[usize::from(id)] = addr;
                true
            }
            None => {
                pair.tx_free.push(addr);
                false
            }
        }
    }

    /// Makes all chains visible that were added, and kicks if the device asked for it.
    pub fn publish(&mut self, queue: usize) {
        self.pairs[queue].driver.tx.publish();
    }
}

const BAD_USED: DriverError = DriverError::Refused("a used ring that keeps to the protocol");

impl QueuePair {
    fn start(
        front: &mut FrontEnd,
        guest: &mut Guest,
        spec: &StationSpec,
        index: u16,
    ) -> Result<QueuePair, DriverError> {
        let driver = front.driver(guest, index, (spec.ring, spec.ring), 0)?;
        let mut buffers = |count: u16, len: u64| -> Result<Vec<u64>, DriverError> {
            (0..count).map(|_| guest.alloc(len.next_multiple_of(64), 64)).collect()
        };
        let ids = vec![0; usize::from(spec.ring)];
        Ok(QueuePair {
            driver,
            rx: ids.clone(),
            tx: ids,
            rx_free: buffers(spec.ring, spec.rx_buffer.into())?,
            tx_free: buffers(spec.tx_buffers, spec.tx_buffer)?,
        })
    }
}

/// Bytes of memory that a guest needs, with room for its rings.
fn bytes(spec: &StationSpec) -> u64 {
    let rx = u64::from(spec.ring) * u64::from(spec.rx_buffer).next_multiple_of(64);
    let tx = u64::from(spec.tx_buffers) * spec.tx_buffer.next_multiple_of(64);
    let rings = 4 * 4096 + u64::from(spec.ring) * 2 * 64;
    u64::from(spec.queues) * (rx + tx + rings) + spec.spare + (1 << 16)
}
