//! One request on its way: its buffers, and what is still to be done with its image.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use ring::IoChain;

use crate::image::Image;
use crate::qcow2::{Entered, Place};

/// Most bytes that are moved in one step: the kernel may copy them on the worker's thread.
pub const STEP: usize = 1 << 20;

/// Most pieces of one step (`UIO_MAXIOV`).
const PIECES: usize = 1024;

/// Zeros to be written, where a file system cannot make them.
pub(crate) const ZEROS_LEN: usize = 64 << 10;

#[repr(align(4096))]
struct Zeros([u8; ZEROS_LEN]);

static ZEROS: Zeros = Zeros([0; ZEROS_LEN]);

/// The next operation on an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Operation {
    /// Read into the buffers.
    Read,
    /// Write out of the buffers; `stable`: so that they are stable then.
    Write {
        /// Completed only when it is stable.
        stable: bool,
    },
    /// Make completed writes stable.
    #[default]
    Sync,
    /// Give back the space of the range, which then reads as zeros.
    PunchHole,
    /// Make the range zeros, and keep its space.
    ZeroRange,
    /// Write zeros.
    WriteZeros,
}

/// A request. Used again and again, it allocates nothing.
#[derive(Debug, Default)]
pub struct Request {
    /// Its buffers.
    pub chain: IoChain,
    /// The image; `None` only between two uses.
    pub(crate) image: Option<Arc<Image>>,
    /// The token of the request on its ring.
    pub(crate) token: u16,
    /// The slot of its queue.
    pub(crate) slot: usize,
    /// The next operation, and its place: the first byte, and how many are left.
    pub(crate) operation: Operation,
    pub(crate) offset: u64,
    pub(crate) left: u64,
    /// A discard or zeros: the range has to be stable before the request is completed.
    pub(crate) stable: bool,
    /// The range has to read as zeros then.
    pub(crate) zeroes: bool,
    /// Where the bytes of the next step are, in a qcow2 image, and the step's mark there.
    pub(crate) place: Option<Place>,
    pub(crate) entered: Option<Entered>,
    /// Room for data in the driver's buffers, as the request came.
    pub(crate) room: u32,
    /// Pages of the guest's memory that the kernel uses for the request, at most.
    pub(crate) pages: u64,
    /// The one piece of a step that is a part of a larger piece.
    part: Part,
}

/// A piece of memory, as the kernel takes it.
#[derive(Clone, Copy, Debug)]
struct Part(libc::iovec);

impl Default for Part {
    fn default() -> Self {
        Part(libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 })
    }
}

// SAFETY: the pointer is one of the chain, which may be sent, or to `ZEROS`.
unsafe impl Send for Part {}

/// One step of a request, as the kernel takes it.
pub struct Step<'a> {
    /// The image.
    pub file: BorrowedFd<'a>,
    /// The operation.
    pub operation: Operation,
    /// The buffers of a read or write.
    pub pieces: &'a [libc::iovec],
    /// The first byte.
    pub offset: u64,
    /// The length in bytes of an operation on a range.
    pub len: u64,
}

impl Request {
    /// Forgets the buffers and the image.
    pub(crate) fn clear(&mut self) {
        self.chain.clear();
        (self.entered, self.place) = (None, None);
        self.image = None;
        self.part = Part::default();
    }

    /// The next step for the kernel. `None`: the request has no image.
    pub fn step(&mut self) -> Option<Step<'_>> {
        let Request { chain, image, operation, offset, left, part, place, .. } = self;
        let (image, offset, len) = (image.as_deref()?, *offset, *left);
        let most = place.map_or(STEP, |place| place.len.min(STEP as u64) as usize);
        let pieces = match operation {
            Operation::Read => limited(chain.writable(), most, &mut part.0),
            Operation::Write { .. } => limited(chain.readable(), most, &mut part.0),
            Operation::WriteZeros => {
                let iov_base = ZEROS.0.as_ptr().cast_mut().cast();
                let most = most.min(ZEROS_LEN).min(len as usize);
                part.0 = libc::iovec { iov_base, iov_len: most };
                std::slice::from_ref(&part.0)
            }
            _ => &[],
        };
        let (file, offset) = match (pieces, image.qcow2(), *place) {
            ([], ..) => (image.whole(), offset),
            (pieces, Some(qcow2), Some(place)) => (qcow2.file(place, pieces), place.offset),
            (_, Some(_), None) => return None,
            (pieces, None, _) => (image.file(offset, pieces).0, offset),
        };
        Some(Step { file, operation: *operation, pieces, offset, len })
    }

    /// Looks up the place of the next step. False: the thread of the image has to find it.
    pub(crate) fn find_place(&mut self) -> bool {
        let Some(image) = self.image.clone() else { return true };
        let Some(qcow2) = image.qcow2() else { return true };
        match self.operation {
            Operation::Sync => true,
            Operation::Read => qcow2.place(self, false),
            Operation::Write { .. } | Operation::WriteZeros => qcow2.place(self, true),
            Operation::PunchHole | Operation::ZeroRange => false,
        }
    }

    /// So many bytes have been moved. True when none is left.
    pub(crate) fn moved(&mut self, bytes: u64) -> bool {
        match self.operation {
            Operation::Read | Operation::Write { .. } => self.chain.advance(bytes),
            _ => {}
        }
        self.offset += bytes;
        self.left = self.left.saturating_sub(bytes);
        self.left == 0
    }
}

/// As many of `pieces` as one step of at most so many bytes takes; of one that is longer, a `part`.
fn limited<'a>(
    pieces: &'a [libc::iovec],
    most: usize,
    part: &'a mut libc::iovec,
) -> &'a [libc::iovec] {
    let Some(first) = pieces.first() else { return &[] };
    if first.iov_len > most {
        *part = libc::iovec { iov_len: most, ..*first };
        return std::slice::from_ref(part);
    }
    let mut bytes = 0;
    let fits = |piece: &&libc::iovec| {
        bytes += piece.iov_len;
        bytes <= most
    };
    let count = pieces.iter().take(PIECES).take_while(fits).count();
    pieces.get(..count).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(lengths: &[usize]) -> Vec<libc::iovec> {
        let piece = |&iov_len: &usize| libc::iovec { iov_base: std::ptr::null_mut(), iov_len };
        lengths.iter().map(piece).collect()
    }

    #[test]
    fn a_step_is_bounded() {
        let lengths = |list: &[usize]| -> Vec<usize> {
            let (pieces, mut part) = (pieces(list), Part::default().0);
            limited(&pieces, STEP, &mut part).iter().map(|piece| piece.iov_len).collect()
        };
        assert_eq!(lengths(&[]), Vec::<usize>::new());
        assert_eq!(lengths(&[512, 4096]), [512, 4096]);
        assert_eq!(lengths(&[STEP + 1, 512]), [STEP]);
        assert_eq!(lengths(&[STEP / 2, STEP / 2, 1]), [STEP / 2, STEP / 2]);
        assert_eq!(lengths(&[512; 2000]).len(), 1024);
    }
}
