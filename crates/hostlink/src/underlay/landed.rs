//! Received frames, and how they lie in buffers of the underlay.

use std::sync::Arc;

use frame::VNET_LEN;
use frame::vxlan::VXLAN_LEN;
use ring::gather::{Chain, Gather};
use ring::region::Memory;
use ring::violation::Violation;
use switch::PortId;

/// A received frame that is not completed yet.
#[derive(Clone, Copy)]
pub(super) struct Landed {
    /// The port that stands for its VTEP.
    pub port: PortId,
    /// The buffer's number.
    pub buffer: u16,
    /// Where the frame, or its first segment, lies in the buffer.
    pub at: u32,
    /// Bytes of the frame, or of each of its segments but the last.
    pub len: u32,
    /// How it lies there.
    pub kind: Kind,
}

/// How a frame lies in its buffer.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    /// In one piece, without offloads.
    Plain,
    /// In one piece, with an offload header in front of it.
    Offload,
    /// Coalesced.
    Segments(Segments),
}

/// The segments of a coalesced frame.
#[derive(Clone, Copy)]
pub(super) struct Segments {
    /// How many there are.
    pub count: u16,
    /// Bytes of the last segment.
    pub last: u32,
    /// Bytes of each segment's headers.
    pub headers_len: u32,
    /// Where the offload header is.
    pub offload: u64,
}

impl Landed {
    /// Where the parts of a coalesced frame are, of which `place` is the first. A VXLAN header is
    /// before each segment.
    fn parts(&self, place: u64, segments: Segments) -> impl Iterator<Item = (u64, u32)> {
        let len = self.len;
        let payload = move |n: u16| {
            let segment = place + u64::from(n) * u64::from(len + VXLAN_LEN as u32);
            let end = if n + 1 == segments.count { segments.last } else { len };
            (segment + u64::from(segments.headers_len), end - segments.headers_len)
        };
        let offload = (segments.offload, VNET_LEN as u32);
        [offload, (place, len)].into_iter().chain((1..segments.count).map(payload))
    }

    /// Adds the frame, and what is in front of it, to a scatter list. Its buffer begins at `place`.
    pub fn push(
        &self,
        memory: &Arc<Memory>,
        place: u64,
        gather: &mut Gather,
    ) -> Result<Chain, Violation> {
        let place = place + u64::from(self.at);
        match self.kind {
            Kind::Plain => gather.push_range(memory, place, self.len),
            Kind::Offload => {
                gather.push_range(memory, place - VNET_LEN as u64, self.len + VNET_LEN as u32)
            }
            Kind::Segments(segments) => gather.push_ranges(memory, self.parts(place, segments)),
        }
    }

    /// Whether an offload header is in front of it.
    pub fn has_offload(&self) -> bool {
        !matches!(self.kind, Kind::Plain)
    }
}
