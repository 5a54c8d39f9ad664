//! Rate limits of a disk: requests and bytes per second, for all of its queues together.
//!
//! A queue fetches nothing while one of the limits is used up: the requests stay in the guest's
//! ring, where they hold up no other disk. A request is charged in full when it has begun, even if
//! there was less room, since its length is known only then. So a disk can exceed a burst by one
//! request for each queue, but not its rate.
//!
//! A queue that waits has a reservation, for a request like its last one. So the queues of a disk
//! take turns, and none is starved by others.
//!
//! Limits change while the disk is in service. They are in a cell of the disk; a worker reads the
//! cell when it takes a queue over, and when it follows a new topology, and [`Disks`] publishes one
//! after each change. So a request of a disk without limits needs no lookup.
//!
//! [`Disks`]: crate::Disks

use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use runtime::token_bucket::{Rate, TokenBucket, Unit};

use crate::request::{Operation, Request};

/// The rate limits of a disk. `None`: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskRates {
    /// Requests of any type.
    pub requests: Option<Rate>,
    /// Bytes that are read and written. Requests to write zeros count, since zeros may have to be
    /// written; discards do not.
    pub bytes: Option<Rate>,
}

/// Room that the next request of a queue has taken in advance.
#[derive(Debug)]
pub(crate) struct Reservation {
    bytes: u64,
    /// When the request may begin.
    pub ready: Instant,
}

/// The credit of a disk.
#[derive(Debug)]
pub(crate) struct Limits {
    requests: Option<TokenBucket>,
    bytes: Option<TokenBucket>,
}

impl Limits {
    /// Whether no request may begin.
    pub fn is_exhausted(&self, now: Instant) -> bool {
        self.requests.iter().chain(&self.bytes).any(|bucket| bucket.room(now) == 0)
    }

    /// Takes room in advance for a request that moves `bytes` bytes.
    pub fn reserve(&self, now: Instant, bytes: u64) -> Reservation {
        let requests = self.requests.as_ref().map(|bucket| bucket.reserve(now, 1));
        let moved = self.bytes.as_ref().map(|bucket| bucket.reserve(now, bytes));
        Reservation { bytes, ready: requests.max(moved).unwrap_or(now) }
    }

    /// Charges for a request that moves `bytes` bytes.
    pub fn pay(&self, now: Instant, bytes: u64, reserved: Option<Reservation>) {
        if let Some(bucket) = &self.requests {
            bucket.overdraw(now, 1);
        }
        if let Some(bucket) = self.bytes.as_ref().filter(|_| bytes > 0) {
            bucket.overdraw(now, bytes);
        }
        if let Some(reserved) = reserved {
            self.cancel(&reserved);
        }
    }

    /// Gives back what was taken in advance.
    pub fn cancel(&self, reserved: &Reservation) {
        if let Some(bucket) = &self.requests {
            bucket.give_back(1);
        }
        if let Some(bucket) = &self.bytes {
            bucket.give_back(reserved.bytes);
        }
    }
}

/// Bytes of a request that count.
pub(crate) fn bytes(request: &Request) -> u64 {
    match request.work.operation {
        Operation::Read | Operation::Write { .. } => request.work.left,
        _ if request.work.zeroes => request.work.left,
        _ => 0,
    }
}

/// The limits of a disk, for all workers that serve a queue of it.
#[derive(Debug, Default)]
pub(crate) struct LimitsCell(Mutex<Option<Arc<Limits>>>);

impl LimitsCell {
    /// The present limits; `None`: there are none.
    pub fn get(&self) -> Option<Arc<Limits>> {
        self.0.lock().clone()
    }

    /// Replaces the limits. The new ones begin with a full burst.
    pub fn set(&self, rates: DiskRates) {
        let limits = Limits {
            requests: rates.requests.map(|rate| TokenBucket::new(Unit::Items, rate)),
            bytes: rates.bytes.map(|rate| TokenBucket::new(Unit::Bytes, rate)),
        };
        *self.0.lock() = (rates != DiskRates::default()).then(|| Arc::new(limits));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use runtime::{Blocked, Status};

    use super::*;
    use crate::idle_queue::{Idle, attachment};
    use crate::image::ImageOptions;
    use crate::slot::Slot;
    use crate::{Disk, Image};

    fn slot(rates: DiskRates) -> (tempfile::NamedTempFile, Slot) {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(4096).unwrap();
        let options = ImageOptions::new(file.path().to_owned());
        let disk = Arc::new(Disk::new(Arc::new(Image::open(&options).unwrap()), "x"));
        disk.set_limits(rates);
        let queue = Idle { claims_more: true, ..Idle::default() };
        (file, Slot::new(attachment(queue, disk)))
    }

    #[test]
    fn a_queue_waits_until_its_disk_has_credit_again() {
        let requests = Some(Rate { per_second: 10, burst: 2 });
        let bytes = Some(Rate { per_second: 1000, burst: 1 << 20 });
        let (_file, mut slot) = slot(DiskRates { requests, bytes });
        let now = Instant::now() + Duration::from_secs(1);
        assert!(!slot.is_limited(now));
        slot.pay(now, 512);
        assert!(!slot.is_limited(now));
        slot.pay(now, 0);
        assert!(slot.is_limited(now));
        let until = Some(now + Duration::from_millis(100));
        assert_eq!(slot.status(), Status::Blocked(Blocked { room: None, until }));
        assert!(slot.is_limited(now + Duration::from_millis(99)));
        assert_eq!(slot.on.counters.limited.get(), 1, "one wait");
        let later = now + Duration::from_millis(100);
        assert!(!slot.is_limited(later));
        slot.pay(later, 0);
        assert_eq!(slot.status(), Status::Idle);
        assert!(slot.is_limited(later), "the reservation is paid once, and used once");
    }

    #[test]
    fn a_changed_limit_ends_the_wait_that_came_of_the_old_one() {
        let slow = DiskRates { requests: Some(Rate { per_second: 1, burst: 1 }), bytes: None };
        let (_file, mut slot) = slot(slow);
        let now = Instant::now();
        slot.pay(now, 0);
        assert!(slot.is_limited(now));
        slot.on.disk.set_limits(DiskRates::default());
        assert!(slot.is_limited(now), "not before the worker follows");
        slot.follow_limits();
        assert!(slot.limits.is_none() && !slot.is_limited(now));
        assert_eq!(slot.status(), Status::Idle);
    }
}
