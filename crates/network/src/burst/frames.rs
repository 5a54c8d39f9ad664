//! Frames of a burst, in the order in which they are delivered.

use std::ops::{Index, Range};

use super::Frame;
#[cfg(test)]
use super::delivery_order::IN_ORDER;

/// Frames of a burst, in the order in which they are delivered.
#[derive(Clone, Copy)]
pub struct Frames<'a> {
    /// All frames, in the order in which they were fetched.
    fetched: &'a [Frame],
    /// The places in `fetched` of these frames.
    order: &'a [u8],
}

impl<'a> Frames<'a> {
    pub(super) fn new(fetched: &'a [Frame], order: &'a [u8]) -> Self {
        Frames { fetched, order }
    }

    /// How many frames.
    #[inline]
    pub fn len(self) -> usize {
        self.order.len()
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.order.is_empty()
    }

    /// Frame `i`, if there is one.
    #[inline]
    pub fn get(self, i: usize) -> Option<&'a Frame> {
        self.fetched.get(usize::from(*self.order.get(i)?))
    }

    /// The first frame, if there is one.
    #[inline]
    pub fn first(self) -> Option<&'a Frame> {
        self.get(0)
    }

    /// These frames, one after the other.
    #[inline]
    pub fn iter(self) -> impl Iterator<Item = &'a Frame> + Clone {
        self.order.iter().map(move |&at| &self.fetched[usize::from(at)])
    }

    /// Some of them.
    #[inline]
    #[must_use]
    pub fn range(self, range: Range<usize>) -> Frames<'a> {
        Frames { order: &self.order[range], ..self }
    }
}

impl Index<usize> for Frames<'_> {
    type Output = Frame;

    #[inline]
    fn index(&self, i: usize) -> &Frame {
        &self.fetched[usize::from(self.order[i])]
    }
}

/// Up to [`BURST`](super::BURST) frames that are in no burst.
#[cfg(test)]
impl<'a> From<&'a [Frame]> for Frames<'a> {
    fn from(frames: &'a [Frame]) -> Self {
        Frames::new(frames, &IN_ORDER[..frames.len()])
    }
}

/// As above.
#[cfg(test)]
impl<'a> From<&'a Vec<Frame>> for Frames<'a> {
    fn from(frames: &'a Vec<Frame>) -> Self {
        frames.as_slice().into()
    }
}
