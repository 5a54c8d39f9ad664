//! Immediate copies of granted bytes that are needed in software.

use std::cell::RefCell;

use crate::copies::{Copies, Engine, Place, Status, run};
use crate::grant::Granted;
use crate::piece::Piece;

/// The most copies that wait: a frame in the greatest number of pieces, or a burst of ordinary
/// frames.
pub(crate) const COPIES: usize = 2304;

/// Private bytes that wait to be copied from: the heads of some bursts.
pub(crate) const STAGE: usize = 64 << 10;

/// Room for the copies of a burst.
pub(crate) fn copies_for(engine: &dyn Engine) -> Option<Box<Copies>> {
    let copies = match engine.own_pages(STAGE) {
        Some(pages) => Ok(Copies::staged_in(COPIES, pages)),
        None => Copies::new(COPIES, STAGE),
    };
    copies.ok().map(Box::new)
}

/// Pieces with their offsets from the first.
pub(crate) fn offsets(pieces: impl Iterator<Item = Piece>) -> impl Iterator<Item = (u32, Piece)> {
    pieces.scan(0, |at, piece| {
        let offset = *at;
        *at += u32::from(piece.len);
        Some((offset, piece))
    })
}

/// Copies granted pieces at once. `place` returns the target of the bytes from an offset on.
pub(crate) fn fetch_granted(
    engine: &dyn Engine,
    pieces: impl Iterator<Item = Piece>,
    copies: &mut Copies,
    mut place: impl FnMut(&mut Copies, u32, u32) -> Option<Place>,
) -> Result<(), Status> {
    for (offset, piece) in offsets(pieces) {
        let to = place(copies, offset, piece.len.into()).ok_or(Status::WAITING)?;
        copies.push_piece(piece, to, 0).map_err(|_| Status::WAITING)?;
    }
    run(engine, copies);
    let failed = copies.failed().next().map(|(_, status, _)| status);
    copies.clear();
    failed.map_or(Ok(()), Err)
}

/// Copies `len` bytes from a granted page at once. `None` when the copy failed.
pub fn read(engine: &dyn Engine, at: Granted, len: usize) -> Option<Vec<u8>> {
    let mut copies = Copies::new(1, len).ok()?;
    let (stage, to) = copies.reserve(len)?;
    copies.push(Place::Granted(at), to, u32::try_from(len).ok()?, 0).ok()?;
    run(engine, &mut copies);
    let mut bytes = vec![0; len];
    (copies.failed().next().is_none() && copies.read(stage, 0, &mut bytes) == len).then_some(bytes)
}

/// Copies `bytes` to a granted page at once. Returns whether the copy was made.
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
    /// Room for copies of bytes that are needed in software, which is rare.
    static SCRATCH: RefCell<Option<Copies>> = const { RefCell::new(None) };
}

/// Copies granted pieces into `buf`, which is as long as they are; returns how many bytes: all or
/// none.
#[cold]
#[inline(never)]
pub(crate) fn read_granted(
    engine: &dyn Engine,
    pieces: impl Iterator<Item = Piece>,
    buf: &mut [u8],
) -> usize {
    SCRATCH.with(|scratch| {
        let Ok(mut scratch) = scratch.try_borrow_mut() else { return 0 };
        if scratch.is_none() {
            *scratch = Copies::new(COPIES, STAGE).ok();
        }
        let Some(copies) = &mut *scratch else { return 0 };
        let len = buf.len();
        let is_read = read_staged(engine, pieces, copies, buf);
        copies.clear();
        if is_read { len } else { 0 }
    })
}

/// Reads pieces as many at a time as there is room for.
fn read_staged(
    engine: &dyn Engine,
    pieces: impl Iterator<Item = Piece>,
    copies: &mut Copies,
    mut buf: &mut [u8],
) -> bool {
    let mut pieces = pieces.peekable();
    while pieces.peek().is_some() {
        let mut stages = Vec::new();
        while let Some(piece) =
            pieces.next_if(|piece| copies.room() > 0 && copies.has_staging(piece.len.into()))
        {
            let Some((stage, _)) = copies.reserve(piece.len.into()) else { return false };
            if copies.push_to_stage(piece, stage, 0, 0).is_err() {
                return false;
            }
            stages.push(stage);
        }
        run(engine, copies);
        if stages.is_empty() || copies.failed().next().is_some() {
            return false;
        }
        for stage in stages {
            let Some((now, rest)) = buf.split_at_mut_checked(stage.len()) else { return false };
            if copies.read(stage, 0, now) != now.len() {
                return false;
            }
            buf = rest;
        }
        copies.clear();
    }
    buf.is_empty()
}
