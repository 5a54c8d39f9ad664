//! Time that the host of this virtual machine took from its CPUs (steal time).
//!
//! While the host runs something else on a CPU, each operation on that CPU seems to take long. If
//! both of two CPUs share a core, an operation that wakes the other CPU even takes long again and
//! again. The kernel of a virtual machine counts the time in `/proc/stat`, if the host tells.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::time::Duration;

/// The kernel's file. Threads in the sandbox cannot open it any more.
static FILE: OnceLock<Option<File>> = OnceLock::new();

/// Bytes that are read at once, and at most: the lines of some thousand CPUs.
const PIECE: usize = 1 << 16;
const MOST: usize = 1 << 20;

/// The resolution of the counters: `USER_HZ` is 100 on x86-64 and Arm.
const TICK: Duration = Duration::from_millis(10);

/// The time taken from each CPU since the boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stolen(Vec<u64>);

/// Opens the kernel's file. Without this call, nothing counts as stolen.
pub fn prepare() {
    FILE.get_or_init(|| File::open("/proc/stat").ok());
}

impl Stolen {
    /// The time until now. `None`: the kernel does not say.
    pub fn now() -> Option<Stolen> {
        let file = FILE.get()?.as_ref()?;
        let mut text = Vec::new();
        while text.len() < MOST && is_incomplete(&text) {
            let len = text.len();
            text.resize(len + PIECE, 0);
            let read = file.read_at(&mut text[len..], len as u64).ok()?;
            text.truncate(len + read);
            if read == 0 {
                break;
            }
        }
        Stolen::parse(str::from_utf8(&text).ok()?)
    }

    /// Reads `/proc/stat`: "cpu3 " and the ticks of user, nice, system, idle, iowait, irq, softirq
    /// and steal.
    fn parse(text: &str) -> Option<Stolen> {
        let steal = |line: &str| {
            let (name, ticks) = line.split_once(' ')?;
            let is_one = name.strip_prefix("cpu")?.parse::<u32>().is_ok();
            is_one.then(|| ticks.split_whitespace().nth(7)?.parse().ok()).flatten()
        };
        let each: Vec<u64> = text.lines().filter_map(steal).collect();
        (!each.is_empty()).then_some(Stolen(each))
    }

    /// The most that was taken from any CPU since `earlier`. Zero if the number of CPUs changed.
    pub fn most_since(&self, earlier: &Stolen) -> Duration {
        if self.0.len() != earlier.0.len() {
            return Duration::ZERO;
        }
        let pairs = self.0.iter().zip(&earlier.0);
        let most = pairs.map(|(now, then)| now.saturating_sub(*then)).max().unwrap_or(0);
        TICK.saturating_mul(u32::try_from(most).unwrap_or(u32::MAX))
    }
}

#[cfg(test)]
impl Stolen {
    /// These times.
    pub(crate) fn of(each: &[Duration]) -> Stolen {
        Stolen(each.iter().map(|time| (time.as_nanos() / TICK.as_nanos()) as u64).collect())
    }
}

/// Whether lines of CPUs may follow. The line behind them is that of interrupts.
fn is_incomplete(text: &[u8]) -> bool {
    !text.windows(5).any(|bytes| bytes == b"\nintr")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "cpu  10 1 5 70 10 1 2 9 0 0\ncpu0 5 0 3 35 5 0 1 4 0 0\n\
        cpu1 5 1 2 35 5 1 1 5 0 0\nintr 5 0 0 0 0 0 0 0 8\nctxt 7\n";

    #[test]
    fn the_kernels_file_is_understood() {
        assert_eq!(Stolen::parse(TEXT), Some(Stolen(vec![4, 5])));
        for strange in ["", "cpu", "cpu 1 2 3 4 5 6 7 8", "cpu0 1 2 3", "cpu0 1 2 3 4 5 6 7 x"] {
            assert_eq!(Stolen::parse(strange), None, "{strange:?}");
        }
        assert!(is_incomplete(&TEXT.as_bytes()[..30]) && !is_incomplete(TEXT.as_bytes()));
    }

    #[test]
    fn the_cpu_counts_from_which_most_was_taken() {
        let (then, now) = (Stolen(vec![4, 5]), Stolen(vec![6, 8]));
        assert_eq!(now.most_since(&then), 3 * TICK);
        assert_eq!(then.most_since(&now), Duration::ZERO);
        assert_eq!(now.most_since(&Stolen(vec![4])), Duration::ZERO);
    }

    #[test]
    fn this_kernel_has_the_file() {
        prepare();
        let (first, second) = (Stolen::now().unwrap(), Stolen::now().unwrap());
        assert_eq!(first.0.len(), second.0.len());
        assert!(second.most_since(&first) < Duration::from_secs(60));
    }
}
