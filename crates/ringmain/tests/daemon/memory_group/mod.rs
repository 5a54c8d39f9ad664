//! A memory cgroup for one process, of either version of cgroups.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Where each version is mounted, and its files: the limit, and the most that was used.
const VERSIONS: [(&str, &str, &str); 2] = [
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.max_usage_in_bytes"),
    ("/sys/fs/cgroup", "memory.max", "memory.peak"),
];

/// A cgroup, removed when this value is dropped.
pub struct MemoryGroup {
    process: u32,
    dir: PathBuf,
    peak: PathBuf,
    /// Where the process goes back to.
    outside: PathBuf,
}

impl MemoryGroup {
    /// Moves a process to a group of its own, with so many bytes of memory.
    pub fn new(process: u32, bytes: u64) -> io::Result<MemoryGroup> {
        let mounted = |(root, limit, _): &&(&str, &str, &str)| {
            let probe = Path::new(root).join(format!("ringmain-probe-{process}"));
            let has = fs::create_dir(&probe).is_ok() && probe.join(limit).exists();
            let _ = fs::remove_dir(&probe);
            has
        };
        let missing = || io::Error::new(io::ErrorKind::Unsupported, "no memory controller");
        let (root, limit, peak) = VERSIONS.iter().find(mounted).ok_or_else(missing)?;
        let dir = Path::new(root).join(format!("ringmain-{process}"));
        fs::create_dir(&dir)?;
        let outside = Path::new(root).join("cgroup.procs");
        let group = MemoryGroup { process, peak: dir.join(peak), dir, outside };
        fs::write(group.dir.join(limit), bytes.to_string())?;
        fs::write(group.dir.join("cgroup.procs"), process.to_string())?;
        Ok(group)
    }

    /// The most bytes that were in use, where the kernel tells.
    pub fn peak(&self) -> Option<u64> {
        fs::read_to_string(&self.peak).ok()?.trim().parse().ok()
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // The process may have ended.
        let _ = fs::write(&self.outside, self.process.to_string());
        let _ = fs::remove_dir(&self.dir);
    }
}
