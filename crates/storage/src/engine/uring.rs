//! Requests through io_uring: one ring for each worker, and one system call for each burst.
//!
//! The ring is made before system-call filters apply to the worker, and enabled on the worker's
//! thread, which is then its only user (`IORING_SETUP_SINGLE_ISSUER`). Completions are processed
//! when that thread asks for them (`IORING_SETUP_DEFER_TASKRUN`), so none interrupts it. Kernels
//! before 6.1 have neither. An eventfd that is never read wakes a worker that sleeps: with deferred
//! completions, the ring's own descriptor would become readable too late.
//!
//! The ring accepts only operations that disks need: see [`restrictions`].
//!
//! The kernel uses the buffers of a request until the request has completed. The request, which
//! owns the buffers, and its image are kept here until then. Dropping a ring waits for all
//! requests.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use io_uring::register::Restriction;
use io_uring::{IoUring, opcode, squeue, types};
use rustix::event::{EventfdFlags, eventfd};
use slab::Slab;

use super::{Engine, Finished};
use crate::operation::Operation;
use crate::request::Request;
use crate::step::Step;

/// Entries of the submission queue. A burst that is longer takes several system calls.
const SUBMISSIONS: u32 = 256;
/// Entries of the completion queue. The kernel keeps completions that find no room.
const COMPLETIONS: u32 = 4096;
/// Threads of the kernel for operations that block: on files, and on other objects.
const KERNEL_THREADS: [u32; 2] = [8, 1];

/// Operations of `io_uring_register` that the worker needs.
const ENABLE_RINGS: u8 = 12;
const IOWQ_MAX_WORKERS: u8 = 19;

/// Requests through io_uring.
pub struct UringEngine {
    ring: IoUring,
    event: Arc<OwnedFd>,
    /// The worker's thread has enabled the ring.
    enabled: bool,
    requests: Slab<Box<Request>>,
    /// Entries that were submitted, but not taken by the kernel yet.
    unsubmitted: usize,
    /// Completions that were taken to make room, and not reaped yet.
    early: Vec<Finished>,
}

impl UringEngine {
    /// A ring that the first thread to flush it will use.
    ///
    /// # Errors
    /// When the kernel has no io_uring, or forbids it to this process.
    pub fn new() -> io::Result<Self> {
        let ring = build()?;
        let event = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        ring.submitter().register_eventfd(event.as_raw_fd())?;
        ring.submitter().register_restrictions(&mut restrictions())?;
        let requests = Slab::with_capacity(SUBMISSIONS as usize);
        Ok(UringEngine { ring, event, enabled: false, requests, unsubmitted: 0, early: Vec::new() })
    }

    fn enable(&mut self) {
        if !std::mem::replace(&mut self.enabled, true) {
            // The call fails if the ring is enabled already. Other errors show when entries are
            // submitted.
            let _ = self.ring.submitter().register_enable_rings();
            // Kernels before 5.15 do not have this operation.
            let _ = self.ring.submitter().register_iowq_max_workers(&mut { KERNEL_THREADS });
        }
    }

    /// Adds an entry to the submission queue. False: it is full.
    fn push(&mut self, entry: &squeue::Entry) -> bool {
        // SAFETY: the entry's buffers are those of a request in `requests`, or static. The request
        // stays there, in a box of its own, until its completion was taken from the queue, and its
        // chain keeps the memory mapped; its image keeps the file open.
        unsafe { self.ring.submission().push(entry) }.is_ok()
    }

    /// Makes the kernel process deferred work. Work that it does not process now follows later.
    fn run_deferred(&mut self) {
        let sq = self.ring.submission();
        let waits = sq.taskrun() || sq.cq_overflow();
        drop(sq);
        if waits {
            let taken = self.ring.submit().unwrap_or_default();
            self.unsubmitted = self.unsubmitted.saturating_sub(taken);
        }
    }

    /// Takes one completion after the other.
    fn take(&mut self, finished: &mut Vec<Finished>) {
        let requests = &mut self.requests;
        for completion in self.ring.completion() {
            let Some(request) = requests.try_remove(completion.user_data() as usize) else {
                continue;
            };
            let result = completion.result();
            finished.push((request, u32::try_from(result).map_err(|_| -result)));
        }
    }
}

/// Builds the ring with the features that this kernel has.
fn build() -> io::Result<IoUring> {
    let mut newest = IoUring::builder();
    newest.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
    let mut oldest = IoUring::builder();
    let build = |builder: &mut io_uring::Builder| {
        builder.setup_r_disabled().setup_clamp().setup_cqsize(COMPLETIONS).build(SUBMISSIONS)
    };
    let ring = build(&mut newest).or_else(|_| build(&mut oldest))?;
    // Without these a request's pieces, or a completion, could get lost.
    match ring.params().is_feature_nodrop() && ring.params().is_feature_submit_stable() {
        true => Ok(ring),
        false => Err(io::Error::other("the kernel's io_uring is too old")),
    }
}

/// Restrictions of the ring, which take effect when it is enabled. System-call filters do not see
/// operations of a ring, so the ring must not be able to open files or sockets.
fn restrictions() -> [Restriction; 8] {
    let [read, read_pieces] = [opcode::Read::CODE, opcode::Readv::CODE].map(Restriction::sqe_op);
    let [write, write_pieces] =
        [opcode::Write::CODE, opcode::Writev::CODE].map(Restriction::sqe_op);
    let [sync, allocate] = [opcode::Fsync::CODE, opcode::Fallocate::CODE].map(Restriction::sqe_op);
    let [enable, limit] = [ENABLE_RINGS, IOWQ_MAX_WORKERS].map(Restriction::register_op);
    [read, read_pieces, write, write_pieces, sync, allocate, enable, limit]
}

/// The entry for a step. The kernel does less for one piece than for a list of pieces.
fn entry(step: &Step<'_>) -> squeue::Entry {
    let fd = types::Fd(step.file.as_raw_fd());
    let (pieces, count) = (step.pieces.as_ptr(), step.pieces.len() as u32);
    // The length of a step fits.
    let single = match step.pieces {
        [piece] => Some((piece.iov_base.cast::<u8>(), piece.iov_len as u32)),
        _ => None,
    };
    match step.operation {
        Operation::Read => match single {
            Some((piece, len)) => opcode::Read::new(fd, piece, len).offset(step.offset).build(),
            None => opcode::Readv::new(fd, pieces, count).offset(step.offset).build(),
        },
        Operation::Write { .. } | Operation::WriteZeros => {
            let flags = match step.operation {
                Operation::Write { stable: true } => libc::RWF_DSYNC,
                _ => 0,
            };
            match single {
                Some((piece, len)) => {
                    opcode::Write::new(fd, piece, len).offset(step.offset).rw_flags(flags).build()
                }
                None => opcode::Writev::new(fd, pieces, count)
                    .offset(step.offset)
                    .rw_flags(flags)
                    .build(),
            }
        }
        Operation::Sync => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
        Operation::PunchHole | Operation::ZeroRange => opcode::Fallocate::new(fd, step.len)
            .offset(step.offset)
            .mode(step.fallocate_mode())
            .build(),
    }
}

impl Engine for UringEngine {
    fn submit(&mut self, request: Box<Request>) {
        let number = self.requests.insert(request);
        let request = &mut self.requests[number];
        let Some(step) = request.step() else {
            let request = self.requests.remove(number);
            self.early.push((request, Err(libc::EBADF)));
            return;
        };
        let entry = entry(&step).user_data(number as u64);
        while !self.push(&entry) {
            self.flush();
            if self.has_unsubmitted() {
                // The kernel is out of memory, or has too many completions, which are taken first.
                let mut early = std::mem::take(&mut self.early);
                self.take(&mut early);
                self.early = early;
                std::thread::yield_now();
            }
        }
        self.unsubmitted += 1;
    }

    fn flush(&mut self) {
        if self.unsubmitted == 0 {
            return;
        }
        self.enable();
        if let Ok(taken) = self.ring.submit() {
            self.unsubmitted = self.unsubmitted.saturating_sub(taken);
        }
    }

    fn has_unsubmitted(&self) -> bool {
        self.unsubmitted > 0
    }

    fn reap(&mut self, finished: &mut Vec<Finished>) {
        finished.append(&mut self.early);
        if self.requests.is_empty() {
            return;
        }
        self.run_deferred();
        self.take(finished);
    }

    /// A kernel thread that carried out a request may release the request's file only after the
    /// completion. This release is also deferred: the file stays open until this thread runs
    /// deferred work.
    fn release(&mut self) {
        if self.enabled {
            self.run_deferred();
        }
    }

    fn event(&self) -> &Arc<OwnedFd> {
        &self.event
    }
}

impl Drop for UringEngine {
    /// Waits until the kernel has finished with all buffers.
    fn drop(&mut self) {
        let mut finished = Vec::new();
        while !self.requests.is_empty() {
            self.flush();
            if self.ring.submit_and_wait(1).is_err() {
                std::thread::yield_now();
            }
            self.take(&mut finished);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::time::{Duration, Instant};

    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;
    use crate::Image;
    use crate::image::ImageOptions;

    /// `None`: this host has no io_uring, and the test is skipped.
    fn engine() -> Option<UringEngine> {
        let skip = |error: &io::Error| println!("skipped: this host has no io_uring: {error}");
        UringEngine::new().inspect_err(skip).ok()
    }

    /// Calls `look` whenever the engine signals a completion, until it returns true.
    fn wait(engine: &mut UringEngine, mut look: impl FnMut(&mut UringEngine) -> bool) {
        let start = Instant::now();
        while !look(engine) {
            assert!(start.elapsed() < Duration::from_secs(60), "waited for a minute in vain");
            let event = Arc::clone(engine.event());
            let second = rustix::event::Timespec { tv_sec: 1, tv_nsec: 0 };
            poll(&mut [PollFd::new(&*event, PollFlags::IN)], Some(&second)).unwrap();
            let _ = rustix::io::read(&*event, &mut [0; 8]);
        }
    }

    /// Whether nothing has the file open for writing.
    fn is_closed(reader: &File) -> bool {
        // SAFETY: the call has no argument that is an address.
        let outcome = unsafe { libc::fcntl(reader.as_raw_fd(), libc::F_SETLEASE, libc::F_RDLCK) };
        let error = io::Error::last_os_error();
        assert!(outcome == 0 || error.raw_os_error() == Some(libc::EAGAIN), "{error}");
        outcome == 0
    }

    #[test]
    fn an_image_that_is_closed_is_unlocked_and_its_file_released() {
        let Some(mut engine) = engine() else { return };
        let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        File::options().write(true).open(&path).unwrap().set_len(1 << 20).unwrap();
        let options = ImageOptions::new(path.to_owned());
        for _ in 0..1000 {
            let image = Arc::new(Image::open(&options).unwrap());
            image.lock_now().unwrap();
            // A thread of the kernel carries out every request of this kind.
            let mut request = Box::<Request>::default();
            (request.image, request.work.operation) = (Some(image), Operation::Sync);
            engine.submit(request);
            engine.flush();
            let mut finished = Vec::new();
            wait(&mut engine, |engine| {
                engine.reap(&mut finished);
                !finished.is_empty()
            });
            drop(finished);
            Image::open(&options).unwrap().lock_now().unwrap();
            let reader = File::open(&path).unwrap();
            wait(&mut engine, |engine| {
                engine.release();
                is_closed(&reader)
            });
        }
    }

    #[test]
    fn a_ring_opens_neither_files_nor_sockets() {
        let Some(mut engine) = engine() else { return };
        engine.enable();
        let folder = types::Fd(libc::AT_FDCWD);
        let forbidden = [
            opcode::OpenAt::new(folder, c"/dev/null".as_ptr()).build(),
            opcode::UnlinkAt::new(folder, c"/nowhere".as_ptr()).build(),
            opcode::Socket::new(libc::AF_UNIX, libc::SOCK_STREAM, 0).build(),
            opcode::Connect::new(types::Fd(-1), std::ptr::null(), 0).build(),
        ];
        for entry in forbidden {
            // SAFETY: the names are static, and the kernel refuses to use anything else.
            unsafe { engine.ring.submission().push(&entry) }.unwrap();
            engine.ring.submit_and_wait(1).unwrap();
            let result = engine.ring.completion().next().map(|completion| completion.result());
            assert_eq!(result, Some(-libc::EACCES), "{entry:?}");
        }
        assert!(engine.ring.submitter().register_files(&[0]).is_err());
    }
}
