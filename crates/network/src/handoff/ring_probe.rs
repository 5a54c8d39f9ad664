//! Questions about an Rx ring that another worker fills.

use switch::PortId;

/// A question about the Rx ring of a batch's receiver, in a batch without frames. Batches come in
/// order, so the answer covers all frames that were handed off earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingProbe {
    /// The receiver's port.
    pub port: PortId,
    /// The position that is asked about.
    pub mark: Option<u32>,
    /// Filled in by the receiver's worker.
    pub answer: RingAnswer,
}

/// The state of an Rx ring when its worker answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingAnswer {
    /// The position up to which frames were added.
    pub position: u32,
    /// Whether the guest has shown that it took everything before the mark.
    pub is_past: bool,
}
