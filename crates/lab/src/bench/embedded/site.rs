//! A daemon and two guests: one run of a load between them.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use control::api::Counts;

use super::case::Setting;
use super::figure::Figure;
use super::frames::Frames;
use super::load::{Load, Size};
use super::test_guest::{Meter, Role, TestGuest, Vcpu};
use crate::bench::BenchError;
use crate::daemon::Daemon;
use crate::fixture::with_grant_copies;
use load::cpu;

/// Time at the start that is not measured.
pub(crate) const WARM_UP: Duration = Duration::from_millis(200);
/// The guests.
const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
pub(crate) const NAMES: [&str; 2] = ["a", "b"];

/// Starts a daemon that serves its guests with these settings.
pub(crate) fn daemon(setting: &Setting, queues: u16) -> Result<Daemon, BenchError> {
    Ok(Daemon::with_design(setting.design, |dir| config(dir, setting, queues), None)?)
}

/// The configuration of such a daemon.
pub(crate) fn config(dir: &Path, setting: &Setting, queues: u16) -> String {
    let socket = dir.join("guests.sock");
    let port = format!("name = \"guests\"\nkind = \"embedded\"\nsocket = \"{}\"", socket.display());
    let keys = with_grant_copies(setting.keys);
    format!("[workers]\ncount = {queues}\n[[port]]\n{port}\nqueues = {queues}\n{keys}\n")
}

/// The daemon's counters so far.
pub(super) struct Snapshot {
    at: Instant,
    used: Duration,
    frames: u64,
    interrupts: u64,
}

impl Snapshot {
    /// Now, as for the guest of that name.
    pub(super) fn now(daemon: &Daemon, name: &str) -> Result<Self, BenchError> {
        let stats = daemon.stats()?;
        let port = stats.ports.iter().find(|port| port.name == format!("guests/{name}"));
        let received =
            |total: &Counts| (total.rx_frames + total.direct_frames, total.rx_interrupts);
        let (frames, interrupts) = port.map_or((0, 0), |port| received(&port.total));
        Ok(Snapshot { at: Instant::now(), used: cpu::used(daemon.id()), frames, interrupts })
    }

    /// Seconds since then, and all but the rate and what the guest knows.
    pub(super) fn since(&self, then: &Snapshot) -> (f64, Figure) {
        let frames = self.frames.saturating_sub(then.frames);
        let per = |what: f64, by: u64| (by > 0).then(|| what / by as f64);
        let backend = self.used.saturating_sub(then.used).as_nanos() as f64;
        let figure = Figure {
            rate: 0.0,
            backend_ns: per(backend, frames),
            guest_ns: None,
            frames_per_interrupt: per(
                frames as f64,
                self.interrupts.saturating_sub(then.interrupts),
            ),
        };
        ((self.at - then.at).as_secs_f64(), figure)
    }
}

/// One run.
///
/// # Errors
/// When something does not start, or a guest reports an error of the backend.
pub(super) fn measure(setting: &Setting, load: Load, time: Duration) -> Result<Figure, BenchError> {
    let (queues, size, roles) = match load {
        Load::Frames { size, queues } => (queues, size, [Role::Send, Role::Receive]),
        Load::Paced => (1, Size::Small, [Role::Pace, Role::Receive]),
        Load::Echo => (1, Size::Small, [Role::Ask, Role::Answer]),
        Load::Streams | Load::Wire | Load::Map { .. } | Load::Copy { .. } => {
            (1, Size::Small, [Role::Receive; 2])
        }
    };
    let daemon = daemon(setting, queues)?;
    let guests = Guests { queues, size, roles, cpus: Vec::new() };
    guests.during(&daemon, |meters| {
        watch(&daemon, load, &meters[usize::from(load != Load::Echo)], time)
    })
}

/// Two guests of a daemon.
pub(crate) struct Guests {
    /// Queues of each, with a thread for each.
    pub(crate) queues: u16,
    /// The size of the frames.
    pub(crate) size: Size,
    /// The role of each guest.
    pub(crate) roles: [Role; 2],
    /// The CPU of the threads of each queue, in turn; empty: threads run anywhere.
    pub(crate) cpus: Vec<usize>,
}

impl Guests {
    /// Runs both while `look` observes them. `look` gets the meters of both.
    ///
    /// # Errors
    /// When they do not start, or report an error of the backend.
    pub(crate) fn during<T>(
        &self,
        daemon: &Daemon,
        look: impl FnOnce(&[Vec<Meter>; 2]) -> Result<T, BenchError>,
    ) -> Result<T, BenchError> {
        let socket = daemon.dir().join("guests.sock");
        let connect = |n: usize| {
            TestGuest::connect(&socket, NAMES[n], MACS[n], self.queues)
                .map_err(failed("start a guest"))
        };
        let (mut a, mut b) = (connect(0)?, connect(1)?);
        let meters: [Vec<Meter>; 2] =
            [(), ()].map(|()| (0..self.queues).map(|_| Meter::default()).collect());
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for (n, guest) in [&mut a, &mut b].into_iter().enumerate() {
                let (from, to) = (guest.mac, MACS[1 - n]);
                for ((at, queue), meter) in (0..).zip(&mut guest.queues).zip(&meters[n]) {
                    let vcpu = Vcpu::new(
                        queue,
                        self.roles[n],
                        Frames::new(self.size, from, to, at),
                        meter,
                    );
                    let cpu = self.cpus.iter().cycle().nth(at.into()).copied();
                    let stop = &stop;
                    threads.push(scope.spawn(move || {
                        cpu.map_or(Ok(()), cpu::pin)?;
                        vcpu.run(stop).map_err(io::Error::other)
                    }));
                }
            }
            let seen = look(&meters);
            stop.store(true, Relaxed);
            for thread in threads {
                let ended = thread.join().map_err(|_| io::ErrorKind::Other.into());
                ended.and_then(|outcome| outcome).map_err(failed("go on as a guest"))?;
            }
            seen
        })
    }
}

/// Takes the figures of guests that are at work; `meters` are those that count.
fn watch(
    daemon: &Daemon,
    load: Load,
    meters: &[Meter],
    time: Duration,
) -> Result<Figure, BenchError> {
    let counted = || {
        let sum = |of: fn(&Meter) -> u64| meters.iter().map(of).sum::<u64>();
        let used: Duration =
            meters.iter().map(|meter| thread_used(meter.thread.load(Relaxed))).sum();
        (sum(|meter| meter.frames.load(Relaxed)), sum(|meter| meter.bytes.load(Relaxed)), used)
    };
    std::thread::sleep(WARM_UP);
    let name = NAMES[usize::from(load != Load::Echo)];
    let (then, before) = (Snapshot::now(daemon, name)?, counted());
    std::thread::sleep(time);
    let (now, after) = (Snapshot::now(daemon, name)?, counted());
    let (seconds, figure) = now.since(&then);
    let (frames, bytes) = (after.0 - before.0, after.1 - before.1);
    let used = after.2.saturating_sub(before.2);
    let count = if load.counts_bytes() { bytes } else { frames };
    Ok(Figure {
        rate: count as f64 / seconds / load.unit().1,
        guest_ns: (frames > 0).then(|| used.as_nanos() as f64 / frames as f64),
        ..figure
    })
}

/// CPU time of a thread of this process.
pub(crate) fn thread_used(thread: u32) -> Duration {
    let text =
        fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).unwrap_or_default();
    Duration::from_nanos(
        text.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or_default(),
    )
}

pub(crate) fn failed(what: &'static str) -> impl Fn(io::Error) -> BenchError {
    move |source| BenchError::Start { what, source }
}
