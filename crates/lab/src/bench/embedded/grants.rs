//! Grants used directly, by several threads at once: contention inside the hypervisor alone,
//! without guests or a daemon.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use hypervisor::embedded::{Design, Guest, Machine, Version};
use hypervisor::{DomId, Domain, Extent, GrantRef, Grants};
use ring::copies::Copies;
use ring::grant::Granted;

use super::case::Setting;
use super::figure::Figure;
use super::load::Load;
use load::cpu;

/// Pages that are mapped at a time, or copied from in a batch.
const PAGES: u32 = 16;
/// Consecutive copies that have a page in common, and the length of each.
const PIECES: u16 = 4;
const LEN: u16 = 900;

/// The use that threads make of grants.
#[derive(Clone, Copy, Debug)]
pub enum Task {
    /// Mapping pages, and unmapping them.
    Map,
    /// Copying from granted pages to granted pages, 16 of either in a batch.
    Copy {
        /// Copies of each page, one after the other.
        pieces: u16,
        /// The length of each copy.
        len: u16,
        /// The offset of a target in its page.
        offset: u16,
    },
}

/// Threads that use grants at the same time.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// How the hypervisor does it.
    pub design: Design,
    /// How many.
    pub threads: usize,
    /// The task of the threads.
    pub task: Task,
    /// Whether each thread uses the pages of another domain. Otherwise all use the pages of one
    /// domain, like the queues of one guest.
    pub apart: bool,
}

/// One run.
///
/// # Errors
/// When memory is short, or when the hypervisor refuses a valid operation.
pub fn measure(setting: &Setting, load: Load, time: Duration) -> io::Result<Figure> {
    let (threads, task) = match load {
        Load::Copy { threads } => {
            (threads, Task::Copy { pieces: PIECES, len: LEN, offset: setting.offset })
        }
        Load::Map { threads } => (threads, Task::Map),
        Load::Frames { .. } | Load::Paced | Load::Echo | Load::Streams | Load::Wire => {
            (0, Task::Map)
        }
    };
    let used = cpu::used(std::process::id());
    let (count, seconds) =
        work(&Plan { design: setting.design, threads, task, apart: false }, time)?;
    let used = cpu::used(std::process::id()).saturating_sub(used);
    Ok(Figure {
        rate: count as f64 / seconds / load.unit().1,
        backend_ns: Some(used.as_nanos() as f64 / count.max(1) as f64),
        guest_ns: None,
        frames_per_interrupt: None,
    })
}

/// Carries out a plan: how many copies or pages, in how many seconds.
///
/// # Errors
/// As [`measure`].
pub fn work(plan: &Plan, time: Duration) -> io::Result<(u64, f64)> {
    let machine = Machine::new(plan.design)?;
    let grants = machine.hypervisor(DomId(0))?.grants;
    let (domains, each) = if plan.apart { (plan.threads, 1) } else { (1, plan.threads) };
    let pages = PAGES * 2 * each as u32;
    let guests = (1..=domains as u16).map(|id| machine.guest(DomId(id), pages, Version::V1));
    let guests = guests.collect::<Result<Vec<_>, _>>().map_err(io::Error::other)?;
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let cpus = std::thread::available_parallelism()?.get();
    let began = Instant::now();
    std::thread::scope(|scope| {
        let mut all = Vec::new();
        for n in 0..plan.threads {
            let own = n % domains;
            let pages = grant(&guests[own], (n / domains) as u32 * PAGES * 2)?;
            let (grants, domain, stop, done) =
                (Arc::clone(&grants), DomId(own as u16 + 1), &stop, &done);
            all.push(scope.spawn(move || {
                // Two that shared a CPU would not wait for each other.
                cpu::pin(n % cpus)?;
                let worked = match plan.task {
                    Task::Copy { .. } => copy(&*grants, domain, &pages, plan.task, stop),
                    Task::Map => map(&*grants, domain, &pages, stop),
                };
                worked.map(|count| done.fetch_add(count, Relaxed))
            }));
        }
        std::thread::sleep(time);
        stop.store(true, Relaxed);
        let outcome = |thread: std::thread::ScopedJoinHandle<'_, io::Result<u64>>| {
            thread.join().map_err(|_| io::ErrorKind::Other)?
        };
        all.into_iter().try_for_each(|thread| outcome(thread).map(drop))
    })?;
    Ok((done.load(Relaxed), began.elapsed().as_secs_f64()))
}

fn grant(guest: &Guest, first: u32) -> io::Result<Vec<GrantRef>> {
    (first..first + 2 * PAGES)
        .map(|page| guest.grant(DomId(0), page, Extent::Whole, true))
        .collect()
}

fn map(
    grants: &dyn Grants,
    domain: DomId,
    pages: &[GrantRef],
    stop: &AtomicBool,
) -> io::Result<u64> {
    let mut count = 0;
    while !stop.load(Relaxed) {
        for pages in pages.chunks(PAGES as usize) {
            drop(grants.map(domain, pages).map_err(io::Error::other)?);
            count += u64::from(PAGES);
        }
    }
    Ok(count)
}

/// Copies from where stock guests' frames begin.
fn copy(
    grants: &dyn Grants,
    domain: DomId,
    pages: &[GrantRef],
    task: Task,
    stop: &AtomicBool,
) -> io::Result<u64> {
    let Task::Copy { pieces, len, offset } = task else { return Ok(0) };
    let batch = PAGES * u32::from(pieces);
    let mut copies = Copies::new(batch as usize, 0).map_err(io::Error::other)?;
    let (from, to) = pages.split_at(PAGES as usize);
    let at = |reference: GrantRef, offset| Granted { domain, reference, offset };
    let mut count = 0;
    while !stop.load(Relaxed) {
        copies.clear();
        for (from, to) in from.iter().zip(to) {
            for n in 0..pieces {
                let (from, to) = (at(*from, Load::UNALIGNED + n * len), at(*to, offset + n * len));
                copies.push_granted(from, to, len, 0).map_err(io::Error::other)?;
            }
        }
        grants.copy(&mut copies).map_err(io::Error::other)?;
        if copies.failed().next().is_some() {
            return Err(io::Error::other("a copy between granted pages was refused"));
        }
        count += u64::from(batch);
    }
    Ok(count)
}
