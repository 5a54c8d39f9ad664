//! The workers of the daemon.

use std::io;
use std::sync::Arc;

use ::storage::engine::Engine;
use ::storage::{BlockPipeline, Disks as BlockDisks};
use network::fabric::{Fabric, Workers};
use runtime::{Group, Pair, ThreadUsage, pipeline_workers};

/// Makes the engine of each worker.
pub type MakeEngine = fn() -> io::Result<Box<dyn Engine>>;

/// Starts workers that serve ports and disks.
pub(super) fn start_with_disks(
    workers: &Workers,
    engine: MakeEngine,
) -> io::Result<(Fabric, Option<Arc<BlockDisks>>)> {
    let engines = (0..workers.count.max(1)).map(|_| engine());
    let engines: Vec<Box<dyn Engine>> = engines.collect::<io::Result<_>>()?;
    let mut disks = None;
    let fabric = Fabric::start_with(workers, |doorbells, frames| {
        let pair =
            |(frames, engine)| Pair::new(frames, BlockPipeline::new(engine, ThreadUsage::now));
        let pairs = frames.into_iter().zip(engines).map(pair).collect();
        let group = Group::start(doorbells, pairs, &workers.cpus, workers.policy)?;
        let (frames, blocks) = pipeline_workers::split(group);
        disks = Some(Arc::new(BlockDisks::new(blocks)));
        Ok(frames)
    })?;
    Ok((fabric, disks))
}
