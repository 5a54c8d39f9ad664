//! Copies in which the hypervisor takes part: at least one end lies in a page that is not mapped
//! here, but granted.
//!
//! Such copies are expensive one by one and cheap by the hundred, so they are collected in a
//! [`Copies`], and run together when a burst is complete. This is sound for safe code because of
//! these invariants:
//!
//! - A local end is a raw address, but [`Copies::push`] accepts only an end that lies wholly in its
//!   own staging memory or in a [`Memory`] that it pins. So a [`Place`] is only a number, and a
//!   stale one is refused.
//! - Pins, operations and staging are forgotten together, by [`Copies::clear`].
//! - No reference to the bytes is ever formed: they are only copied, by us or by the hypervisor.

use std::fmt::Debug;
use std::sync::Arc;

use thiserror::Error;

use crate::copy::copy;
use crate::grant::{Granted, PAGE};
use crate::piece::Piece;
use crate::region::{MapError, Memory};
use crate::segment::{End, Local, SOURCE_GRANTED, TARGET_GRANTED};
use crate::violation::Violation;

pub use crate::segment::{Batch, Pin, Place, Segment, Status};
use crate::staging::Staging;
pub use crate::staging::{OwnPages, Stage};

/// An engine that makes copies with granted ends.
pub trait Engine: Debug + Send + Sync {
    /// Runs the copies that wait in `copies`, and sets the status of each. A copy that fails does
    /// not prevent the others.
    fn run(&self, copies: &mut Copies);

    /// `len` bytes of this process in the engine's preferred form for copies. `None`: any memory
    /// will do.
    fn own_pages(&self, len: usize) -> Option<OwnPages> {
        let _ = len;
        None
    }
}

/// Whether both are the same engine.
pub(crate) fn same(a: &Arc<dyn Engine>, b: &Arc<dyn Engine>) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(a), Arc::as_ptr(b))
}

/// Runs the copies that wait. A copy that was not tried counts as failed.
pub(crate) fn run(engine: &dyn Engine, copies: &mut Copies) {
    engine.run(copies);
    if copies.is_waiting() {
        copies.run(|mut batch| batch.fail(Status::REFUSED));
    }
}

/// Why a copy was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Refused {
    /// There is no room for it before the next [`Copies::clear`].
    #[error("too many copies in one batch")]
    Full,
    /// Its granted end does not lie within the granted page.
    #[error("{len} bytes at offset {offset} are not within a granted page")]
    CrossesPage {
        /// Where in the page it begins.
        offset: u16,
        /// Its length in bytes.
        len: u32,
    },
    /// Its local end does not lie in memory that is pinned.
    #[error("memory that is not pinned")]
    NotPinned,
}

/// Copies that wait to be run together. Only an unusual number of pins allocates memory later.
pub struct Copies {
    /// As many as can be queued; the first `queued` of them are.
    segments: Box<[Segment]>,
    /// The tag that the caller gave each segment.
    tags: Box<[u32]>,
    queued: usize,
    /// How many of the segments have been run.
    ran: usize,
    pins: Vec<Arc<Memory>>,
    staging: Staging,
}

// SAFETY: all addresses in the segments lie in memory that is pinned or owned, mapped for the whole
// process, and reached through copies only; see `Memory`.
unsafe impl Send for Copies {}
// SAFETY: as above.
unsafe impl Sync for Copies {}

impl Copies {
    /// An empty set with room for `max` copies and for `stage` private bytes.
    ///
    /// # Errors
    /// When the kernel refuses the memory.
    pub fn new(max: usize, stage: usize) -> Result<Self, MapError> {
        let len = stage.clamp(1, u32::MAX as usize);
        Ok(Self::staged_in(
            max,
            OwnPages { memory: Memory::anonymous(len)?, len, references: Vec::new() },
        ))
    }

    /// An empty set with room for `max` copies, whose private bytes are those of `stage`.
    pub fn staged_in(max: usize, stage: OwnPages) -> Self {
        Self {
            segments: std::iter::repeat_with(Segment::none).take(max).collect(),
            tags: vec![0; max].into(),
            queued: 0,
            ran: 0,
            pins: Vec::with_capacity(16),
            staging: Staging::new(stage),
        }
    }

    /// Forgets all copies and staged bytes, and lets go of pinned memory.
    pub fn clear(&mut self) {
        self.pins.clear();
        self.staging.clear();
        (self.queued, self.ran) = (0, 0);
    }

    /// How many copies are queued, run or not.
    #[inline]
    pub fn len(&self) -> usize {
        self.queued
    }

    /// Whether none is queued.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.queued == 0
    }

    /// How many more copies can be queued before the next [`clear`](Self::clear).
    #[inline]
    pub fn room(&self) -> usize {
        self.segments.len() - self.queued
    }

    /// Whether some of them have not been run.
    #[inline]
    pub fn is_waiting(&self) -> bool {
        self.ran < self.queued
    }

    /// Keeps `mem` mapped until the next [`clear`](Self::clear), so that places in it are accepted.
    #[inline]
    pub fn pin(&mut self, mem: &Arc<Memory>) {
        if !self.pins.iter().any(|pin| Arc::ptr_eq(pin, mem)) {
            self.pins.push(mem.clone());
        }
    }

    /// Pins several memories.
    pub(crate) fn pin_all(&mut self, memories: &[Arc<Memory>]) {
        memories.iter().for_each(|mem| self.pin(mem));
    }

    /// The place at guest address `addr` of `mem`, which gets pinned. `len` bytes must lie in one
    /// piece there.
    ///
    /// # Errors
    /// [`Violation::Outside`] when they do not.
    pub fn place(&mut self, mem: &Arc<Memory>, addr: u64, len: u32) -> Result<Place, Violation> {
        match mem.run(addr, &mut 0) {
            Some((at, left)) if left >= u64::from(len) => {
                self.pin(mem);
                Ok(Place::Local(Local::new(at)))
            }
            _ => Err(Violation::Outside { addr, len: u64::from(len) }),
        }
    }

    /// Private room for `len` bytes, to be copied to. `None` when there is none before the next
    /// [`clear`](Self::clear). The bytes are arbitrary until they are copied to.
    pub fn reserve(&mut self, len: usize) -> Option<(Stage, Place)> {
        self.staging.reserve(len)
    }

    /// Whether there is room for `len` more private bytes before the next [`clear`](Self::clear).
    #[inline]
    pub fn has_staging(&self, len: usize) -> bool {
        self.staging.has_room(len)
    }

    /// A private copy of `bytes`, to be copied from.
    pub fn stage(&mut self, bytes: &[u8]) -> Option<Place> {
        self.staging.add(bytes).map(|(_, place)| place)
    }

    /// Reads what was copied to `stage`, from `offset` on; returns how many bytes there were.
    pub fn read(&self, stage: Stage, offset: usize, buf: &mut [u8]) -> usize {
        self.staging.read(stage, offset, buf)
    }

    /// Queues a copy between two granted pages, the usual kind, as [`push`](Self::push) does.
    ///
    /// # Errors
    /// See [`Refused`]; then nothing was queued.
    #[inline]
    pub fn push_granted(
        &mut self,
        source: Granted,
        target: Granted,
        len: u16,
        tag: u32,
    ) -> Result<(), Refused> {
        if usize::from(source.offset.max(target.offset)) + usize::from(len) > PAGE {
            let offset = source.offset.max(target.offset);
            return Err(Refused::CrossesPage { offset, len: len.into() });
        }
        self.push_checked(Place::Granted(source), Place::Granted(target), len, tag)
    }

    /// Queues a copy of `len` bytes; [`failed`](Self::failed) reports the copy by `tag`. Between
    /// two local ends, the copy is made at once, without the hypervisor.
    ///
    /// # Errors
    /// See [`Refused`]; then nothing was queued.
    pub fn push(
        &mut self,
        source: Place,
        target: Place,
        len: u32,
        tag: u32,
    ) -> Result<(), Refused> {
        if len == 0 {
            return Ok(());
        }
        self.check(source, len)?;
        self.check(target, len)?;
        if let (Place::Local(Local(from)), Place::Local(Local(to))) = (source, target) {
            // SAFETY: `check` found `len` bytes at both in memory that is mapped.
            unsafe { copy(from.as_ptr(), to.as_ptr(), len as usize) };
            return Ok(());
        }
        let [source, target] = [source, target]
            .map(|end| self.staging.own_grant(end, len).map_or(end, Place::Granted));
        // One end is granted, so `len` is at most a page.
        self.push_checked(source, target, len as u16, tag)
    }

    /// Queues a copy of `len` bytes between ends that were checked, at least one of them granted.
    #[inline]
    fn push_checked(
        &mut self,
        source: Place,
        target: Place,
        len: u16,
        tag: u32,
    ) -> Result<(), Refused> {
        let is_granted = |end: Place| u16::from(matches!(end, Place::Granted(_)));
        let flags = is_granted(source) * SOURCE_GRANTED + is_granted(target) * TARGET_GRANTED;
        let (source, target) = (End::new(source), End::new(target));
        let at = self.queued;
        let (Some(place), Some(its_tag)) = (self.segments.get_mut(at), self.tags.get_mut(at))
        else {
            return Err(Refused::Full);
        };
        *place = Segment { source, target, len, flags, status: Status::WAITING };
        *its_tag = tag;
        self.queued = at + 1;
        Ok(())
    }

    /// Queues a copy of `bytes`, which are staged here meanwhile, to a granted page.
    ///
    /// # Errors
    /// See [`Refused`]; [`Refused::Full`] also when there is no room for the bytes.
    #[inline]
    pub(crate) fn push_bytes(
        &mut self,
        bytes: &[u8],
        target: Granted,
        tag: u32,
    ) -> Result<(), Refused> {
        let (offset, len) = (target.offset, bytes.len());
        if usize::from(offset) + len > PAGE {
            return Err(Refused::CrossesPage { offset, len: len as u32 });
        }
        let (stage, _) = self.staging.add(bytes).ok_or(Refused::Full)?;
        let source = self.staging.end(stage, 0, len as u32).ok_or(Refused::Full)?;
        self.push_checked(source, Place::Granted(target), len as u16, tag)
    }

    /// Copies a piece of a granted page to the place `offset` bytes into `stage`. The copy is made
    /// at once if the piece is mapped, and otherwise queued. The piece's gather must be borrowed.
    ///
    /// # Errors
    /// See [`Refused`]; [`Refused::Full`] also when the place is not in the stage.
    #[inline]
    pub(crate) fn push_to_stage(
        &mut self,
        piece: Piece,
        stage: Stage,
        offset: u32,
        tag: u32,
    ) -> Result<(), Refused> {
        let len = u32::from(piece.len);
        if let Some(from) = piece.mapped(piece.len) {
            let to = self.staging.address(stage, offset, len).ok_or(Refused::Full)?;
            // SAFETY: the gather keeps the piece's page mapped, and `len` bytes are in the stage.
            unsafe { copy(from, to.as_ptr(), piece.len.into()) };
            return Ok(());
        }
        let source = Place::Granted(piece.at);
        self.check(source, len)?;
        let target = self.staging.end(stage, offset, len).ok_or(Refused::Full)?;
        self.push_checked(source, target, piece.len, tag)
    }

    /// Copies a piece of a granted page. The copy is made at once if the piece is mapped and the
    /// target is local, and otherwise queued, as by [`push`](Self::push). The piece's gather must
    /// be borrowed.
    ///
    /// # Errors
    /// As for [`push`](Self::push).
    pub(crate) fn push_piece(
        &mut self,
        piece: Piece,
        target: Place,
        tag: u32,
    ) -> Result<(), Refused> {
        let len = piece.len.into();
        if let (Some(from), Place::Local(Local(to))) = (piece.mapped(piece.len), target) {
            self.check(target, len)?;
            // SAFETY: the gather keeps the piece's page mapped, and `check` found `len` bytes at
            // the target in memory that is mapped.
            unsafe { copy(from, to.as_ptr(), piece.len.into()) };
            return Ok(());
        }
        self.push(Place::Granted(piece.at), target, len, tag)
    }

    /// Checks that `place` lies wholly in one granted page, or is local and wholly pinned.
    fn check(&self, place: Place, len: u32) -> Result<(), Refused> {
        match place {
            Place::Granted(Granted { offset, .. })
                if u32::from(offset) + len.min(1 << 16) <= PAGE as u32 =>
            {
                Ok(())
            }
            Place::Granted(Granted { offset, .. }) => Err(Refused::CrossesPage { offset, len }),
            Place::Local(Local(at)) => {
                // The hypervisor knows a granted stage only by its grant.
                let holds = |mem: &Memory| mem.holds(at, u64::from(len));
                let staged =
                    holds(self.staging.memory()) || self.staging.own_grant(place, len).is_some();
                if staged || self.pins.iter().any(|pin| holds(pin)) {
                    Ok(())
                } else {
                    Err(Refused::NotPinned)
                }
            }
        }
    }

    /// The copies in the order in which they were queued.
    pub fn segments(&self) -> &[Segment] {
        self.segments.get(..self.queued).unwrap_or_default()
    }

    /// Tags and statuses of the copies that were run and failed.
    pub fn failed(&self) -> impl Iterator<Item = (u32, Status, &Segment)> {
        let ran = self.segments.iter().zip(&*self.tags).take(self.ran);
        ran.filter(|(segment, _)| !segment.status.is_done())
            .map(|(segment, tag)| (*tag, segment.status, segment))
    }

    /// Hands the copies that have not been run to `run`, and then counts them as run, whatever
    /// their outcome.
    pub fn run<T>(&mut self, run: impl FnOnce(Batch<'_>) -> T) -> T {
        let waiting = self.segments.get_mut(self.ran..self.queued).unwrap_or_default();
        let outcome = run(Batch(waiting));
        self.ran = self.queued;
        outcome
    }

    /// Runs the copies that have not been run without a hypervisor. `resolve` gets a granted place,
    /// the number of bytes used from there on, and whether they are written. It pins the memory in
    /// which the place is mapped and returns the address there, or the status to report.
    pub fn emulate(
        &mut self,
        mut resolve: impl FnMut(&mut Pin, Granted, u16, bool) -> Result<u64, Status>,
    ) {
        let mut pins = [Pin::default(), Pin::default()];
        let mut make =
            |segment: &mut Segment| segment.status = segment.emulate(&mut pins, &mut resolve);
        self.run(|batch| batch.0.iter_mut().for_each(&mut make));
    }
}

#[cfg(test)]
mod tests;
