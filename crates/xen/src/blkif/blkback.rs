//! The state that all vbds of this domain share.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use hypervisor::{Grants, Hypervisor};
use ring::Engine;
use runtime::poll::PollingPolicy;
use storage::Disks;
use storage::image::Direct;
use storage::limits::DiskRates;

use super::limits::LimitTable;
use crate::page_budget::PageBudget;
use crate::xenbus::GrantCopyEngine;

/// How vbds are to be served.
#[derive(Clone, Debug, Default)]
pub struct BlkbackConfig {
    /// Queues that a vbd may have.
    pub queues: u16,
    /// Folders where images may be.
    pub folders: Vec<PathBuf>,
    /// Whether the host's page cache is bypassed.
    pub direct: Direct,
    /// How workers wait for requests; `None`: as they do for others.
    pub policy: Option<PollingPolicy>,
    /// The initial rate limits of each vbd.
    pub limits: DiskRates,
}

/// State that all vbds share.
pub struct Blkback {
    /// The disks that requests go to.
    pub disks: Arc<Disks>,
    /// The engine that makes grant copies.
    pub engine: Arc<dyn Engine>,
    /// Maps pages that stay mapped.
    pub grants: Arc<dyn Grants>,
    /// How many more pages all vbds together may keep mapped.
    pub budget: Arc<PageBudget>,
    /// The limits of vbds.
    pub limits: LimitTable,
    /// The operator's configuration.
    pub config: BlkbackConfig,
}

impl Blkback {
    /// A driver whose vbds are disks of `disks`.
    pub fn new(disks: Arc<Disks>, hypervisor: &Hypervisor, mut config: BlkbackConfig) -> Self {
        config.queues = config.queues.max(1);
        let grants = Arc::clone(&hypervisor.grants);
        let engine = Arc::new(GrantCopyEngine(Arc::clone(&grants)));
        let limits = LimitTable::new(config.limits);
        Blkback { disks, engine, grants, budget: Arc::default(), limits, config }
    }

    /// Whether an image with this path, which has no `..`, may be served.
    pub(super) fn allows(&self, image: &Path) -> bool {
        self.config.folders.iter().any(|folder| image.starts_with(folder))
    }
}
