//! Ports that choose the queue for each frame themselves.

use std::fmt::Debug;

use frame::Headers;

/// A port's own choice of the queue for each frame, instead of the workers'.
pub trait QueueSelector: Debug + Send + Sync {
    /// The index of the queue for a frame whose first bytes are `head`. If no receiving queue has
    /// this index, the worker chooses.
    fn queue(&self, headers: &Headers, head: &[u8]) -> u16;
}
