//! One copy in the format of the kernel's grant-copy call, with its outcome.
//!
//! A local end is a raw address. `Copies::push` accepts it only after it was found in memory that
//! is pinned for as long as the copy waits; until then it is a number.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::copy::copy;
use crate::grant::{DomId, GrantRef, Granted};
use crate::region::Memory;

/// One end of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In memory that is mapped here.
    Local(Local),
    /// In a page of another domain.
    Granted(Granted),
}

/// An address in memory that is mapped here. Only a [`Copies`] that pins that memory takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Local(pub(crate) NonNull<u8>);

// SAFETY: it is a number until `Copies::push` has found it in pinned memory.
unsafe impl Send for Local {}
// SAFETY: as above.
unsafe impl Sync for Local {}

impl Local {
    /// The place at `at`.
    pub(crate) fn new(at: NonNull<u8>) -> Self {
        Self(at)
    }
}

/// The outcome of a copy: a `GNTST_` value of Xen's grant_table.h, or a positive value of this
/// crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Status(pub i16);

impl Status {
    /// The copy was made.
    pub const DONE: Status = Status(0);
    /// `GNTST_general_error`: not granted, not to us, or not for this use. Xen does not say which.
    pub const REFUSED: Status = Status(-1);
    /// `GNTST_bad_domain`: there is no such domain.
    pub const BAD_DOMAIN: Status = Status(-2);
    /// `GNTST_bad_gntref`: a reference beyond the end of the grant table.
    pub const BAD_REFERENCE: Status = Status(-3);
    /// `GNTST_bad_page`: the page cannot be accessed.
    pub const BAD_PAGE: Status = Status(-9);
    /// The copy has not been run.
    pub const WAITING: Status = Status(1);
    /// The kernel could not access the local end, because the file behind it was truncated.
    pub const LOCAL_FAULT: Status = Status(2);

    /// Whether the copy was made.
    #[inline]
    pub fn is_done(self) -> bool {
        self == Self::DONE
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            0 => "done",
            1 => "not tried",
            2 => "memory cut off",
            -1 => "refused",
            -2 => "no such domain",
            -3 => "no such reference",
            -8 => "permission denied",
            -9 => "no such page",
            -10 => "beyond the page",
            -12 => "page not present",
            other => return write!(f, "status {other}"),
        })
    }
}

/// One end as the kernel's `struct gntdev_grant_copy_segment` (linux/xen/gntdev.h) has it.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) union End {
    local: *mut u8,
    pub(crate) granted: RawGranted,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct RawGranted {
    pub(crate) reference: u32,
    pub(crate) offset: u16,
    pub(crate) domain: u16,
}

pub(crate) const SOURCE_GRANTED: u16 = 1;
pub(crate) const TARGET_GRANTED: u16 = 2;

impl End {
    pub(crate) fn new(place: Place) -> Self {
        match place {
            Place::Local(local) => End { local: local.0.as_ptr() },
            Place::Granted(granted) => End { granted: granted.into() },
        }
    }
}

/// One copy, laid out as `struct gntdev_grant_copy_segment`, so that a batch is handed to the
/// kernel as it is.
#[repr(C)]
pub struct Segment {
    pub(crate) source: End,
    pub(crate) target: End,
    pub(crate) len: u16,
    /// `GNTCOPY_` flags: bit 0, the source is granted; bit 1, the target is.
    pub(crate) flags: u16,
    pub(crate) status: Status,
}

impl Segment {
    /// A copy of nothing.
    pub(crate) fn none() -> Self {
        let nowhere = End { local: std::ptr::null_mut() };
        Segment { source: nowhere, target: nowhere, len: 0, flags: 0, status: Status::WAITING }
    }

    /// How many bytes it copies.
    pub fn len(&self) -> u16 {
        self.len
    }

    /// Always false: empty copies are not queued.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The source, if it is granted.
    pub fn source(&self) -> Option<Granted> {
        self.granted_source().filter(|granted| granted.domain != DomId::SELF)
    }

    /// The target, if it is granted.
    pub fn target(&self) -> Option<Granted> {
        self.granted_target().filter(|granted| granted.domain != DomId::SELF)
    }

    fn granted_source(&self) -> Option<Granted> {
        // SAFETY: the flag says which of the two was written, and both are plain data.
        (self.flags & SOURCE_GRANTED != 0).then(|| unsafe { self.source.granted }.into())
    }

    fn granted_target(&self) -> Option<Granted> {
        // SAFETY: as above.
        (self.flags & TARGET_GRANTED != 0).then(|| unsafe { self.target.granted }.into())
    }

    /// The outcome of the copy.
    pub fn status(&self) -> Status {
        self.status
    }
}

impl From<Granted> for RawGranted {
    #[inline]
    fn from(Granted { domain, reference, offset }: Granted) -> Self {
        RawGranted { reference: reference.0, offset, domain: domain.0 }
    }
}

impl From<RawGranted> for Granted {
    fn from(raw: RawGranted) -> Self {
        Granted {
            domain: DomId(raw.domain),
            reference: GrantRef(raw.reference),
            offset: raw.offset,
        }
    }
}

/// The memory of one end of a copy. The pin is kept from one copy to the next, because the
/// reference count of a guest's memory is contended by all workers.
#[derive(Debug, Default)]
pub struct Pin(Option<Arc<Memory>>);

impl Pin {
    /// Pins `memory` instead of the previous one.
    pub fn hold(&mut self, memory: &Arc<Memory>) {
        if !self.0.as_ref().is_some_and(|held| Arc::ptr_eq(held, memory)) {
            self.0 = Some(Arc::clone(memory));
        }
    }
}

/// Copies that are being run.
pub struct Batch<'a>(pub(crate) &'a mut [Segment]);

impl Batch<'_> {
    /// How many copies.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The copies as an array of the kernel's `struct gntdev_grant_copy_segment`, whose statuses
    /// may be set through it.
    ///
    /// While the batch lives, all local ends are mapped: readable where they are sources, writable
    /// where they are targets, though the file behind them may end earlier.
    pub fn as_mut_ptr(&mut self) -> *mut Segment {
        self.0.as_mut_ptr()
    }

    /// Two batches, each about half of this.
    pub fn halves(&mut self) -> (Batch<'_>, Batch<'_>) {
        let (first, second) = self.0.split_at_mut(self.0.len() / 2);
        (Batch(first), Batch(second))
    }

    /// Sets all copies to failed, with `status`.
    pub fn fail(&mut self, status: Status) {
        self.0.iter_mut().for_each(|segment| segment.status = status);
    }

    /// Sets all copies to failed, because local ends cannot be accessed. The memories concerned are
    /// marked here ([`Memory::is_faulted`]).
    pub fn fail_locally(&mut self) {
        self.fail(Status::LOCAL_FAULT);
        for segment in self.0.iter() {
            for at in [segment.local_source(), segment.local_target()].into_iter().flatten() {
                for offset in [0, usize::from(segment.len - 1)] {
                    // SAFETY: `len` bytes are mapped there as long as the batch lives; if the file
                    // ends earlier, this is what raises the fault that marks
                    // the memory.
                    unsafe { at.add(offset).cast_const().read_volatile() };
                }
            }
        }
    }
}

impl Segment {
    fn local_source(&self) -> Option<*mut u8> {
        if self.flags & SOURCE_GRANTED != 0 {
            return None;
        }
        // SAFETY: it is not granted, so it is local, and both are plain data.
        Some(unsafe { self.source.local })
    }

    fn local_target(&self) -> Option<*mut u8> {
        if self.flags & TARGET_GRANTED != 0 {
            return None;
        }
        // SAFETY: as above.
        Some(unsafe { self.target.local })
    }

    pub(crate) fn emulate(
        &self,
        pins: &mut [Pin; 2],
        resolve: &mut impl FnMut(&mut Pin, Granted, u16, bool) -> Result<u64, Status>,
    ) -> Status {
        let mut end = |local: Option<*mut u8>, granted: Option<Granted>, write: bool| {
            let Some(granted) = granted else { return Ok(local.unwrap_or_default()) };
            let pin = &mut pins[usize::from(write)];
            let addr = resolve(pin, granted, self.len, write)?;
            let run = pin.0.as_ref().and_then(|mem| mem.run(addr, &mut 0));
            let (at, left) = run.ok_or(Status::BAD_PAGE)?;
            if left < u64::from(self.len) { Err(Status::BAD_PAGE) } else { Ok(at.as_ptr()) }
        };
        let ends = end(self.local_source(), self.granted_source(), false).and_then(|from| {
            end(self.local_target(), self.granted_target(), true).map(|to| (from, to))
        });
        match ends {
            // SAFETY: local ends were checked when they were queued and are pinned since; of the
            // others, `len` bytes are mapped, and their memories are held in `pins`. An
            // end that is not granted is local.
            Ok((from, to)) => unsafe { copy(from, to, usize::from(self.len)) },
            Err(status) => return status,
        }
        Status::DONE
    }
}
