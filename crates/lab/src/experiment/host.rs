//! The machine that an experiment runs on, and what it runs with.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};

use super::Ground;
use crate::bench::cpu_name;
use crate::bench::state::State;

/// What the figures of a run belong to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// CPUs that this process may use.
    pub cpus: usize,
    /// What they are called.
    pub cpu: String,
    /// Memory in MiB.
    pub memory: u64,
    /// The kernel.
    pub kernel: String,
    /// Whether it is itself a virtual machine.
    pub virtualised: bool,
}

impl Machine {
    /// This one.
    pub fn probe() -> Machine {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let total = read("/proc/meminfo").split_whitespace().nth(1).and_then(|word| word.parse::<u64>().ok());
        Machine {
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            cpu: cpu_name(),
            memory: total.unwrap_or_default() / 1024,
            kernel: read("/proc/sys/kernel/osrelease").trim().into(),
            virtualised: read("/proc/cpuinfo")
                .lines()
                .any(|line| line.starts_with("flags") && line.contains(" hypervisor")),
        }
    }
}

/// Versions of what takes part, by name. `build` is the fingerprint of the command itself: what another build measures
/// does not belong to the same run.
pub fn versions(binary: &Path, ground: Ground) -> BTreeMap<String, String> {
    let tool = |program: &str, arg: &str| {
        let output = Command::new(program).arg(arg).output().ok()?;
        // iperf says it on standard error, as some versions do.
        let text = [output.stdout, output.stderr].concat();
        String::from_utf8_lossy(&text).lines().next().map(str::to_owned)
    };
    let mut all = BTreeMap::from([("ringmain".to_owned(), env!("CARGO_PKG_VERSION").to_owned())]);
    all.insert("build".into(), std::fs::read(binary).map_or("unknown".into(), |bytes| fingerprint(&bytes)));
    let mut note = |name: &str, version: Option<String>| version.and_then(|version| all.insert(name.into(), version));
    note("iperf", tool("iperf", "-v"));
    if ground != Ground::Embedded {
        note("qemu", tool("qemu-system-x86_64", "--version"));
    }
    all
}

/// FNV-1a over words of eight bytes.
fn fingerprint(bytes: &[u8]) -> String {
    let hash = bytes.chunks(8).fold(0xcbf2_9ce4_8422_2325_u64, |hash, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        (hash ^ u64::from_le_bytes(word)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    format!("{hash:016x}")
}

/// How fast the machine is just now; none where it has a single CPU.
pub fn state() -> Option<State> {
    State::look([0, 1]).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builds_differ() {
        assert_ne!(fingerprint(b"one build"), fingerprint(b"another one"));
        assert_ne!(fingerprint(b"12345678"), fingerprint(b"1234567"));
    }

    #[test]
    fn this_machine_has_something() {
        let machine = Machine::probe();
        assert!(machine.cpus > 0 && machine.memory > 0 && !machine.kernel.is_empty(), "{machine:?}");
    }
}
