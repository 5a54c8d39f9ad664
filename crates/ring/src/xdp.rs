//! Rings of an AF_XDP socket (linux/if_xdp.h): through them the kernel learns where to write
//! frames, and reports where it wrote them.
//!
//! A socket that only receives needs two rings: the *fill* ring, into which we put the addresses of
//! empty pages, and the *Rx* ring, from which we take descriptors of frames. Addresses are offsets
//! into the socket's pages. The other side is the kernel, which is trusted. The pages may be a
//! guest's, and nothing here reads them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::region::Memory;
use crate::violation::Violation;

mod socket;

pub use socket::{Losses, Receiver, Socket, SocketError};

/// Bytes of a page that a frame lies in.
pub const PAGE: u64 = 4096;

/// The least offset of a frame in its page (`XDP_PACKET_HEADROOM`): room that programs may use.
pub const HEADROOM: u64 = 256;

/// The kernel wants a system call before it looks at the fill ring again (`XDP_RING_NEED_WAKEUP`).
const NEED_WAKEUP: u32 = 1;

/// Where the parts of a ring are, in bytes from the start of its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The index of the side that puts entries in.
    pub producer: u64,
    /// The index of the side that takes them out.
    pub consumer: u64,
    /// Flags of the side that takes them out.
    pub flags: u64,
    /// The first entry.
    pub entries: u64,
}

/// A ring in memory that is shared with the other side.
#[derive(Clone, Debug)]
pub struct Ring {
    memory: Arc<Memory>,
    layout: Layout,
    /// A power of two.
    size: u32,
}

impl Ring {
    /// A ring of `size` entries, a power of two, laid out like this in `memory`.
    pub fn new(memory: Arc<Memory>, layout: Layout, size: u32) -> Self {
        Ring { memory, layout, size: size.next_power_of_two() }
    }

    fn producer(&self) -> Result<&AtomicU32, Violation> {
        self.memory.atomic_u32(self.layout.producer)
    }

    fn consumer(&self) -> Result<&AtomicU32, Violation> {
        self.memory.atomic_u32(self.layout.consumer)
    }

    /// Where entry number `number`, of `bytes` bytes, begins.
    fn entry(&self, number: u32, bytes: u64) -> u64 {
        self.layout.entries + u64::from(number & (self.size - 1)) * bytes
    }

    /// Accepts the other side's index if it is possible: between `known` and `known + most`.
    fn believe(&self, index: u32, known: u32, most: u32) -> Result<u32, Violation> {
        let ahead = index.wrapping_sub(known);
        if ahead > most {
            return Err(Violation::ResponseJump { index, ahead, size: self.size });
        }
        Ok(index)
    }
}

/// A frame that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// Where it begins.
    pub addr: u64,
    /// Its length in bytes.
    pub len: u32,
}

/// Bytes of an entry of the Rx ring: address, length, options.
const DESCRIPTOR: u64 = 16;

/// Our end of a fill ring.
#[derive(Debug)]
pub struct Fill {
    ring: Ring,
    produced: u32,
    published: u32,
    /// The other side's index when it was last read.
    consumed: u32,
}

impl Fill {
    /// A ring that nothing was put into yet.
    pub fn new(ring: Ring) -> Self {
        Fill { ring, produced: 0, published: 0, consumed: 0 }
    }

    /// Adds the address of an empty page; the kernel sees it after [`publish`](Self::publish).
    /// False: there is no room.
    ///
    /// # Errors
    /// Never, with the kernel on the other side.
    #[inline]
    pub fn push(&mut self, addr: u64) -> Result<bool, Violation> {
        if self.produced.wrapping_sub(self.consumed) == self.ring.size {
            let index = self.ring.consumer()?.load(Ordering::Acquire);
            self.consumed = self.ring.believe(
                index,
                self.consumed,
                self.published.wrapping_sub(self.consumed),
            )?;
            if self.produced.wrapping_sub(self.consumed) == self.ring.size {
                return Ok(false);
            }
        }
        let at = self.ring.entry(self.produced, 8);
        self.ring.memory.atomic_u64(at)?.store(addr, Ordering::Relaxed);
        self.produced = self.produced.wrapping_add(1);
        Ok(true)
    }

    /// Publishes the added pages. True: the kernel needs a system call to look at them.
    ///
    /// # Errors
    /// Never, while the ring is there.
    #[inline]
    pub fn publish(&mut self) -> Result<bool, Violation> {
        if self.published != self.produced {
            self.ring.producer()?.store(self.produced, Ordering::Release);
            self.published = self.produced;
        }
        Ok(self.ring.memory.atomic_u32(self.ring.layout.flags)?.load(Ordering::Relaxed)
            & NEED_WAKEUP
            != 0)
    }
}

/// Our end of an Rx ring.
#[derive(Debug)]
pub struct Frames {
    ring: Ring,
    consumed: u32,
    released: u32,
    /// The other side's index when it was last read.
    seen: u32,
}

impl Frames {
    /// A ring from which nothing was taken yet.
    pub fn new(ring: Ring) -> Self {
        Frames { ring, consumed: 0, released: 0, seen: 0 }
    }

    /// How many frames can be taken; the kernel's index is read only when none is known.
    ///
    /// # Errors
    /// Never, with the kernel on the other side.
    #[inline]
    pub fn ready(&mut self) -> Result<u32, Violation> {
        if self.seen == self.consumed {
            let index = self.ring.producer()?.load(Ordering::Acquire);
            // The kernel cannot have overwritten entries that were taken and not given back.
            let held = self.consumed.wrapping_sub(self.released);
            self.seen = self.ring.believe(index, self.consumed, self.ring.size - held)?;
        }
        Ok(self.seen.wrapping_sub(self.consumed))
    }

    /// Takes the oldest frame, if there is one. Its place in the ring is free after
    /// [`release`](Self::release).
    ///
    /// # Errors
    /// Never, with the kernel on the other side.
    #[inline]
    pub fn take(&mut self) -> Result<Option<Descriptor>, Violation> {
        if self.ready()? == 0 {
            return Ok(None);
        }
        let at = self.ring.entry(self.consumed, DESCRIPTOR);
        let addr = self.ring.memory.atomic_u64(at)?.load(Ordering::Relaxed);
        let len = self.ring.memory.atomic_u32(at + 8)?.load(Ordering::Relaxed);
        self.consumed = self.consumed.wrapping_add(1);
        Ok(Some(Descriptor { addr, len }))
    }

    /// Frees the places in the ring of all frames that were taken.
    ///
    /// # Errors
    /// Never, while the ring is there.
    #[inline]
    pub fn release(&mut self) -> Result<(), Violation> {
        if self.released != self.consumed {
            self.ring.consumer()?.store(self.consumed, Ordering::Release);
            self.released = self.consumed;
        }
        Ok(())
    }
}

/// The kernel's side, in software, for tests: takes empty pages from a fill ring, and publishes
/// frames in an Rx ring.
#[derive(Debug)]
pub struct Feeder {
    fill: Ring,
    frames: Ring,
    taken: u32,
    published: u32,
}

impl Feeder {
    /// The other side of these two rings, which are new.
    pub fn new(fill: Ring, frames: Ring) -> Self {
        Feeder { fill, frames, taken: 0, published: 0 }
    }

    /// The address of an empty page, if there is one.
    ///
    /// # Errors
    /// When the index of the side that fills can't be.
    pub fn page(&mut self) -> Result<Option<u64>, Violation> {
        let index = self.fill.producer()?.load(Ordering::Acquire);
        if self.fill.believe(index, self.taken, self.fill.size)? == self.taken {
            return Ok(None);
        }
        let addr =
            self.fill.memory.atomic_u64(self.fill.entry(self.taken, 8))?.load(Ordering::Relaxed);
        self.taken = self.taken.wrapping_add(1);
        self.fill.consumer()?.store(self.taken, Ordering::Release);
        Ok(Some(addr))
    }

    /// Publishes a frame. False: there is no room.
    ///
    /// # Errors
    /// When the index of the side that takes frames can't be.
    pub fn publish(&mut self, frame: Descriptor) -> Result<bool, Violation> {
        let index = self.frames.consumer()?.load(Ordering::Acquire);
        let pending = self.published.wrapping_sub(index);
        if pending > self.frames.size {
            return Err(Violation::ResponseJump { index, ahead: pending, size: self.frames.size });
        }
        if pending == self.frames.size {
            return Ok(false);
        }
        let at = self.frames.entry(self.published, DESCRIPTOR);
        self.frames.memory.atomic_u64(at)?.store(frame.addr, Ordering::Relaxed);
        self.frames.memory.atomic_u32(at + 8)?.store(frame.len, Ordering::Relaxed);
        self.published = self.published.wrapping_add(1);
        self.frames.producer()?.store(self.published, Ordering::Release);
        Ok(true)
    }

    /// Says whether it wants a system call for each change of the fill ring.
    ///
    /// # Errors
    /// Never, while the ring is there.
    pub fn want_wakeup(&self, wanted: bool) -> Result<(), Violation> {
        let flags = if wanted { NEED_WAKEUP } else { 0 };
        self.fill.memory.atomic_u32(self.fill.layout.flags)?.store(flags, Ordering::Relaxed);
        Ok(())
    }
}

/// Two rings of `size` entries, a power of two, in memory of this process: for a [`Feeder`] on the
/// other side.
///
/// # Errors
/// When there is no memory.
pub fn rings(size: u32) -> Result<(Ring, Ring), crate::MapError> {
    let layout = Layout { producer: 0, consumer: 64, flags: 128, entries: 192 };
    let ring = |bytes: u64| {
        let memory = Memory::anonymous((layout.entries + bytes * u64::from(size)) as usize)?;
        Ok::<_, crate::MapError>(Ring::new(Arc::new(memory), layout, size))
    };
    Ok((ring(8)?, ring(DESCRIPTOR)?))
}

#[cfg(test)]
mod tests;
