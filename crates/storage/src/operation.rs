//! Operations on an image.

/// Most bytes that are moved in one step: the kernel may copy them on the worker's thread.
pub const STEP: usize = 1 << 20;

/// Zeros to be written, where a file system cannot make them.
pub(crate) const ZEROS_LEN: usize = 64 << 10;

/// The next operation on an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Operation {
    /// Read into the buffers.
    Read,
    /// Write from the buffers.
    Write {
        /// Completed only when it is stable.
        stable: bool,
    },
    /// Make completed writes stable.
    #[default]
    Sync,
    /// Give back the space of the range, which then reads as zeros.
    PunchHole,
    /// Make the range zeros, and keep its space.
    ZeroRange,
    /// Write zeros.
    WriteZeros,
}
