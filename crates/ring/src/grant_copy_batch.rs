//! Copies that a burst puts off, so that they can be made together.
//!
//! A frame from or to granted memory is put like any other: its buffers are chosen, its header is
//! written, its place in the ring is taken. Only its payload has to wait for the hypervisor, who
//! makes copies by the hundred. So a ring queues them here ([`GrantCopyBatch`]), under a *token* by which it
//! finds the frame again, and whoever owns the burst makes them ([`GrantCopyBatch::flush`]) before any ring
//! is published. A frame whose copy failed is then *spoiled* by its ring, and the end that was to
//! blame is known.

use std::cell::RefCell;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::copies::{Copies, Local, Place, Stage, Status};
use crate::copy::copy;
use crate::gather::{Body, Chain, Engine, Gather, Piece, same};
use crate::grant::{Granted, PAGE};
use crate::pages::Held;
use crate::region::Memory;

/// Copies that wait at most: a frame in as many pieces as any may have, or a burst of ordinary
/// ones.
const COPIES: usize = 2304;

/// Private bytes that wait to be copied from: the heads of some bursts.
const STAGE: usize = 64 << 10;

/// Who is to blame for a copy that was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// The one whose bytes were to be copied.
    Sender,
    /// The one into whose buffers.
    Receiver,
}

/// A frame that could not be copied whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Whom it was for, as [`GrantCopyBatch::set_receiver`] had it.
    pub receiver: u32,
    /// Its token and its length; `None` when its receiver has refused it already.
    pub frame: Option<(u32, u32)>,
    /// Whose fault it is.
    pub blame: Blame,
    /// What the hypervisor said.
    pub status: Status,
}

/// Where bytes of a frame go to: so many of them, all in one page.
#[derive(Clone, Copy, Debug)]
pub struct Room<'a> {
    /// Where they begin.
    pub at: Granted,
    /// How many.
    pub len: u16,
    /// The page, if it is mapped.
    pub page: Option<Held<'a>>,
}

impl Room<'_> {
    /// What is left of it behind its first `len` bytes.
    #[inline]
    fn after(self, len: u16) -> Self {
        let len = len.min(self.len);
        Room {
            at: Granted { offset: self.at.offset.saturating_add(len), ..self.at },
            len: self.len - len,
            ..self
        }
    }

    /// Where its first `len` bytes can be written without the hypervisor.
    #[inline(always)]
    fn mapped(&self, len: u16) -> Option<*mut u8> {
        self.page.and_then(|page| page.target(self.at.offset, len))
    }
}

/// A frame that has copies waiting.
#[derive(Clone, Copy, Debug)]
struct Entry {
    receiver: u32,
    token: u32,
    len: u32,
}

/// A copy that was not made: its frame's entry, what became of it, and which ends are granted.
struct Failed {
    entry: u32,
    status: Status,
    source: Option<Granted>,
    target: Option<Granted>,
    len: u16,
}

/// The copies of a burst, waiting.
#[derive(Default)]
pub struct GrantCopyBatch {
    /// Made when first needed; where no hypervisor is, never.
    copies: Option<Box<Copies>>,
    engine: Option<Arc<dyn Engine>>,
    frames: Vec<Entry>,
    failures: Vec<Failure>,
    receiver: u32,
}

impl GrantCopyBatch {
    /// Nothing waits.
    pub fn new() -> Self {
        Self::default()
    }

    /// Names the receiver of the frames that follow.
    #[inline]
    pub fn set_receiver(&mut self, receiver: u32) {
        self.receiver = receiver;
    }

    /// Whether there is nothing to flush.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty() && self.failures.is_empty()
    }

    /// Begins a frame of `len` bytes that its ring knows by `token`, to be copied by `engine` in at
    /// most `pieces` pieces, of which `staged` bytes come from private memory. False when that
    /// can't be done; then nothing has changed.
    pub fn begin(
        &mut self,
        engine: &Arc<dyn Engine>,
        body: Body<'_>,
        (token, len): (u32, u32),
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
        if let (Some(copies), Some(gather)) = (&mut self.copies, body.gather()) {
            copies.pin_all(gather);
        }
        self.engine.get_or_insert_with(|| Arc::clone(engine));
        self.frames.push(Entry { receiver: self.receiver, token, len });
        true
    }

    /// Keeps `mem` mapped until the copies are made: what local targets lie in.
    pub(crate) fn pin(&mut self, mem: &Arc<Memory>) {
        if let Some(copies) = &mut self.copies {
            copies.pin(mem);
        }
    }

    /// For the frame that was begun last: copies `bytes`, which are kept here until then, to the
    /// start of `room`, and leaves the rest of it.
    pub fn bytes<'a>(&mut self, bytes: &[u8], room: Room<'a>) -> Room<'a> {
        let len = bytes.len().min(room.len.into()) as u16;
        if let Some(to) = room.mapped(len) {
            // SAFETY: `len` bytes are in `bytes`, and are mapped writable at `to` while the room is
            // there.
            unsafe { copy(bytes.as_ptr(), to, len.into()) };
        } else if len > 0 {
            match self.copies.as_mut().and_then(|copies| copies.stage(bytes)) {
                Some(from) => self.copy(from, Place::Granted(room.at), len.into()),
                None => self.fail_last(Blame::Receiver, Status::WAITING),
            }
        }
        room.after(len)
    }

    /// For the frame that was begun last: copies `body` to `room`, and what does not fit there to
    /// what `next` gives, one after the other.
    pub fn body<'a>(
        &mut self,
        body: Body<'_>,
        room: Room<'a>,
        mut next: impl FnMut() -> Option<Room<'a>>,
    ) {
        let mut room = room;
        if !body.is_granted() {
            // SAFETY: so many bytes are mapped there while the body is borrowed.
            body.pieces(body.len(), |at, len| unsafe { self.local(at, len, &mut room, &mut next) });
            return;
        }
        let entry = self.frames.len().saturating_sub(1) as u32;
        let copies = self.copies.as_mut();
        if copies.and_then(|copies| spread(copies, body, room, next, entry)).is_none() {
            self.fail_last(Blame::Receiver, Status::BAD_PAGE);
        }
    }

    /// For the frame that was begun last: copies `len` bytes that are mapped at `at`.
    ///
    /// # Safety
    /// They must be mapped now.
    unsafe fn local<'a>(
        &mut self,
        at: *const u8,
        len: usize,
        room: &mut Room<'a>,
        next: &mut dyn FnMut() -> Option<Room<'a>>,
    ) {
        let mut done = 0;
        while done < len {
            if room.len == 0 {
                let Some(more) = next() else {
                    return self.fail_last(Blame::Receiver, Status::BAD_PAGE);
                };
                *room = more;
            }
            let now = (len - done).min(room.len.into());
            let from = at.wrapping_add(done);
            if let Some(to) = room.mapped(now as u16) {
                // SAFETY: the caller's promise; and so many are mapped writable at `to` while the
                // room is there.
                unsafe { copy(from, to, now) };
            } else if let Some(from) = NonNull::new(from.cast_mut()) {
                self.copy(Place::Local(Local::new(from)), Place::Granted(room.at), now as u32);
            }
            *room = room.after(now as u16);
            done += now;
        }
    }

    /// For the frame that was begun last: a piece of a granted page, of a body that is borrowed.
    pub(crate) fn piece(&mut self, piece: Piece, to: Place) {
        let entry = self.frames.len().saturating_sub(1) as u32;
        let pushed = self.copies.as_mut().map(|copies| copies.push_piece(piece, to, entry));
        if !matches!(pushed, Some(Ok(()))) {
            self.fail_last(Blame::Receiver, Status::BAD_PAGE);
        }
    }

    /// For the frame that was begun last: one piece.
    fn copy(&mut self, from: Place, to: Place, len: u32) {
        let entry = self.frames.len().saturating_sub(1) as u32;
        let pushed = self.copies.as_mut().map(|copies| copies.push(from, to, len, entry));
        if !matches!(pushed, Some(Ok(()))) {
            // Bytes that the sender does not have where it says it has them, or that the receiver
            // does not want where it says: both were checked, so it does not come to
            // this.
            self.fail_last(Blame::Receiver, Status::BAD_PAGE);
        }
    }

    fn fail_last(&mut self, blame: Blame, status: Status) {
        if let Some(&Entry { receiver, token, len }) = self.frames.last() {
            self.failures.push(Failure { receiver, frame: Some((token, len)), blame, status });
        }
    }

    /// The sender's bytes could not be had, and the receiver has refused the frame for that.
    pub fn blame_sender(&mut self, status: Status) {
        let failure =
            Failure { receiver: self.receiver, frame: None, blame: Blame::Sender, status };
        self.failures.push(failure);
    }

    /// Makes all copies that wait; the frames that could not be copied, each once. After this
    /// nothing waits, and nobody's memory is pinned any more.
    pub fn flush(&mut self) -> std::vec::Drain<'_, Failure> {
        self.run();
        self.failures.dedup_by_key(|failure| (failure.receiver, failure.frame));
        self.failures.drain(..)
    }

    fn run(&mut self) {
        if let (Some(copies), Some(engine)) = (&mut self.copies, self.engine.take()) {
            run(&*engine, copies);
            let failed = failures_of(copies);
            copies.clear();
            for (failed, blame) in blame(copies, &*engine, failed) {
                if let Some(&Entry { receiver, token, len }) =
                    self.frames.get(failed.entry as usize)
                {
                    let frame = Some((token, len));
                    self.failures.push(Failure { receiver, frame, blame, status: failed.status });
                }
            }
        }
        self.frames.clear();
    }
}

/// Makes or queues copies of granted bytes to `room`, and of what does not fit there to what `next`
/// gives. `None`: that was too little.
fn spread<'a>(
    copies: &mut Copies,
    body: Body<'_>,
    mut room: Room<'a>,
    mut next: impl FnMut() -> Option<Room<'a>>,
    tag: u32,
) -> Option<()> {
    for mut piece in body.granted() {
        // Most pieces are copied whole.
        loop {
            if room.len == 0 {
                room = next()?;
            }
            let len = piece.len.min(room.len);
            match (piece.mapped(len), room.mapped(len)) {
                // SAFETY: `len` bytes are mapped at both ends while body and room are borrowed, at
                // `to` writable.
                (Some(from), Some(to)) => unsafe { copy(from, to, len.into()) },
                // Where one end is not mapped the hypervisor gets at both, and may not take mapped
                // pages of others.
                _ => copies.push_granted(piece.at, room.at, len, tag).ok()?,
            }
            room = room.after(len);
            piece.len -= len;
            if piece.len == 0 {
                break;
            }
            piece.at.offset += len;
        }
    }
    Some(())
}

/// Room for the copies of a burst.
fn copies_for(engine: &dyn Engine) -> Option<Box<Copies>> {
    let copies = match engine.own_pages(STAGE) {
        Some(pages) => Ok(Copies::staged_in(COPIES, pages)),
        None => Copies::new(COPIES, STAGE),
    };
    copies.ok().map(Box::new)
}

/// Who can copy the bytes of `chains`.
fn engine_of<'a>(gather: &'a Gather, chains: &[Chain]) -> Option<&'a Arc<dyn Engine>> {
    chains.iter().find_map(|chain| gather.body(*chain).engine())
}

/// Runs what waits; what was not even tried has failed.
fn run(engine: &dyn Engine, copies: &mut Copies) {
    engine.run(copies);
    if copies.is_waiting() {
        copies.run(|mut batch| batch.fail(Status::REFUSED));
    }
}

/// What could not be copied, the first piece of each frame only.
fn failures_of(copies: &Copies) -> Vec<Failed> {
    let mut all: Vec<Failed> = Vec::new();
    for (entry, status, segment) in copies.failed() {
        if all.last().is_none_or(|last| last.entry != entry) {
            let (source, target, len) = (segment.source(), segment.target(), segment.len());
            all.push(Failed { entry, status, source, target, len });
        }
    }
    all
}

/// Finds out whose fault each failure is. Where both ends are granted, the hypervisor does not say;
/// so the source is copied once more, all of it, to ourselves: it may be that only some of its
/// bytes are granted.
fn blame(copies: &mut Copies, engine: &dyn Engine, failed: Vec<Failed>) -> Vec<(Failed, Blame)> {
    let mut probes = Vec::new();
    // What comes there is not looked at.
    let bin = copies.reserve(PAGE).map(|(_, place)| place);
    for failed in &failed {
        let probe = failed.source.filter(|_| failed.target.is_some()).zip(bin);
        let push = |(source, to)| {
            copies.push(Place::Granted(source), to, failed.len.into(), probes.len() as u32)
        };
        probes.push(probe.map(push).is_some_and(|pushed| pushed.is_ok()));
    }
    if copies.is_waiting() {
        run(engine, copies);
    }
    let guilty: Vec<u32> = copies.failed().map(|(probe, _, _)| probe).collect();
    copies.clear();
    let decide = |(i, failed): (usize, Failed)| {
        let granted = if probes.get(i) == Some(&true) {
            if guilty.contains(&(i as u32)) { Blame::Sender } else { Blame::Receiver }
        } else if failed.source.is_some() {
            Blame::Sender
        } else {
            Blame::Receiver
        };
        let blame = match (failed.status, granted) {
            // Not the granted end's fault, but the other's.
            (Status::LOCAL_FAULT, Blame::Sender) => Blame::Receiver,
            (Status::LOCAL_FAULT, Blame::Receiver) => Blame::Sender,
            (_, granted) => granted,
        };
        (failed, blame)
    };
    failed.into_iter().enumerate().map(decide).collect()
}

/// The first bytes of many granted chains, fetched together into private memory.
#[derive(Default)]
pub struct Heads {
    copies: Option<Box<Copies>>,
    stages: Vec<Option<Stage>>,
    /// Chains whose bytes could not be had, in order.
    failed: Vec<(u32, Status)>,
}

impl Heads {
    /// Room for nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Fetches the first bytes of each of `chains`, all of `gather`: the first `most`, or no more
    /// than the first piece if that has at least `enough`.
    pub fn fetch(&mut self, gather: &Gather, chains: &[Chain], enough: u32, most: u32) {
        self.clear();
        if self.copies.is_none()
            && let Some(engine) = engine_of(gather, chains)
        {
            self.copies = copies_for(&**engine);
        }
        for (i, chain) in (0..).zip(chains) {
            let body = gather.body(*chain);
            let first = body.granted_lens().next().filter(|len| *len >= enough);
            let stage = self.queue(i, body.slice(0, most.min(first.unwrap_or(most))));
            self.stages.push(stage);
        }
        self.run(gather, chains);
    }

    /// Fetches the first `most` bytes of those of the `chains` that are numbered in `again`, in the
    /// place of what was fetched of them.
    pub fn fetch_again(&mut self, gather: &Gather, chains: &[Chain], again: &[usize], most: u32) {
        for &i in again {
            let Some(chain) = chains.get(i) else { continue };
            let stage = self.queue(i as u32, gather.body(*chain).slice(0, most));
            if let Some(old) = self.stages.get_mut(i) {
                *old = stage;
            }
        }
        self.run(gather, chains);
    }

    /// Queues the copies of `body`, of chain number `i`.
    fn queue(&mut self, i: u32, body: Body<'_>) -> Option<Stage> {
        let copies = self.copies.as_mut()?;
        let (stage, _) = copies.reserve(body.len() as usize)?;
        for (offset, piece) in offsets(body) {
            let to = copies.place_in(stage, offset)?;
            // No room: there is for more than a burst, so it does not come to this.
            copies.push_piece(piece, to, i).ok()?;
        }
        Some(stage)
    }

    /// Makes the copies that were queued.
    fn run(&mut self, gather: &Gather, chains: &[Chain]) {
        let Some(engine) = engine_of(gather, chains) else { return };
        self.failed.clear();
        let Some(copies) = &mut self.copies else {
            self.failed.push((0, Status::WAITING));
            return;
        };
        run(&**engine, copies);
        self.failed.extend(copies.failed().map(|(i, status, _)| (i, status)));
    }

    /// Why the bytes of chain number `i` could not be had; `None`: they were.
    #[inline]
    pub fn failure(&self, i: usize) -> Option<Status> {
        if self.failed.is_empty() {
            return None;
        }
        self.failed.iter().find(|(chain, _)| *chain as usize == i).map(|(_, status)| *status)
    }

    /// How many bytes were fetched of chain number `i`.
    #[inline]
    pub fn len(&self, i: usize) -> usize {
        self.stages.get(i).copied().flatten().map_or(0, Stage::len)
    }

    /// Copies what was fetched of chain number `i` to `buf`; returns how many bytes. Fewer than
    /// asked for when there was no room for them.
    pub fn read(&self, i: usize, buf: &mut [u8]) -> usize {
        let stage = self.stages.get(i).copied().flatten();
        stage.zip(self.copies.as_ref()).map_or(0, |(stage, copies)| copies.read(stage, 0, buf))
    }

    /// Forgets all of it.
    pub fn clear(&mut self) {
        self.stages.clear();
        self.failed.clear();
        if let Some(copies) = &mut self.copies {
            copies.clear();
        }
    }
}

/// Granted pieces with their offsets in the body.
fn offsets(body: Body<'_>) -> impl Iterator<Item = (u32, crate::gather::Piece)> {
    body.granted().scan(0, |at, piece| {
        let offset = *at;
        *at += u32::from(piece.len);
        Some((offset, piece))
    })
}

/// Copies granted bytes to where `place` says the bytes from an offset on belong, now.
pub(crate) fn fetch_granted(
    body: &Body<'_>,
    copies: &mut Copies,
    mut place: impl FnMut(&mut Copies, u32, u32) -> Option<Place>,
) -> Result<(), Status> {
    let Some(engine) = body.engine() else { return Err(Status::BAD_PAGE) };
    for (offset, piece) in offsets(*body) {
        let to = place(copies, offset, piece.len.into()).ok_or(Status::WAITING)?;
        copies.push_piece(piece, to, 0).map_err(|_| Status::WAITING)?;
    }
    run(&**engine, copies);
    let failed = copies.failed().next().map(|(_, status, _)| status);
    copies.clear();
    failed.map_or(Ok(()), Err)
}

/// Copies `len` bytes from a granted page, now. `None` when they can't be had.
pub fn read(engine: &dyn Engine, at: Granted, len: usize) -> Option<Vec<u8>> {
    let mut copies = Copies::new(1, len).ok()?;
    let (stage, to) = copies.reserve(len)?;
    copies.push(Place::Granted(at), to, u32::try_from(len).ok()?, 0).ok()?;
    run(engine, &mut copies);
    let mut bytes = vec![0; len];
    (copies.failed().next().is_none() && copies.read(stage, 0, &mut bytes) == len).then_some(bytes)
}

/// Copies `bytes` to a granted page, now. Whether that could be done.
pub fn write(engine: &dyn Engine, at: Granted, bytes: &[u8]) -> bool {
    let Ok(mut copies) = Copies::new(1, bytes.len()) else { return false };
    let Some(from) = copies.stage(bytes) else { return false };
    let Ok(len) = u32::try_from(bytes.len()) else { return false };
    if copies.push(from, Place::Granted(at), len, 0).is_err() {
        return false;
    }
    run(engine, &mut copies);
    copies.failed().next().is_none()
}

thread_local! {
    /// For bytes that are looked at in software, which is rare.
    static LOOK: RefCell<Option<Copies>> = const { RefCell::new(None) };
}

/// Copies granted bytes from the start into `buf`; returns how many: the lesser of both lengths, or
/// none.
#[cold]
#[inline(never)]
pub(crate) fn read_granted(body: &Body<'_>, buf: &mut [u8]) -> usize {
    let len = buf.len().min(body.len() as usize);
    LOOK.with(|look| {
        let Ok(mut look) = look.try_borrow_mut() else { return 0 };
        if look.is_none() {
            *look = Copies::new(COPIES, STAGE).ok();
        }
        let Some(copies) = &mut *look else { return 0 };
        let mut done = 0;
        while done < len {
            // By pieces of what there is room for.
            let now = body.slice(done as u32, (len - done).min(STAGE) as u32);
            let got = read_staged(&now, copies, buf.get_mut(done..).unwrap_or_default());
            copies.clear();
            if got == 0 {
                return 0;
            }
            done += got;
        }
        done
    })
}

fn read_staged(body: &Body<'_>, copies: &mut Copies, buf: &mut [u8]) -> usize {
    let Some((stage, _)) = copies.reserve(body.len() as usize) else { return 0 };
    let Some(engine) = body.engine() else { return 0 };
    for (offset, piece) in offsets(*body) {
        let to = copies.place_in(stage, offset);
        let pushed = to.map(|to| copies.push_piece(piece, to, 0));
        if !matches!(pushed, Some(Ok(()))) {
            return 0;
        }
    }
    run(&**engine, copies);
    if copies.failed().next().is_some() {
        0
    } else {
        copies.read(stage, 0, buf.get_mut(..body.len() as usize).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests;
