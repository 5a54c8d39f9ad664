//! One request in flight: its buffers, and its remaining work on the image.

use std::sync::Arc;
use std::time::Instant;

use ring::IoChain;

use crate::count::RequestType;
use crate::image::Image;
use crate::operation::ZEROS_LEN;
pub use crate::operation::{Operation, STEP};
use crate::qcow2::gate::Entered;
use crate::qcow2::job::Job;
use crate::qcow2::place::Place;
use crate::step::Step;

/// Most pieces of one step (`UIO_MAXIOV`).
const PIECES: usize = 1024;

#[repr(align(4096))]
struct Zeros([u8; ZEROS_LEN]);

static ZEROS: Zeros = Zeros([0; ZEROS_LEN]);

/// A request. Used again and again, it allocates nothing.
#[derive(Debug, Default)]
pub struct Request {
    /// Its buffers.
    pub chain: IoChain,
    /// The image; `None` only before the first use.
    pub(crate) image: Option<Arc<Image>>,
    /// The token of the request on its ring.
    pub(crate) token: u16,
    /// The slot of its queue.
    pub(crate) slot: usize,
    /// The remaining work on the image.
    pub(crate) work: Work,
    /// Further state for a qcow2 image.
    pub(crate) qcow2: Qcow2Step,
    /// Room for data in the driver's buffers, as the request came.
    pub(crate) room: u32,
    /// The type of the request, and the start of the pass that fetched it, once it was accepted.
    pub(crate) accepted: Option<(RequestType, Instant)>,
    /// Pages of the guest's memory that the kernel uses for the request, at most.
    pub(crate) pages: u64,
    /// The one piece of a step that is a part of a larger piece.
    part: Part,
}

/// The remaining work on the image of a request.
#[derive(Debug, Default)]
pub(crate) struct Work {
    /// The next operation, and its place: the first byte, and how many are left.
    pub operation: Operation,
    pub offset: u64,
    pub left: u64,
    /// For a discard or zeros: the range must be stable before the request is completed.
    pub stable: bool,
    /// The range must read as zeros afterwards.
    pub zeroes: bool,
}

/// The next step in a qcow2 image.
#[derive(Debug, Default)]
pub(crate) struct Qcow2Step {
    /// The place of the step's bytes in the image's file.
    pub place: Option<Place>,
    /// The step's mark there.
    pub entered: Option<Entered>,
    /// The queue to which the thread of the image returns the request.
    pub inbox: Option<Arc<dyn ReturnQueue>>,
    /// Processor time of that thread that the request's queue has not paid for, in nanoseconds.
    pub thread_ns: u64,
}

/// A request, and the outcome of its step: bytes that were moved, or an error of the system.
pub type Finished = (Box<Request>, Result<u32, i32>);

/// A request that the thread of an image gives back, and what the worker must do with it.
#[derive(Debug)]
pub(crate) enum Returned {
    /// Submit its next step, which has a place, to the kernel.
    Placed(Box<Request>),
    /// Its next step was carried out.
    Done(Finished),
}

impl Returned {
    /// The request.
    pub(crate) fn request(&mut self) -> &mut Request {
        match self {
            Returned::Placed(request) | Returned::Done((request, _)) => request,
        }
    }
}

/// A queue of requests that come back to a worker.
pub(crate) trait ReturnQueue: std::fmt::Debug + Send + Sync {
    /// Puts a request in, and wakes the worker.
    fn put(&self, returned: Returned);
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

impl Request {
    /// Forgets the buffers. The guest's memory and the image are kept for the next use, which is
    /// mostly by the same disk.
    pub(crate) fn clear(&mut self) {
        self.chain.clear();
        (self.qcow2.inbox, self.accepted) = (None, None);
        (self.qcow2.entered, self.qcow2.place) = (None, None);
        self.part = Part::default();
    }

    /// Sets the image of the request.
    pub(crate) fn set_image(&mut self, image: &Arc<Image>) {
        if !self.image.as_ref().is_some_and(|own| Arc::ptr_eq(own, image)) {
            self.image = Some(Arc::clone(image));
        }
    }

    /// The next step for the kernel. `None`: the request has no image.
    pub fn step(&mut self) -> Option<Step<'_>> {
        let Request { chain, image, work, qcow2: Qcow2Step { place, .. }, part, .. } = self;
        let (image, operation, offset) = (image.as_deref()?, work.operation, work.offset);
        let len = work.left;
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
        Some(Step { file, operation, pieces, offset, len })
    }

    /// Carries out the next step on this thread, if it is one that only copies in memory. The
    /// kernel would give it to another thread, since it cannot tell whether it would have to wait.
    pub(crate) fn copy_here(&mut self) -> Option<Result<u32, i32>> {
        let moves = match self.work.operation {
            // Freeing as much memory as a guest requests may take long.
            Operation::PunchHole | Operation::ZeroRange => false,
            Operation::Read | Operation::Write { .. } | Operation::WriteZeros => true,
            Operation::Sync => true,
        };
        if !moves || !self.image.as_ref().is_some_and(|image| image.is_in_memory()) {
            return None;
        }
        match self.step()?.carry_out() {
            Err(libc::EINTR | libc::EAGAIN) => None,
            result => Some(result),
        }
    }

    /// Looks up the place of the next step. False: the thread of the image has to find it.
    pub(crate) fn find_place(&mut self) -> bool {
        let Some(qcow2) = self.image.as_ref().and_then(|image| image.qcow2()) else { return true };
        let writes = match self.work.operation {
            Operation::Sync => return true,
            Operation::PunchHole | Operation::ZeroRange => return false,
            Operation::Read => false,
            Operation::Write { .. } | Operation::WriteZeros => true,
        };
        let found = qcow2.place(self.work.offset, self.work.left, writes);
        (self.qcow2.place, self.qcow2.entered) = found.unzip();
        self.qcow2.place.is_some()
    }

    /// Returns the request from the thread of the image to its worker.
    fn give_back(mut self: Box<Self>, returned: impl FnOnce(Box<Request>) -> Returned) {
        if let Some(inbox) = self.qcow2.inbox.take() {
            inbox.put(returned(self));
        }
    }

    /// Notes that `bytes` bytes have been moved. True when none is left.
    pub(crate) fn moved(&mut self, bytes: u64) -> bool {
        let is_last = bytes >= self.work.left;
        match self.work.operation {
            Operation::Read | Operation::Write { .. } if is_last => self.chain.transferred(bytes),
            Operation::Read | Operation::Write { .. } => self.chain.advance(bytes),
            _ => {}
        }
        self.work.offset += bytes;
        self.work.left = self.work.left.saturating_sub(bytes);
        is_last
    }
}

impl Job for Request {
    fn operation(&self) -> Operation {
        self.work.operation
    }

    fn range(&self) -> (u64, u64) {
        (self.work.offset, self.work.left)
    }

    fn fill(&self, bytes: &[u8]) -> u32 {
        self.chain.write(bytes)
    }

    fn charge(&mut self, nanoseconds: u64) {
        self.qcow2.thread_ns = self.qcow2.thread_ns.saturating_add(nanoseconds);
    }

    fn placed(mut self: Box<Self>, place: Place, entered: Entered) {
        (self.qcow2.place, self.qcow2.entered) = (Some(place), Some(entered));
        self.give_back(Returned::Placed);
    }

    fn done(self: Box<Self>, result: Result<u32, i32>) {
        self.give_back(|request| Returned::Done((request, result)));
    }
}

/// As many of `pieces` as fit into one step of limited length. `part` holds the beginning of a
/// piece that is too long.
fn limited<'a>(
    pieces: &'a [libc::iovec],
    most: usize,
    part: &'a mut libc::iovec,
) -> &'a [libc::iovec] {
    match pieces {
        [] => return &[],
        [first, ..] if first.iov_len > most => {
            *part = libc::iovec { iov_len: most, ..*first };
            return std::slice::from_ref(part);
        }
        [_] => return pieces,
        _ => {}
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
