//! Copies of granted bytes that a burst defers, so that they are made together.
//!
//! A frame from or to granted memory is put like any other: its buffers are chosen, its header is
//! written, its place in the ring is taken. Only its payload is copied later, by the hypervisor,
//! whose copies are expensive one by one and cheap by the hundred. So a ring queues them in a
//! [`GrantCopyBatch`], under a *token* by which it finds the frame again, and the owner of the
//! bursts flushes the batch ([`GrantCopyBatch::flush`]) before any ring is published. A frame whose
//! copy failed is then invalidated by its ring, and each failure names the end that made it fail.
//! The batch may hold copies of several bursts, as long as their senders get no response.
//!
//! A hostile peer can withdraw grants at any time, or name pages that it never granted. The frame
//! is lost then, and the port whose grant failed is known; no other frame of the batch is affected.

mod failure;
mod target;

use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use crate::body::Body;
use crate::copies::{Copies, Engine, Place, Refused, Status, run, same};
use crate::copy::copy;
use crate::grant::Granted;
use crate::granted_copy::{COPIES, STAGE, copies_for};
use crate::piece::Piece;
use crate::region::Memory;
use crate::segment::Local;

use failure::{attribute, failures_of};

pub use failure::{Failure, FaultyEnd};
pub use target::Target;

/// A frame that has copies waiting.
#[derive(Clone, Copy, Debug)]
struct Entry {
    sender: u32,
    receiver: u32,
    token: u32,
    len: u32,
}

impl Entry {
    fn failure(self, faulty: FaultyEnd, status: Status) -> Failure {
        let Entry { sender, receiver, token, len } = self;
        Failure { sender, receiver, frame: Some((token, len)), faulty, status }
    }
}

/// The copies of one or more bursts, waiting.
#[derive(Default)]
pub struct GrantCopyBatch {
    /// Allocated when first needed: never without a hypervisor.
    copies: Option<Box<Copies>>,
    engine: Option<Arc<dyn Engine>>,
    frames: Vec<Entry>,
    failures: Vec<Failure>,
    sender: u32,
    receiver: u32,
}

impl GrantCopyBatch {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Names the sender and the receiver of the frames that follow, as [`Failure`] reports them.
    #[inline]
    pub fn set_ends(&mut self, sender: u32, receiver: u32) {
        (self.sender, self.receiver) = (sender, receiver);
    }

    /// How many copies wait.
    #[inline]
    pub fn waiting(&self) -> usize {
        self.copies.as_ref().map_or(0, |copies| copies.len())
    }

    /// Whether there is nothing to flush.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty() && self.failures.is_empty()
    }

    /// Begins a frame of `len` bytes that its ring knows by `token`, to be copied by `engine` in at
    /// most `pieces` pieces, of which `staged` bytes come from private memory. False when there is
    /// no room; then nothing has changed.
    pub fn begin(
        &mut self,
        engine: &Arc<dyn Engine>,
        body: Body<'_>,
        token: u32,
        len: u32,
        pieces: usize,
        staged: usize,
    ) -> bool {
        if pieces > COPIES
            || staged > STAGE
            || body.engine().is_some_and(|other| !same(other, engine))
        {
            return false;
        }
        if self.copies.is_none() {
            self.copies = copies_for(&**engine);
        }
        let Some(copies) = &self.copies else { return false };
        let other = self.engine.as_ref().is_some_and(|own| !same(own, engine));
        if other || copies.room() < pieces || !copies.has_staging(staged) {
            self.run();
        }
        if let Some(copies) = &mut self.copies {
            copies.pin_all(body.pins());
        }
        self.engine.get_or_insert_with(|| Arc::clone(engine));
        let (sender, receiver) = (self.sender, self.receiver);
        self.frames.push(Entry { sender, receiver, token, len });
        true
    }

    /// Keeps `mem`, the memory of local targets, mapped until the copies are made.
    pub(crate) fn pin(&mut self, mem: &Arc<Memory>) {
        if let Some(copies) = &mut self.copies {
            copies.pin(mem);
        }
    }

    /// For the frame that was begun last: copies `bytes`, which are staged here meanwhile, to the
    /// start of `room`. Returns the rest of the room.
    pub fn bytes<'a>(&mut self, bytes: &[u8], room: Target<'a>) -> Target<'a> {
        let len = bytes.len().min(room.len.into()) as u16;
        if let Some(to) = room.mapped(len) {
            // SAFETY: `len` bytes are in `bytes`, and are mapped writable at `to` while the room is
            // there.
            unsafe { copy(bytes.as_ptr(), to, len.into()) };
        } else if len > 0 {
            self.stage(bytes.get(..len.into()).unwrap_or_default(), room.at);
        }
        let mut rest = room;
        rest.advance(len);
        rest
    }

    /// For the frame that was begun last: queues a copy of `bytes`, which are staged here.
    fn stage(&mut self, bytes: &[u8], to: Granted) {
        let entry = self.last();
        let pushed = self.copies.as_mut().map(|copies| copies.push_bytes(bytes, to, entry));
        match pushed {
            Some(Ok(())) => {}
            Some(Err(Refused::Full)) | None => self.fail_last(FaultyEnd::Receiver, Status::WAITING),
            Some(Err(_)) => self.fail_last(FaultyEnd::Receiver, Status::BAD_PAGE),
        }
    }

    /// The number of the frame that was begun last.
    #[inline]
    fn last(&self) -> u32 {
        self.frames.len().saturating_sub(1) as u32
    }

    /// For the frame that was begun last: copies `body` to `room`, and the rest to `targets`, one
    /// after the other.
    pub fn body(&mut self, body: Body<'_>, room: Target<'_>, targets: &[Target<'_>]) {
        let mut room = Room { now: room, next: targets.iter() };
        if !body.is_granted() {
            // SAFETY: so many bytes are mapped there while the body is borrowed.
            body.pieces(body.len(), |at, len| unsafe { self.local(at, len, &mut room) });
            return;
        }
        let entry = self.last();
        let copies = self.copies.as_mut();
        if copies.and_then(|copies| copy_granted(copies, body, room, entry)).is_none() {
            self.fail_last(FaultyEnd::Receiver, Status::BAD_PAGE);
        }
    }

    /// For the frame that was begun last: copies `len` bytes that are mapped at `at`.
    ///
    /// # Safety
    /// The pages must be mapped now.
    unsafe fn local(&mut self, at: *const u8, len: usize, room: &mut Room<'_>) {
        let mut done = 0;
        while done < len {
            if room.next_if_full().is_none() {
                return self.fail_last(FaultyEnd::Receiver, Status::BAD_PAGE);
            }
            let now = (len - done).min(room.now.len.into());
            let from = at.wrapping_add(done);
            if let Some(to) = room.now.mapped(now as u16) {
                // SAFETY: the caller's promise; and so many are mapped writable at `to` while the
                // room is there.
                unsafe { copy(from, to, now) };
            } else if let Some(from) = NonNull::new(from.cast_mut()) {
                self.copy(Place::Local(Local::new(from)), Place::Granted(room.now.at), now as u32);
            }
            room.now.advance(now as u16);
            done += now;
        }
    }

    /// For the frame that was begun last: copies a piece of a granted page, of a body that is
    /// borrowed.
    pub(crate) fn piece(&mut self, piece: Piece, to: Place) {
        let entry = self.last();
        let pushed = self.copies.as_mut().map(|copies| copies.push_piece(piece, to, entry));
        if !matches!(pushed, Some(Ok(()))) {
            self.fail_last(FaultyEnd::Receiver, Status::BAD_PAGE);
        }
    }

    /// For the frame that was begun last: copies one piece.
    fn copy(&mut self, from: Place, to: Place, len: u32) {
        let entry = self.last();
        let pushed = self.copies.as_mut().map(|copies| copies.push(from, to, len, entry));
        if !matches!(pushed, Some(Ok(()))) {
            // A source outside the sender's memory, or a target outside the receiver's. Both were
            // checked before, so this is not reached.
            self.fail_last(FaultyEnd::Receiver, Status::BAD_PAGE);
        }
    }

    fn fail_last(&mut self, faulty: FaultyEnd, status: Status) {
        if let Some(&entry) = self.frames.last() {
            self.failures.push(entry.failure(faulty, status));
        }
    }

    /// Notes that the sender's bytes could not be copied, for which the receiver has refused the
    /// frame.
    pub fn fail_sender(&mut self, status: Status) {
        let (sender, receiver) = (self.sender, self.receiver);
        let faulty = FaultyEnd::Sender;
        self.failures.push(Failure { sender, receiver, frame: None, faulty, status });
    }

    /// Makes all copies that wait. Returns the frames that could not be copied, each once.
    /// Afterwards the batch is empty, and no memory is pinned.
    pub fn flush(&mut self) -> std::vec::Drain<'_, Failure> {
        self.run();
        self.failures.dedup_by_key(|failure| (failure.sender, failure.receiver, failure.frame));
        self.failures.drain(..)
    }

    fn run(&mut self) {
        if let (Some(copies), Some(engine)) = (&mut self.copies, self.engine.take()) {
            run(&*engine, copies);
            let failed = failures_of(copies);
            copies.clear();
            for (failed, faulty) in attribute(copies, &*engine, failed) {
                if let Some(&entry) = self.frames.get(failed.entry as usize) {
                    self.failures.push(entry.failure(faulty, failed.status));
                }
            }
        }
        self.frames.clear();
    }
}

/// The targets of a frame's bytes that are still to be copied.
struct Room<'a> {
    /// What is left of the present one.
    now: Target<'a>,
    next: slice::Iter<'a, Target<'a>>,
}

impl Room<'_> {
    /// Goes on to the next target if the present one is full; `None`: all of them are.
    #[inline]
    fn next_if_full(&mut self) -> Option<()> {
        while self.now.len == 0 {
            self.now = *self.next.next()?;
        }
        Some(())
    }
}

/// Makes or queues copies of granted bytes. `None`: there was too little room.
fn copy_granted(copies: &mut Copies, body: Body<'_>, mut room: Room<'_>, tag: u32) -> Option<()> {
    for mut piece in body.granted() {
        // Most pieces are copied whole.
        loop {
            room.next_if_full()?;
            let len = piece.len.min(room.now.len);
            match (piece.mapped(len), room.now.mapped(len)) {
                // SAFETY: `len` bytes are mapped at both ends while body and room are borrowed, at
                // `to` writable.
                (Some(from), Some(to)) => unsafe { copy_mapped(from, to, len) },
                // If one end is not mapped, the hypervisor accesses both by their grants: it may
                // not take mapped pages of other domains.
                _ => copies.push_granted(piece.at, room.now.at, len, tag).ok()?,
            }
            room.now.advance(len);
            piece.len -= len;
            if piece.len == 0 {
                break;
            }
            piece.at.offset += len;
        }
    }
    Some(())
}

/// [`copy`], out of line: the loop around the call keeps its registers for what is not mapped.
///
/// # Safety
/// As for [`copy`].
#[inline(never)]
unsafe fn copy_mapped(from: *const u8, to: *mut u8, len: u16) {
    // SAFETY: the caller's promise.
    unsafe { copy(from, to, len.into()) };
}

#[cfg(test)]
mod tests;
