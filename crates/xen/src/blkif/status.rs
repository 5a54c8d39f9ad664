//! The status of a vbd, for observers.

use std::sync::Arc;

use storage::Disk;
use storage::disks::DiskId;

use super::layout::Layout;
use super::settings::Settings;
use crate::xenbus::DeviceStatus;

/// A vbd.
#[derive(Clone, Debug)]
pub struct VbdStatus {
    /// The bus's part: name, condition, connections.
    pub bus: DeviceStatus,
    /// Queues that it may have.
    pub queues_offered: u16,
    /// The disk, since it was first connected, and its number in the datapath.
    pub disk: Option<(DiskId, Arc<Disk>)>,
    /// The operator's settings.
    pub settings: Option<Settings>,
    /// Parameters of the connection; `None`: not connected.
    pub connected: Option<Connected>,
}

/// Parameters of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connected {
    /// Queues.
    pub queues: usize,
    /// Pages of each ring.
    pub ring_pages: usize,
    /// The layout of its slots.
    pub layout: Layout,
    /// The frontend's grants are persistent: its pages stay mapped.
    pub persistent: bool,
}
