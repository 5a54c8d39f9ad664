//! On which side of others repetitions lie.

/// On which side of others repetitions lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Below, by more than both scatter.
    Below,
    /// Among them, or too few to say.
    Within,
    /// Above, by more than both scatter.
    Above,
}
