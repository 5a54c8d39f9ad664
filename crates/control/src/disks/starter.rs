//! The start of disks.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use ::storage::image::ImageError;
use ::storage::{Disk, Image};
use ::vhost_user::blk::{DiskConfig, DiskPort, DiskPortError};
use parking_lot::Mutex;

use crate::config::{Config, DiskSpec, XenDisksSpec};
use crate::xen_disks::{self, XenDisksError};

/// Images by path, which were opened before the daemon entered its sandbox: they may be out of
/// reach within it.
#[derive(Debug, Default)]
pub struct OpenImages(HashMap<PathBuf, Arc<Image>>);

impl OpenImages {
    /// Opens the images of a configuration. An image that cannot be opened is tried again when its
    /// disk is started.
    pub fn of(config: &Config) -> OpenImages {
        let open = |disk: &DiskSpec| {
            let image = Image::open(&disk.image_options()).ok()?;
            Some((disk.image.clone(), Arc::new(image)))
        };
        OpenImages(config.disks.iter().filter_map(open).collect())
    }
}

/// Why a disk cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// The daemon was not started for disks.
    #[error(
        "the sandbox of this daemon leaves out what disks need; give sandbox.live = [\"disk\"], and \
         restart it"
    )]
    NotAllowed,
    /// The image cannot be used.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The directory of its socket cannot be created.
    #[error(transparent)]
    Directory(#[from] crate::backend::BackendError),
    /// The vhost-user side refuses.
    #[error(transparent)]
    Port(#[from] DiskPortError),
}

/// The parts that start disks.
pub struct DiskStarter {
    pub(super) disks: Option<Arc<::storage::Disks>>,
    images: Mutex<OpenImages>,
    workers: usize,
}

impl DiskStarter {
    /// A starter of disks on `workers` workers. `None`: there are no disks.
    pub fn new(
        disks: Option<Arc<::storage::Disks>>,
        images: OpenImages,
        workers: usize,
    ) -> DiskStarter {
        DiskStarter { disks, images: Mutex::new(images), workers }
    }

    /// Begins to serve the disks of Xen guests. May wait for the store.
    ///
    /// # Errors
    /// The reason why they cannot be served.
    pub fn start_xen(
        &self,
        spec: &XenDisksSpec,
    ) -> Result<::xen::blkif::service::Service, XenDisksError> {
        xen_disks::start(self.disks.as_ref(), spec, self.workers)
    }

    /// The reason why no disk can be added, if there is one.
    pub fn refusal(&self) -> Option<DiskError> {
        self.disks.is_none().then_some(DiskError::NotAllowed)
    }

    /// Puts a disk into service. May wait a second for the lock of a qcow2 image.
    ///
    /// # Errors
    /// The reason why the disk cannot be served.
    pub fn start(&self, spec: &DiskSpec) -> Result<DiskPort, DiskError> {
        let disks = self.disks.as_ref().ok_or(DiskError::NotAllowed)?;
        let opened = self.images.lock().0.remove(&spec.image);
        let image = match opened {
            Some(image) => image,
            None => Arc::new(Image::open(&spec.image_options())?),
        };
        // Any other image is locked when a guest starts, because this host may be the target of the
        // guest's migration.
        if !image.can_be_shared()
            && let Err(error) = image.lock()
        {
            // The image may be needed again, and could not be opened then.
            self.images.lock().0.insert(spec.image.clone(), image);
            return Err(error.into());
        }
        crate::backend::create_directory(&spec.socket)?;
        let disk = Disk::new(image, &spec.serial);
        disk.set_limits(spec.settings.limits.rates());
        let config = DiskConfig {
            name: spec.name.clone(),
            socket: spec.socket.clone(),
            permissions: spec.permissions,
            queues: spec.queues,
            disk: Arc::new(disk),
            policy: spec.policy,
            memory: spec.settings.memory_limit(),
        };
        Ok(DiskPort::start(Arc::clone(disks), config)?)
    }
}
