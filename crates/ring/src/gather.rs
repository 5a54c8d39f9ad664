//! Scatter lists of a burst of chains.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::region::Memory;
use crate::violation::Violation;

/// The buffers of a burst of chains, wherever their bytes lie. The only way from safe code to bytes that a peer may
/// be changing.
#[derive(Debug)]
pub struct Gather {}

/// One chain in a [`Gather`]: a frame, with whatever header its transport puts before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    first: u32,
    count: u32,
    len: u32,
}

impl Chain {
    /// Its length in bytes.
    #[inline]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u32 {
        self.len
    }
}

impl Gather {
    /// Room for `max_spans` pieces of memory (at least as many as one chain can have). Nothing is allocated later.
    pub fn new(max_spans: usize) -> Self {
        let _ = max_spans;
        todo!()
    }

    /// Forgets all chains, and lets go of the memory they were in. To be called at the end of a burst: a worker
    /// that sleeps must not keep a guest's memory alive.
    pub fn clear(&mut self) {
        todo!()
    }

    /// The bytes of `chain`. A chain from before a [`clear`](Self::clear), or of another gather, gives some other
    /// bytes, or fewer.
    #[inline]
    pub fn body(&self, chain: Chain) -> Body<'_> {
        let _ = chain;
        todo!()
    }

    /// Appends the `len` bytes at guest address `addr` of `mem` as a chain.
    ///
    /// # Errors
    /// [`Violation::Outside`], or [`Violation::ChainScattered`] when the gather is full.
    pub fn push_range(&mut self, mem: &Arc<Memory>, addr: u64, len: u32) -> Result<Chain, Violation> {
        let _ = (mem, addr, len);
        todo!()
    }

    /// Appends a chain of another gather, without copying its bytes: for the way from one worker to another. `None`
    /// when there is no room.
    pub fn append_from(&mut self, other: &Gather, chain: Chain) -> Option<Chain> {
        let _ = (other, chain);
        todo!()
    }

    /// Brings the first bytes of `chain` near.
    #[inline]
    pub fn prefetch(&self, chain: Chain) {
        let _ = chain;
        todo!()
    }
}

/// Bytes that lie with their sender, in one or more pieces. Reading them twice may give two different results.
#[derive(Clone, Copy, Debug)]
pub struct Body<'a> {
    marker: std::marker::PhantomData<&'a Gather>,
}

impl<'a> Body<'a> {
    /// No bytes.
    pub const fn empty() -> Self {
        todo!()
    }

    /// How many bytes.
    #[inline]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u32 {
        todo!()
    }

    /// The `len` bytes from `offset`; fewer when there are fewer.
    #[inline]
    #[must_use]
    pub fn slice(&self, offset: u32, len: u32) -> Body<'a> {
        let _ = (offset, len);
        todo!()
    }

    /// Copies from the start into `buf`; returns how many bytes were copied: the lesser of both lengths.
    #[inline]
    pub fn read(&self, buf: &mut [u8]) -> usize {
        let _ = buf;
        todo!()
    }

    /// One `writev(2)` of the `prefix` pieces and then the body to `fd`; returns how many bytes it took.
    ///
    /// # Errors
    /// What `writev(2)` says; `InvalidInput` when there are more than 1024 pieces.
    pub fn write_to(&self, fd: BorrowedFd<'_>, prefix: &[&[u8]]) -> io::Result<usize> {
        let _ = (fd, prefix);
        todo!()
    }
}
