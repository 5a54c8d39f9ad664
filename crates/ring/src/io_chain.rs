//! The buffers of one request: bytes that the device reads, then bytes that it writes.
//!
//! Requests of block devices are chains with a header in front, data, and a status byte at the end.
//! How the three are cut into descriptors is the driver's choice (virtio 1.2, 2.7.4.2), so the
//! header is copied out of however many pieces it lies in, and the status byte is the last byte
//! that the device may write.
//!
//! The chain then consists of the pieces of the data, as the kernel takes them (`struct iovec`).
//! Safe code can use them because of these invariants:
//!
//! - Pieces are made only here, from a translation by the [`Memory`] that the same chain holds. So
//!   a piece is mapped as long as the chain has it.
//! - The memory is never forgotten or replaced without the pieces.
//!
//! A caller that hands the pieces to the kernel must keep the chain until the kernel has finished
//! with them.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::copy::{copy, prefetch_write};
use crate::gather::MAX_SPANS;
use crate::grant::PAGE;
use crate::region::Memory;
use crate::violation::Violation;

/// Pieces of a driver's memory that follow each other.
#[derive(Debug, Default)]
struct Pieces {
    list: Vec<libc::iovec>,
    /// The first piece that is not consumed.
    first: usize,
    len: u64,
}

impl Pieces {
    fn clear(&mut self) {
        self.list.clear();
        (self.first, self.len) = (0, 0);
    }

    /// Adds a piece.
    #[inline(always)]
    fn push(&mut self, host: NonNull<u8>, len: u64) {
        let piece = libc::iovec { iov_base: host.as_ptr().cast(), iov_len: len as usize };
        self.list.push(piece);
        self.len += len;
    }

    fn rest(&self) -> &[libc::iovec] {
        self.list.get(self.first..).unwrap_or_default()
    }

    /// Takes `n` bytes off the front, or all that there are.
    fn advance(&mut self, n: u64) {
        let mut left = n.min(self.len);
        self.len -= left;
        while let Some(piece) = self.list.get_mut(self.first).filter(|_| left > 0) {
            let now = left.min(piece.iov_len as u64);
            piece.iov_base = piece.iov_base.wrapping_byte_add(now as usize);
            piece.iov_len -= now as usize;
            left -= now;
            if piece.iov_len == 0 {
                self.first += 1;
            }
        }
    }

    /// Takes the last byte off.
    fn pop(&mut self) -> Option<NonNull<u8>> {
        let piece = self.list.last_mut()?;
        piece.iov_len -= 1;
        let at = piece.iov_base.wrapping_byte_add(piece.iov_len);
        if piece.iov_len == 0 {
            self.list.pop();
        }
        self.len -= 1;
        NonNull::new(at.cast())
    }
}

/// The buffers of one request. Used again and again, it allocates nothing.
#[derive(Debug, Default)]
pub struct IoChain {
    readable: Pieces,
    writable: Pieces,
    status: Option<NonNull<u8>>,
    memory: Option<Arc<Memory>>,
}

// SAFETY: the pieces point into memory that the chain keeps mapped for the whole process, and that
// is only reached through raw copies and by the kernel; see `Memory`.
unsafe impl Send for IoChain {}

impl IoChain {
    /// Forgets all pieces. The memory stays mapped for the next chain.
    pub fn clear(&mut self) {
        self.readable.clear();
        self.writable.clear();
        self.status = None;
    }

    /// Begins a chain of buffers in `memory`.
    pub fn begin(&mut self, memory: &Arc<Memory>) {
        self.clear();
        if !self.memory.as_ref().is_some_and(|own| Arc::ptr_eq(own, memory)) {
            self.memory = Some(Arc::clone(memory));
        }
    }

    /// Adds a buffer of `len` bytes at guest address `addr`. `hint` is the number of the region to
    /// look in first, and then the one where the buffer is.
    ///
    /// # Errors
    /// When the buffer does not lie within the memory, is readable behind a writable one,
    /// or exceeds the number of buffers allowed.
    #[inline(always)]
    pub fn add(
        &mut self,
        addr: u64,
        len: u32,
        writable: bool,
        hint: &mut usize,
    ) -> Result<(), Violation> {
        let (others, bytes) = (self.writable.list.len(), u64::from(len));
        let total = self.readable.len + self.writable.len + bytes;
        let pieces = if writable { &mut self.writable } else { &mut self.readable };
        if len > 0
            && total <= u64::from(u32::MAX)
            && pieces.list.len() < MAX_SPANS
            && (writable || others == 0)
            && let Some(memory) = &self.memory
            && let Some((host, run)) = memory.run(addr, hint)
            && run >= bytes
        {
            if !writable && pieces.list.is_empty() {
                // The header is read when some more requests were taken. Its cache line mostly has
                // the status byte too, which is written.
                prefetch_write(host.as_ptr());
            }
            pieces.push(host, bytes);
            return Ok(());
        }
        self.add_slowly(addr, len, writable, hint)
    }

    /// As [`add`](Self::add), also for a buffer that lies in more than one region, or is empty.
    #[cold]
    fn add_slowly(
        &mut self,
        addr: u64,
        len: u32,
        writable: bool,
        hint: &mut usize,
    ) -> Result<(), Violation> {
        let Some(memory) = &self.memory else { return Ok(()) };
        if !writable && !self.writable.list.is_empty() {
            return Err(Violation::ReadableAfterWritable);
        }
        let pieces = if writable { &mut self.writable } else { &mut self.readable };
        let outside = Violation::Outside { addr, len: len.into() };
        let (mut at, mut left) = (addr, u64::from(len));
        while left > 0 {
            let (host, run) = memory.run(at, hint).ok_or(outside)?;
            let now = run.min(left);
            if pieces.list.len() == MAX_SPANS {
                return Err(Violation::ChainScattered(MAX_SPANS as u32));
            }
            pieces.push(host, now);
            left -= now;
            at = at.checked_add(now).ok_or(outside)?;
        }
        match u32::try_from(self.readable.len + self.writable.len) {
            Ok(_) => Ok(()),
            Err(_) => Err(Violation::ChainTooBig),
        }
    }

    /// Bytes that the device may read and that were not read yet.
    pub fn readable_len(&self) -> u64 {
        self.readable.len
    }

    /// Bytes that the device may write, apart from a status byte that was split off.
    pub fn writable_len(&self) -> u64 {
        self.writable.len
    }

    /// The most pages that the remaining pieces lie in.
    pub fn pages(&self) -> u64 {
        let pieces = self.readable.rest().iter().chain(self.writable.rest());
        pieces.map(|piece| (piece.iov_len / PAGE) as u64 + 2).sum()
    }

    /// Copies the next readable bytes into `buf`. False: there are fewer, and nothing was done.
    #[inline]
    pub fn read(&mut self, buf: &mut [u8]) -> bool {
        if self.readable.len < buf.len() as u64 {
            return false;
        }
        match self.readable.rest() {
            [piece, ..] if piece.iov_len >= buf.len() => {
                // SAFETY: the piece is mapped, at least `buf.len()` bytes of it.
                unsafe { copy(piece.iov_base.cast(), buf.as_mut_ptr(), buf.len()) };
            }
            pieces => read_scattered(pieces, buf),
        }
        self.readable.advance(buf.len() as u64);
        true
    }

    /// Splits the last writable byte off, as the status. False: there is none.
    pub fn split_status(&mut self) -> bool {
        self.status = self.writable.pop();
        self.status.is_some()
    }

    /// Writes the status byte that was split off.
    pub fn set_status(&self, status: u8) {
        if let Some(at) = self.status {
            // SAFETY: a byte of a piece, which is mapped as long as the chain holds its memory.
            unsafe { copy(&status, at.as_ptr(), 1) };
            self.log(at.as_ptr(), 1);
        }
    }

    /// Copies `bytes` into the writable pieces, as far as they have room. Returns how many.
    pub fn write(&self, bytes: &[u8]) -> u32 {
        let mut from = bytes;
        for piece in self.writable.rest() {
            let (now, rest) = from.split_at(from.len().min(piece.iov_len));
            // SAFETY: the piece is mapped, at least `now.len()` bytes of it.
            unsafe { copy(now.as_ptr(), piece.iov_base.cast(), now.len()) };
            self.log(piece.iov_base.cast(), now.len());
            from = rest;
        }
        (bytes.len() - from.len()) as u32
    }

    /// The rest of the pieces that the device may read: the source of a write.
    pub fn readable(&self) -> &[libc::iovec] {
        self.readable.rest()
    }

    /// The rest of the pieces that the device may write: the destination of a read.
    pub fn writable(&self) -> &[libc::iovec] {
        self.writable.rest()
    }

    /// Logs all writable bytes as written, because an operation failed and the kernel may have
    /// written any of them.
    pub fn log_writable(&self) {
        self.transferred(u64::MAX);
    }

    /// Logs the first `n` bytes that the device may write, because they were transferred. The
    /// pieces stay as they are: [`advance`](Self::advance) is for a request of which more is to
    /// come.
    pub fn transferred(&self, n: u64) {
        let mut left = n;
        for piece in self.writable.rest().iter().take_while(|_| self.is_logged()) {
            let now = left.min(piece.iov_len as u64);
            self.log(piece.iov_base.cast(), now as usize);
            left -= now;
        }
    }

    fn is_logged(&self) -> bool {
        self.memory.as_ref().is_some_and(|memory| memory.is_logged())
    }

    fn log(&self, at: *const u8, len: usize) {
        if let Some(memory) = &self.memory {
            memory.log_host(at, len);
        }
    }

    /// Removes the first `n` bytes of either direction, which have been transferred.
    pub fn advance(&mut self, n: u64) {
        self.transferred(n);
        self.readable.advance(n);
        self.writable.advance(n);
    }
}

/// Copies out of pieces, of which the first is shorter than `buf`.
#[cold]
fn read_scattered(pieces: &[libc::iovec], buf: &mut [u8]) {
    let mut to = buf;
    for piece in pieces {
        let (now, rest) = to.split_at_mut(to.len().min(piece.iov_len));
        // SAFETY: pieces of a chain are mapped as long as it has them: at least `now.len()` bytes.
        unsafe { copy(piece.iov_base.cast(), now.as_mut_ptr(), now.len()) };
        to = rest;
        if to.is_empty() {
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(buffers: &[(u64, u32, bool)]) -> (Arc<Memory>, IoChain) {
        let memory = Arc::new(Memory::anonymous(1 << 16).unwrap());
        let mut chain = IoChain::default();
        chain.begin(&memory);
        for &(addr, len, writable) in buffers {
            chain.add(addr, len, writable, &mut 0).unwrap();
        }
        (memory, chain)
    }

    #[test]
    fn pages_are_not_underestimated() {
        let (_, mut chain) = chain(&[(0, 16, false), (4095, 2, true), (8191, 8194, true)]);
        assert!(chain.pages() >= 1 + 2 + 4);
        assert!(chain.read(&mut [0; 16]));
        assert!((6..9).contains(&chain.pages()));
    }

    #[test]
    fn a_header_in_pieces_is_one_header() {
        let pieces: Vec<_> = (0..16).map(|i| (100 * i, 1, false)).collect();
        let (memory, mut chain) = chain(&pieces);
        (0..16).for_each(|i| memory.write(100 * u64::from(i), &[i]).unwrap());
        let mut header = [0; 16];
        assert!(chain.read(&mut header));
        assert_eq!(header, std::array::from_fn(|i| i as u8));
        assert_eq!((chain.readable_len(), chain.readable().len()), (0, 0));
        assert!(!chain.read(&mut header));
    }

    #[test]
    fn the_status_is_the_last_byte_whatever_it_lies_in() {
        for buffers in [&[(0, 513, true)][..], &[(0, 512, true), (512, 1, true)]] {
            let (memory, mut chain) = chain(buffers);
            assert!(chain.split_status());
            assert_eq!((chain.writable_len(), chain.writable().len()), (512, 1));
            chain.set_status(7);
            assert_eq!(chain.write(&[5; 600]), 512);
            let mut bytes = [0; 513];
            memory.read(0, &mut bytes).unwrap();
            assert_eq!((bytes[511], bytes[512]), (5, 7));
        }
        let (_, mut empty) = chain(&[(0, 16, false)]);
        assert!(!empty.split_status());
        empty.set_status(1);
    }

    #[test]
    fn bytes_are_taken_off_the_front() {
        let (_, mut chain) = chain(&[(0, 100, true), (200, 50, true)]);
        chain.advance(120);
        let left: Vec<_> = chain.writable().iter().map(|piece| piece.iov_len).collect();
        assert_eq!((left, chain.writable_len()), (vec![30], 30));
        chain.advance(1000);
        assert_eq!((chain.writable().len(), chain.writable_len()), (0, 0));
    }

    #[test]
    fn wrong_buffers_have_names() {
        let (_, mut chain) = chain(&[(0, 1, true)]);
        assert_eq!(chain.add(0, 1, false, &mut 0), Err(Violation::ReadableAfterWritable));
        let outside = Violation::Outside { addr: 65_530, len: 16 };
        assert_eq!(chain.add(65_530, 16, true, &mut 0), Err(outside));
        let outside = Violation::Outside { addr: u64::MAX, len: 2 };
        assert_eq!(chain.add(u64::MAX, 2, true, &mut 0), Err(outside));
    }

    #[test]
    fn a_chain_is_bounded() {
        let (_, mut chain) = chain(&[]);
        let added = (0..=MAX_SPANS).map(|_| chain.add(0, 1, true, &mut 0));
        let scattered = Violation::ChainScattered(MAX_SPANS as u32);
        assert_eq!(added.last(), Some(Err(scattered)));
        let (_, mut chain) = self::chain(&[]);
        let mut added = (0..=65_536).map(|_| chain.add(0, 1 << 16, false, &mut 0));
        assert!(added.any(|added| added == Err(scattered)));
    }
}
