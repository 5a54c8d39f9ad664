//! Long copies, each by the method that was found to be the fastest for its length.
//!
//! A copy out of memory is bound by how many cache lines are under way at once, and processors
//! differ in what brings most of them: the C library's loops or string instructions, or prefetches
//! at some distance. Until a method is set, all copies are the C library's.

use std::fmt;
use std::ptr;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use super::{CACHE_LINE, prefetch, prefetch_write};

/// From this length on, a copy is a long one, in bytes. Shorter frames are prefetched as a whole
/// before they are copied.
pub(super) const LONG: usize = SizeClass::Page.least();

/// Pieces of a copy that prefetches, in bytes. The C library copies them with vector registers.
const PIECE: usize = 512;

/// A method of copying.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Method {
    /// The C library's `memmove`.
    Library,
    /// The instruction `rep movsb`.
    String,
    /// `memmove` of 512 bytes at a time, with prefetches 8 lines ahead in the target and 16 lines
    /// ahead in the source.
    PrefetchNear,
    /// The same with prefetches 32 and 64 lines ahead.
    PrefetchFar,
    /// Stores that leave the target out of the caches, and prefetches 16 lines ahead in the source.
    NonTemporal,
}

impl Method {
    /// All methods.
    pub const ALL: [Method; 5] = [
        Method::Library,
        Method::String,
        Method::PrefetchNear,
        Method::PrefetchFar,
        Method::NonTemporal,
    ];

    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Method::Library => "memmove",
            Method::String => "rep movsb",
            Method::PrefetchNear => "prefetch 8 lines ahead",
            Method::PrefetchFar => "prefetch 32 lines ahead",
            Method::NonTemporal => "non-temporal stores",
        }
    }

    /// The method with this number.
    fn from_number(number: u8) -> Self {
        Method::ALL.get(usize::from(number)).copied().unwrap_or(Method::Library)
    }

    /// Copies `n` bytes.
    ///
    /// # Safety
    /// As for [`copy`](super::copy), and source and target must not overlap.
    #[inline]
    pub(super) unsafe fn copy(self, from: *const u8, to: *mut u8, n: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Method::Library => ptr::copy(from, to, n),
                Method::String => string(from, to, n),
                Method::PrefetchNear => prefetching(from, to, n, 8 * CACHE_LINE),
                Method::PrefetchFar => prefetching(from, to, n, 32 * CACHE_LINE),
                Method::NonTemporal => non_temporal(from, to, n),
            }
        }
    }

    /// Copies `n` bytes, by this method if source and target do not overlap.
    ///
    /// Out of line, so that the C library's copies need no registers for it.
    ///
    /// # Safety
    /// As for [`copy`](super::copy).
    #[inline(never)]
    unsafe fn copy_apart(self, from: *const u8, to: *mut u8, n: usize) {
        let method = if to.addr().abs_diff(from.addr()) >= n { self } else { Method::Library };
        // SAFETY: the caller's promise, and what is not the C library's copy does not overlap.
        unsafe { method.copy(from, to, n) };
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The lengths for which a method is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeClass {
    /// More than 2 KiB and up to 8 KiB: a page, a buffer that is merged with others, a jumbo frame.
    Page,
    /// More than 8 KiB: a buffer for frames of TSO.
    Large,
}

impl SizeClass {
    /// All classes.
    pub const ALL: [SizeClass; 2] = [SizeClass::Page, SizeClass::Large];

    /// The class of a copy of `n` bytes.
    #[inline]
    fn of(n: usize) -> Self {
        if n < SizeClass::Large.least() { SizeClass::Page } else { SizeClass::Large }
    }

    /// The shortest copy of this class, in bytes.
    pub const fn least(self) -> usize {
        match self {
            SizeClass::Page => 2049,
            SizeClass::Large => 8193,
        }
    }

    /// The length of a usual copy of this class, in bytes.
    pub const fn usual(self) -> usize {
        match self {
            SizeClass::Page => 4096,
            SizeClass::Large => 1 << 16,
        }
    }
}

/// The methods in use, as numbers: by class.
static METHODS: [AtomicU8; 2] = [const { AtomicU8::new(Method::Library as u8) }; 2];

/// The method by which copies of a class are made.
#[inline]
pub fn method(class: SizeClass) -> Method {
    Method::from_number(METHODS[class as usize].load(Relaxed))
}

/// Makes copies of a class by `method` from now on, in the whole process.
pub fn set_method(class: SizeClass, method: Method) {
    METHODS[class as usize].store(method as u8, Relaxed);
}

/// Copies `n` bytes, by the method of their class.
///
/// # Safety
/// As for [`copy`](super::copy).
#[inline(never)]
pub(super) unsafe fn long(from: *const u8, to: *mut u8, n: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        match method(SizeClass::of(n)) {
            Method::Library => ptr::copy(from, to, n),
            other => other.copy_apart(from, to, n),
        }
    }
}

/// Copies in pieces, and prefetches `ahead` bytes ahead in the target, and twice as many in the
/// source, whose next bytes often are of the same frame.
///
/// # Safety
/// As for [`copy`](super::copy).
unsafe fn prefetching(from: *const u8, to: *mut u8, n: usize, ahead: usize) {
    let mut done = 0;
    while done < n {
        for line in (done..done + PIECE).step_by(CACHE_LINE) {
            prefetch(from.wrapping_add(line + 2 * ahead));
            if line + ahead < n {
                prefetch_write(to.wrapping_add(line + ahead));
            }
        }
        let now = PIECE.min(n - done);
        // SAFETY: the caller's promise; `done + now` is at most `n`.
        unsafe { ptr::copy(from.add(done), to.add(done), now) };
        done += now;
    }
}

/// Copies by the processor's string instruction.
///
/// # Safety
/// As for [`copy`](super::copy).
unsafe fn string(from: *const u8, to: *mut u8, n: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's promise; the direction flag is clear wherever Rust code runs.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") n => _,
            inout("rsi") from => _,
            inout("rdi") to => _,
            options(nostack, preserves_flags)
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: the caller's promise.
    unsafe {
        ptr::copy(from, to, n);
    }
}

/// Copies with stores that bypass the caches. They are in memory when it returns: a peer that sees
/// a later store sees these, too.
///
/// # Safety
/// As for [`copy`](super::copy).
unsafe fn non_temporal(from: *const u8, to: *mut u8, n: usize) {
    let head = to.align_offset(CACHE_LINE).min(n);
    let lines = (n - head) / CACHE_LINE;
    let done = head + lines * CACHE_LINE;
    // SAFETY: the caller's promise: `head`, the lines and the rest are `n` bytes together.
    unsafe {
        ptr::copy(from, to, head);
        for at in (head..done).step_by(CACHE_LINE) {
            prefetch(from.wrapping_add(at + 16 * CACHE_LINE));
            store_line(from.add(at), to.add(at));
        }
        ptr::copy(from.add(done), to.add(done), n - done);
        #[cfg(target_arch = "x86_64")]
        std::arch::x86_64::_mm_sfence();
    }
}

/// Copies a line to an aligned line, which stays out of the caches where the processor can do that.
///
/// # Safety
/// A line must be mapped readable at `from` and mapped writable at `to`, which is aligned to it.
#[inline(always)]
unsafe fn store_line(from: *const u8, to: *mut u8) {
    // SAFETY: the caller's promise.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
        for part in 0..4 {
            let bytes = _mm_loadu_si128(from.cast::<__m128i>().add(part));
            _mm_stream_si128(to.cast::<__m128i>().add(part), bytes);
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: the caller's promise.
    unsafe {
        ptr::copy(from, to, CACHE_LINE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that differ from their neighbours at distances of lines and pages.
    fn pattern(n: usize) -> Vec<u8> {
        (0..n).map(|i| (i * 7 + i / 251 + 1) as u8).collect()
    }

    #[test]
    fn every_method_copies_what_it_is_told_and_nothing_more() {
        let from = pattern(70_000);
        for method in Method::ALL {
            for n in [1, 511, 512, 513, 2049, 4084, 4096, 8193, 65_550] {
                for shift in [0, 1, 63] {
                    let mut to = vec![0u8; 70_000];
                    // SAFETY: both vectors are longer than what is copied, and not the same.
                    unsafe { method.copy(from.as_ptr().add(shift), to.as_mut_ptr().add(3), n) };
                    assert_eq!(to[..3], [0; 3]);
                    assert_eq!(to[3..3 + n], from[shift..shift + n], "{method}, {n} bytes");
                    assert!(to[3 + n..].iter().all(|&b| b == 0), "{method}, {n} bytes");
                }
            }
        }
    }

    #[test]
    fn long_copies_over_themselves_are_right_by_every_method() {
        for class in SizeClass::ALL {
            for method in Method::ALL {
                set_method(class, method);
                assert_eq!(super::method(class), method);
                let (original, n) = (pattern(30_000), class.least());
                for [from, to] in [[0, 100], [100, 0], [0, n - 1], [n - 1, 0], [5, 5], [0, n]] {
                    let mut bytes = original.clone();
                    let start = bytes.as_mut_ptr();
                    // SAFETY: within the vector.
                    unsafe { long(start.add(from), start.add(to), n) };
                    assert_eq!(bytes[to..to + n], original[from..from + n], "{method}");
                }
            }
            set_method(class, Method::Library);
        }
    }

    #[test]
    fn a_length_has_the_class_that_names_it() {
        assert_eq!(SizeClass::of(LONG), SizeClass::Page);
        assert_eq!(SizeClass::of(8192), SizeClass::Page);
        assert_eq!(SizeClass::of(8193), SizeClass::Large);
        for class in SizeClass::ALL {
            assert_eq!(SizeClass::of(class.least()), class);
            assert_eq!(SizeClass::of(class.usual()), class);
        }
    }
}
