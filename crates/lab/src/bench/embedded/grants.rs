//! Grants used directly, by several threads at once: what contends inside the hypervisor, without anything around it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use hypervisor::embedded::{Guest, Machine, Version};
use hypervisor::{DomId, Domain, Extent, GrantRef, Grants};
use ring::copies::Copies;
use ring::grant::Granted;

use super::case::Setting;
use super::figure::Figure;
use super::load::Load;
use crate::cpu;

/// Pages that are mapped at a time, and copies in a batch.
const PAGES: u32 = 16;
const COPIES: u32 = 64;
/// Copies that have a page in common, one after the other, and the length of each.
const PIECES: u32 = 4;
const LEN: u16 = 900;

/// One run.
///
/// # Errors
/// When there is no memory for it, or something is refused that must not be.
pub fn measure(setting: &Setting, load: Load, time: Duration) -> io::Result<Figure> {
    let (threads, copies) = match load {
        Load::Copy { threads } => (threads, true),
        Load::Map { threads } => (threads, false),
        Load::Frames { .. } | Load::Paced | Load::Echo | Load::Streams | Load::Wire => (0, false),
    };
    let machine = Machine::new(setting.design);
    let grants = machine.hypervisor(DomId(0))?.grants;
    let guest = machine.guest(DomId(1), PAGES * 2 * threads as u32, Version::V1).map_err(io::Error::other)?;
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let began = (Instant::now(), cpu::used(std::process::id()));
    std::thread::scope(|scope| {
        let mut all = Vec::new();
        for n in 0..threads as u32 {
            // All pages are one domain's, as with the queues of one guest.
            let pages = grant(&guest, n * PAGES * 2)?;
            let (grants, stop, done) = (Arc::clone(&grants), &stop, &done);
            all.push(scope.spawn(move || {
                let worked =
                    if copies { copy(&*grants, &pages, setting.offset, stop) } else { map(&*grants, &pages, stop) };
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
    let count = done.load(Relaxed);
    let used = cpu::used(std::process::id()).saturating_sub(began.1);
    Ok(Figure {
        rate: count as f64 / began.0.elapsed().as_secs_f64() / load.unit().1,
        backend_ns: Some(used.as_nanos() as f64 / count.max(1) as f64),
        guest_ns: None,
        frames_per_interrupt: None,
    })
}

fn grant(guest: &Guest, first: u32) -> io::Result<Vec<GrantRef>> {
    (first..first + 2 * PAGES).map(|page| guest.grant(DomId(0), page, Extent::Whole, true)).collect()
}

fn map(grants: &dyn Grants, pages: &[GrantRef], stop: &AtomicBool) -> io::Result<u64> {
    let mut count = 0;
    while !stop.load(Relaxed) {
        for pages in pages.chunks(PAGES as usize) {
            drop(grants.map(DomId(1), pages).map_err(io::Error::other)?);
            count += u64::from(PAGES);
        }
    }
    Ok(count)
}

/// Copies from where stock guests' frames begin to `offset`.
fn copy(grants: &dyn Grants, pages: &[GrantRef], offset: u16, stop: &AtomicBool) -> io::Result<u64> {
    let mut copies = Copies::new(COPIES as usize, 0).map_err(io::Error::other)?;
    let (from, to) = pages.split_at(PAGES as usize);
    let at = |reference: GrantRef, offset| Granted { domain: DomId(1), reference, offset };
    let mut count = 0;
    while !stop.load(Relaxed) {
        copies.clear();
        for (from, to) in from.iter().zip(to) {
            for n in 0..PIECES as u16 {
                let (from, to) = (at(*from, Load::UNALIGNED + n * LEN), at(*to, offset + n * LEN));
                copies.push_granted(from, to, LEN, 0).map_err(io::Error::other)?;
            }
        }
        grants.copy(&mut copies).map_err(io::Error::other)?;
        if copies.failed().next().is_some() {
            return Err(io::Error::other("a copy between granted pages was refused"));
        }
        count += u64::from(COPIES);
    }
    Ok(count)
}
