//! A queue and all that its worker keeps with it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ring::Violation;
use runtime::coalescing::Notified;
use runtime::pipeline::COST_PER_NS;
use runtime::poll::PollingPolicy;
use runtime::{Blocked, QueueId, Status};

use crate::count::{ErrorReason, QueueCounters};
use crate::disk::Disk;
use crate::limits::{Limits, Reservation};
use crate::queue::{QueueError, RequestQueue};

/// Requests of one queue that are with the kernel at a time. More stay in the guest's ring.
pub(crate) const MOST_IN_FLIGHT: usize = 128;

/// Called, from a worker, when a queue's peer broke the protocol. It must not block.
pub type OnError = Arc<dyn Fn(u16, QueueError) + Send + Sync>;

/// A queue on its way to a worker.
pub struct Attachment {
    /// The queue's id while it is attached.
    pub(crate) id: QueueId,
    /// Number of its disk: queues of one disk share one portion of a worker.
    pub(crate) class: u32,
    /// The name of its disk, for the log.
    pub(crate) name: Arc<str>,
    /// Its index in the disk.
    pub(crate) index: u16,
    pub(crate) queue: Box<dyn RequestQueue>,
    pub(crate) disk: Arc<Disk>,
    pub(crate) counters: Arc<QueueCounters>,
    pub(crate) on_error: OnError,
    pub(crate) policy: Option<PollingPolicy>,
    /// Its peer broke the protocol: the queue is not called any more.
    pub(crate) failed: bool,
}

/// A queue and all that its worker keeps with it.
pub(crate) struct Slot {
    pub on: Attachment,
    /// Requests that are with the kernel.
    pub in_flight: usize,
    /// Requests were completed since the last flush.
    pub dirty: bool,
    /// Pages of the guest's memory that the kernel has used since the last flush, at most.
    pub pages: u64,
    /// Cost that its next burst pays for: page faults of completions, work of the thread of a qcow2
    /// image, interrupts that took long.
    pub debt: u64,
    /// The queue is about to leave its worker.
    pub leaving: bool,
    /// The limits of the disk.
    pub limits: Option<Arc<Limits>>,
    /// Room that the next request has taken in the limits: the queue waits until it is ready.
    reserved: Option<Reservation>,
    /// Bytes that the last request moved.
    last: u64,
}

impl Slot {
    pub fn new(on: Attachment) -> Slot {
        let limits = on.disk.limits.get();
        Slot {
            on,
            in_flight: 0,
            dirty: false,
            pages: 0,
            debt: 0,
            leaving: false,
            limits,
            reserved: None,
            last: 1,
        }
    }

    /// How many requests may be fetched now.
    pub fn room(&self) -> usize {
        match self.on.failed || self.leaving {
            true => 0,
            false => MOST_IN_FLIGHT.saturating_sub(self.in_flight),
        }
    }

    /// Adopts the present limits of the disk. A wait that was due to former limits ends.
    pub fn follow_limits(&mut self) {
        self.cancel_reservation();
        self.limits = self.on.disk.limits.get();
    }

    /// Gives back the reservation of the next request.
    pub fn cancel_reservation(&mut self) {
        if let Some((reserved, limits)) = self.reserved.take().zip(self.limits.as_ref()) {
            limits.cancel(&reserved);
        }
    }

    /// Whether the queue must wait, because the next request may not begin at `now`.
    pub fn is_limited(&mut self, now: Instant) -> bool {
        let Some(limits) = &self.limits else { return false };
        if let Some(reserved) = &self.reserved {
            return now < reserved.ready;
        }
        if !limits.is_exhausted(now) {
            return false;
        }
        match self.on.queue.has_next() {
            // A queue without requests must not take room from others.
            Ok(false) => return false,
            Ok(true) => {
                self.reserved = Some(limits.reserve(now, self.last));
                self.on.counters.limited.add(1);
            }
            Err(error) => self.fail(error),
        }
        true
    }

    /// Charges for a request that begins, and moves `bytes` bytes.
    pub fn pay(&mut self, now: Instant, bytes: u64) {
        if let Some(limits) = &self.limits {
            limits.pay(now, bytes, self.reserved.take());
            self.last = bytes.max(1);
        }
    }

    /// Stops a queue whose peer broke the protocol: the queue is not called any more, and its disk
    /// is told.
    #[cold]
    pub fn fail(&mut self, error: QueueError) {
        if !std::mem::replace(&mut self.on.failed, true) {
            self.dirty = false;
            (self.on.on_error)(self.on.index, error);
        }
    }

    /// Completes a request.
    pub fn complete(&mut self, token: u16, len: u32) {
        if !self.on.failed {
            self.on.queue.complete(token, len);
            self.dirty = true;
        }
    }

    /// Publishes what was completed.
    pub fn flush(&mut self) {
        // Also for a queue that failed: its guest's memory stays charged.
        let pages = std::mem::take(&mut self.pages);
        if pages > 0 {
            self.on.queue.used_by_kernel(pages);
        }
        if !std::mem::take(&mut self.dirty) {
            return;
        }
        let flushed = self.on.queue.flush();
        self.on.counters.fail_many(ErrorReason::Grant, self.on.queue.take_lost());
        match flushed {
            Ok(Notified::Sent) => {
                self.on.counters.interrupts.sent.add(1);
                self.charge_signals();
            }
            Ok(Notified::Suppressed) => self.on.counters.interrupts.suppressed.add(1),
            Ok(Notified::Nothing | Notified::Deferred) => {}
            Err(error) => {
                self.charge_signals();
                self.fail(error);
            }
        }
    }

    /// Charges the queue for time of the image's thread on one of its requests.
    pub fn charge_thread(&mut self, nanoseconds: u64) {
        self.debt = self.debt.saturating_add(nanoseconds.saturating_mul(COST_PER_NS));
        self.on.counters.image_thread_ns.add(nanoseconds);
    }

    /// Charges the queue for its interrupt, if that was slow. A hostile peer can have many tasks
    /// watch its event descriptor.
    fn charge_signals(&mut self) {
        let spent = ring::interrupt::take_slow();
        if spent > 0 {
            self.charge_slow_signals(spent);
        }
    }

    #[cold]
    fn charge_slow_signals(&mut self, nanoseconds: u64) {
        self.debt = self.debt.saturating_add(nanoseconds.saturating_mul(COST_PER_NS));
        self.on.counters.interrupts.slow.add(1);
        let spent = Duration::from_nanos(nanoseconds);
        if !self.on.disk.slow_signals.allows(spent, Instant::now()) {
            self.fail(Violation::SlowInterrupt.into());
        }
    }

    /// Why nothing was fetched. A queue with too many requests with the kernel cannot be armed,
    /// because requests in its ring are not fetched before one of those is complete.
    pub fn status(&self) -> Status {
        match self.room() {
            _ if self.on.failed => Status::Failed,
            0 if self.in_flight > 0 => Status::Blocked(Blocked::default()),
            _ if self.in_flight > 0 && self.on.queue.is_full() => {
                Status::Blocked(Blocked::default())
            }
            _ => match &self.reserved {
                Some(reserved) => {
                    Status::Blocked(Blocked { room: None, until: Some(reserved.ready) })
                }
                None => Status::Idle,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::sync::atomic::Ordering;

    use parking_lot::Mutex;
    use rustix::event::{EventfdFlags, epoll, eventfd};

    use super::*;
    use runtime::{Pipeline, ThreadUsage};

    use crate::Image;
    use crate::engine::ThreadEngine;
    use crate::idle_queue::{Idle, attachment};
    use crate::image::{Direct, ImageOptions};
    use crate::pipeline::{BlockPipeline, QUANTUM};

    /// An event descriptor that is watched again and again, and what watches it.
    struct Watched {
        call: OwnedFd,
        _copies: Vec<OwnedFd>,
        _watchers: Vec<OwnedFd>,
    }

    impl Watched {
        fn new(side: usize) -> Watched {
            let call = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
            let copies: Vec<OwnedFd> = (0..side).map(|_| call.try_clone().unwrap()).collect();
            let watch = |_| {
                let watcher = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
                for copy in &copies {
                    let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
                    epoll::add(&watcher, copy, epoll::EventData::new_u64(0), flags).unwrap();
                }
                watcher
            };
            let watchers = (0..side).map(watch).collect();
            Watched { call, _copies: copies, _watchers: watchers }
        }
    }

    #[test]
    fn work_of_the_thread_of_an_image_is_paid_by_the_next_burst() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let image = Image::open(&ImageOptions::new(file.path().to_owned())).unwrap();
        let disk = Arc::new(Disk::new(Arc::new(image), "serial"));
        let engine = Box::new(ThreadEngine::new().unwrap());
        let mut pipeline = BlockPipeline::new(engine, ThreadUsage::default);
        let at = pipeline.attach(Box::new(attachment(Idle::default(), disk))).slot;
        pipeline.slots[at].charge_thread(1000);
        assert_eq!(pipeline.serve(at, QUANTUM).cost, 1000 * COST_PER_NS);
        assert_eq!(pipeline.serve(at, QUANTUM).cost, 0);
        assert_eq!(pipeline.slots[at].on.counters.image_thread_ns.get(), 1000);
    }

    #[test]
    fn pages_that_the_kernel_used_are_noted_also_for_a_queue_that_failed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(4096).unwrap();
        let image = Image::open(&ImageOptions::new(file.path().to_owned())).unwrap();
        let queue = Idle::default();
        let used = Arc::clone(&queue.used);
        let disk = Arc::new(Disk::new(Arc::new(image), "serial"));
        let mut slot = Slot::new(attachment(queue, disk));
        for failed in [false, true] {
            slot.on.failed = failed;
            slot.pages += 3;
            slot.flush();
            slot.flush();
            assert_eq!(used.swap(0, Ordering::Relaxed), 3);
        }
    }

    #[test]
    fn a_disk_whose_interrupts_are_slow_pays_and_is_stopped() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let path = file.path().to_owned();
        let options = ImageOptions { direct: Direct::Never, ..ImageOptions::new(path) };
        let image = Arc::new(Image::open(&options).unwrap());
        let errors = Arc::new(Mutex::new(Vec::new()));
        let reported = Arc::clone(&errors);
        let watched = Watched::new(128);
        let call = Some(watched.call.try_clone().unwrap());
        let disk = Arc::new(Disk::new(image, "serial"));
        let mut slot = Slot::new(Attachment {
            on_error: Arc::new(move |_, error| reported.lock().push(error)),
            ..attachment(Idle { call, ..Idle::default() }, disk)
        });
        let sent = (0..10_000).find(|_| {
            slot.complete(0, 0);
            slot.flush();
            slot.on.failed
        });
        assert!(
            sent.is_some(),
            "interrupts were slow {} times",
            slot.on.counters.interrupts.slow.get()
        );
        assert!(slot.debt >= 200_000 * COST_PER_NS, "{}", slot.debt);
        assert!(slot.on.counters.interrupts.slow.get() >= 2);
        assert_eq!(*errors.lock(), [Violation::SlowInterrupt.into()]);
        assert_eq!(ring::interrupt::take_slow(), 0, "nobody else is charged");
    }
}
