//! One queue: between a queue of the TAP device and one of the frontend.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use frame::{GsoKind, HEAD_LEN, Head, L4, Offload, VNET_LEN, vnet};
use ring::Gather;
use xen::netif::frontend::{Frame, FrontError, Landing, Queue, Sender};
use xen::netif::slots::{self, Meta};

use crate::profiler::{StageProfiler, Step};

/// Frames that are carried in one direction before the other has its turn.
const TURN: usize = 64;

/// A queue.
pub struct Lane<'a> {
    tap: &'a OwnedFd,
    queue: Queue,
    /// What a device delivers; it goes to the same queue of the TAP device.
    landing: Option<Landing>,
    gather: Gather,
    frames: Vec<Frame>,
    /// The kernel may have frames for which there is no room.
    blocked: bool,
}

impl<'a> Lane<'a> {
    /// Between this queue of the device and those of the frontend.
    pub fn new(tap: &'a OwnedFd, queue: Queue, landing: Option<Landing>) -> Self {
        Lane {
            tap,
            queue,
            landing,
            gather: Gather::new(1),
            frames: vec![Frame::default(); TURN],
            blocked: false,
        }
    }

    /// Carries what the kernel sends, as much as one turn has. Whether there was anything.
    pub fn send(&mut self, profiler: &mut StageProfiler<'_>) -> Result<bool, FrontError> {
        let tx = &mut self.queue.tx;
        tx.collect()?;
        self.blocked = false;
        let mut count = 0;
        while count < TURN {
            let Some(place) = tx.place() else {
                self.blocked = true;
                break;
            };
            let mut header = [0; VNET_LEN];
            let room = Sender::LONGEST + 1;
            let got = match tx.memory().readv_from_fd(self.tap.as_fd(), &mut header, place, room) {
                Ok(got) => got.saturating_sub(VNET_LEN),
                // Nothing there, or the interface is down.
                Err(_) => break,
            };
            count += 1;
            let mut head = [0; HEAD_LEN];
            let head = &mut head[..got.min(HEAD_LEN)];
            tx.memory().read(place, head)?;
            if let Some(meta) = outgoing(&header, head, got) {
                tx.send(got, meta)?;
            }
        }
        tx.flush()?;
        profiler.mark(Step::Send);
        Ok(count > 0)
    }

    /// Carries what the backend delivered, as much as one turn has. Whether there was anything.
    pub fn receive(&mut self, profiler: &mut StageProfiler<'_>) -> Result<bool, FrontError> {
        let (mut count, mut bytes) = (0, 0);
        while let Some(frame) = self.frames.get_mut(count)
            && self.queue.rx.next(frame)?
        {
            count += 1;
            bytes += u64::from(frame.len);
        }
        profiler.mark(Step::Ring);
        for n in 0..count {
            // A frame that the kernel does not take is lost, as on any other link.
            let _ = self.deliver(n);
        }
        profiler.mark(Step::Kernel);
        self.queue.rx.post()?;
        profiler.mark(Step::Signal);
        profiler.received(count, bytes);
        Ok(self.land(profiler)? || count > 0)
    }

    /// Carries what a device delivered, as much as one turn has. Whether there was anything.
    fn land(&mut self, profiler: &mut StageProfiler<'_>) -> Result<bool, FrontError> {
        let Some(mut landing) = self.landing.take() else { return Ok(false) };
        let (mut count, mut bytes) = (0, 0);
        while let Some(frame) = self.frames.get_mut(count)
            && landing.next(frame)?
        {
            count += 1;
            bytes += u64::from(frame.len);
        }
        profiler.mark(Step::Ring);
        for n in 0..count {
            let _ = self.deliver(n);
        }
        profiler.mark(Step::Kernel);
        landing.post()?;
        self.landing = Some(landing);
        profiler.mark(Step::Signal);
        profiler.received(count, bytes);
        Ok(count > 0)
    }

    fn deliver(&mut self, n: usize) -> io::Result<usize> {
        let Some(Frame { pieces, len, meta, validated }) = self.frames.get(n) else { return Ok(0) };
        self.gather.clear();
        let chain = self.gather.push_ranges(self.queue.rx.memory(), pieces.iter().copied());
        let body = self.gather.body(chain.map_err(io::Error::other)?);
        if *meta == Meta::default() {
            let header = vnet::encode(&Offload { valid: *validated, ..Offload::default() }, 0);
            return body.write_to(self.tap.as_fd(), &[&header]);
        }
        let mut head = Head::new();
        head.fill(|room| body.read(room));
        let headers = frame::parse(head.as_slice()).ok_or(io::ErrorKind::InvalidData)?;
        let offload = slots::offload(*meta, &mut head, &headers, *len).map_err(io::Error::other)?;
        let header = vnet::encode(&offload, headers.end.into());
        let rest = body.slice(head.as_slice().len() as u32, *len);
        rest.write_to(self.tap.as_fd(), &[&header, head.as_slice()])
    }

    /// Before sleeping: asks to be woken, and looks once more. Whether there is anything now.
    pub fn arm(&mut self) -> Result<bool, FrontError> {
        let Queue { tx, rx, .. } = &mut self.queue;
        // First the channels, so that a signal that comes while the rings are looked at is not
        // lost.
        let landed = match &mut self.landing {
            Some(landing) => {
                landing.channel().take();
                landing.arm()?
            }
            None => false,
        };
        rx.channel().take();
        tx.channel().take();
        let answers = self.blocked && tx.arm()?;
        Ok(rx.arm()? || answers || landed)
    }

    /// What wakes it.
    pub fn wakers(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let Queue { tx, rx, .. } = &self.queue;
        // While there is no room, the kernel's frames are no reason to wake.
        let tap = if self.blocked { tx.channel().waker() } else { self.tap.as_fd() };
        let landing = self.landing.iter().map(|landing| landing.channel().waker());
        [rx.channel().waker(), tap].into_iter().chain(landing)
    }
}

/// What is left to be done to a frame of `len` bytes that the kernel sends, as a slot says it.
/// `None`: it can't.
fn outgoing(header: &[u8; VNET_LEN], head: &[u8], len: usize) -> Option<Meta> {
    // Most have nothing left to be done.
    if header[0] == 0 && header[1] == 0 {
        return Some(Meta::default());
    }
    let headers = frame::parse(head)?;
    let offload = vnet::decode(header, &headers, len as u32).ok()?;
    let known = matches!(headers.l4, L4::Tcp | L4::Udp);
    let gso = match offload.gso {
        None => None,
        Some(gso) if gso.kind == GsoKind::TcpV4 => Some((slots::GSO_TCPV4, gso.size)),
        Some(gso) if gso.kind == GsoKind::TcpV6 => Some((slots::GSO_TCPV6, gso.size)),
        Some(_) => return None,
    };
    (known || offload.csum.is_none()).then_some(Meta { csum_blank: offload.csum.is_some(), gso })
}
