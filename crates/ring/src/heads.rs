//! The first bytes of many granted chains, fetched together.

use std::sync::Arc;

use crate::body::Body;
use crate::copies::{Copies, Engine, Stage, Status, run};
use crate::gather::{Chain, Gather};
use crate::granted_copy::{copies_for, offsets};

/// The engine that can copy the bytes of `chains`.
fn engine_of<'a>(gather: &'a Gather, chains: &[Chain]) -> Option<&'a Arc<dyn Engine>> {
    chains.iter().find_map(|chain| gather.body(*chain).engine())
}

/// The first bytes of many granted chains, fetched together into private memory.
#[derive(Default)]
pub struct Heads {
    copies: Option<Box<Copies>>,
    stages: Vec<Option<Stage>>,
    /// Chains whose bytes could not be copied, in order.
    failed: Vec<(u32, Status)>,
}

impl Heads {
    /// A set without memory, which is allocated when first needed.
    pub fn new() -> Self {
        Self::default()
    }

    /// Fetches the first bytes of each of `chains`, all of `gather`: the first `most`, or only the
    /// first piece if that has at least `enough`.
    pub fn fetch(&mut self, gather: &Gather, chains: &[Chain], enough: u32, most: u32) {
        self.clear();
        if self.copies.is_none()
            && let Some(engine) = engine_of(gather, chains)
        {
            self.copies = copies_for(&**engine);
        }
        for (i, chain) in (0..).zip(chains) {
            let body = gather.body(*chain);
            let first = body.granted_lens().next().filter(|len| *len >= enough);
            let stage = self.queue(i, body.slice(0, most.min(first.unwrap_or(most))));
            self.stages.push(stage);
        }
        self.run(gather, chains);
    }

    /// Fetches the first `most` bytes of those `chains` whose numbers are in `again`, in place of
    /// the bytes fetched before.
    pub fn fetch_again(&mut self, gather: &Gather, chains: &[Chain], again: &[usize], most: u32) {
        for &i in again {
            let Some(chain) = chains.get(i) else { continue };
            let stage = self.queue(i as u32, gather.body(*chain).slice(0, most));
            if let Some(old) = self.stages.get_mut(i) {
                *old = stage;
            }
        }
        self.run(gather, chains);
    }

    /// Queues the copies of `body`, of chain number `i`.
    fn queue(&mut self, i: u32, body: Body<'_>) -> Option<Stage> {
        let copies = self.copies.as_mut()?;
        let (stage, _) = copies.reserve(body.len() as usize)?;
        for (offset, piece) in offsets(body.granted()) {
            // There is room for more than a burst, so this does not fail.
            copies.push_to_stage(piece, stage, offset, i).ok()?;
        }
        Some(stage)
    }

    /// Makes the copies that were queued.
    fn run(&mut self, gather: &Gather, chains: &[Chain]) {
        let Some(engine) = engine_of(gather, chains) else { return };
        self.failed.clear();
        let Some(copies) = &mut self.copies else {
            self.failed.push((0, Status::WAITING));
            return;
        };
        run(&**engine, copies);
        self.failed.extend(copies.failed().map(|(i, status, _)| (i, status)));
    }

    /// The reason why the bytes of chain number `i` could not be copied; `None`: they were copied.
    #[inline]
    pub fn failure(&self, i: usize) -> Option<Status> {
        if self.failed.is_empty() {
            return None;
        }
        self.failed.iter().find(|(chain, _)| *chain as usize == i).map(|(_, status)| *status)
    }

    /// How many bytes were fetched of chain number `i`.
    #[inline]
    pub fn len(&self, i: usize) -> usize {
        self.stages.get(i).copied().flatten().map_or(0, Stage::len)
    }

    /// Copies the fetched bytes of chain number `i` to `buf`; returns how many. Fewer were fetched
    /// if there was no room for them.
    pub fn read(&self, i: usize, buf: &mut [u8]) -> usize {
        let stage = self.stages.get(i).copied().flatten();
        stage.zip(self.copies.as_ref()).map_or(0, |(stage, copies)| copies.read(stage, 0, buf))
    }

    /// Forgets all of it.
    pub fn clear(&mut self) {
        self.stages.clear();
        self.failed.clear();
        if let Some(copies) = &mut self.copies {
            copies.clear();
        }
    }
}
