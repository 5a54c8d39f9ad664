//! Frames that a receiver cannot take as they are: software offload of VLAN tags, checksums and
//! segmentation.
//!
//! A private copy of the head is edited; the payload is read where its sender left it, once. All
//! lengths come from headers that were parsed in private memory.

use frame::{Head, Headers, Offload, Segment, Segmenter, Sum};
use ring::GrantCopyBatch;
use ring::device::Put;
use ring::gather::Body;

use crate::cost::{SEGMENT, SUMMED};
use crate::count::DropReason;
use crate::outcome::{Outcome, taken};
use crate::packet::Packet;
use crate::port::{QueueError, QueuePair};
use crate::run::Run;
use crate::sharing::Sharing;
use crate::slot::Slot;

/// Least payload of a segment, in bytes. The bound is less than any network's own maximum segment
/// size: a hostile sender could ask for less, to make a worker produce thousands of frames out of
/// one.
pub const MIN_SEGMENT: u16 = 256;

/// Bytes that are read at a time for a checksum.
const PIECE: usize = 2048;

/// Puts the first frame of `run`: its head is edited, and offloads that the receiver does not take
/// are done.
#[cold]
pub(crate) fn software_offload(
    slot: &mut Slot,
    run: &Run<'_>,
    grant_copies: &mut GrantCopyBatch,
) -> Result<Outcome, QueueError> {
    let Run { burst, i, tag, .. } = *run;
    let frame = &burst.frames()[i];
    let (mut head, mut headers, mut offload) = (*burst.head(i), frame.headers, frame.offload);
    if tag.apply(&mut head, &mut headers, &mut offload).is_err() {
        return Ok(Outcome::Refused(DropReason::CannotSegment));
    }
    let accepts = slot.on.pair.accepts();
    if accepts.takes(&offload) {
        return enqueue(slot, &head, &headers, &offload, run, grant_copies);
    }
    if offload.gso.is_some_and(|gso| !accepts.takes(&Offload { gso: Some(gso), ..offload })) {
        return segment(slot, &head, &headers, &offload, run, grant_copies);
    }
    complete_checksum(slot, head, &headers, offload, run, grant_copies)
}

/// Puts one whole frame.
fn enqueue(
    slot: &mut Slot,
    head: &Head,
    headers: &Headers,
    offload: &Offload,
    run: &Run<'_>,
    grant_copies: &mut GrantCopyBatch,
) -> Result<Outcome, QueueError> {
    let may_pass = run.burst.frames()[run.i].sharing == Sharing::Sole && slot.may_pass();
    let (headers_len, head, body) = (headers.end.into(), head.as_slice(), run.body());
    let packet = Packet { offload, headers_len, head, body, may_pass };
    let put = slot.on.pair.put(&packet, grant_copies)?;
    Ok(taken(slot, put, packet.len(), run))
}

/// Completes the checksum that the sender left open.
fn complete_checksum(
    slot: &mut Slot,
    mut head: Head,
    headers: &Headers,
    mut offload: Offload,
    run: &Run<'_>,
    grant_copies: &mut GrantCopyBatch,
) -> Result<Outcome, QueueError> {
    if let Some(csum) = offload.csum.take()
        && let body = sum(run.body(), &mut [0; PIECE])
        && frame::complete_csum(head.as_mut_slice(), headers, csum, body).is_err()
    {
        return Ok(Outcome::Refused(DropReason::CannotSegment));
    }
    slot.receiving.added += SUMMED * u64::from(run.body().len());
    enqueue(slot, &head, headers, &offload, run, grant_copies)
}

/// Cuts a frame into those that it stands for. Once the first segment is taken, the others follow
/// until there is no room for one; that one and the rest are lost. The sender is charged for each
/// segment, and for the bytes of which a checksum is made.
fn segment(
    slot: &mut Slot,
    head: &Head,
    headers: &Headers,
    offload: &Offload,
    run: &Run<'_>,
    grant_copies: &mut GrantCopyBatch,
) -> Result<Outcome, QueueError> {
    let body = run.body();
    let len = head.len() as u32 + body.len();
    if offload.gso.is_some_and(|gso| gso.size < MIN_SEGMENT) {
        return Ok(Outcome::Refused(DropReason::SegmentTooSmall));
    }
    let Some(mut segments) =
        offload.gso.and_then(|gso| Segmenter::new(head.as_slice(), headers, gso, len).ok())
    else {
        return Ok(Outcome::Refused(DropReason::CannotSegment));
    };
    let partial = slot.on.pair.accepts().csum;
    // Zeroed once, and not for each segment.
    let mut piece = [0; PIECE];
    let (mut out, mut made) = (0u32, 0u64);
    while let Some(segment) = segments.next() {
        made += 1;
        slot.receiving.added += SEGMENT + if partial { 0 } else { SUMMED * u64::from(segment.len) };
        let piece = (!partial).then_some(&mut piece);
        let (pair, head) = (&mut *slot.on.pair, head.as_slice());
        let put = put_segment(pair, segment, head, body, piece, grant_copies);
        // On an error the frame itself is dropped, and the segments that went out count as copies.
        match put.inspect_err(|_| slot.on.counters.copies.add(out.into()))? {
            (put @ (Put::Done | Put::Passed { .. }), len) => {
                taken(slot, put, len, run);
                out += 1;
            }
            (put, len) if out == 0 => return Ok(taken(slot, put, len, run)),
            (Put::TooBig, _) => slot.on.counters.lose(DropReason::RxTooSmall, 1),
            (Put::Refused, _) => slot.on.counters.lose(DropReason::RxRefused, 1),
            (Put::Unwanted, _) => slot.on.counters.lose(DropReason::Multicast, 1),
            (Put::Full, _) => {
                let rest = segments.remaining();
                slot.on.counters.lose(DropReason::RxFull, u64::from(1 + rest));
                made += u64::from(rest);
                break;
            }
        }
    }
    slot.on.counters.copies.add(made - 1);
    Ok(Outcome::Out(out))
}

/// Puts the segments of `packet`, with complete checksums, into a pair that takes frames to be
/// segmented, but not this one. Segments for which there is no room are lost.
///
/// # Errors
/// That of the pair.
pub fn put_segments(
    pair: &mut dyn QueuePair,
    packet: &Packet<'_>,
    grant_copies: &mut GrantCopyBatch,
) -> Result<Put, QueueError> {
    let mut headers = Headers::default();
    let segments = packet.offload.gso.filter(|gso| gso.size >= MIN_SEGMENT).and_then(|gso| {
        let known = frame::parse_into(packet.head, &mut headers);
        known.then(|| Segmenter::new(packet.head, &headers, gso, packet.len()).ok()).flatten()
    });
    let Some(segments) = segments else { return Ok(Put::Refused) };
    let mut piece = [0; PIECE];
    for segment in segments {
        let (head, body) = (packet.head, packet.body);
        match put_segment(pair, segment, head, body, Some(&mut piece), grant_copies)?.0 {
            Put::Done | Put::Passed { .. } => {}
            other => return Ok(other),
        }
    }
    Ok(Put::Done)
}

/// Puts one segment, with a full checksum, for which bytes are read into `piece`, or with a partial
/// one. Also returns the segment's length.
fn put_segment(
    pair: &mut dyn QueuePair,
    mut segment: Segment,
    head: &[u8],
    body: Body<'_>,
    piece: Option<&mut [u8; PIECE]>,
    grant_copies: &mut GrantCopyBatch,
) -> Result<(Put, u32), QueueError> {
    let (in_head, rest) = payload(&segment, head, body);
    let offload = match piece {
        None => Offload { csum: Some(segment.leave_partial()), ..Offload::default() },
        Some(piece) => {
            let mut bytes = Sum::of(in_head);
            bytes.append(sum(rest, piece));
            segment.finish(bytes);
            Offload::default()
        }
    };
    let headers = segment.header_bytes();
    let mut bytes = [0; 2 * frame::HEAD_LEN];
    let len = headers.len() + in_head.len();
    bytes[..headers.len()].copy_from_slice(headers);
    bytes[headers.len()..len].copy_from_slice(in_head);
    let headers_len = u16::from(segment.headers_len);
    // Segments are small and many, so passing grants would not be cheaper than copies.
    let packet =
        Packet { offload: &offload, headers_len, head: &bytes[..len], body: rest, may_pass: false };
    Ok((pair.put(&packet, grant_copies)?, packet.len()))
}

/// A segment's payload: the part in the private head, and the part behind the head.
fn payload<'a>(segment: &Segment, head: &'a [u8], body: Body<'a>) -> (&'a [u8], Body<'a>) {
    let at = |offset: u32| (offset as usize).min(head.len());
    let in_head = &head[at(segment.from)..at(segment.from + segment.len)];
    let skip = segment.from.saturating_sub(head.len() as u32);
    (in_head, body.slice(skip, segment.len - in_head.len() as u32))
}

/// The checksum of bytes that a guest may be changing. Each byte is read once.
fn sum(mut body: Body<'_>, piece: &mut [u8; PIECE]) -> Sum {
    let mut sum = Sum::new();
    loop {
        let read = body.read(piece);
        if read == 0 {
            return sum;
        }
        sum.add(&piece[..read]);
        body = body.slice(read as u32, body.len());
    }
}
