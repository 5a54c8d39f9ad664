//! The host against which a configuration is checked.

/// The host that the daemon runs on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Host {
    /// CPUs that this process may use, ascending.
    pub cpus: Vec<u16>,
}

impl Host {
    /// This process, here and now.
    ///
    /// # Errors
    /// When the kernel does not report the CPUs.
    pub fn probe() -> std::io::Result<Host> {
        use rustix::thread::{CpuSet, sched_getaffinity};
        let set = sched_getaffinity(None)?;
        let cpus = (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).map(|cpu| cpu as u16);
        Ok(Host { cpus: cpus.collect() })
    }
}
