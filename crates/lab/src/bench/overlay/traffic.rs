//! Frames from one guest to another, a window of them under way, and what they cost.

use std::time::{Duration, Instant};

use load::cpu::{self, Snapshot};

use super::frames::Traffic;
use super::guests::Guests;
use crate::fixture::kernel_helpers;
use crate::interrupt;

/// Traffic before the measurement.
const WARM_UP: Duration = Duration::from_millis(100);
/// After this time without a frame, those that are under way are lost.
const LOST_AFTER: Duration = Duration::from_millis(5);
/// Frames that are sent before what arrived is taken.
const BURST: usize = 64;
/// A pause of the generator that has nothing to do. The hosts need the CPU.
const PAUSE: Duration = Duration::from_micros(20);

/// Frames that arrived, and what they cost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Carried {
    /// Frames of the sender's size, whose payload arrived.
    pub(super) frames: f64,
    /// Seconds of the measurement.
    pub(super) seconds: f64,
    /// CPUs that both hosts used.
    pub(super) hosts: f64,
    /// CPUs that others used.
    pub(super) others: f64,
}

impl Carried {
    /// CPU time of both hosts for each frame, in nanoseconds.
    pub(super) fn host_ns_per_frame(&self) -> f64 {
        self.hosts * self.seconds * 1e9 / self.frames
    }

    /// The same payload, counted in frames of another kind.
    pub(super) fn counted_as(self, traffic: Traffic, other: Traffic) -> Carried {
        let frames = self.frames * traffic.payload() as f64 / other.payload() as f64;
        Carried { frames, ..self }
    }
}

/// Whose CPU time counts as that of the hosts, besides that of the kernel's threads.
#[derive(Clone, Debug)]
pub(super) enum Payers {
    /// The generator, in whose system calls the kernel carries the frames.
    Generator,
    /// The daemons with these process ids.
    Daemons(Vec<u32>),
}

/// Progress of the frames.
#[derive(Debug, Default)]
struct Count {
    sent: u64,
    /// Payload bytes that are under way.
    under_way: u64,
    /// Payload bytes that arrived.
    arrived: u64,
    last: Option<Instant>,
}

/// Sends frames for `seconds`, on CPU `cpu`. An error is one line.
pub(super) fn carry(
    guests: &mut dyn Guests,
    traffic: Traffic,
    payers: Payers,
    seconds: f64,
    cpu: usize,
) -> Result<Carried, String> {
    let work = || -> Result<Carried, String> {
        cpu::pin(cpu).map_err(|error| format!("CPU {cpu}: {error}"))?;
        let mut count = Count::default();
        exchange(guests, traffic, WARM_UP, &mut count)?;
        if count.arrived == 0 {
            return Err("no frame arrived".into());
        }
        let ids = payers.processes();
        let (before, began, arrived) = (Snapshot::now(&ids), Instant::now(), count.arrived);
        exchange(guests, traffic, Duration::from_secs_f64(seconds), &mut count)?;
        let seconds = began.elapsed().as_secs_f64();
        let shares = Snapshot::now(&ids).since(&before);
        Ok(Carried {
            frames: (count.arrived - arrived) as f64 / traffic.payload() as f64,
            seconds,
            // The generator is the first one.
            hosts: match &payers {
                Payers::Generator => shares.of.iter().sum(),
                Payers::Daemons(_) => shares.of.iter().skip(1).sum(),
            },
            others: shares.others,
        })
    };
    // A thread that is bound to a CPU is not bound any more when it ends.
    std::thread::scope(|scope| {
        let thread = scope.spawn(work);
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

impl Payers {
    /// The generator, the daemons, and the threads of the kernel.
    fn processes(&self) -> Vec<u32> {
        let mut ids = vec![std::process::id()];
        if let Payers::Daemons(daemons) = self {
            ids.extend(daemons);
        }
        ids.extend(kernel_helpers());
        ids
    }
}

fn exchange(
    guests: &mut dyn Guests,
    traffic: Traffic,
    time: Duration,
    count: &mut Count,
) -> Result<(), String> {
    let payload = traffic.payload() as u64;
    let window = traffic.window() as u64 * payload;
    let until = Instant::now() + time;
    loop {
        let now = Instant::now();
        if now >= until || interrupt::asked() {
            return Ok(());
        }
        let room = (window.saturating_sub(count.under_way) / payload) as usize;
        let sent = guests.send(traffic, count.sent, room.min(BURST))? as u64;
        count.sent += sent;
        count.under_way += sent * payload;
        let arrived = guests.receive(traffic)?;
        count.arrived += arrived;
        count.under_way = count.under_way.saturating_sub(arrived);
        if arrived > 0 {
            count.last = Some(now);
        } else if now.duration_since(*count.last.get_or_insert(now)) > LOST_AFTER {
            (count.under_way, count.last) = (0, Some(now));
        }
        if sent == 0 && arrived == 0 {
            std::thread::sleep(PAUSE);
        }
    }
}
