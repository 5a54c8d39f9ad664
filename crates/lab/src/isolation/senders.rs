//! A guest that sends frames of odd shapes to another guest of its own.

use std::os::fd::OwnedFd;
use std::time::Duration;

use ring::driver::{DriverRing, Piece};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};
use vhost_user::net::feature::bit;
use vhost_user_driver::{DriverError, Guest};

use super::neighbour::{self, Neighbour, Sockets};
use super::station::{Station, StationSpec, VNET};

/// Numbers of the sender and of its receiver.
const NUMBERS: [u8; 2] = [11, 12];

/// How often the sender fills its rings.
const PAUSE: Duration = Duration::from_micros(200);

/// Descriptors of the receiver's rings.
const RX_RING: u16 = 1024;

/// Bytes of headers of a TCP segment: Ethernet, IPv4, TCP.
const HEADERS: usize = 54;

/// Bytes of the largest frame.
const LARGEST: usize = 65_000;

/// Bytes of a sparse memory.
const SPARE: u64 = 1 << 39;

/// Bytes of a page.
const PAGE: u64 = 4096;

/// Gives pages of a file back, and keeps its length.
const PUNCH: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);

/// The shape of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// An ordinary frame of this length in bytes.
    Plain(usize),
    /// A frame of the largest size that must be cut to TCP segments with this payload, because the
    /// receiver does not accept TSO.
    Segments(u16),
    /// An ordinary frame in a chain of one descriptor for each byte.
    Chain(usize),
    /// An ordinary frame from a source address that was never used before.
    Sources(usize),
    /// An ordinary UDP frame of a flow that was never seen before.
    Flows(usize),
    /// An ordinary broadcast.
    Broadcast(usize),
    /// A broadcast that asks for the address of a station that was not asked for before (ARP).
    Arp,
    /// A large frame in pages of memory that the host has not allocated: all pages of the buffers
    /// are given back to the host before each use.
    Holes(usize),
    /// A large frame in pages that were never used before, of a memory of half a terabyte.
    Sparse(usize),
    /// An ordinary large frame, and as many pages of a memory that the daemon does not have are
    /// allocated and given back to the host as [`Holes`](Self::Holes) gives back.
    PrivateHoles(usize),
    /// No frame: the ring is kicked this number of times.
    Kicks(usize),
    /// No frame: an event descriptor that no process watches is signalled this number of times.
    PrivateKicks(usize),
}

/// The specification of the pair of guests.
#[derive(Clone, Copy, Debug)]
pub struct SenderSpec {
    /// The shape of the frames.
    pub shape: Shape,
    /// Queue pairs of either guest.
    pub queues: u16,
    /// Bytes of a receive buffer.
    pub rx_buffer: u32,
    /// Whether the receiver is interrupted for what it receives.
    pub interrupts: bool,
    /// Whether bursts of ordinary frames are as long as the receiver's ring, instead of 256.
    pub many: bool,
}

impl SenderSpec {
    /// One queue pair, ordinary buffers, no interrupts, and the usual number of frames at a time.
    pub const fn new(shape: Shape) -> SenderSpec {
        SenderSpec { shape, queues: 1, rx_buffer: 2048, interrupts: false, many: false }
    }
}

/// Objects that the daemon does not see. A fair neighbour treats them as the hostile one treats its
/// guest's, so that both use the same time of the guests' CPU.
struct Private {
    memory: OwnedFd,
    event: OwnedFd,
}

impl Private {
    fn new() -> rustix::io::Result<Private> {
        Ok(Private {
            memory: memfd_create("private", MemfdFlags::CLOEXEC)?,
            event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    /// Allocates pages for `len` bytes, and gives them back.
    fn allocate_and_give_back(&self, len: u64) -> rustix::io::Result<()> {
        fallocate(&self.memory, FallocateFlags::empty(), 0, len)?;
        fallocate(&self.memory, PUNCH, 0, len)
    }
}

/// A sender and its receiver.
pub struct Sender {
    from: Station,
    to: Station,
    private: Private,
    spec: SenderSpec,
    /// Frames sent so far, from which new addresses and flows are made.
    sent: u32,
}

impl Sender {
    /// Connects both guests, to the neighbour's first and second port.
    ///
    /// # Errors
    /// When the daemon refuses one.
    pub fn connect(sockets: &Sockets, spec: SenderSpec) -> Result<Sender, DriverError> {
        Sender::between([&sockets.port(0), &sockets.port(1)], spec)
    }

    /// Connects both guests to ports with these sockets.
    ///
    /// # Errors
    /// When the daemon refuses one.
    pub fn between(
        sockets: [&std::path::Path; 2],
        spec: SenderSpec,
    ) -> Result<Sender, DriverError> {
        let sending = StationSpec {
            queues: spec.queues,
            ring: if spec.many { RX_RING } else { ring_of(spec.shape) },
            tx_buffer: buffer_of(spec.shape),
            tx_buffers: if spec.many { RX_RING } else { buffers_of(spec.shape) },
            spare: if matches!(spec.shape, Shape::Sparse(_)) { SPARE } else { 0 },
            features: bit::CSUM | bit::HOST_TSO4,
            ..StationSpec::default()
        };
        let receiving = StationSpec {
            queues: spec.queues,
            ring: RX_RING,
            rx_buffer: spec.rx_buffer,
            ..StationSpec::default()
        };
        let mut from = Station::connect(sockets[0], &sending)?;
        let mut to = Station::connect(sockets[1], &receiving)?;
        for (station, number) in [(&mut from, NUMBERS[0]), (&mut to, NUMBERS[1])] {
            neighbour::announce(station, number)?;
        }
        from.fill(&bytes_of(spec.shape));
        let private = Private::new().map_err(|e| DriverError::Io("private memory", e.into()))?;
        Ok(Sender { from, to, private, spec, sent: 0 })
    }

    /// The guest that receives.
    pub fn receiver(&mut self) -> &mut Station {
        &mut self.to
    }

    /// Fills a ring with frames.
    fn fill(&mut self, queue: usize) -> Result<(), DriverError> {
        self.from.reclaim(queue)?;
        let mut pieces = Vec::new();
        while let Some(addr) = self.from.buffer(queue) {
            let place = self.change(addr)?;
            pieces_of(self.spec.shape, place, &mut pieces);
            if !self.from.send(queue, addr, &pieces) {
                break;
            }
            self.sent = self.sent.wrapping_add(1);
        }
        self.from.publish(queue);
        Ok(())
    }

    /// Makes the frame at `addr` one that was never sent, if the shape asks for that. Returns where
    /// it lies.
    fn change(&mut self, addr: u64) -> Result<u64, DriverError> {
        let [a, b, c, d] = self.sent.to_be_bytes();
        match self.spec.shape {
            Shape::Sources(_) => self.from.write(addr + VNET as u64 + 6, &[2, 1, a, b, c, d]),
            Shape::Flows(_) => self.from.write(addr + VNET as u64 + 26, &[10, b, c, d]),
            // The address that is asked for.
            Shape::Arp => self.from.write(addr + VNET as u64 + 38, &[10, b, c, d]),
            Shape::Holes(len) => {
                give_back(self.from.guest(), addr, len as u64)?;
                self.from.write(addr, &bytes_of(Shape::Plain(60)));
            }
            Shape::PrivateHoles(len) => {
                let len = buffer_of(Shape::Holes(len)) - PAGE;
                self.private
                    .allocate_and_give_back(len)
                    .map_err(|e| DriverError::Io("private memory", e.into()))?;
            }
            Shape::Sparse(len) => {
                let place = self.from.set_aside(buffer_of(Shape::Holes(len)))?;
                self.from.write(place, &bytes_of(Shape::Plain(60)));
                return Ok(place);
            }
            _ => {}
        }
        Ok(addr)
    }

    fn take(&mut self, queue: usize) -> Result<(), DriverError> {
        self.to.receive(queue, |_, _, _| ())?;
        self.to.post(queue, usize::MAX);
        let rx = &mut self.to.driver(queue).rx;
        if self.spec.interrupts {
            rx.acknowledge();
            rx.ring.arm();
        } else {
            rx.ring.disarm();
        }
        self.from.receive(queue, |_, _, _| ())?;
        self.from.post(queue, usize::MAX);
        Ok(())
    }
}

impl Neighbour for Sender {
    fn step(&mut self) -> Result<Duration, DriverError> {
        for queue in 0..usize::from(self.spec.queues) {
            self.take(queue)?;
            match self.spec.shape {
                Shape::Kicks(count) => {
                    for _ in 0..count {
                        self.from.driver(queue).tx.kick();
                    }
                }
                Shape::PrivateKicks(count) => {
                    for _ in 0..count {
                        // A counter that is full is as well as any.
                        let _ = rustix::io::write(&self.private.event, &1u64.to_ne_bytes());
                    }
                }
                _ => self.fill(queue)?,
            }
        }
        Ok(PAUSE)
    }
}

/// Gives the pages of `len` bytes at `addr` back to the host. Their content is lost.
fn give_back(guest: &Guest, addr: u64, len: u64) -> Result<(), DriverError> {
    let start = addr.next_multiple_of(PAGE);
    let end = (addr + VNET as u64 + len) / PAGE * PAGE;
    fallocate(guest.file(), PUNCH, start, end.saturating_sub(start))
        .map_err(|e| DriverError::Io("memory of a neighbour", e.into()))
}

/// Bytes of a frame, `virtio_net_hdr` excluded.
fn len_of(shape: Shape) -> usize {
    match shape {
        Shape::Plain(len)
        | Shape::Chain(len)
        | Shape::Sources(len)
        | Shape::Flows(len)
        | Shape::Broadcast(len)
        | Shape::Holes(len)
        | Shape::PrivateHoles(len)
        | Shape::Sparse(len) => len,
        Shape::Segments(_) => LARGEST,
        Shape::Kicks(_) | Shape::PrivateKicks(_) | Shape::Arp => 60,
    }
}

/// Bytes of a buffer: of whole pages for holes, so that no two buffers share a page.
fn buffer_of(shape: Shape) -> u64 {
    let len = (VNET + len_of(shape)) as u64;
    match shape {
        Shape::Holes(_) => len.next_multiple_of(PAGE) + PAGE,
        _ => len.next_multiple_of(64),
    }
}

fn ring_of(shape: Shape) -> u16 {
    match shape {
        Shape::Chain(_) => 1024,
        _ => 256,
    }
}

fn buffers_of(shape: Shape) -> u16 {
    match shape {
        Shape::Segments(_) | Shape::Holes(_) | Shape::PrivateHoles(_) => 64,
        _ => 256,
    }
}

/// The bytes of a transmit buffer.
fn bytes_of(shape: Shape) -> Vec<u8> {
    let mut bytes = neighbour::frame(NUMBERS[1], NUMBERS[0], len_of(shape));
    let frame = &mut bytes[VNET..];
    let total = (frame.len() - 14) as u16;
    match shape {
        Shape::Broadcast(_) => frame[..6].fill(0xff),
        Shape::Flows(_) => frame[12..38].copy_from_slice(&udp(total)),
        Shape::Arp => {
            frame[..6].fill(0xff);
            frame[12..42].copy_from_slice(&arp(neighbour::address(NUMBERS[0])));
        }
        Shape::Segments(mss) => {
            frame[12..HEADERS].copy_from_slice(&tcp(total));
            // VIRTIO_NET_HDR_F_NEEDS_CSUM, VIRTIO_NET_HDR_GSO_TCPV4 (virtio 1.2, 5.1.6.2).
            bytes[..2].copy_from_slice(&[1, 1]);
            let fields = [HEADERS as u16, mss, 34, 16];
            for (place, field) in bytes[2..10].chunks_exact_mut(2).zip(fields) {
                place.copy_from_slice(&field.to_le_bytes());
            }
        }
        _ => {}
    }
    bytes
}

/// Ethernet type and body of a request for the address of 10.0.0.0, by this station at 10.0.0.1
/// (RFC 826).
fn arp(sender: [u8; 6]) -> [u8; 30] {
    let mut request = [0; 30];
    request[..10].copy_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    request[10..16].copy_from_slice(&sender);
    request[16..20].copy_from_slice(&[10, 0, 0, 1]);
    request[26..30].copy_from_slice(&[10, 0, 0, 0]);
    request
}

/// Ethernet type and headers of a UDP packet of `total` bytes from 10.0.0.1 to 10.0.0.2.
fn udp(total: u16) -> [u8; 26] {
    let mut header = [0; 26];
    header[..6].copy_from_slice(&[8, 0, 0x45, 0, (total >> 8) as u8, total as u8]);
    header[10..12].copy_from_slice(&[64, 17]);
    header[14..22].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    header[22..26].copy_from_slice(&[4, 0, 4, 0]);
    header
}

/// Ethernet type and headers of a TCP packet of `total` bytes from 10.0.0.1 to 10.0.0.2.
fn tcp(total: u16) -> [u8; HEADERS - 12] {
    let mut header = [0; HEADERS - 12];
    header[..6].copy_from_slice(&[8, 0, 0x45, 0, (total >> 8) as u8, total as u8]);
    header[10..12].copy_from_slice(&[64, 6]);
    header[14..22].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    header[22..26].copy_from_slice(&[4, 0, 4, 0]);
    // Data offset of five words; ACK.
    header[34..36].copy_from_slice(&[0x50, 0x10]);
    header
}

/// The descriptors of a frame whose buffer is at `addr`.
fn pieces_of(shape: Shape, addr: u64, pieces: &mut Vec<Piece>) {
    pieces.clear();
    let len = VNET + len_of(shape);
    match shape {
        Shape::Chain(_) => {
            pieces.extend((0..len as u64).map(|at| Piece { addr: addr + at, len: 1 }));
        }
        _ => pieces.push(Piece { addr, len: len as u32 }),
    }
}
