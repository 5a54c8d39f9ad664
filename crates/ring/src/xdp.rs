//! Rings of an AF_XDP socket (linux/if_xdp.h): through them the kernel learns where to write
//! frames, and reports where it wrote them.
//!
//! A socket that receives needs two rings: the *fill* ring, into which we put the addresses of
//! empty pages, and the *Rx* ring, from which we take descriptors of frames. To send, we put
//! descriptors into the *Tx* ring, and take the addresses of frames that were sent from the
//! *completion* ring. Addresses are offsets into the socket's pages. The other side is the kernel,
//! which is trusted. The pages may be a guest's, and nothing here reads them.

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::region::Memory;
use crate::violation::Violation;

mod socket;

pub use socket::{Losses, Receiver, Sender, Socket, SocketError};

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

/// What an entry of a ring is.
pub trait Entry: Copy {
    /// Its bytes in the ring.
    const BYTES: u64;

    /// Writes it.
    ///
    /// # Errors
    /// When the place is not in the memory.
    fn write(self, memory: &Memory, at: u64) -> Result<(), Violation>;

    /// Reads it.
    ///
    /// # Errors
    /// When the place is not in the memory.
    fn read(memory: &Memory, at: u64) -> Result<Self, Violation>;
}

/// The address of a page.
impl Entry for u64 {
    const BYTES: u64 = 8;

    #[inline]
    fn write(self, memory: &Memory, at: u64) -> Result<(), Violation> {
        memory.atomic_u64(at)?.store(self, Ordering::Relaxed);
        Ok(())
    }

    #[inline]
    fn read(memory: &Memory, at: u64) -> Result<Self, Violation> {
        Ok(memory.atomic_u64(at)?.load(Ordering::Relaxed))
    }
}

/// A frame that was written, or that is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// Where it begins.
    pub addr: u64,
    /// Its length in bytes.
    pub len: u32,
}

impl Entry for Descriptor {
    // Address, length, options.
    const BYTES: u64 = 16;

    #[inline]
    fn write(self, memory: &Memory, at: u64) -> Result<(), Violation> {
        memory.atomic_u64(at)?.store(self.addr, Ordering::Relaxed);
        memory.atomic_u64(at + 8)?.store(self.len.into(), Ordering::Relaxed);
        Ok(())
    }

    #[inline]
    fn read(memory: &Memory, at: u64) -> Result<Self, Violation> {
        let addr = memory.atomic_u64(at)?.load(Ordering::Relaxed);
        let len = memory.atomic_u32(at + 8)?.load(Ordering::Relaxed);
        Ok(Descriptor { addr, len })
    }
}

/// Our end of a ring into which we put entries.
#[derive(Debug)]
pub struct Producer<E> {
    ring: Ring,
    produced: u32,
    published: u32,
    /// The other side's index when it was last read.
    consumed: u32,
    holds: PhantomData<E>,
}

/// Our end of a fill ring: addresses of empty pages.
pub type Fill = Producer<u64>;
/// Our end of a Tx ring: frames to be sent.
pub type Transmit = Producer<Descriptor>;
/// Our end of an Rx ring: frames that came.
pub type Frames = Consumer<Descriptor>;
/// Our end of a completion ring: addresses of frames that were sent.
pub type Completed = Consumer<u64>;

impl<E: Entry> Producer<E> {
    /// A ring that nothing was put into yet.
    pub fn new(ring: Ring) -> Self {
        Producer { ring, produced: 0, published: 0, consumed: 0, holds: PhantomData }
    }

    /// Adds an entry; the kernel sees it after [`publish`](Self::publish). False: there is no room.
    ///
    /// # Errors
    /// Never, with the kernel on the other side.
    #[inline]
    pub fn push(&mut self, entry: E) -> Result<bool, Violation> {
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
        entry.write(&self.ring.memory, self.ring.entry(self.produced, E::BYTES))?;
        self.produced = self.produced.wrapping_add(1);
        Ok(true)
    }

    /// Publishes the added entries. True: the kernel needs a system call to look at them.
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

    /// Whether added entries are not published.
    #[inline]
    pub fn has_unpublished(&self) -> bool {
        self.published != self.produced
    }
}

/// Our end of a ring from which we take entries.
#[derive(Debug)]
pub struct Consumer<E> {
    ring: Ring,
    consumed: u32,
    released: u32,
    /// The other side's index when it was last read.
    seen: u32,
    holds: PhantomData<E>,
}

impl<E: Entry> Consumer<E> {
    /// A ring from which nothing was taken yet.
    pub fn new(ring: Ring) -> Self {
        Consumer { ring, consumed: 0, released: 0, seen: 0, holds: PhantomData }
    }

    /// How many entries can be taken; the kernel's index is read only when none is known.
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

    /// Takes the oldest entry, if there is one. Its place in the ring is free after
    /// [`release`](Self::release).
    ///
    /// # Errors
    /// Never, with the kernel on the other side.
    #[inline]
    pub fn take(&mut self) -> Result<Option<E>, Violation> {
        if self.ready()? == 0 {
            return Ok(None);
        }
        let entry = E::read(&self.ring.memory, self.ring.entry(self.consumed, E::BYTES))?;
        self.consumed = self.consumed.wrapping_add(1);
        Ok(Some(entry))
    }

    /// Frees the places in the ring of all entries that were taken.
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
        let addr = u64::read(&self.fill.memory, self.fill.entry(self.taken, u64::BYTES))?;
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
        frame.write(&self.frames.memory, self.frames.entry(self.published, Descriptor::BYTES))?;
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
    Ok((ring(8)?, ring(Descriptor::BYTES)?))
}

#[cfg(test)]
mod tests;
