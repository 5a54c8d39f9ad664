//! Forwards frames between one queue of the TAP device and one of the frontend.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use frame::{GsoKind, HEAD_LEN, Head, L4, Offload, VNET_LEN, vnet};
use ring::{Gather, Memory};
use xen::netif::frontend::{DeviceQueue, Frame, FrameSource, FrontError, Queue, Sender};
use xen::netif::slots::{self, Meta};

use crate::profiler::{StageProfiler, Step};

/// Frames that are forwarded in one direction before the other is served.
const BURST: usize = 64;

/// A queue of the TAP device, and one of the frontend.
pub struct TapQueue<'a> {
    tap: &'a OwnedFd,
    queue: Queue,
    /// Frames that a device delivers go to the same queue of the TAP device.
    device_queue: Option<DeviceQueue>,
    kernel: KernelSide<'a>,
    frames: Vec<Frame>,
    /// Whether the Tx ring has no room for frames of the kernel.
    blocked: bool,
}

impl<'a> TapQueue<'a> {
    /// Forwards between `tap` and `queue`; and from `device_queue`, if there is one, to `tap`.
    pub fn new(tap: &'a OwnedFd, queue: Queue, device_queue: Option<DeviceQueue>) -> Self {
        TapQueue {
            tap,
            queue,
            device_queue,
            kernel: KernelSide { tap, gather: Gather::new(1) },
            frames: vec![Frame::default(); BURST],
            blocked: false,
        }
    }

    /// Forwards up to a burst of frames from the kernel to the backend. False when there were none.
    pub fn send(&mut self, profiler: &mut StageProfiler<'_>) -> Result<bool, FrontError> {
        let tx = &mut self.queue.tx;
        tx.collect()?;
        self.blocked = false;
        let mut count = 0;
        while count < BURST {
            let Some(place) = tx.place() else {
                self.blocked = true;
                break;
            };
            let mut header = [0; VNET_LEN];
            let room = Sender::LONGEST + 1;
            let got = match tx.ring().memory().readv_from_fd(
                self.tap.as_fd(),
                &mut header,
                place,
                room,
            ) {
                Ok(got) => got.saturating_sub(VNET_LEN),
                // No frame is there, or the interface is down.
                Err(_) => break,
            };
            count += 1;
            let mut head = [0; HEAD_LEN];
            let head = &mut head[..got.min(HEAD_LEN)];
            tx.ring().memory().read(place, head)?;
            if let Some(meta) = outgoing(&header, head, got) {
                tx.send(got, meta)?;
            }
        }
        tx.flush()?;
        profiler.mark(Step::Send);
        Ok(count > 0)
    }

    /// Forwards up to a burst of frames from the backend to the kernel, and then as many that a
    /// device has delivered. False when there were none.
    pub fn receive(&mut self, profiler: &mut StageProfiler<'_>) -> Result<bool, FrontError> {
        let TapQueue { queue, device_queue, frames, kernel, .. } = self;
        let received = forward(&mut queue.rx, frames, kernel, profiler)?;
        let delivered = match device_queue {
            Some(device_queue) => forward(device_queue, frames, kernel, profiler)?,
            None => false,
        };
        Ok(received || delivered)
    }

    /// Asks for signals before sleeping, and checks once more. True: there is work now.
    pub fn arm(&mut self) -> Result<bool, FrontError> {
        let Queue { tx, rx, .. } = &mut self.queue;
        // The channels come first, so that a signal which comes while the rings are checked is not
        // lost.
        let delivered = match &mut self.device_queue {
            Some(device_queue) => {
                device_queue.ring().channel().take();
                device_queue.arm()?
            }
            None => false,
        };
        rx.ring().channel().take();
        tx.ring().channel().take();
        let responses = self.blocked && tx.arm()?;
        Ok(rx.arm()? || responses || delivered)
    }

    /// Descriptors that become readable when there is something to forward.
    pub fn wakers(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let Queue { tx, rx, .. } = &self.queue;
        // While there is no room, the kernel's frames are no reason to wake.
        let tap = if self.blocked { tx.ring().channel().waker() } else { self.tap.as_fd() };
        let device_queue = self.device_queue.iter().map(|queue| queue.ring().channel().waker());
        [rx.ring().channel().waker(), tap].into_iter().chain(device_queue)
    }
}

/// Forwards up to a burst of frames from a ring to the kernel. False when there were none.
fn forward(
    source: &mut impl FrameSource,
    frames: &mut [Frame],
    kernel: &mut KernelSide<'_>,
    profiler: &mut StageProfiler<'_>,
) -> Result<bool, FrontError> {
    let (mut count, mut bytes) = (0, 0);
    while let Some(frame) = frames.get_mut(count)
        && source.next(frame)?
    {
        count += 1;
        bytes += u64::from(frame.len);
    }
    profiler.mark(Step::Ring);
    for frame in frames.iter().take(count) {
        // A frame that the kernel refuses is lost, as on any other link.
        let _ = kernel.write(source.memory(), frame);
    }
    profiler.mark(Step::Kernel);
    source.post()?;
    profiler.mark(Step::Signal);
    profiler.received(count, bytes);
    Ok(count > 0)
}

/// A queue of the TAP device, for writing.
struct KernelSide<'a> {
    tap: &'a OwnedFd,
    gather: Gather,
}

impl KernelSide<'_> {
    fn write(&mut self, memory: &Arc<Memory>, frame: &Frame) -> io::Result<usize> {
        let Frame { pieces, len, meta, validated } = frame;
        self.gather.clear();
        let chain = self.gather.push_ranges(memory, pieces.iter().copied());
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
}

/// The offloads of a frame of `len` bytes that the kernel sends, as slots encode them. `None` when
/// they can't.
fn outgoing(header: &[u8; VNET_LEN], head: &[u8], len: usize) -> Option<Meta> {
    // Most frames have no offloads.
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
