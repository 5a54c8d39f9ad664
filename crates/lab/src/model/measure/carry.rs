//! Frames between two guests of a daemon: how many come in a second, and the cost of each for the
//! worker and both guests.

use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::super::costs::Era;
use super::super::inputs::Carried;
use super::Measured;
use crate::bench::BenchError;
use crate::bench::embedded::case::Setting;
use crate::bench::embedded::load::Size;
use crate::bench::embedded::site::{self, Guests, NAMES, WARM_UP};
use crate::bench::embedded::test_guest::{Meter, Role};
use crate::daemon::{Daemon, DaemonError};
use control::categories::time;

/// How long frames are counted.
const TIME: Duration = Duration::from_millis(250);
/// The CPU of the guests; their worker has the other one.
const GUESTS: usize = 0;
const WORKER: &str = "cpus = [1]\n";

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
    pub fn rate(&self) -> Result<f64, BenchError> {
        self.during(|_, meters| {
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
        self.during(|daemon, meters| {
            std::thread::sleep(WARM_UP);
            let before = [count(&meters[0]), count(&meters[1])];
            let profile = daemon.client().profile(TIME).map_err(DaemonError::from)?;
            let after = [count(&meters[0]), count(&meters[1])];
            let frames = (after[1].0 - before[1].0).max(1) as f64;
            let used = |n: usize| after[n].2.saturating_sub(before[n].2).as_nanos() as f64 / frames;
            let name = format!("guests/{}", NAMES[1]);
            let port =
                profile.ports.iter().find(|port| port.name == name).ok_or(DaemonError::Answer)?;
            let step = |name| time(&port.steps_ns, name) as f64 / port.frames.max(1) as f64;
            Ok(Carried {
                bytes: port.bytes as f64 / port.frames.max(1) as f64,
                frames_per_burst: port.frames as f64 / port.bursts.max(1) as f64,
                frame: ["fetch", "classify", "deliver", "copy"].into_iter().map(step).sum(),
                publish: step("publish"),
                sender: used(0),
                receiver: used(1),
            })
        })
    }

    fn during<T>(
        &self,
        look: impl FnOnce(&Daemon, &[Vec<Meter>; 2]) -> Result<T, BenchError>,
    ) -> Result<T, BenchError> {
        let design = super::design(self.era);
        let setting = Setting { label: self.era.name(), keys: "", design, offset: 0 };
        let alone = self.workers == 1;
        let config = |dir: &Path| {
            let config = site::config(dir, &setting, self.workers);
            if alone {
                config.replacen("[[port]]", &format!("{WORKER}[[port]]"), 1)
            } else {
                config
            }
        };
        let daemon = Daemon::with_design(design, config, None)?;
        let cpu = alone.then_some(GUESTS);
        let guests = Guests {
            queues: self.workers,
            size: self.size,
            roles: [Role::Send, Role::Receive],
            cpu,
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
        sender: of(|it| it.sender),
        receiver: of(|it| it.receiver),
    }
}
