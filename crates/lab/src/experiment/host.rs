//! The machine that an experiment runs on, and what it runs with.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::Platform;
use crate::bench::state::State;
use crate::guest::{Accel, Image};
use crate::tool;
use load::cpu::cpu_name;

/// The machine that the figures of a run belong to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// CPUs that this process may use.
    pub cpus: usize,
    /// The name of the CPUs.
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
        let total = read("/proc/meminfo")
            .split_whitespace()
            .nth(1)
            .and_then(|word| word.parse::<u64>().ok());
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

/// Versions of what takes part, by name. `build` is the fingerprint of the command itself: what
/// another build measures does not belong to the same run. What guests boot is in the folder
/// `cache`.
pub fn versions(binary: &Path, platform: Platform, cache: &Path) -> BTreeMap<String, String> {
    let mut all = BTreeMap::from([("ringmain".to_owned(), env!("CARGO_PKG_VERSION").to_owned())]);
    all.insert(
        "build".into(),
        std::fs::read(binary).map_or("unknown".into(), |bytes| fingerprint(&bytes)),
    );
    let mut note = |name: &str, version: Option<String>| {
        version.and_then(|version| all.insert(name.into(), version))
    };
    note("iperf", tool::version("iperf", "-v"));
    match platform {
        Platform::Embedded => {
            note(
                "TCP congestion control",
                first_line(Path::new("/proc/sys/net/ipv4/tcp_congestion_control")),
            );
        }
        Platform::Qemu => {
            note("qemu", tool::version("qemu-system-x86_64", "--version"));
            note("guest kernel", first_line(&cache.join("kernel/version")));
            let accel = Image::prepare(cache).and_then(|image| Accel::probe(&image, cache));
            note("guests run on", accel.ok().map(|accel| accel.name().into()));
        }
        Platform::Xen => {
            note("qemu", tool::version("qemu-system-x86_64", "--version"));
            note("xen", package(cache, "xen-hypervisor-"));
            note("guest kernel", package(cache, "linux-image-"));
            note("dom0 made of", first_line(&cache.join("xen/made-of")));
        }
    }
    all
}

fn first_line(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()?.lines().next().map(|line| line.trim().to_owned())
}

/// The package of the Xen host whose name begins like this: name and version.
fn package(cache: &Path, prefix: &str) -> Option<String> {
    let names = std::fs::read_dir(cache.join("xen/debs"))
        .ok()?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let newest = names.filter(|name| name.starts_with(prefix) && name.ends_with(".deb")).max()?;
    Some(newest.trim_end_matches(".deb").replace("%3a", ":"))
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
    fn versions_of_a_xen_host_are_read_from_its_packages() {
        let cache = tempfile::tempdir().unwrap();
        assert_eq!(package(cache.path(), "xen-hypervisor-"), None);
        std::fs::create_dir_all(cache.path().join("xen/debs")).unwrap();
        for name in [
            "xen-hypervisor-4.17-amd64_4.17.5-1_amd64.deb",
            "xen-utils-4.17_4.17.5-1_amd64.deb",
            "lock",
        ] {
            std::fs::write(cache.path().join("xen/debs").join(name), "").unwrap();
        }
        std::fs::write(cache.path().join("xen/made-of"), "abc  -\n").unwrap();
        let versions = versions(Path::new("/none"), Platform::Xen, cache.path());
        assert_eq!(versions["xen"], "xen-hypervisor-4.17-amd64_4.17.5-1_amd64");
        assert_eq!(
            (versions["dom0 made of"].as_str(), versions.contains_key("guest kernel")),
            ("abc  -", false)
        );
    }

    #[test]
    fn this_machine_has_something() {
        let machine = Machine::probe();
        assert!(
            machine.cpus > 0 && machine.memory > 0 && !machine.kernel.is_empty(),
            "{machine:?}"
        );
    }
}
