//! Faults of frames.

/// A fault of a frame that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The frame's length is not the length that was sent.
    #[error("{got} bytes instead of {sent}")]
    Length {
        /// Bytes that came, without the virtio-net header.
        got: u32,
        /// Bytes that every frame has.
        sent: u32,
    },
    /// The virtio-net header does not describe the frame.
    #[error("virtio-net header differs at byte {0}")]
    Vnet(usize),
    /// Buffers that the header announces did not come with the frame.
    #[error("{got} buffers instead of {announced}")]
    Torn {
        /// Buffers that came at once.
        got: usize,
        /// The value of `num_buffers`.
        announced: usize,
    },
    /// The headers are not those of the flow.
    #[error("headers differ at byte {0}")]
    Headers(usize),
    /// Number, flow, time or check were changed, or the frame belongs to another run.
    #[error("the tag does not check")]
    Tag,
    /// The payload is not this frame's.
    #[error("payload differs at byte {0}")]
    Payload(usize),
}
