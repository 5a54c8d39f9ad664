//! The description of one disk.

use std::path::PathBuf;

use network::poll::PollingPolicy;
use storage::image::{Direct, Format, ImageOptions};
use unix_socket::Permissions;

use super::disk_settings::DiskSettings;

/// Queues that a disk offers by default. QEMU uses one for each vCPU of the guest, and refuses a
/// disk with fewer.
pub const DISK_QUEUES: u16 = 16;

/// The interface that guests attach to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiskKind {
    /// A guest, over a vhost-user socket.
    VhostUser,
    /// The vbds of this Xen domain.
    Xen,
}

impl DiskKind {
    pub(super) const ALL: [DiskKind; 2] = [DiskKind::VhostUser, DiskKind::Xen];

    /// The name in configurations.
    pub(super) fn name(self) -> &'static str {
        match self {
            DiskKind::VhostUser => "vhost-user",
            DiskKind::Xen => "xen",
        }
    }

    /// Why disks of this kind do not have a key that can change in service. `None`: they have it.
    pub(super) fn misplaced(self, key: &str) -> Option<&'static str> {
        // Data is copied through buffers of the daemon, so no memory of the guest is allocated.
        (self == DiskKind::Xen && key == "memory")
            .then_some("only a disk of kind \"vhost-user\" has one")
    }
}

/// The configuration of a disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiskSpec {
    /// The name, unique among the disks.
    pub name: String,
    /// The socket, on which the daemon listens.
    pub socket: PathBuf,
    /// The users that may use the socket.
    pub permissions: Permissions,
    /// The image: a file or a block device.
    pub image: PathBuf,
    /// The format of the file.
    pub format: Format,
    /// Queues that are offered.
    pub queues: u16,
    /// Whether the guest can only read.
    pub read_only: bool,
    /// Whether the host's page cache is bypassed.
    pub direct: Direct,
    /// Bytes of a block; `None`: the device's, or 512 for a file.
    pub sector_size: Option<u16>,
    /// The serial number; by default, the name.
    pub serial: String,
    /// How workers wait for requests; `None`: as for other disks.
    pub policy: Option<PollingPolicy>,
    /// Settings that can change in service.
    pub settings: DiskSettings,
}

/// The words for how the page cache is used.
pub(super) const DIRECT_WORDS: [(&str, Direct); 3] =
    [("auto", Direct::Auto), ("on", Direct::Always), ("off", Direct::Never)];

impl DiskSpec {
    /// How the image is opened.
    pub fn image_options(&self) -> ImageOptions {
        ImageOptions {
            path: self.image.clone(),
            format: self.format,
            folders: None,
            read_only: self.read_only,
            direct: self.direct,
            sector_size: self.sector_size.map(u32::from),
        }
    }
}
