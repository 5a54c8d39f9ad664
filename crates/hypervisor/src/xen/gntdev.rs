//! Pages of other domains, through `/dev/xen/gntdev` (linux/xen/gntdev.h).

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr;
use std::sync::Arc;

use libc::c_ulong;
use ring::copies::{Batch, Copies, OwnPages, Segment, Status};
use ring::{Memory, Page};

use super::{OpenError, mapped, open_device, own_pages, request};
use crate::grants::{GrantError, Grants, MAX_PAGES};
use crate::{DomId, GrantRef, PAGE};

const MAP_GRANT_REF: c_ulong = request(b'G', 0, 24);
const UNMAP_GRANT_REF: c_ulong = request(b'G', 1, size_of::<UnmapGrantRef>());
const GRANT_COPY: c_ulong = request(b'G', 8, size_of::<GrantCopy>());

/// `struct ioctl_gntdev_map_grant_ref`, with room for more references than its one.
#[repr(C)]
struct MapGrantRef {
    count: u32,
    pad: u32,
    /// Out: where in the device the pages are.
    index: u64,
    refs: [MapRef; MAX_PAGES],
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
struct MapRef {
    domain: u32,
    reference: u32,
}

/// `struct ioctl_gntdev_unmap_grant_ref`.
#[repr(C)]
struct UnmapGrantRef {
    index: u64,
    count: u32,
    pad: u32,
}

/// `struct ioctl_gntdev_grant_copy`.
#[repr(C)]
struct GrantCopy {
    count: u32,
    segments: *mut Segment,
}

const _: () = assert!(size_of::<Segment>() == 24, "struct gntdev_grant_copy_segment");

/// The grant device.
#[derive(Debug)]
pub struct Gntdev {
    device: Arc<OwnedFd>,
    /// `/dev/xen/gntalloc`, if it exists. Workers use it, and may open nothing.
    allocator: Option<OwnedFd>,
    /// The domain of this process.
    own: DomId,
}

impl Gntdev {
    /// Opens it, in domain `own`.
    ///
    /// # Errors
    /// When the device is missing, or this process may not open it.
    pub fn open(own: DomId) -> Result<Self, OpenError> {
        let device = Arc::new(open_device("/dev/xen/gntdev")?);
        Ok(Self { device, allocator: open_device("/dev/xen/gntalloc").ok(), own })
    }
}

impl Grants for Gntdev {
    fn map(&self, domain: DomId, references: &[GrantRef]) -> Result<Arc<Memory>, GrantError> {
        let pages = Pages::announce(&self.device, domain, references)?;
        let len = references.len() * PAGE;
        let memory = mapped::map(self.device.as_fd(), pages.index, len, pages).map_err(
            |error| match error {
                // The kernel returns this for any page that Xen refused.
                rustix::io::Errno::INVAL => {
                    GrantError::Refused { domain, references: references.into() }
                }
                error => GrantError::Os { what: "mapping granted pages", error: error.into() },
            },
        )?;
        Ok(Arc::new(memory))
    }

    /// For a mapping for reading only, the kernel asks Xen for no more (`GNTMAP_readonly`).
    fn map_page(
        &self,
        domain: DomId,
        reference: GrantRef,
        write: bool,
    ) -> Result<Page, GrantError> {
        let pages = Pages::announce(&self.device, domain, &[reference])?;
        mapped::map_page(self.device.as_fd(), pages.index, write, pages).map_err(
            |error| match error {
                rustix::io::Errno::INVAL => GrantError::Page { domain, reference, write },
                error => GrantError::Os { what: "mapping a granted page", error: error.into() },
            },
        )
    }

    fn copy(&self, copies: &mut Copies) -> Result<(), GrantError> {
        if !copies.is_waiting() {
            return Ok(());
        }
        copies
            .run(|batch| self.run(batch))
            .map_err(|error| GrantError::Os { what: "copying granted pages", error })
    }

    fn own_pages(&self, len: usize) -> Option<OwnPages> {
        own_pages::own_pages(self.allocator.as_ref()?, self.own, len)
    }
}

impl Gntdev {
    /// Runs a batch. The kernel gives up on the whole batch if it cannot access one local end.
    /// Halves are tried then, down to the copy that caused the error. Copies that were made before
    /// are repeated, which does no harm.
    fn run(&self, mut batch: Batch<'_>) -> io::Result<()> {
        match self.submit(&mut batch) {
            Err(error) if error.raw_os_error() == Some(libc::EFAULT) => match batch.len() {
                0 | 1 => {
                    batch.fail_locally();
                    Ok(())
                }
                _ => {
                    let (first, second) = batch.halves();
                    self.run(first).and(self.run(second))
                }
            },
            Err(error) => {
                batch.fail(Status::WAITING);
                Err(error)
            }
            Ok(()) => Ok(()),
        }
    }

    fn submit(&self, batch: &mut Batch<'_>) -> io::Result<()> {
        let mut copy = GrantCopy { count: batch.len() as u32, segments: batch.as_mut_ptr() };
        // SAFETY: the request reads `copy` and so many segments, which are laid out as it
        // requires, and sets their statuses. The batch promises that local ends are memory that
        // may be read or written; granted ends are checked by Xen.
        unsafe { ioctl(&self.device, GRANT_COPY, &mut copy) }
    }
}

/// Pages that are registered with the device, and can be mapped until this is dropped.
#[derive(Debug)]
struct Pages {
    device: Arc<OwnedFd>,
    index: u64,
    count: u32,
}

impl Pages {
    fn announce(
        device: &Arc<OwnedFd>,
        domain: DomId,
        references: &[GrantRef],
    ) -> Result<Self, GrantError> {
        let count = references.len();
        if !(1..=MAX_PAGES).contains(&count) {
            return Err(GrantError::Count(count));
        }
        let mut map = MapGrantRef {
            count: count as u32,
            pad: 0,
            index: 0,
            refs: [MapRef::default(); MAX_PAGES],
        };
        for (to, reference) in map.refs.iter_mut().zip(references) {
            *to = MapRef { domain: domain.0.into(), reference: reference.0 };
        }
        // SAFETY: the request reads as many references as `count` says, which are there, and writes
        // the index.
        unsafe { ioctl(device, MAP_GRANT_REF, &mut map) }
            .map_err(|error| GrantError::Os { what: "announcing granted pages", error })?;
        Ok(Self { device: device.clone(), index: map.index, count: count as u32 })
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let mut unmap = UnmapGrantRef { index: self.index, count: self.count, pad: 0 };
        // SAFETY: the request reads `unmap`. Where the pages are still mapped it does nothing but
        // to forget them.
        let done = unsafe { ioctl(&self.device, UNMAP_GRANT_REF, &mut unmap) };
        debug_assert!(done.is_ok(), "forgetting pages that were announced");
    }
}

/// One ioctl.
///
/// # Safety
/// `request` must be one of the grant device that takes a pointer to a `T`, and whatever `arg`
/// points to must have the form that the request requires.
unsafe fn ioctl<T>(device: &OwnedFd, request: c_ulong, arg: &mut T) -> io::Result<()> {
    // SAFETY: the caller's promise.
    let done = unsafe { libc::ioctl(device.as_raw_fd(), request, ptr::from_mut(arg)) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
