//! The description of the disks of Xen guests. The toolstack gives the rest of each.

use std::path::PathBuf;

use network::poll::PollingPolicy;
use storage::image::Direct;

use super::disk_settings::DiskSettings;

/// How the vbds of this Xen domain are served.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct XenDisksSpec {
    /// The name of all of them together.
    pub name: String,
    /// Folders where images may be.
    pub folders: Vec<PathBuf>,
    /// Queues that a vbd may have; `None`: one for each worker.
    pub queues: Option<u16>,
    /// Whether the host's page cache is bypassed.
    pub direct: Direct,
    /// How workers wait for requests; `None`: as for other disks.
    pub policy: Option<PollingPolicy>,
    /// Settings of each vbd that can change in service.
    pub settings: DiskSettings,
}
