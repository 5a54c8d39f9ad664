//! Times of operations on two CPUs: passing a cache line, waking a thread, interrupting
//! one that computes.

use std::hint::black_box;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::bench::embedded::grants::{Plan, work};
use load::cpu;
use ring::Memory;
use vmm_sys_util::eventfd::EventFd;

/// CPUs for two threads that are to run at the same time.
const CPUS: [usize; 2] = [0, 1];
/// Until a thread that has nothing to do is asleep.
const ASLEEP: Duration = Duration::from_micros(200);
/// Bytes that are mapped and unmapped, and how many changes of the address space that is.
const PAGE: usize = 4096;
const CHANGES: u64 = 2;

/// Nanoseconds that a cache line takes from one CPU to another: two threads, each of which waits
/// until the other has written, and writes.
///
/// # Errors
/// When there are no two CPUs.
pub fn transfer(time: Duration) -> io::Result<f64> {
    #[repr(align(128))]
    struct Line(AtomicU64);
    let (line, stop) = (Line(AtomicU64::new(0)), AtomicBool::new(false));
    let play = |own: u64| {
        cpu::pin(CPUS[own as usize])?;
        while !stop.load(Relaxed) {
            let count = line.0.load(Relaxed);
            if count % 2 == own {
                line.0.store(count + 1, Relaxed);
            }
            std::hint::spin_loop();
        }
        io::Result::Ok(())
    };
    std::thread::scope(|scope| {
        let players = [0, 1].map(|own| scope.spawn(move || play(own)));
        let began = Instant::now();
        std::thread::sleep(time);
        let (count, passed) = (line.0.load(Relaxed), began.elapsed());
        stop.store(true, Relaxed);
        for player in players {
            player.join().map_err(|_| io::ErrorKind::Other)??;
        }
        Ok(passed.as_nanos() as f64 / count.max(1) as f64)
    })
}

/// The effect of a thread that maps and unmaps pages on another that only computes.
#[derive(Clone, Copy, Debug)]
pub struct Beside {
    /// Pages in a second.
    pub pages: f64,
    /// Passes of the other thread's loop in a second.
    pub passes: f64,
}

/// Carries out a plan beside a thread that computes.
///
/// # Errors
/// When there are no two CPUs, or the plan cannot be carried out.
pub fn beside(plan: Option<&Plan>, time: Duration) -> io::Result<Beside> {
    let (stop, passes) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let (stop, passes) = (&stop, &passes);
        let other = scope.spawn(move || {
            cpu::pin(CPUS[1])?;
            while !stop.load(Relaxed) {
                passes.store(passes.load(Relaxed) + 1, Relaxed);
                (0..64).for_each(|_| std::hint::spin_loop());
            }
            io::Result::Ok(())
        });
        let (began, before) = (Instant::now(), passes.load(Relaxed));
        let done = match plan {
            Some(plan) => work(plan, time),
            None => {
                std::thread::sleep(time);
                Ok((0, time.as_secs_f64()))
            }
        };
        let (after, passed) = (passes.load(Relaxed), began.elapsed().as_secs_f64());
        stop.store(true, Relaxed);
        other.join().map_err(|_| io::ErrorKind::Other)??;
        let (pages, seconds) = done?;
        Ok(Beside { pages: pages as f64 / seconds, passes: (after - before) as f64 / passed })
    })
}

/// Nanoseconds that a fixed piece of work takes: shows whether the machine has become slower.
pub fn pace() -> f64 {
    let began = Instant::now();
    let mut value = black_box(1u64);
    for _ in 0..2_000_000 {
        value = value.wrapping_mul(6_364_136_223_846_793_005).rotate_left(7) ^ value;
    }
    black_box(value);
    began.elapsed().as_nanos() as f64
}

/// Nanoseconds that an atomic addition to a number in the cache takes.
pub fn touch() -> f64 {
    const TURNS: u32 = 200_000;
    let counter = AtomicU64::new(0);
    let began = Instant::now();
    for _ in 0..TURNS {
        black_box(&counter).fetch_add(1, Relaxed);
    }
    began.elapsed().as_nanos() as f64 / f64::from(TURNS)
}

/// Nanoseconds that a thread needs to wake another one, which sleeps on an eventfd and runs on
/// another CPU: the median of many.
///
/// # Errors
/// When there are no two CPUs.
pub fn notify(time: Duration) -> io::Result<f64> {
    let (event, woken) = (EventFd::new(0)?, AtomicU64::new(0));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (event, woken, stop) = (&event, &woken, &stop);
        let sleeper = scope.spawn(move || {
            cpu::pin(CPUS[1])?;
            while !stop.load(Relaxed) {
                event.read()?;
                woken.fetch_add(1, Relaxed);
            }
            io::Result::Ok(())
        });
        let (began, mut all) = (Instant::now(), Vec::new());
        let wake = || {
            let (count, before) = (woken.load(Relaxed), Instant::now());
            event.write(1)?;
            let passed = before.elapsed().as_nanos() as f64;
            while woken.load(Relaxed) == count && !sleeper.is_finished() {
                std::hint::spin_loop();
            }
            // Meanwhile the thread falls asleep again.
            std::thread::sleep(ASLEEP);
            io::Result::Ok(passed)
        };
        while began.elapsed() < time && !sleeper.is_finished() {
            all.push(wake()?);
        }
        stop.store(true, Relaxed);
        event.write(1)?;
        sleeper.join().map_err(|_| io::ErrorKind::Other)??;
        all.sort_unstable_by(f64::total_cmp);
        Ok(all.get(all.len() / 2).copied().unwrap_or_default())
    })
}

/// Nanoseconds by which a change of the address space takes longer when two threads of a process
/// map and unmap memory at the same time, than for one thread beside another that only computes.
/// The kernel makes such changes for one thread at a time.
///
/// # Errors
/// When there are no two CPUs, or memory is short.
pub fn address_space(time: Duration) -> io::Result<f64> {
    let rate = |threads: usize| {
        let (stop, count) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let (stop, count) = (&stop, &count);
            let run = move |own: usize| {
                cpu::pin(CPUS[own])?;
                while !stop.load(Relaxed) {
                    match own < threads {
                        true => {
                            drop(Memory::anonymous(PAGE).map_err(io::Error::other)?);
                            count.fetch_add(CHANGES, Relaxed)
                        }
                        false => black_box(0),
                    };
                }
                io::Result::Ok(())
            };
            let all = CPUS.map(|own| scope.spawn(move || run(own)));
            let began = Instant::now();
            std::thread::sleep(time);
            let (count, passed) = (count.load(Relaxed), began.elapsed());
            stop.store(true, Relaxed);
            for thread in all {
                thread.join().map_err(|_| io::ErrorKind::Other)??;
            }
            io::Result::Ok(count.max(1) as f64 / passed.as_nanos() as f64)
        })
    };
    // Each holds the kernel's lock for as long as it takes alone.
    Ok((1.0 / rate(2)? - 1.0 / rate(1)?).max(0.0))
}

/// Nanoseconds from a write to a sleeping thread's descriptor until that thread, on another CPU,
/// writes back: half of there and back.
///
/// # Errors
/// When there are no two CPUs.
pub fn wake(time: Duration) -> io::Result<f64> {
    let (mut near, mut far) = UnixStream::pair()?;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let (mut byte, pinned) = ([0], cpu::pin(CPUS[1]).is_ok());
            // The other end is closed after the last sample.
            while pinned && far.read_exact(&mut byte).is_ok() && far.write_all(&byte).is_ok() {}
        });
        let (mut byte, mut rounds) = ([0], 0u32);
        let began = Instant::now();
        while began.elapsed() < time {
            near.write_all(&byte)?;
            near.read_exact(&mut byte)?;
            rounds += 1;
        }
        let passed = began.elapsed();
        drop(near);
        Ok(passed.as_nanos() as f64 / f64::from(rounds.max(1)) / 2.0)
    })
}
