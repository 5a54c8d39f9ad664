//! The last step to one receiver: the tag that its port wants, the offloads that it takes, and the
//! copy.

use std::time::Instant;

use frame::{Head, Headers, Offload, Segment, Segmenter, Sum, TagEdit};
use ring::GrantCopyBatch;
use ring::device::Put;
use ring::gather::Body;

use crate::burst::Burst;
use crate::coalescing::InterruptCoalescer;
use crate::count::DropReason;
use crate::loan::{Loan, Origin};
use crate::packet::Packet;
use crate::port::{QueueError, QueuePair};
use crate::slot::Slot;

/// What became of one frame at one receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// It went out as so many frames; some more may have been dropped, and are counted.
    Out(u32),
    /// The receiver has no room at the moment; nothing was taken.
    Full,
    /// It can't be delivered there.
    Refused(DropReason),
}

/// Frames of a burst that go to one receiver, and what is known of where they come from.
#[derive(Clone, Copy)]
pub(crate) struct Delivery<'a> {
    /// The burst.
    pub burst: &'a Burst,
    /// The first of them.
    pub i: usize,
    /// The one behind the last.
    pub end: usize,
    /// What happens to their tags.
    pub tag: TagEdit,
    /// What waits for their end, if they are lent.
    pub origin: Origin,
    /// When.
    pub now: Instant,
}

/// A frame that waits for its receiver, and all behind it with it.
pub(crate) struct Held {
    /// Which one of its burst.
    pub at: usize,
    /// When to drop it rather than wait on.
    pub until: Instant,
}

/// Puts frames on the ring of `slot`, or drops and counts them there, up to one that has to wait.
pub(crate) fn deliver_to(
    slot: &mut Slot,
    mut delivery: Delivery<'_>,
    grant_copies: &mut GrantCopyBatch,
) -> Option<Held> {
    while delivery.i < delivery.end {
        if !slot.is_healthy() {
            slot.on.counters.lose(DropReason::PortDown, (delivery.end - delivery.i) as u64);
            return None;
        }
        let plain = plain(slot, &delivery);
        let outcome = if plain > delivery.i {
            let (done, put) = put_plain(slot, &delivery, plain, grant_copies);
            delivery.i += done;
            if put == Ok(Put::Done) {
                continue;
            }
            put.map(|put| taken(slot, put, delivery.len(), &delivery))
        } else {
            reworked(slot, &delivery, grant_copies)
        };
        if let Some(until) = settle(slot, outcome, delivery.now) {
            return Some(Held { at: delivery.i, until });
        }
        delivery.i += 1;
    }
    None
}

/// What became of one frame is counted; or it may wait so long.
fn settle(slot: &mut Slot, outcome: Result<Outcome, QueueError>, now: Instant) -> Option<Instant> {
    match outcome {
        Ok(Outcome::Out(_)) => {}
        Ok(Outcome::Refused(reason)) => slot.on.counters.lose(reason, 1),
        Ok(Outcome::Full) => {
            slot.restraint.iter_mut().for_each(InterruptCoalescer::full);
            let until = slot.backpressure.full(now);
            if until.is_none() {
                slot.on.counters.lose(DropReason::RxFull, 1);
            }
            return until;
        }
        Err(error) => {
            slot.on.counters.lose(DropReason::PortDown, 1);
            slot.fail(error);
        }
    }
    None
}

impl Delivery<'_> {
    /// Length of the first frame in bytes.
    fn len(&self) -> u32 {
        self.burst.frames()[self.i].len
    }
}

/// The first frame from `delivery.i` on that can't go to the receiver as it is.
fn plain(slot: &Slot, delivery: &Delivery<'_>) -> usize {
    if delivery.tag != TagEdit::Keep {
        return delivery.i;
    }
    let accepts = slot.on.pair.accepts();
    let frames = &delivery.burst.frames()[delivery.i..delivery.end];
    delivery.i + frames.iter().take_while(|frame| accepts.takes(&frame.offload)).count()
}

/// Puts frames up to `end` as they are, and counts those that the receiver took; says what became
/// of the next one.
fn put_plain(
    slot: &mut Slot,
    delivery: &Delivery<'_>,
    end: usize,
    grant_copies: &mut GrantCopyBatch,
) -> (usize, Result<Put, QueueError>) {
    let Delivery { burst, i, .. } = *delivery;
    let may_pass = slot.may_pass();
    let (done, put) = slot.on.pair.put_run(burst, i..end, may_pass, grant_copies);
    if done > 0 {
        let bytes: u64 = burst.frames()[i..i + done].iter().map(|frame| u64::from(frame.len)).sum();
        slot.loans.took(done as u32, bytes as u32);
        received(slot, done as u32, bytes as u32);
    }
    (done, put)
}

/// What a receiver's answer to a whole frame of `len` bytes means.
#[inline]
fn taken(slot: &mut Slot, put: Put, len: u32, delivery: &Delivery<'_>) -> Outcome {
    match put {
        Put::Done => {
            slot.loans.took(1, len);
            received(slot, 1, len)
        }
        Put::Passed { token } => {
            slot.loans.add(Loan {
                origin: delivery.origin,
                len,
                token,
                since: delivery.now,
                counts: true,
            });
            received(slot, 1, len)
        }
        Put::Full => Outcome::Full,
        Put::TooBig => Outcome::Refused(DropReason::RxTooSmall),
        Put::Refused => Outcome::Refused(DropReason::RxRefused),
        Put::Unwanted => Outcome::Refused(DropReason::Multicast),
    }
}

/// The receiver took frames of `bytes` bytes in all.
#[inline]
fn received(slot: &mut Slot, frames: u32, bytes: u32) -> Outcome {
    slot.backpressure.took(frames, bytes);
    slot.on.counters.rx_frames.add(frames.into());
    slot.on.counters.rx_bytes.add(bytes.into());
    Outcome::Out(frames)
}

/// Takes back that the receiver took a frame of `len` bytes: it could not be copied.
pub(crate) fn not_taken(slot: &mut Slot, token: u32, len: u32) {
    slot.loans.discount(token);
    slot.on.counters.rx_frames.take_back(1);
    slot.on.counters.rx_bytes.take_back(len.into());
    slot.on.counters.lose(DropReason::NotGranted, 1);
    if slot.is_healthy() {
        slot.on.pair.invalidate(token);
    }
}

/// The slow way: a private copy of the head is edited, and offloads that the receiver doesn't take
/// are worked off.
#[cold]
fn reworked(
    slot: &mut Slot,
    delivery: &Delivery<'_>,
    grant_copies: &mut GrantCopyBatch,
) -> Result<Outcome, QueueError> {
    let Delivery { burst, i, tag, .. } = *delivery;
    let frame = &burst.frames()[i];
    let (mut head, mut headers, mut offload) = (*burst.head(i), frame.headers, frame.offload);
    if tag.apply(&mut head, &mut headers, &mut offload).is_err() {
        return Ok(Outcome::Refused(DropReason::CannotSegment));
    }
    let body = burst.body(i);
    let accepts = slot.on.pair.accepts();
    if accepts.takes(&offload) {
        return whole(slot, &head, &headers, &offload, (body, delivery), grant_copies);
    }
    if offload.gso.is_some_and(|gso| !accepts.takes(&Offload { gso: Some(gso), ..offload })) {
        return segmented(slot, &head, &headers, &offload, (body, delivery), grant_copies);
    }
    completed(slot, head, &headers, offload, (body, delivery), grant_copies)
}

fn whole(
    slot: &mut Slot,
    head: &Head,
    headers: &Headers,
    offload: &Offload,
    (body, delivery): (Body<'_>, &Delivery<'_>),
    grant_copies: &mut GrantCopyBatch,
) -> Result<Outcome, QueueError> {
    let may_pass = delivery.burst.frames()[delivery.i].may_pass && slot.may_pass();
    let packet =
        Packet { offload, headers_len: headers.end.into(), head: head.as_slice(), body, may_pass };
    let put = slot.on.pair.put(&packet, grant_copies)?;
    Ok(taken(slot, put, packet.len(), delivery))
}

/// Completes the checksum that the sender left open.
fn completed(
    slot: &mut Slot,
    mut head: Head,
    headers: &Headers,
    mut offload: Offload,
    (body, delivery): (Body<'_>, &Delivery<'_>),
    grant_copies: &mut GrantCopyBatch,
) -> Result<Outcome, QueueError> {
    if let Some(csum) = offload.csum.take()
        && frame::complete_csum(head.as_mut_slice(), headers, csum, sum(body)).is_err()
    {
        return Ok(Outcome::Refused(DropReason::CannotSegment));
    }
    whole(slot, &head, headers, &offload, (body, delivery), grant_copies)
}

/// Cuts a frame into those that it stands for. Once the first is taken, the rest goes out as far as
/// there is room.
fn segmented(
    slot: &mut Slot,
    head: &Head,
    headers: &Headers,
    offload: &Offload,
    (body, delivery): (Body<'_>, &Delivery<'_>),
    grant_copies: &mut GrantCopyBatch,
) -> Result<Outcome, QueueError> {
    let len = head.len() as u32 + body.len();
    let Some(segments) =
        offload.gso.and_then(|gso| Segmenter::new(head.as_slice(), headers, gso, len).ok())
    else {
        return Ok(Outcome::Refused(DropReason::CannotSegment));
    };
    let partial = slot.on.pair.accepts().csum;
    let (mut out, mut made) = (0u32, 0);
    for segment in segments {
        made += 1;
        let put = put_segment(&mut *slot.on.pair, segment, head, body, partial, grant_copies);
        // The frame itself is then dropped; those that were out are copies of it.
        match put.inspect_err(|_| slot.on.counters.copies.add(out.into()))? {
            (put @ (Put::Done | Put::Passed { .. }), len) => {
                taken(slot, put, len, delivery);
                out += 1;
            }
            (put, len) if out == 0 => return Ok(taken(slot, put, len, delivery)),
            (Put::TooBig, _) => slot.on.counters.lose(DropReason::RxTooSmall, 1),
            (Put::Refused, _) => slot.on.counters.lose(DropReason::RxRefused, 1),
            (Put::Unwanted, _) => slot.on.counters.lose(DropReason::Multicast, 1),
            (Put::Full, _) => slot.on.counters.lose(DropReason::RxFull, 1),
        }
    }
    slot.on.counters.copies.add(made - 1);
    Ok(Outcome::Out(out))
}

/// Puts one segment, with a partial checksum if the receiver takes that. Returns its length, too.
fn put_segment(
    pair: &mut dyn QueuePair,
    mut segment: Segment,
    head: &Head,
    body: Body<'_>,
    partial: bool,
    grant_copies: &mut GrantCopyBatch,
) -> Result<(Put, u32), QueueError> {
    let (in_head, rest) = payload(&segment, head, body);
    let offload = if partial {
        Offload { csum: Some(segment.leave_partial()), ..Offload::default() }
    } else {
        let mut bytes = Sum::of(in_head);
        bytes.append(sum(rest));
        segment.finish(bytes);
        Offload::default()
    };
    let headers = segment.header_bytes();
    let mut bytes = [0; 2 * frame::HEAD_LEN];
    let len = headers.len() + in_head.len();
    bytes[..headers.len()].copy_from_slice(headers);
    bytes[headers.len()..len].copy_from_slice(in_head);
    let headers_len = u16::from(segment.headers_len);
    // Segments are small, and many: copies are as good.
    let packet =
        Packet { offload: &offload, headers_len, head: &bytes[..len], body: rest, may_pass: false };
    Ok((pair.put(&packet, grant_copies)?, packet.len()))
}

/// A segment's payload: what of it is in the private head, and what behind.
fn payload<'a>(segment: &Segment, head: &'a Head, body: Body<'a>) -> (&'a [u8], Body<'a>) {
    let head = head.as_slice();
    let at = |offset: u32| (offset as usize).min(head.len());
    let in_head = &head[at(segment.from)..at(segment.from + segment.len)];
    let skip = segment.from.saturating_sub(head.len() as u32);
    (in_head, body.slice(skip, segment.len - in_head.len() as u32))
}

/// The checksum of bytes that may be changing: they are read once, piece by piece.
fn sum(mut body: Body<'_>) -> Sum {
    let mut sum = Sum::new();
    let mut piece = [0; 2048];
    loop {
        let read = body.read(&mut piece);
        if read == 0 {
            return sum;
        }
        sum.add(&piece[..read]);
        body = body.slice(read as u32, body.len());
    }
}
