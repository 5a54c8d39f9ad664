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
use crate::fixture::Placement;
use control::categories::time;

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
            let interrupts = interrupts(daemon)?;
            let before = [count(&meters[0]), count(&meters[1])];
            let profile = daemon.client().profile(TIME).map_err(DaemonError::from)?;
            let after = [count(&meters[0]), count(&meters[1])];
            let frames = (after[1].0 - before[1].0).max(1) as f64;
            let sent = (self::interrupts(daemon)? - interrupts) as f64;
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
                interrupts: sent / frames,
                sender: used(0),
                receiver: used(1),
                together,
            })
        })
    }

    fn during<T>(
        &self,
        placement: Placement,
        look: impl FnOnce(&Daemon, &[Vec<Meter>; 2]) -> Result<T, BenchError>,
    ) -> Result<T, BenchError> {
        let design = super::design(self.era);
        let setting = Setting { label: self.era.name(), keys: "", design, offset: 0 };
        let [workers, guests] = placement.cpus(self.workers.into());
        let config = |dir: &Path| {
            let config = site::config(dir, &setting, self.workers);
            config.replacen("[[port]]", &format!("{}[[port]]", cpus_key(&workers)), 1)
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

/// The key of `[workers]` for these CPUs, if there are any.
pub(super) fn cpus_key(cpus: &[usize]) -> String {
    if cpus.is_empty() { String::new() } else { format!("cpus = {cpus:?}\n") }
}

/// Interrupts that both guests got so far.
fn interrupts(daemon: &Daemon) -> Result<u64, BenchError> {
    let stats = daemon.stats()?;
    let guests = NAMES.map(|name| format!("guests/{name}"));
    let ports = stats.ports.iter().filter(|port| guests.contains(&port.name));
    Ok(ports.map(|port| port.total.rx_interrupts + port.total.tx_interrupts).sum())
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
