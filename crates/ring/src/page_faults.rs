//! Page faults, as the kernel counts them for each thread.

use std::mem::MaybeUninit;

/// Page faults of the calling thread so far, whether their pages were in memory or not. A system
/// call.
pub fn count() -> u64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: zeros are a valid `rusage`, and the kernel writes one there or nothing.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init()
    };
    let all = usage.ru_minflt.saturating_add(usage.ru_majflt);
    u64::try_from(all).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::Memory;

    #[test]
    fn each_page_that_is_touched_first_is_a_fault() {
        const PAGES: usize = 64;
        let memory = Memory::shared(PAGES * 4096).unwrap().0;
        let before = count();
        for page in 0..PAGES as u64 {
            memory.write(page * 4096, &[1]).unwrap();
        }
        assert!(count() - before >= PAGES as u64 / 16, "{} faults", count() - before);
    }
}
