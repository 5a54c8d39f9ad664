//! Who gets a frame, and whether the frame waits for them.

/// Who gets a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Sharing {
    /// One receiver, which may fetch the frame itself.
    #[default]
    Sole,
    /// Several receivers, none of which is waited for.
    Flood,
    /// An ordinary receiver, and then mirrors.
    Mirrored,
    /// A mirror: the frame itself was delivered before.
    Mirror,
    /// The sender itself: the frame was turned into the answer to its request, or into the report
    /// that it is too long.
    Answer,
}

impl Sharing {
    /// Whether the frame waits for its receiver.
    pub(crate) fn waits(self) -> bool {
        matches!(self, Sharing::Sole | Sharing::Mirrored)
    }
}
