//! A place in one of the files of an image.

/// The place of the bytes of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The file: that of a layer, or `None`: zeros.
    pub(super) layer: Option<usize>,
    /// The first byte in it.
    pub offset: u64,
    /// How many bytes lie there, one after the other.
    pub len: u64,
}
