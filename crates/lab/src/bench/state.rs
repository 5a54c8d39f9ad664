//! The state of the machine at one moment.
//!
//! The CPUs of a virtual machine move between the cores of its host. A cache line that one of them
//! has written reaches the other in 30 ns when they share a core, in 100 when they share a cache,
//! and in 400 when they share neither. The rate of a datapath, which passes lines all the time,
//! then changes by a factor of two. A short piece of fixed work is therefore timed before and after
//! each run, its times are kept with the figure, and only figures of the same state are compared.

use std::hint;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::statistics::Summary;
use load::cpu;

/// Round trips in one look, and looks of which the median counts.
const TRIPS: u64 = 300;
const LOOKS: usize = 9;

/// Steps of arithmetic, and independent chains of them. One chain would leave most units of a core
/// free, and so would not show that another thread of the host shares the core.
const STEPS: u64 = 10_000;
const CHAINS: usize = 8;

/// States whose cache lines take times within this factor are the same.
const SAME_DISTANCE: f64 = 1.6;

/// States whose arithmetic takes times within this factor are the same.
const SAME_PACE: f64 = 1.15;

/// Times of fixed work on two CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Nanoseconds for a cache line to go from one CPU to the other and back.
    pub round_trip_ns: f64,
    /// Microseconds for a fixed number of multiplications on each CPU, both at a time.
    pub work_us: [f64; 2],
}

/// A counter with two cache lines of its own, because lines are fetched in pairs.
#[derive(Default)]
#[repr(align(128))]
struct Line(AtomicU64);

impl State {
    /// Looks, within some milliseconds in which the two CPUs do nothing else.
    ///
    /// # Errors
    /// When there are no such CPUs.
    pub fn look(cpus: [usize; 2]) -> io::Result<State> {
        let (there, back) = (Line::default(), Line::default());
        let [near, far] = cpus;
        thread::scope(|scope| {
            let echo = scope.spawn(|| {
                let pinned = cpu::pin(far);
                // An echo that runs on another CPU than it should still answers, so that the other
                // side ends.
                for trip in 1..=TRIPS * LOOKS as u64 {
                    wait_for(&there, trip);
                    back.0.store(trip, Ordering::Release);
                }
                pinned.map(|()| work())
            });
            let caller = scope.spawn(|| {
                let pinned = cpu::pin(near);
                let round_trip_ns = round_trips(&there, &back);
                pinned.map(|()| (round_trip_ns, work()))
            });
            let caller = caller.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            let echo = echo.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            let (round_trip_ns, near) = caller?;
            Ok(State { round_trip_ns, work_us: [near, echo?] })
        })
    }

    /// The longer of both times of arithmetic, in microseconds.
    pub fn slower_us(&self) -> f64 {
        self.work_us.into_iter().fold(0.0, f64::max)
    }

    /// Whether figures of the two states can be compared.
    pub fn is_like(&self, other: &State) -> bool {
        let within = |a: f64, b: f64, factor: f64| a <= b * factor && b <= a * factor;
        within(self.round_trip_ns, other.round_trip_ns, SAME_DISTANCE)
            && self.work_us.iter().zip(other.work_us).all(|(a, b)| within(*a, b, SAME_PACE))
    }
}

/// Waits until `line` holds `trip`. The thread yields now and then, in case both threads are on the
/// same CPU.
fn wait_for(line: &Line, trip: u64) {
    let mut spins = 0u32;
    while line.0.load(Ordering::Acquire) != trip {
        hint::spin_loop();
        spins = spins.wrapping_add(1);
        if spins.is_multiple_of(1 << 14) {
            thread::yield_now();
        }
    }
}

/// The median of some looks, in ns for each round trip.
fn round_trips(there: &Line, back: &Line) -> f64 {
    let mut trip = 0;
    median(|| {
        let begin = Instant::now();
        for _ in 0..TRIPS {
            trip += 1;
            there.0.store(trip, Ordering::Release);
            wait_for(back, trip);
        }
        begin.elapsed().as_secs_f64() * 1e9 / TRIPS as f64
    })
}

/// The median of some tries, in microseconds.
fn work() -> f64 {
    median(|| {
        let begin = Instant::now();
        let mut values = hint::black_box([1u64; CHAINS]);
        for step in 0..STEPS {
            for value in &mut values {
                *value = value.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ step;
            }
        }
        hint::black_box(values);
        begin.elapsed().as_secs_f64() * 1e6
    })
}

fn median(look: impl FnMut() -> f64) -> f64 {
    let looks = std::iter::repeat_with(look).take(LOOKS).collect();
    Summary::of(looks).map_or(0.0, |looks| looks.median)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_differ_in_distance_and_pace() {
        let state = |round_trip_ns, near| State { round_trip_ns, work_us: [near, 20.0] };
        assert!(state(100.0, 20.0).is_like(&state(130.0, 21.0)));
        assert!(!state(100.0, 20.0).is_like(&state(430.0, 20.0)));
        assert!(!state(430.0, 20.0).is_like(&state(100.0, 20.0)));
        assert!(!state(100.0, 20.0).is_like(&state(100.0, 30.0)));
    }

    #[test]
    fn polling_takes_time_and_needs_cpus() {
        let state = State::look([0, 0]).unwrap();
        assert!(state.round_trip_ns > 0.0 && state.work_us.iter().all(|us| *us > 0.0));
        assert!(State::look([0, 1 << 20]).is_err());
    }
}
