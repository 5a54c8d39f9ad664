//! Who gets a frame, and whether the frame waits for them.

/// Who gets a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Sharing {
    /// One receiver, which may fetch the frame itself.
    #[default]
    Sole,
    /// Receivers of which none is waited for.
    Flood,
    /// A receiver as any other, and then mirrors.
    Mirrored,
    /// A mirror: the frame has taken its own way already.
    Mirror,
    /// The sender itself: the frame has become the answer to what it asked for.
    Answer,
}

impl Sharing {
    /// Whether the frame waits for its receiver.
    pub(crate) fn waits(self) -> bool {
        matches!(self, Sharing::Sole | Sharing::Mirrored)
    }
}
