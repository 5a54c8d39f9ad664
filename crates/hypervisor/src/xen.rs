//! Xen, through the devices that Linux has for it: `/dev/xen/gntdev`, `/dev/xen/evtchn` and
//! `/dev/xen/xenbus` (or xenstored's socket), without Xen's libraries.
//!
//! This module may use `unsafe`, for mapping pages and for ioctls.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;

use thiserror::Error;

use crate::{DomId, Hypervisor, StoreError};

mod claim;
mod evtchn;
mod gntalloc;
mod gntdev;
mod mapped;
mod own_domain;
mod own_pages;
mod store;
pub(crate) mod wire;

pub use claim::{Claim, Class};
pub use evtchn::Evtchn;
pub use gntdev::Gntdev;
pub use own_domain::OwnDomain;
pub use store::XenStore;

/// Why Xen can't be used.
#[derive(Debug, Error)]
pub enum OpenError {
    /// A device can't be opened: no Xen, no right, or its module is not loaded.
    #[error("{path}: {error}{}", advice(path, error))]
    Device {
        /// The device.
        path: String,
        /// The kernel's error.
        error: io::Error,
    },
    /// The store does not have our domain id.
    #[error("asking the store for our own domain: {0}")]
    Store(#[from] StoreError),
    /// Another process is the backend for these devices. Two would disconnect each other's guests.
    #[error(
        "another process serves the {what} of this domain already (it holds the lock of {lock}); \
         end that one first"
    )]
    Claimed {
        /// The devices.
        what: &'static str,
        /// The device that is locked.
        lock: &'static str,
    },
    /// No thread for the store's answers.
    #[error(transparent)]
    Os(#[from] io::Error),
}

/// Advice about a device that can't be opened.
fn advice(path: &str, error: &io::Error) -> String {
    let module = match path {
        "/dev/xen/gntdev" => "modprobe xen-gntdev",
        "/dev/xen/gntalloc" => "modprobe xen-gntalloc",
        "/dev/xen/evtchn" => "modprobe xen-evtchn",
        _ => "modprobe xenfs",
    };
    match error.kind() {
        io::ErrorKind::NotFound if !std::path::Path::new("/proc/xen").exists() => {
            "; this is no domain of a Xen host, or its kernel is without Xen support".into()
        }
        io::ErrorKind::NotFound => format!("; try {module}"),
        io::ErrorKind::PermissionDenied => {
            "; it takes root, or the right to use that device".into()
        }
        _ => String::new(),
    }
}

/// Opens the hypervisor that we run on.
///
/// # Errors
/// See [`OpenError`].
pub fn open() -> Result<Hypervisor, OpenError> {
    open_with(None)
}

/// Opens the hypervisor that we run on, as this domain's backend for a class of devices. As long as
/// any part of it is in use, no other process can do the same.
///
/// # Errors
/// See [`OpenError`]; when another process is that backend.
pub fn open_backend(class: Class) -> Result<Hypervisor, OpenError> {
    open_with(Some(Claim::of(class)?))
}

fn open_with(claim: Option<Claim>) -> Result<Hypervisor, OpenError> {
    let events = Arc::new(Evtchn::open()?);
    let store = XenStore::open()?.held_with(claim);
    // A relative path is looked up in our own directory.
    let domain = crate::Store::nodes(&store).number("domid")?.unwrap_or(0);
    let grants = Arc::new(Gntdev::open(DomId(domain))?);
    Ok(Hypervisor { domain: DomId(domain), grants, events, store: Arc::new(store) })
}

fn open_device(path: &str) -> Result<OwnedFd, OpenError> {
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path);
    Ok(file.map_err(|error| OpenError::Device { path: path.into(), error })?.into())
}

/// `_IOC(_IOC_NONE, class, number, size)`: the request numbers of the Xen devices.
const fn request(class: u8, number: u8, size: usize) -> libc::c_ulong {
    (size as libc::c_ulong) << 16 | (class as libc::c_ulong) << 8 | number as libc::c_ulong
}
