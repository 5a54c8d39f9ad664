//! Huge pages for DPDK, given back afterwards.

use std::fs;
use std::io;

const FREE: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";
const COUNT: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";

/// How often to ask for pages that the kernel did not find at once.
const TRIES: u32 = 5;

/// Additional huge pages, as long as this value lives.
#[derive(Debug)]
pub struct HugePages {
    /// Pages before.
    before: u64,
}

impl HugePages {
    /// Sees to it that `wanted` pages of 2 MB are free.
    ///
    /// # Errors
    /// When the kernel has none, or memory is too fragmented or short.
    pub fn reserve(wanted: u64) -> io::Result<Self> {
        let before = read(COUNT)?;
        let pages = Self { before };
        for _ in 0..TRIES {
            let missing = wanted.saturating_sub(read(FREE)?);
            if missing == 0 {
                break;
            }
            fs::write(COUNT, (read(COUNT)? + missing).to_string())?;
            // Memory that was used for long lies in small pieces; kernels without compaction have
            // to do without.
            let _ = fs::write("/proc/sys/vm/compact_memory", "1");
        }
        match read(FREE)? {
            free if free >= wanted => Ok(pages),
            free => Err(io::Error::other(format!(
                "{free} huge pages of 2 MB are free, {wanted} are needed"
            ))),
        }
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        // Pages that cannot be given back now are in use by another process.
        let _ = fs::write(COUNT, self.before.to_string());
    }
}

fn read(path: &str) -> io::Result<u64> {
    let text = fs::read_to_string(path)?;
    text.trim().parse().map_err(|_| io::Error::other(format!("{path} holds no number")))
}
