//! A token bucket, kept by the generic cell rate algorithm (ITU-T I.371): a rate that the queues of
//! a port, of several ports, or of a disk share.
//!
//! The state is one number: when all that was sent so far would have been sent at the allowed rate.
//! A frame may go while that time is no further ahead of now than the time of a burst. So nothing
//! has to be refilled, and workers share a bucket without a lock.
//!
//! A worker takes the units of a whole burst at once, and gives back those of frames that did not
//! go.
//!
//! A queue whose next item finds no room reserves it ([`TokenBucket::reserve`]): the item is paid
//! for now, and goes after all items that were paid for before. So queues that share a bucket take
//! turns in the order in which they came. Without reservations, a queue with short items could keep
//! one with long items waiting for ever, and so could a queue that is always served first.
//!
//! Requests of disks cannot go back to their ring. A request begins while there is any room, and
//! its cost is paid when it is known ([`TokenBucket::overdraw`]).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Parts of a nanosecond, so that rounding up the time of a short burst costs no rate. 64 bits last
/// for 36 years of them.
const TICKS: u64 = 16;

/// Least time for which a sender that has used up its rate waits: waking up for each frame would
/// cost more than its copy. At most a quarter of a burst, so that nothing of the rate is lost.
const GRAIN: Duration = Duration::from_micros(100);

/// The unit of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes of frames or requests.
    Bytes,
    /// Frames or requests.
    Items,
}

/// How much may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Bytes or items per second.
    pub per_second: u64,
    /// The number that may go at once after a pause. An item bigger than this goes alone.
    pub burst: u64,
}

/// Shared credit.
#[derive(Debug)]
pub struct TokenBucket {
    unit: Unit,
    rate: Rate,
    /// How far ahead of now `paid` may be: the time of a burst, in ticks.
    slack: u64,
    start: Instant,
    /// Ticks from `start` on.
    paid: AtomicU64,
}

impl TokenBucket {
    /// A full bucket. A rate or a burst of zero counts as one.
    pub fn new(unit: Unit, rate: Rate) -> Self {
        let rate = Rate { per_second: rate.per_second.max(1), burst: rate.burst.max(1) };
        let slack = ticks(rate.burst, rate.per_second);
        TokenBucket { unit, rate, slack, start: Instant::now(), paid: AtomicU64::new(0) }
    }

    /// The unit of the bucket.
    pub fn unit(&self) -> Unit {
        self.unit
    }

    /// Its rate.
    pub fn rate(&self) -> Rate {
        self.rate
    }

    /// How much may go at `now`. A full bucket has room for anything.
    pub fn room(&self, now: Instant) -> u64 {
        let (paid, now) = (self.paid.load(Ordering::Relaxed), self.at(now));
        if paid <= now {
            return u64::MAX;
        }
        let left = (now.saturating_add(self.slack)).saturating_sub(paid);
        let units = u128::from(left) * u128::from(self.rate.per_second) / u128::from(SECOND);
        u64::try_from(units).unwrap_or(u64::MAX)
    }

    /// Takes `units` at `now`. False: the bucket has fewer, and nothing was taken.
    pub fn take(&self, now: Instant, units: u64) -> bool {
        let (cost, now) = (ticks(units, self.rate.per_second), self.at(now));
        let pay = |paid: u64| {
            let fits = paid <= now || paid.saturating_add(cost) <= now.saturating_add(self.slack);
            fits.then(|| paid.max(now).saturating_add(cost))
        };
        self.paid.fetch_update(Ordering::Relaxed, Ordering::Relaxed, pay).is_ok()
    }

    /// Takes `units` at `now` whether or not there is room for them. Missing units delay later
    /// takers.
    pub fn overdraw(&self, now: Instant, units: u64) {
        let (cost, now) = (ticks(units, self.rate.per_second), self.at(now));
        let pay = |paid: u64| Some(paid.max(now).saturating_add(cost));
        // The closure never refuses an update.
        let _ = self.paid.fetch_update(Ordering::Relaxed, Ordering::Relaxed, pay);
    }

    /// Takes `units` in advance. Returns when they may go: after all that was taken before, and
    /// before all that is taken later.
    pub fn reserve(&self, now: Instant, units: u64) -> Instant {
        let (cost, at) = (ticks(units, self.rate.per_second), self.at(now));
        let pay = |paid: u64| Some(paid.max(at).saturating_add(cost));
        let (Ok(before) | Err(before)) =
            self.paid.fetch_update(Ordering::Relaxed, Ordering::Relaxed, pay);
        self.due(at, before.max(at), cost)
    }

    /// Returns `units` that were taken.
    pub fn give_back(&self, units: u64) {
        let cost = ticks(units, self.rate.per_second);
        let back = |paid: u64| Some(paid.saturating_sub(cost));
        // The closure never refuses an update.
        let _ = self.paid.fetch_update(Ordering::Relaxed, Ordering::Relaxed, back);
    }

    /// The time at which an item of this cost may go after all that was paid for so far. The result
    /// is at least the shortest wait after `now`.
    fn due(&self, now: u64, paid: u64, cost: u64) -> Instant {
        let ready = paid.saturating_add(cost.min(self.slack)).saturating_sub(self.slack);
        let grain = (GRAIN.as_nanos() as u64 * TICKS).min(self.slack / 4);
        let ready = ready.max(now.saturating_add(grain));
        self.start + Duration::from_nanos(ready.div_ceil(TICKS))
    }

    fn at(&self, now: Instant) -> u64 {
        let nanos = now.saturating_duration_since(self.start).as_nanos();
        u64::try_from(nanos * u128::from(TICKS)).unwrap_or(u64::MAX)
    }
}

/// Ticks of a second.
const SECOND: u64 = 1_000_000_000 * TICKS;

/// Longest time that anything may be charged, in ticks: a month. This bound keeps sums from
/// overflowing.
const LONGEST: u64 = 30 * 24 * 3600 * SECOND;

/// The time in which `units` accrue, in ticks, rounded up.
fn ticks(units: u64, per_second: u64) -> u64 {
    let ticks = (u128::from(units) * u128::from(SECOND)).div_ceil(u128::from(per_second));
    u64::try_from(ticks).unwrap_or(u64::MAX).min(LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The time at which `units` can be taken, if nothing else is taken before.
    fn ready_at(bucket: &TokenBucket, now: Instant, units: u64) -> Instant {
        let paid = bucket.paid.load(Ordering::Relaxed);
        bucket.due(bucket.at(now), paid, ticks(units, bucket.rate.per_second))
    }

    fn bucket(per_second: u64, burst: u64) -> TokenBucket {
        TokenBucket::new(Unit::Bytes, Rate { per_second, burst })
    }

    /// Sends frames of `len` bytes as fast as allowed. Returns the bytes that went in `time`.
    fn sent(bucket: &TokenBucket, len: u64, time: Duration) -> u64 {
        let (mut now, end) = (bucket.start, bucket.start + time);
        let mut bytes = 0;
        while now < end {
            if bucket.take(now, len) {
                bytes += len;
            } else {
                let until = ready_at(bucket, now, len);
                assert!(until > now);
                now = until;
            }
        }
        bytes
    }

    #[test]
    fn over_time_no_more_goes_than_is_allowed_and_hardly_less() {
        for (rate, burst) in
            [(1000, 64), (1_000_000, 1000), (12_500_000, 65_557), (12_500_000_000, 1 << 20)]
        {
            for len in [60, 1514, 65_000] {
                let bucket = bucket(rate, burst);
                let seconds = if rate > 1_000_000_000 { 1 } else { 20 };
                let sent = sent(&bucket, len, Duration::from_secs(seconds));
                let allowed = rate * seconds;
                let most = allowed + burst.max(len) + len;
                assert!(sent <= most, "{sent} of {allowed}: {rate} {burst} {len}");
                let least = allowed - allowed / 100;
                assert!(sent + len >= least, "{sent} of {allowed}: {rate} {burst} {len}");
            }
        }
    }

    #[test]
    fn what_was_not_used_is_not_saved_up() {
        let bucket = bucket(1_000_000, 50_000);
        let later = bucket.start + Duration::from_secs(100);
        let mut bytes = 0;
        while bucket.take(later, 1000) {
            bytes += 1000;
        }
        assert_eq!(bytes, 50_000);
        bucket.give_back(1000);
        assert!(bucket.take(later, 1000) && !bucket.take(later, 1));
    }

    #[test]
    fn what_is_bigger_than_a_burst_goes_alone_and_is_paid_for() {
        let bucket = bucket(1000, 100);
        let now = bucket.start + Duration::from_secs(1);
        assert_eq!(bucket.room(now), u64::MAX);
        assert!(bucket.take(now, 2000));
        assert_eq!(bucket.room(now + Duration::from_millis(1900)), 0);
        assert_eq!(bucket.room(now + Duration::from_millis(1950)), 50);
        assert_eq!(bucket.room(now + Duration::from_secs(2)), u64::MAX);
        assert_eq!(ready_at(&bucket, now, 2000), now + Duration::from_secs(2));
    }

    #[test]
    fn what_was_overdrawn_is_paid_for_before_anything_else_goes() {
        let bucket = bucket(1000, 100);
        let now = bucket.start + Duration::from_secs(1);
        bucket.overdraw(now, 60);
        assert_eq!(bucket.room(now), 40);
        bucket.overdraw(now, 2000);
        assert_eq!(bucket.room(now), 0);
        assert_eq!(ready_at(&bucket, now, 1), now + Duration::from_millis(1961));
        assert!(!bucket.take(now + Duration::from_millis(1960), 1));
        assert!(bucket.take(now + Duration::from_millis(1961), 1));
    }

    #[test]
    fn those_who_reserve_take_turns_whatever_they_send_and_whoever_asks_first() {
        let bucket = bucket(1_000_000, 25_000);
        let end = bucket.start + Duration::from_secs(10);
        // The first one asks first whenever both may, and the last one sends more than a burst.
        let lens = [1500, 1500, 15_000, 60_000];
        let (mut next, mut bytes) = ([bucket.start; 4], [0; 4]);
        loop {
            let (sender, now) = next.iter().copied().enumerate().min_by_key(|at| at.1).unwrap();
            if now >= end {
                break;
            }
            bytes[sender] += lens[sender];
            next[sender] = bucket.reserve(now, lens[sender]);
        }
        let items: Vec<u64> = bytes.iter().zip(lens).map(|(bytes, len)| bytes / len).collect();
        let (least, most) = (items.iter().min().unwrap(), items.iter().max().unwrap());
        assert!(most - least <= 2, "{items:?}");
        let sum: u64 = bytes.iter().sum();
        assert!((9_900_000..10_200_000).contains(&sum), "{sum}");
    }

    #[test]
    fn workers_that_share_a_bucket_share_its_rate() {
        let bucket = bucket(1_000_000, 10_000);
        let (start, end) = (bucket.start, bucket.start + Duration::from_secs(2));
        let worker = || {
            let (mut now, mut bytes) = (start, 0);
            while now < end {
                match bucket.take(now, 1000) {
                    true => bytes += 1000,
                    false => now = ready_at(&bucket, now, 1000),
                }
            }
            bytes
        };
        let sent: u64 = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..4).map(|_| scope.spawn(worker)).collect();
            workers.into_iter().map(|worker| worker.join().unwrap()).sum()
        });
        assert!(sent <= 2_000_000 + 10_000, "{sent}");
    }
}
