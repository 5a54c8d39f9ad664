//! A worker's side of captures.

use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use frame::bpf::{Filter, Packet};
use ring::gather::Body;
use rtrb::Producer;
use switch::PortId;

use super::record::{HEADER, Note};
use super::{MAX_CAPTURES, TapCounters};
use crate::burst::MAX_FRAME;

/// Cost of a frame that is looked at, beside that of the bytes that are copied.
const LOOK: u64 = 256;

/// Captures that a port takes part in: a bit for each.
pub(crate) type Captures = u8;

const _: () = assert!(MAX_CAPTURES == Captures::BITS as usize);

/// The taps of a worker, by the numbers of their captures.
#[derive(Default)]
pub(crate) struct Taps {
    taps: [Option<Box<Tap>>; MAX_CAPTURES],
    any: bool,
}

/// The part of a capture that belongs to one worker.
pub struct Tap {
    /// The captured ports, and the numbers of their interfaces.
    pub(crate) ports: Vec<(PortId, u16)>,
    pub(crate) snaplen: u32,
    pub(crate) filter: Option<Filter>,
    pub(crate) ring: Producer<u8>,
    /// By interface.
    pub(crate) counters: Arc<[TapCounters]>,
    pub(crate) clock: CaptureClock,
    /// A whole frame, for filters that read more of it than its head.
    pub(crate) whole: Vec<u8>,
}

/// The time of day at the start of a capture. Later times are counted from it, so they never step.
#[derive(Clone, Copy)]
pub(crate) struct CaptureClock {
    start: Instant,
    nanoseconds: u64,
}

/// A frame that passes.
#[derive(Clone, Copy)]
pub(crate) struct Passing<'a> {
    /// Its first bytes.
    pub head: &'a [u8],
    /// The bytes behind those, where its sender left them.
    pub body: Body<'a>,
    /// When it passed; the tap fills in time and interface.
    pub at: Instant,
    pub note: Note,
}

impl CaptureClock {
    pub fn new() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        CaptureClock { start: Instant::now(), nanoseconds: now.as_nanos() as u64 }
    }

    fn at(self, time: Instant) -> u64 {
        // A worker's round may have begun before the capture, and so may its time.
        let after = time.saturating_duration_since(self.start).as_nanos() as u64;
        let before = self.start.saturating_duration_since(time).as_nanos() as u64;
        self.nanoseconds.saturating_add(after).saturating_sub(before)
    }
}

impl Taps {
    /// Whether there are any.
    #[inline(always)]
    pub fn is_any(&self) -> bool {
        self.any
    }

    /// The captures that `port` takes part in.
    pub fn of(&self, port: PortId) -> Captures {
        let taps = self.taps.iter().enumerate();
        let takes_part = |tap: &Tap| tap.interface(port).is_some();
        taps.filter(|(_, tap)| tap.as_deref().is_some_and(takes_part))
            .fold(0, |captures, (number, _)| captures | 1 << number)
    }

    /// Replaces the tap of a capture. Returns the one that was there.
    pub fn set(&mut self, number: usize, tap: Option<Box<Tap>>) -> Option<Box<Tap>> {
        let place = self.taps.get_mut(number)?;
        let before = std::mem::replace(place, tap);
        self.any = self.taps.iter().any(Option::is_some);
        before
    }

    /// `port` takes part in no capture any more.
    pub fn forget(&mut self, port: PortId) {
        for tap in self.taps.iter_mut().flatten() {
            tap.ports.retain(|(other, _)| *other != port);
        }
    }

    /// Offers a frame of `port` to `captures`. Returns what that cost.
    pub fn offer(&mut self, captures: Captures, port: PortId, frame: &Passing<'_>) -> u64 {
        let mut cost = 0;
        for (number, tap) in self.taps.iter_mut().enumerate() {
            if captures & 1 << number == 0 {
                continue;
            }
            let Some(tap) = tap else { continue };
            let Some(interface) = tap.interface(port) else { continue };
            cost += tap.offer(interface, frame);
        }
        cost
    }
}

impl Tap {
    fn interface(&self, port: PortId) -> Option<u16> {
        self.ports.iter().find(|(other, _)| *other == port).map(|(_, interface)| *interface)
    }

    fn offer(&mut self, interface: u16, frame: &Passing<'_>) -> u64 {
        let Some(counters) = self.counters.get(usize::from(interface)) else { return 0 };
        counters.seen.add(1);
        let mut view = View { frame, whole: &mut self.whole, is_read: false };
        let wanted = match &self.filter {
            Some(filter) => filter.run(&mut view).min(self.snaplen),
            None => self.snaplen,
        };
        let read = if view.is_read { self.whole.len() } else { 0 };
        if wanted == 0 && self.filter.is_some() {
            return LOOK + read as u64;
        }
        counters.accepted.add(1);
        let wanted = wanted.min(frame.available()) as usize;
        let Ok(mut chunk) = self.ring.write_chunk(HEADER + wanted) else {
            counters.lost.add(1);
            return LOOK + read as u64;
        };
        let (first, second) = chunk.as_mut_slices();
        let mut room = Room { first, second };
        let whole: Passing<'_> = match read {
            0 => *frame,
            _ => Passing { head: &self.whole, body: Body::empty(), ..*frame },
        };
        let copied = room.put_frame(&whole, wanted);
        let note = Note { time: self.clock.at(frame.at), interface, ..frame.note };
        room.put(0, &note.encode(copied));
        chunk.commit(HEADER + copied);
        LOOK + (read + copied) as u64
    }
}

impl Passing<'_> {
    /// How many bytes of it can be read.
    fn available(&self) -> u32 {
        (self.head.len() as u32 + self.body.len()).min(MAX_FRAME + frame::HEADROOM as u32)
    }
}

/// A frame as a filter sees it. The head is in private memory. The rest, which the guest may change
/// at any time, is read once, when the filter first needs it, so the captured bytes are those that
/// the filter saw.
struct View<'a, 'b> {
    frame: &'a Passing<'b>,
    whole: &'a mut Vec<u8>,
    is_read: bool,
}

impl View<'_, '_> {
    #[cold]
    fn read_whole(&mut self) {
        let Passing { head, body, .. } = self.frame;
        self.is_read = true;
        self.whole.clear();
        self.whole.extend_from_slice(head);
        // The room was allocated with the tap.
        self.whole.resize(self.frame.available() as usize, 0);
        let read = body.read(self.whole.get_mut(head.len()..).unwrap_or_default());
        self.whole.truncate(head.len() + read);
    }
}

impl Packet for View<'_, '_> {
    #[inline]
    fn load<const N: usize>(&mut self, offset: u32) -> Option<[u8; N]> {
        let offset = offset as usize;
        if let Some(bytes) = self.frame.head.get(offset..).and_then(<[u8]>::first_chunk) {
            return Some(*bytes);
        }
        if !self.is_read && !self.frame.body.is_empty() {
            self.read_whole();
        }
        let whole = if self.is_read { &self.whole[..] } else { self.frame.head };
        whole.get(offset..)?.first_chunk().copied()
    }

    fn length(&self) -> u32 {
        self.frame.note.len
    }
}

/// Room for a record, in the two pieces that a ring has it in.
struct Room<'a> {
    first: &'a mut [u8],
    second: &'a mut [u8],
}

impl Room<'_> {
    /// The pieces of the `len` bytes from `at`.
    fn pieces(&mut self, at: usize, len: usize) -> [&mut [u8]; 2] {
        let seam = self.first.len();
        let end = at + len;
        let first = self.first.get_mut(at.min(seam)..end.min(seam)).unwrap_or_default();
        let (from, to) = (at.saturating_sub(seam), end.saturating_sub(seam));
        [first, self.second.get_mut(from..to).unwrap_or_default()]
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        let mut left = bytes;
        for piece in self.pieces(at, bytes.len()) {
            let (now, behind) = left.split_at(piece.len().min(left.len()));
            piece[..now.len()].copy_from_slice(now);
            left = behind;
        }
    }

    /// Copies the first `wanted` bytes of a frame behind the header. Returns how many there were:
    /// granted bytes may be withdrawn.
    fn put_frame(&mut self, frame: &Passing<'_>, wanted: usize) -> usize {
        let head = &frame.head[..frame.head.len().min(wanted)];
        self.put(HEADER, head);
        let mut copied = head.len();
        for piece in self.pieces(HEADER + head.len(), wanted - head.len()) {
            let behind = (copied - head.len()) as u32;
            let read = frame.body.slice(behind, piece.len() as u32).read(piece);
            copied += read;
            if read < piece.len() {
                break;
            }
        }
        copied
    }
}

/// An empty frame buffer with room for every frame.
pub(crate) fn whole_frame() -> Vec<u8> {
    Vec::with_capacity(MAX_FRAME as usize + frame::HEADROOM)
}
