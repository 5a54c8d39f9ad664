//! One frame of a burst.

use frame::{Head, Headers, Offload};
use ring::gather::Chain;

use crate::action::Action;
use crate::cost::{PIECE, cost};
use crate::count::DropReason;
use crate::sharing::Sharing;

/// One frame of a burst.
#[derive(Clone, Default)]
pub struct Frame {
    /// Bytes of the frame, offload header not counted.
    pub len: u32,
    /// Parsed private headers.
    pub headers: Headers,
    /// Checksums and segmentation that the sender left to do.
    pub offload: Offload,
    /// The decision for the frame.
    pub action: Action,
    /// Who gets it.
    pub sharing: Sharing,
    pub(super) chain: Chain,
    pub(super) skip: u32,
}

impl Frame {
    /// Gives the frame, which is unclassified, its action.
    #[inline(always)]
    pub(crate) fn classify(&mut self, action: Action) {
        debug_assert!(matches!(self.action, Action::Unclassified));
        // The replaced action holds nothing that must be dropped, which the compiler cannot know.
        std::mem::forget(std::mem::replace(&mut self.action, action));
    }

    /// Notes that the frame goes back to its sender, and consists of nothing but `head`. False: the
    /// head is no frame.
    pub(super) fn turn_round(&mut self, head: &Head) -> bool {
        (self.len, self.skip) = (head.len() as u32, 0);
        (self.offload, self.sharing) = (Offload::default(), Sharing::Answer);
        frame::parse_into(head.as_slice(), &mut self.headers)
    }

    /// Cost of the frame to its worker.
    pub(crate) fn cost(&self) -> u64 {
        cost(1, self.len.into()) + PIECE * u64::from(self.chain.pieces().saturating_sub(1))
    }

    /// Replaces the frame in this place. `chain` has `len` bytes after the transport's header.
    /// `read` fills in the fields that come from the head, in place.
    #[inline(always)]
    pub(super) fn start(
        &mut self,
        chain: Chain,
        len: u32,
        read: impl FnOnce(&mut Frame) -> Result<(), DropReason>,
    ) {
        (self.chain, self.len, self.skip, self.sharing) = (chain, len, 0, Sharing::Sole);
        self.action = match read(self) {
            Ok(()) => Action::Unclassified,
            Err(reason) => Action::Drop(reason),
        };
    }
}
