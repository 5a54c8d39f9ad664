//! The translation of descriptors to spans, common to both layouts.
//!
//! A descriptor comes in here as private numbers, and leaves as spans of mapped memory in a
//! [`Sink`], or not at all.

use std::ptr::NonNull;

use crate::copy::{load16, prefetch, prefetch_write};
use crate::desc::{self, DESC_INDIRECT, DESC_NEXT, DESC_WRITE};
use crate::gather::{Chain, Gather};
use crate::gather::{MAX_CHAIN, MAX_SPANS};
use crate::piece::Span;
use crate::region::Memory;
use crate::violation::Violation;

/// Bytes of a descriptor.
const DESC_SIZE: u32 = desc::DESC_SIZE as u32;

/// Why a chain was not taken.
pub(crate) enum Stop {
    /// The sink has no room for it; it stays in the ring.
    Full,
    /// The peer broke the protocol.
    Broken(Violation),
}

impl From<Violation> for Stop {
    fn from(violation: Violation) -> Self {
        Self::Broken(violation)
    }
}

/// A receiver of the spans of chains, one chain after the other.
pub(crate) trait Sink {
    /// Whether the buffers are written (Rx) or read (Tx).
    const WRITABLE: bool;
    /// Prefetches the cache line at `at`, for reading or writing. Any address is allowed.
    #[inline(always)]
    fn prefetch(at: *const u8) {
        if Self::WRITABLE { prefetch_write(at) } else { prefetch(at) }
    }

    /// Adds a span to the open chain; false when there is no room.
    fn push(&mut self, span: Span) -> bool;
    /// Adds a chain that lies in one span, while no chain is open; false when there is no room.
    fn push_alone(&mut self, span: Span) -> bool;
    /// The open chain is complete, `len` bytes in all.
    fn close(&mut self, len: u32);
    /// Forgets the spans of the open chain.
    fn cancel(&mut self);
}

/// Chains of a Tx ring: spans to a gather, chains to a list.
pub(crate) struct Fetch<'a> {
    gather: &'a mut Gather,
    chains: &'a mut Vec<Chain>,
    mark: usize,
}

impl<'a> Fetch<'a> {
    pub(crate) fn new(gather: &'a mut Gather, chains: &'a mut Vec<Chain>) -> Self {
        let mark = gather.mark();
        Self { gather, chains, mark }
    }
}

impl Sink for Fetch<'_> {
    const WRITABLE: bool = false;

    #[inline(always)]
    fn push(&mut self, span: Span) -> bool {
        self.gather.push(span)
    }

    #[inline(always)]
    fn push_alone(&mut self, span: Span) -> bool {
        let Some(chain) = self.gather.push_alone(span) else { return false };
        self.chains.push(chain);
        self.mark += 1;
        true
    }

    #[inline(always)]
    fn close(&mut self, len: u32) {
        self.chains.push(self.gather.chain_from(self.mark, len));
        self.mark = self.gather.mark();
    }

    fn cancel(&mut self) {
        self.gather.back_to(self.mark);
    }
}

/// One chain on its way into a sink.
pub(crate) struct Walk<'a, S> {
    mem: &'a Memory,
    hint: &'a mut usize,
    sink: &'a mut S,
    len: u64,
    spans: usize,
}

impl<'a, S: Sink> Walk<'a, S> {
    #[inline]
    pub(crate) fn new(mem: &'a Memory, hint: &'a mut usize, sink: &'a mut S) -> Self {
        Self { mem, hint, sink, len: 0, spans: 0 }
    }

    /// Adds the buffer of one descriptor.
    #[inline(always)]
    pub(crate) fn add(&mut self, addr: u64, len: u32, flags: u16) -> Result<(), Stop> {
        if (flags & DESC_WRITE != 0) == S::WRITABLE
            && len > 0
            && let Some((at, left)) = self.mem.run(addr, self.hint)
            && left >= u64::from(len)
        {
            S::prefetch(at.as_ptr());
            self.len += u64::from(len);
            return self.push(Span { at, len });
        }
        self.add_scattered(addr, len, flags)
    }

    /// Adds a buffer in as many spans as it takes; an empty buffer becomes an empty span, so that
    /// the cost of a chain is the room that it takes in the sink.
    #[cold]
    fn add_scattered(&mut self, addr: u64, len: u32, flags: u16) -> Result<(), Stop> {
        if (flags & DESC_WRITE != 0) != S::WRITABLE {
            return Err(wrong_way::<S>().into());
        }
        if len == 0 {
            return self.push(Span::EMPTY);
        }
        let (mut at, mut left) = (addr, len);
        loop {
            let outside = Violation::Outside { addr, len: u64::from(len) };
            let (host, run) = self.mem.run(at, self.hint).ok_or(outside)?;
            let now = run.min(u64::from(left)) as u32;
            S::prefetch(host.as_ptr());
            self.push(Span { at: host, len: now })?;
            left -= now;
            if left == 0 {
                self.len += u64::from(len);
                return Ok(());
            }
            at = at.checked_add(u64::from(now)).ok_or(outside)?;
        }
    }

    #[inline(always)]
    fn push(&mut self, span: Span) -> Result<(), Stop> {
        self.spans += 1;
        if self.spans > MAX_SPANS {
            return Err(Violation::ChainScattered(MAX_SPANS as u32).into());
        }
        if self.sink.push(span) { Ok(()) } else { Err(Stop::Full) }
    }

    /// Opens the indirect table that a descriptor names.
    pub(crate) fn table(&mut self, addr: u64, len: u32) -> Result<Table<'a>, Violation> {
        Table::open(self.mem, self.hint, addr, len)
    }

    /// The chain is complete.
    pub(crate) fn close(self) -> Result<(), Stop> {
        let len = u32::try_from(self.len).map_err(|_| Violation::ChainTooBig)?;
        self.sink.close(len);
        Ok(())
    }
}

/// Whether a descriptor of a ring with these flags names an indirect table. Such tables have to be
/// negotiated, and end their chain.
#[inline(always)]
pub(crate) fn is_table(flags: u16, negotiated: bool) -> Result<bool, Violation> {
    if flags & DESC_INDIRECT == 0 {
        return Ok(false);
    }
    if !negotiated {
        return Err(Violation::IndirectNotNegotiated);
    }
    if flags & DESC_NEXT != 0 {
        return Err(Violation::IndirectNext);
    }
    Ok(true)
}

/// A buffer that points the wrong way for the ring.
#[cold]
fn wrong_way<S: Sink>() -> Violation {
    if S::WRITABLE { Violation::ReadableInReceive } else { Violation::WritableInTransmit }
}

/// An indirect table in the peer's memory. Each entry is copied once, when it is needed.
pub(crate) struct Table<'a> {
    mem: &'a Memory,
    addr: u64,
    entries: u32,
    /// Where it lies, when it lies in one piece.
    host: Option<NonNull<u8>>,
}

impl<'a> Table<'a> {
    pub(crate) fn open(
        mem: &'a Memory,
        hint: &mut usize,
        addr: u64,
        len: u32,
    ) -> Result<Self, Violation> {
        let entries = len / DESC_SIZE;
        if len == 0 || !len.is_multiple_of(DESC_SIZE) || entries > MAX_CHAIN {
            return Err(Violation::IndirectLength(len));
        }
        let outside = Violation::Outside { addr, len: u64::from(len) };
        addr.checked_add(u64::from(len)).ok_or(outside)?;
        let (host, left) = mem.run(addr, hint).ok_or(outside)?;
        Ok(Self { mem, addr, entries, host: (left >= u64::from(len)).then_some(host) })
    }

    pub(crate) fn entries(&self) -> u32 {
        self.entries
    }

    /// Copies entry `index` out of the peer's memory.
    #[inline]
    pub(crate) fn entry(&self, index: u32) -> Result<[u64; 2], Violation> {
        if index >= self.entries {
            return Err(Violation::DescriptorIndex { index: index as u16, table: self.entries });
        }
        let offset = index * DESC_SIZE;
        match self.host {
            // SAFETY: the whole table is mapped at `host`, and the entry is in it.
            Some(host) => Ok(unsafe { load16(host.as_ptr().add(offset as usize)) }),
            None => self.scattered_entry(self.addr + u64::from(offset)),
        }
    }

    #[cold]
    fn scattered_entry(&self, addr: u64) -> Result<[u64; 2], Violation> {
        let mut words = [[0; 8]; 2];
        self.mem.read(addr, words.as_flattened_mut())?;
        Ok(words.map(u64::from_le_bytes))
    }
}
