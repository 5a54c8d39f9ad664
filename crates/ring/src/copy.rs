//! Copying to, from and between memories that a peer may be changing, or that may be the same
//! memory mapped twice.

use std::ptr;

use method::{LONG, long};

pub mod measure;
pub mod method;

/// Up to this length a copy is made of at most eight loads and stores, without a call.
const SHORT: usize = 128;

/// Bytes that one prefetch loads.
pub(crate) const CACHE_LINE: usize = 64;

/// Copies `n` bytes.
///
/// Source and destination may overlap: a guest may name the same bytes as a buffer to send and as a
/// buffer to receive into.
///
/// # Safety
/// `n` bytes must be mapped readable at `from` and mapped writable at `to`.
#[inline(always)]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, n: usize) {
    // SAFETY: the caller's promise; every access below stays within `n` bytes. All loads of a short
    // copy come before its stores, so overlap does no harm there either.
    unsafe {
        if n >= LONG {
            long(from, to, n);
        } else if n > SHORT {
            ptr::copy(from, to, n);
        } else if n > 64 {
            ends::<[u64; 8]>(from, to, n);
        } else if n > 32 {
            ends::<[u64; 4]>(from, to, n);
        } else if n > 16 {
            ends::<[u64; 2]>(from, to, n);
        } else if n >= 8 {
            ends::<u64>(from, to, n);
        } else if n >= 4 {
            ends::<u32>(from, to, n);
        } else if n >= 2 {
            ends::<u16>(from, to, n);
        } else if n == 1 {
            *to = *from;
        }
    }
}

/// Copies `n` bytes as the first and the last `T` of them, which may share bytes.
///
/// # Safety
/// As for [`copy`]; `n` is from one to two times the size of `T`.
#[inline(always)]
unsafe fn ends<T: Copy>(from: *const u8, to: *mut u8, n: usize) {
    let last = n - size_of::<T>();
    // SAFETY: both accesses lie within the `n` bytes.
    unsafe {
        let head = from.cast::<T>().read_unaligned();
        let tail = from.add(last).cast::<T>().read_unaligned();
        to.cast::<T>().write_unaligned(head);
        to.add(last).cast::<T>().write_unaligned(tail);
    }
}

/// Copies one 16-byte structure out of shared memory, reading each byte exactly once, and returns
/// it as two words.
///
/// # Safety
/// 16 bytes must be mapped readable at `from`.
#[inline(always)]
pub(crate) unsafe fn load16(from: *const u8) -> [u64; 2] {
    if from.addr().is_multiple_of(align_of::<u64>()) {
        let words = from.cast::<u64>();
        // SAFETY: the caller's promise, and aligned, as just checked.
        unsafe { [words.read_volatile(), words.add(1).read_volatile()] }
    } else {
        // SAFETY: the caller's promise.
        unsafe { load16_bytewise(from) }
    }
}

/// # Safety
/// As for [`load16`].
#[cold]
unsafe fn load16_bytewise(from: *const u8) -> [u64; 2] {
    let word = |at: usize| {
        u64::from_le_bytes(std::array::from_fn(|i| {
            // SAFETY: the caller's promise; bytes are always aligned.
            unsafe { from.add(at + i).read_volatile() }
        }))
    };
    [word(0), word(8)]
}

/// Prefetches the cache line at `at` for reading. Any address is allowed.
#[inline(always)]
pub(crate) fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint: prefetching never faults.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Prefetches the cache line at `at` for writing: the line is taken from other CPUs now, so that
/// neither the store nor the stores behind it wait for it. Any address is allowed.
#[inline(always)]
pub(crate) fn prefetch_write(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint: prefetching never faults, and does nothing on processors that do not know it.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

#[cfg(test)]
mod tests {
    use super::{copy, load16};

    #[test]
    fn loads_descriptors_at_any_address() {
        let bytes: Vec<u8> = (0..40).collect();
        for shift in 0..16 {
            // SAFETY: within the vector.
            let words = unsafe { load16(bytes.as_ptr().add(shift)) };
            assert_eq!(words.map(u64::to_le_bytes).concat(), bytes[shift..shift + 16]);
        }
    }

    #[test]
    fn copies_every_short_length_and_nothing_more() {
        let from: Vec<u8> = (0..300u32).map(|i| (i * 7 + 1) as u8).collect();
        for n in 0..=260 {
            for shift in [0, 1, 5] {
                let mut to = vec![0u8; 300];
                // SAFETY: both vectors are longer than what is copied.
                unsafe { copy(from.as_ptr().add(shift), to.as_mut_ptr().add(3), n) };
                assert_eq!(&to[..3], &[0; 3]);
                assert_eq!(&to[3..3 + n], &from[shift..shift + n], "{n} bytes");
                assert!(to[3 + n..].iter().all(|&b| b == 0), "{n} bytes");
            }
        }
    }

    #[test]
    fn copies_over_itself_in_both_directions() {
        let original: Vec<u8> = (0..400u32).map(|i| (i * 11 + 3) as u8).collect();
        for n in 0..=200 {
            for distance in [1usize, 8, 33, 70] {
                let mut bytes = original.clone();
                // SAFETY: within the vector.
                unsafe { copy(bytes.as_ptr(), bytes.as_mut_ptr().add(distance), n) };
                assert_eq!(&bytes[distance..distance + n], &original[..n]);
                let mut bytes = original.clone();
                // SAFETY: within the vector.
                unsafe { copy(bytes.as_ptr().add(distance), bytes.as_mut_ptr(), n) };
                assert_eq!(&bytes[..n], &original[distance..distance + n]);
            }
        }
    }
}
