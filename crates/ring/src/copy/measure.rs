//! Which method of copying is the fastest on this machine.

use std::hint::black_box;
use std::time::Instant;

use super::CACHE_LINE;
use super::method::{Method, SizeClass, set_method};

/// Bytes that are copied in one measurement: two frames of 64 KiB.
pub const BYTES: usize = 128 << 10;

/// Another method than the C library's is chosen if it saves more than one part in this many of the
/// time.
const WORTHWHILE: u64 = 32;

/// What was measured for one size class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    /// The lengths.
    pub class: SizeClass,
    /// The times, in the order of [`Method::ALL`].
    pub times: [Times; Method::ALL.len()],
}

/// How long a method takes for [`BYTES`], and a receiver for reading the copy afterwards. (Stores
/// that bypass the caches leave the wait to the receiver.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// Nanoseconds from memory that is in no cache to memory that is in no cache.
    pub cold: u64,
    /// Nanoseconds from and to memory that was used just now.
    pub warm: u64,
}

/// Times that any measurement is below.
const NOT_MEASURED: [Times; Method::ALL.len()] =
    [Times { cold: u64::MAX, warm: u64::MAX }; Method::ALL.len()];

impl Times {
    /// What is to be small: frames come from either kind of memory.
    fn sum(self) -> u64 {
        self.cold.saturating_add(self.warm)
    }
}

impl Measured {
    /// The method that the times suggest.
    pub fn best(&self) -> Method {
        let library = self.of(Method::Library).sum();
        let best = Method::ALL.into_iter().min_by_key(|method| self.of(*method).sum());
        best.filter(|best| self.of(*best).sum() < library - library / WORTHWHILE)
            .unwrap_or(Method::Library)
    }

    /// The times of a method.
    pub fn of(&self, method: Method) -> Times {
        self.times[method as usize]
    }
}

/// Measures all methods for all size classes. A round takes some 6 ms of one CPU, and all of them
/// a quarter of a MiB of memory. Of each method the fastest round counts: others were disturbed.
pub fn measure(rounds: u32) -> [Measured; SizeClass::ALL.len()] {
    let (source, mut target) = (vec![1u8; BYTES], vec![0u8; BYTES]);
    let mut all = SizeClass::ALL.map(|class| Measured { class, times: NOT_MEASURED });
    for _ in 0..rounds {
        for Measured { class, times } in &mut all {
            for (method, times) in Method::ALL.into_iter().zip(times) {
                flush(&source);
                flush(&target);
                for time in [&mut times.cold, &mut times.warm] {
                    *time = run(method, class.usual(), &source, &mut target).min(*time);
                }
            }
        }
    }
    all
}

/// [Measures](measure), and makes copies by the best methods from now on, in the whole process.
pub fn choose(rounds: u32) -> [Measured; SizeClass::ALL.len()] {
    let all = measure(rounds);
    all.iter().for_each(|measured| set_method(measured.class, measured.best()));
    all
}

/// Copies everything, `len` bytes at a time, and reads the copy. Returns the nanoseconds.
fn run(method: Method, len: usize, source: &[u8], target: &mut [u8]) -> u64 {
    let start = Instant::now();
    for (source, target) in source.chunks(len).zip(target.chunks_mut(len)) {
        let len = source.len().min(target.len());
        // SAFETY: both are slices of at least `len` bytes, and one is exclusive, so that they do
        // not overlap.
        unsafe { method.copy(source.as_ptr(), target.as_mut_ptr(), len) };
    }
    black_box(target.iter().step_by(CACHE_LINE).fold(0, |sum, byte| sum ^ byte));
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Removes all lines of `bytes` from all caches, where the processor can.
fn flush(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    for line in bytes.chunks(CACHE_LINE) {
        // SAFETY: an address of a slice; the instruction changes no byte.
        unsafe { std::arch::x86_64::_mm_clflush(line.as_ptr()) };
    }
    #[cfg(target_arch = "x86_64")]
    // SAFETY: waits for what came before.
    unsafe {
        std::arch::x86_64::_mm_mfence();
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (bytes, CACHE_LINE);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(times: [(u64, u64); 5]) -> Measured {
        let times = times.map(|(cold, warm)| Times { cold, warm });
        Measured { class: SizeClass::Page, times }
    }

    #[test]
    fn the_fastest_over_both_kinds_of_memory_is_chosen() {
        let best = |times| measured(times).best();
        let [library, string, far, bypass] = [(100, 20), (90, 31), (70, 40), (50, 90)];
        assert_eq!(best([library, string, (80, 25), far, bypass]), Method::PrefetchNear);
        assert_eq!(best([library, string, (81, 40), far, bypass]), Method::PrefetchFar);
        assert_eq!(best([library, string, library, library, bypass]), Method::Library);
        assert_eq!(best([library, string, library, library, (50, 50)]), Method::NonTemporal);
    }

    #[test]
    fn another_method_is_chosen_only_if_much_is_saved() {
        let best = |times| measured(times).best();
        let library = (3000, 200);
        assert_eq!(best([library, library, (2901, 200), library, library]), Method::Library);
        assert_eq!(best([library, library, (2899, 200), library, library]), Method::PrefetchNear);
    }

    #[test]
    fn all_methods_are_measured_for_all_classes() {
        for Measured { class, times } in measure(2) {
            for Times { cold, warm } in times {
                assert!((1..u64::MAX).contains(&cold), "{class:?}");
                assert!((1..u64::MAX).contains(&warm), "{class:?}");
            }
        }
    }
}
