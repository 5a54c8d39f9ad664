//! VLAN tag edits on a frame's private head.

use crate::bytes::{chunk, put};
use crate::head::Head;
use crate::offload::Offload;
use crate::view::{Headers, parse};

/// The change of a frame's outermost 802.1Q tag on its way out. An outermost 802.1ad tag counts as
/// payload.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Hash)]
pub enum TagEdit {
    /// Nothing.
    #[default]
    Keep,
    /// The tag is taken off; an untagged frame stays as it is.
    Pop,
    /// A new outermost 802.1Q tag with this control information.
    Push(u16),
    /// Replaces the outermost tag's control information; an untagged frame gets a tag.
    Replace(u16),
}

/// The head has no room in front for one more tag. Fresh heads have room for four.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no room for another VLAN tag")]
pub struct NoHeadroom;

/// A tag: type and control information.
const TAG_LEN: u8 = 4;

/// The two addresses that stand before the tags.
const ADDRESSES: usize = 12;

impl TagEdit {
    /// Edits the head and keeps view and offload metadata in step with it. The frame's length
    /// changes by as much as `head.len()` does; payload offsets that were taken before shift by the
    /// same amount. On error nothing has changed.
    #[inline]
    pub fn apply(
        self,
        head: &mut Head,
        headers: &mut Headers,
        offload: &mut Offload,
    ) -> Result<(), NoHeadroom> {
        match (self, headers.tag) {
            (TagEdit::Keep, _) | (TagEdit::Pop, None) => Ok(()),
            (TagEdit::Pop, Some(_)) => pop(head, headers, offload).ok_or(NoHeadroom),
            (TagEdit::Push(tci), _) | (TagEdit::Replace(tci), None) => {
                push(head, headers, offload, tci).ok_or(NoHeadroom)
            }
            (TagEdit::Replace(tci), Some(_)) => {
                headers.tag = Some(tci);
                put(head.as_mut_slice(), ADDRESSES + 2, tci.to_be_bytes()).ok_or(NoHeadroom)
            }
        }
    }
}

fn push(head: &mut Head, headers: &mut Headers, offload: &mut Offload, tci: u16) -> Option<()> {
    let addresses: [u8; ADDRESSES] = *chunk(head.as_slice(), 0)?;
    head.grow_front(TAG_LEN)?;
    let [c0, c1] = tci.to_be_bytes();
    put(head.as_mut_slice(), 0, addresses)?;
    put(head.as_mut_slice(), ADDRESSES, [0x81, 0x00, c0, c1])?;
    // The headers are not parsed again: behind a third tag, the parser would not find them.
    headers.tag = Some(tci);
    headers.tags = headers.tags.saturating_add(1);
    headers.l3_at = headers.l3_at.saturating_add(TAG_LEN);
    headers.l4_at = headers.l4_at.saturating_add(TAG_LEN);
    headers.end = headers.end.saturating_add(TAG_LEN);
    shift_csum(offload, i16::from(TAG_LEN));
    Some(())
}

fn pop(head: &mut Head, headers: &mut Headers, offload: &mut Offload) -> Option<()> {
    let addresses: [u8; ADDRESSES] = *chunk(head.as_slice(), 0)?;
    // A type must follow the tag, or the rest is not a frame.
    chunk::<2>(head.as_slice(), ADDRESSES + usize::from(TAG_LEN))?;
    head.shrink_front(TAG_LEN)?;
    put(head.as_mut_slice(), 0, addresses)?;
    *headers = parse(head.as_slice())?;
    shift_csum(offload, -i16::from(TAG_LEN));
    Some(())
}

fn shift_csum(offload: &mut Offload, by: i16) {
    if let Some(csum) = &mut offload.csum {
        csum.start = csum.start.saturating_add_signed(by);
    }
}

#[cfg(test)]
mod tests;
