//! Frames between two guests of a daemon: how many come in a second, and the cost of each for the
//! worker and both guests.

use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::super::costs::Era;
use super::super::inputs::Carried;
use super::Measured;
use super::profiled::profiled;
use crate::bench::BenchError;
use crate::bench::embedded::case::Setting;
use crate::bench::embedded::load::Size;
use crate::bench::embedded::site::{self, Guests, NAMES, WARM_UP};
use crate::bench::embedded::test_guest::{Meter, Role};
use crate::daemon::Daemon;
use crate::fixture::Placement;

/// How long frames are counted.
const TIME: Duration = Duration::from_millis(250);

/// A run.
#[derive(Clone, Copy, Debug)]
pub struct Carrying {
    /// The hypervisor's design.
    pub era: Era,
    /// The size of the frames.
    pub size: Size,
    /// Workers, and queues of both guests.
    pub workers: u16,
}

/// The counts of one thread.
type Count = (u64, u64, Duration);

impl Carrying {
    /// Frames in a second.
    ///
    /// # Errors
    /// When something does not start, or a guest reports an error of the backend.
    pub fn rate(&self, placement: Placement) -> Result<f64, BenchError> {
        self.during(placement, |_, meters| {
            std::thread::sleep(WARM_UP);
            let (then, before) = (Instant::now(), count(&meters[1]));
            std::thread::sleep(TIME);
            Ok((count(&meters[1]).0 - before.0) as f64 / then.elapsed().as_secs_f64())
        })
    }

    /// The cost of each frame.
    ///
    /// # Errors
    /// As before.
    pub(super) fn profile(&self) -> Result<Carried, BenchError> {
        let together = 1e9 / self.rate(Placement::Together)?.max(1.0);
        self.during(Placement::Apart, |daemon, meters| {
            std::thread::sleep(WARM_UP);
            let before = [count(&meters[0]), count(&meters[1])];
            let carried = profiled(daemon, &NAMES.map(|name| format!("guests/{name}")), TIME)?;
            let after = [count(&meters[0]), count(&meters[1])];
            let frames = (after[1].0 - before[1].0).max(1) as f64;
            let used = |n: usize| after[n].2.saturating_sub(before[n].2).as_nanos() as f64 / frames;
            Ok(Carried { sender: used(0), receiver: used(1), together, ..carried })
        })
    }

    fn during<T>(
        &self,
        placement: Placement,
        look: impl FnOnce(&Daemon, &[Vec<Meter>; 2]) -> Result<T, BenchError>,
    ) -> Result<T, BenchError> {
        let design = super::design(self.era);
        let setting = Setting { label: self.era.name(), keys: "", design, offset: 0 };
        let [_, guests] = placement.cpus(self.workers.into());
        let keys = placement.keys(self.workers.into());
        let config = |dir: &Path| {
            let config = site::config(dir, &setting, self.workers);
            config.replacen("[[port]]", &format!("{keys}[[port]]"), 1)
        };
        let daemon = Daemon::with_design(design, config, None)?;
        let guests = Guests {
            queues: self.workers,
            size: self.size,
            roles: [Role::Send, Role::Receive],
            cpus: guests,
        };
        guests.during(&daemon, |meters| look(&daemon, meters))
    }
}

fn count(meters: &[Meter]) -> Count {
    meters.iter().fold(Count::default(), |(frames, bytes, used), meter| {
        let thread = site::thread_used(meter.thread.load(Relaxed));
        (frames + meter.frames.load(Relaxed), bytes + meter.bytes.load(Relaxed), used + thread)
    })
}

/// The middle of each figure.
pub(super) fn median(all: &[Carried]) -> Carried {
    let of = |figure: fn(&Carried) -> f64| Measured::of(all.iter().map(figure).collect()).median;
    Carried {
        bytes: of(|it| it.bytes),
        frames_per_burst: of(|it| it.frames_per_burst),
        frame: of(|it| it.frame),
        publish: of(|it| it.publish),
        interrupts: of(|it| it.interrupts),
        sender: of(|it| it.sender),
        receiver: of(|it| it.receiver),
        together: of(|it| it.together),
    }
}
