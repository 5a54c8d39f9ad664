//! Frames of a burst that go to one receiver.

use std::time::Instant;

use frame::TagEdit;
use ring::gather::Body;

use crate::burst::Burst;
use crate::passed_grants::Origin;

/// Frames of a burst that go to one receiver.
#[derive(Clone, Copy)]
pub(crate) struct Run<'a> {
    /// The burst.
    pub burst: &'a Burst,
    /// The first of them.
    pub i: usize,
    /// The one behind the last.
    pub end: usize,
    /// The change of the frames' tags.
    pub tag: TagEdit,
    /// The request or batch that waits for the frames' end, if they are passed.
    pub origin: Origin,
    /// When they are delivered.
    pub now: Instant,
}

impl<'a> Run<'a> {
    /// The bytes of the first frame that are still with its sender.
    pub fn body(&self) -> Body<'a> {
        self.burst.body(self.i)
    }

    /// Length of the first frame in bytes.
    pub fn len(&self) -> u32 {
        self.burst.frames()[self.i].len
    }
}
