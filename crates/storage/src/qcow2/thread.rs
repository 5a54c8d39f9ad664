//! The thread of an image, which alone changes its tables.
//!
//! Jobs are the requests that workers cannot continue by themselves. Their number is bounded,
//! because a queue has a bounded number of requests in flight, and each is here at most once.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::Shared;
use super::header::Header;
use super::job::Job;
use super::place::Place;
use super::reader::Reader;
use super::refcounts::Refcounts;
use super::unbilled::Unbilled;
use super::writer::{Prepared, Writer};
use crate::operation::{Operation, STEP, ZEROS_LEN};

/// Stack in bytes.
const STACK: usize = 256 << 10;
/// How long freed clusters wait for their release while the thread is idle.
const SETTLE: Duration = Duration::from_millis(200);

fn fail(job: Box<dyn Job>, error: &io::Error) {
    job.done(Err(error.raw_os_error().unwrap_or(libc::EIO)));
}

/// A task for the thread.
enum Task {
    /// A request.
    Job(Box<dyn Job>),
    /// Resize the disk to this number of bytes.
    Resize(u64, SyncSender<io::Result<()>>),
}

#[derive(Default)]
struct Queue {
    tasks: VecDeque<Task>,
    ends: bool,
}

/// Tasks, and their signal.
#[derive(Default)]
struct Jobs {
    queue: Mutex<Queue>,
    ready: Condvar,
}

/// The thread of an image. Ends, and leaves the image consistent, when this is dropped.
pub(super) struct Thread {
    jobs: Arc<Jobs>,
    handle: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Thread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Thread").finish_non_exhaustive()
    }
}

impl Thread {
    /// Starts the thread of an image. The image is writable if `refcounts` are given.
    ///
    /// # Errors
    /// When there is no thread left.
    pub fn start(
        shared: Arc<Shared>,
        header: Header,
        refcounts: Option<Refcounts>,
    ) -> io::Result<Thread> {
        let jobs = Arc::new(Jobs::default());
        let work = Arc::clone(&jobs);
        let thread = std::thread::Builder::new().name("rm-qcow2".to_owned()).stack_size(STACK);
        let handle = thread.spawn(move || {
            sandbox::enter_thread(sandbox::Role::Worker);
            let reader = Reader::new(Arc::clone(&shared));
            let role = match refcounts {
                Some(refcounts) => {
                    Role::Writes(Box::new(Writer::new(reader, refcounts, header.l1)))
                }
                None => Role::Reads(reader),
            };
            Work { shared, role, held: Vec::new(), unbilled: Unbilled::new() }.run(&work);
        })?;
        Ok(Thread { jobs, handle: Some(handle) })
    }

    /// Hands over a job.
    pub fn ask(&self, job: Box<dyn Job>) {
        self.add(Task::Job(job));
    }

    fn add(&self, task: Task) {
        self.jobs.queue.lock().tasks.push_back(task);
        self.jobs.ready.notify_one();
    }

    /// Makes the disk `bytes` long. The answer comes when that is stable, or has the reason why the
    /// disk keeps its length.
    pub fn resize(&self, bytes: u64) -> Receiver<io::Result<()>> {
        let (resized, answer) = sync_channel(1);
        self.add(Task::Resize(bytes, resized));
        answer
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.jobs.queue.lock().ends = true;
        self.jobs.ready.notify_one();
        let Some(handle) = self.handle.take() else { return };
        // The last request that held the image may have been dropped by the thread itself.
        if handle.thread().id() != std::thread::current().id() {
            let _ = handle.join();
        }
    }
}

enum Role {
    Reads(Reader),
    Writes(Box<Writer>),
}

/// The state of the thread.
struct Work {
    shared: Arc<Shared>,
    role: Role,
    /// Writes that begin once the copies made for them are linked.
    held: Vec<(Box<dyn Job>, Place)>,
    unbilled: Unbilled,
}

impl Work {
    fn run(mut self, jobs: &Jobs) {
        let mut batch = VecDeque::new();
        loop {
            let mut queue = jobs.queue.lock();
            while queue.tasks.is_empty() && !queue.ends {
                let waits = matches!(&self.role, Role::Writes(it) if it.refcounts.has_freed());
                if !waits {
                    jobs.ready.wait(&mut queue);
                } else if jobs.ready.wait_for(&mut queue, SETTLE).timed_out() {
                    break;
                }
            }
            std::mem::swap(&mut batch, &mut queue.tasks);
            let ends = queue.ends;
            drop(queue);
            if batch.is_empty() && ends {
                break;
            }
            if batch.is_empty() {
                self.release_freed();
            }
            batch.drain(..).for_each(|task| match task {
                Task::Job(job) => self.serve(job),
                Task::Resize(bytes, resized) => _ = resized.send(self.resize(bytes)),
            });
            self.commit();
        }
        if let Role::Writes(writer) = &mut self.role
            && let Some((top, _)) = self.shared.top()
            && writer.check().is_ok()
            && let Err(error) = writer.refcounts.close(top.file(), &self.shared.gate)
        {
            writer.note(&error);
        }
    }

    fn serve(&mut self, job: Box<dyn Job>) {
        let (offset, left) = job.range();
        match job.operation() {
            Operation::Read => self.read(job),
            Operation::Write { .. } => self.write(job, left.min(STEP as u64)),
            Operation::WriteZeros => self.write(job, left.min(ZEROS_LEN as u64)),
            Operation::PunchHole => self.erase(job, offset, left, true),
            Operation::ZeroRange => self.erase(job, offset, left, false),
            Operation::Sync => job.done(Ok(0)),
        }
    }

    fn read(&mut self, job: Box<dyn Job>) {
        let (offset, left) = job.range();
        let reader = match &mut self.role {
            Role::Reads(reader) => reader,
            Role::Writes(writer) => &mut writer.reader,
        };
        loop {
            let (layer, len) = match self.shared.find_read(offset, left) {
                Ok(place) => {
                    return self.unbilled.bill(job).placed(place, self.shared.gate.enter());
                }
                Err(elsewhere) => elsewhere,
            };
            match reader.resolve(layer, offset) {
                Ok(None) => {}
                Ok(Some(bytes)) => {
                    let bytes = bytes.get(..len as usize).unwrap_or(bytes);
                    let written = job.fill(bytes);
                    return self.unbilled.bill(job).done(Ok(written));
                }
                Err(error) => return fail(self.unbilled.bill(job), &error),
            }
        }
    }

    fn write(&mut self, job: Box<dyn Job>, most: u64) {
        let (offset, _) = job.range();
        if matches!(&self.role, Role::Writes(writer) if writer.is_linking(offset)) {
            self.commit();
        }
        let Role::Writes(writer) = &mut self.role else { return job.done(Err(libc::EROFS)) };
        match writer.prepare(offset, most) {
            Ok(Prepared::Now(place)) => {
                self.unbilled.bill(job).placed(place, self.shared.gate.enter());
            }
            Ok(Prepared::Deferred(place)) => self.held.push((self.unbilled.bill(job), place)),
            Err(error) => {
                writer.note(&error);
                fail(self.unbilled.bill(job), &error);
            }
        }
    }

    fn erase(&mut self, job: Box<dyn Job>, offset: u64, len: u64, unmap: bool) {
        self.commit();
        let Role::Writes(writer) = &mut self.role else { return job.done(Err(libc::EROFS)) };
        match writer.erase(offset, len, unmap) {
            Ok(()) => self.unbilled.bill(job).done(Ok(0)),
            Err(error) => {
                if error.raw_os_error() != Some(libc::EOPNOTSUPP) {
                    writer.note(&error);
                }
                fail(self.unbilled.bill(job), &error);
            }
        }
        if writer.refcounts.has_much_freed() {
            self.release_freed();
        }
    }

    fn resize(&mut self, bytes: u64) -> io::Result<()> {
        self.commit();
        let Role::Writes(writer) = &mut self.role else {
            return Err(io::Error::from_raw_os_error(libc::EROFS));
        };
        writer.resize(bytes).inspect_err(|error| {
            if error.raw_os_error() != Some(libc::EOPNOTSUPP) {
                writer.note(error);
            }
        })
    }

    /// Links copies, and begins the writes that wait for them.
    fn commit(&mut self) {
        let Role::Writes(writer) = &mut self.role else { return };
        let linked = writer.commit();
        if let Err(error) = &linked {
            writer.note(error);
        }
        for (job, place) in self.held.drain(..) {
            let job = self.unbilled.bill(job);
            match &linked {
                Ok(()) => job.placed(place, self.shared.gate.enter()),
                Err(error) => fail(job, error),
            }
        }
    }

    /// Releases freed clusters.
    fn release_freed(&mut self) {
        let Role::Writes(writer) = &mut self.role else { return };
        let Some((top, _)) = self.shared.top() else { return };
        if let Err(error) = writer.refcounts.release_freed(top.file(), &self.shared.gate) {
            writer.note(&error);
        }
    }
}
