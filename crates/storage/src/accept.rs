//! The acceptance of a request, and its first step.

use std::time::Instant;

use crate::command::{self, BlockStatus, Command, HEADER, RANGE, Refusal};
use crate::count::{ErrorReason, RequestType};
use crate::image::Format;
use crate::request::{Operation, Request};
use crate::slot::Slot;

/// The next action for a request that was checked.
pub(crate) enum Next {
    /// The kernel must carry it out.
    Submit,
    /// The request is done, with this number of bytes written to its buffers.
    Done(u32),
    /// The request failed.
    Failed(BlockStatus, ErrorReason),
}

/// Copies the header out of a request, and parses it.
pub(crate) fn parse(slot: &Slot, request: &mut Request) -> Result<Command, Refusal> {
    if let Some(refusal) = slot.on.queue.refusal(request.token) {
        return Err(refusal);
    }
    let mut header = [0; HEADER];
    if !request.chain.read(&mut header) {
        return Err(Refusal::BadLength);
    }
    let lengths = (request.chain.readable_len(), request.chain.writable_len());
    let chain = &mut request.chain;
    command::parse(&header, lengths, slot.on.disk.bounds(), || {
        let mut range = [0; RANGE];
        chain.read(&mut range).then_some(range)
    })
}

/// Counts a request, and determines its first step.
pub(crate) fn begin(slot: &Slot, request: &mut Request, command: Command, now: Instant) -> Next {
    let (disk, count) = (&slot.on.disk, &slot.on.counters);
    let stable = disk.is_write_through();
    let (readable, writable) = (request.chain.readable_len(), request.chain.writable_len());
    request.work.stable = false;
    let (kind, operation, offset, left) = match command {
        Command::Read(at) => {
            count.requests.reads.add(1);
            count.requests.read_bytes.add(writable);
            note_way(slot, at, request.chain.writable());
            (RequestType::Read, Operation::Read, at, writable)
        }
        Command::Write(at) => {
            count.requests.writes.add(1);
            count.requests.write_bytes.add(readable);
            note_way(slot, at, request.chain.readable());
            // The tables must also be stable.
            request.work.stable = stable && disk.image().format() != Format::Raw;
            let operation = Operation::Write { stable: stable && !request.work.stable };
            (RequestType::Write, operation, at, readable)
        }
        Command::Flush => {
            count.requests.flushes.add(1);
            if disk.image().is_read_only() {
                return Next::Done(0);
            }
            (RequestType::Flush, Operation::Sync, 0, 0)
        }
        Command::GetId => {
            count.requests.others.add(1);
            return Next::Done(request.chain.write(disk.serial()));
        }
        Command::Discard(at, len) => {
            count.requests.discards.add(1);
            request.work.stable = stable;
            (RequestType::Discard, Operation::PunchHole, at, len)
        }
        Command::WriteZeroes(at, len, unmap) => {
            count.requests.zeroes.add(1);
            request.work.stable = stable;
            let unmap = unmap && disk.image().discards();
            let operation = if unmap { Operation::PunchHole } else { Operation::ZeroRange };
            (RequestType::WriteZeroes, operation, at, len)
        }
    };
    let is_range = matches!(operation, Operation::PunchHole | Operation::ZeroRange);
    if is_range && left == 0 {
        return Next::Done(0);
    }
    request.work.zeroes = kind == RequestType::WriteZeroes;
    request.accepted = Some((kind, now));
    (request.work.operation, request.work.offset, request.work.left) = (operation, offset, left);
    request.set_image(disk.image());
    Next::Submit
}

/// Counts a request whose first step passes through the page cache.
fn note_way(slot: &Slot, offset: u64, pieces: &[libc::iovec]) {
    if !slot.on.disk.image().file(offset, pieces).1 {
        slot.on.counters.buffered.add(1);
    }
}
