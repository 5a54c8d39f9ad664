//! Detection of a shortage of CPU time, in which polling in vain takes it from threads that need
//! it.
//!
//! Two counters of the kernel show a shortage: the time for which the worker was ready to run but
//! did not run (its run delay), and the same time for any thread of the host (pressure stall
//! information, PSI). Both are files, read ten times a second at most, and never by a worker that
//! has work. Where the kernel has neither, the host is taken to have enough.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// How often the files are read.
const EVERY: Duration = Duration::from_millis(100);
/// Share of the time that the worker has waited for its CPU, in percent, from which on the host is
/// short.
const DELAY_PERCENT: u64 = 10;
/// The same share for any thread of the host. This share only counts for a worker that is not
/// pinned, because a worker on a CPU of its own takes nothing from others.
const STALL_PERCENT: u64 = 40;
/// How many readings in a row must show enough before the shortage is over.
const CALM: u32 = 5;

/// One worker's record of the shortage of CPU time.
pub struct CpuPressure {
    delay: Option<Meter>,
    stall: Option<Meter>,
    next: Instant,
    last: Instant,
    /// The number of calm readings in a row that end the shortage; 0: there is no shortage.
    left: u32,
}

impl CpuPressure {
    /// The record of the calling thread, which is `pinned` or not.
    pub fn of_this_thread(pinned: bool, now: Instant) -> Self {
        let delay = Meter::open("/proc/thread-self/schedstat", run_delay);
        let stall = if pinned { None } else { Meter::open("/proc/pressure/cpu", stalled) };
        CpuPressure { delay, stall, next: now + EVERY, last: now, left: 0 }
    }

    /// A record that never finds a shortage.
    pub fn never(now: Instant) -> Self {
        CpuPressure { delay: None, stall: None, next: now, last: now, left: 0 }
    }

    /// Whether there is a shortage; reads the files if that was not done lately.
    #[inline]
    pub fn is_here(&mut self, now: Instant) -> bool {
        if now >= self.next && (self.delay.is_some() || self.stall.is_some()) {
            self.measure(now);
        }
        self.left > 0
    }

    #[cold]
    fn measure(&mut self, now: Instant) {
        let passed = now - self.last;
        (self.last, self.next) = (now, now + EVERY);
        let above = |meter: &mut Option<Meter>, percent| {
            meter
                .as_mut()
                .and_then(Meter::grown)
                .is_some_and(|grown| is_above(grown, passed, percent))
        };
        // Both are read, so that both count from now on.
        let short = above(&mut self.delay, DELAY_PERCENT) | above(&mut self.stall, STALL_PERCENT);
        self.left = if short { CALM } else { self.left.saturating_sub(1) };
    }
}

/// Whether `part` is more than `percent` of `whole`.
fn is_above(part: Duration, whole: Duration, percent: u64) -> bool {
    part.as_nanos() * 100 > whole.as_nanos() * u128::from(percent)
}

/// A file of the kernel's with a time in it that grows.
struct Meter {
    file: File,
    read: fn(&str) -> Option<Duration>,
    last: Duration,
}

impl Meter {
    /// `None`: the kernel has no such file, or something else in it.
    fn open(path: &str, read: fn(&str) -> Option<Duration>) -> Option<Self> {
        let file = File::open(path).ok()?;
        let mut meter = Meter { file, read, last: Duration::ZERO };
        meter.last = meter.now().ok()?;
        Some(meter)
    }

    fn now(&self) -> io::Result<Duration> {
        let mut text = [0; 256];
        let len = self.file.read_at(&mut text, 0)?;
        let text = str::from_utf8(&text[..len]).ok();
        text.and_then(self.read).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// The growth of the time since the last call.
    fn grown(&mut self) -> Option<Duration> {
        let now = self.now().ok()?;
        Some(now.saturating_sub(std::mem::replace(&mut self.last, now)))
    }
}

/// `schedstat`: time on the CPU, time ready without one (both in ns), and a count.
fn run_delay(text: &str) -> Option<Duration> {
    text.split_whitespace().nth(1)?.parse().ok().map(Duration::from_nanos)
}

/// `pressure/cpu`: `some avg10=0.00 avg60=0.00 avg300=0.00 total=1234` in microseconds, and another
/// line.
fn stalled(text: &str) -> Option<Duration> {
    let some = text.lines().find(|line| line.starts_with("some "))?;
    let total = some.split_whitespace().find_map(|word| word.strip_prefix("total="))?;
    total.parse().ok().map(Duration::from_micros)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn the_kernels_files_are_understood() {
        assert_eq!(run_delay("82171347 64776 1\n"), Some(Duration::from_nanos(64_776)));
        let pressure =
            "some avg10=6.87 avg60=20.68 avg300=25.85 total=272444544\nfull avg10=0.00 total=7\n";
        assert_eq!(stalled(pressure), Some(Duration::from_micros(272_444_544)));
        for strange in ["", "1", "some", "full total=3", "some total=x", "a b c"] {
            assert_eq!((run_delay(strange), stalled(strange)), (None, None), "{strange:?}");
        }
    }

    #[test]
    fn a_shortage_begins_at_once_and_ends_after_several_calm_readings() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let mut write = |ns: u64| {
            file.as_file().set_len(0).unwrap();
            std::io::Seek::rewind(&mut file).unwrap();
            write!(file, "5 {ns} 1").unwrap();
            file.path().to_owned()
        };
        let path = write(0);
        let start = Instant::now();
        let delay = Meter::open(path.to_str().unwrap(), run_delay);
        let mut pressure =
            CpuPressure { delay, stall: None, next: start + EVERY, last: start, left: 0 };
        assert!(!pressure.is_here(start + EVERY), "nobody waited");
        write(15_000_000);
        assert!(!pressure.is_here(start + EVERY + EVERY / 2), "it is not read so often");
        for n in 2..2 + CALM {
            assert!(pressure.is_here(start + n * EVERY), "{n}");
        }
        assert!(!pressure.is_here(start + (2 + CALM) * EVERY));
    }

    #[test]
    fn without_the_files_there_is_enough() {
        let now = Instant::now();
        assert!(Meter::open("/proc/no such file", run_delay).is_none());
        assert!(!CpuPressure::never(now).is_here(now + 10 * EVERY));
        // The files of this kernel, whatever they contain, are read without harm.
        CpuPressure::of_this_thread(false, now).is_here(now + EVERY);
    }
}
