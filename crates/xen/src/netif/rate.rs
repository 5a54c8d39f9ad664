//! How fast a vif may send, all of its queues together: the `rate` key, so many bytes in so many
//! microseconds.
//!
//! It is kept as one number: when all that was sent so far would have been sent at the allowed
//! rate. A frame may go as long as that is not too far ahead of now; so nothing has to be filled up
//! again, and queues on several workers share it without a lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Bytes that may always go at once, whatever the rate: two of the longest frames. With less, some
/// could never go.
const LEAST: u64 = 131_072;

/// An allowance.
#[derive(Debug)]
pub struct Rate {
    bytes: u64,
    period: u64,
    /// How far ahead is too far, in nanoseconds.
    slack: u64,
    start: Instant,
    /// Nanoseconds from `start` on.
    paid: AtomicU64,
}

impl Rate {
    /// `bytes` in each `period`. `None`: that is no limit, or none that makes sense.
    pub fn new(bytes: u64, period: Duration) -> Option<Self> {
        let period = u64::try_from(period.as_nanos()).ok().filter(|period| *period > 0)?;
        if bytes == 0 || bytes > u64::from(u32::MAX) {
            return None;
        }
        let slack = u128::from(bytes.max(LEAST)) * u128::from(period) / u128::from(bytes);
        let slack = u64::try_from(slack).ok()?;
        Some(Rate { bytes, period, slack, start: Instant::now(), paid: AtomicU64::new(0) })
    }

    /// As the toolstack writes it: `bytes,microseconds`. `None`: no limit.
    pub fn parse(text: &str) -> Option<Self> {
        let (bytes, micros) = text.split_once(',')?;
        let (bytes, micros): (u64, u64) = (bytes.trim().parse().ok()?, micros.trim().parse().ok()?);
        // The toolstack's word for "no limit".
        if bytes >= u64::from(u32::MAX) {
            return None;
        }
        Self::new(bytes, Duration::from_micros(micros))
    }

    /// Bytes per second.
    pub fn per_second(&self) -> u64 {
        (u128::from(self.bytes) * 1_000_000_000 / u128::from(self.period)) as u64
    }

    /// `len` bytes that were sent were not sent after all.
    pub fn refund(&self, len: u32) {
        let cost = self.cost(len);
        let back = |paid: u64| Some(paid.saturating_sub(cost));
        // It is never refused.
        let _ = self.paid.fetch_update(Ordering::Relaxed, Ordering::Relaxed, back);
    }

    fn cost(&self, len: u32) -> u64 {
        let cost = u128::from(len) * u128::from(self.period) / u128::from(self.bytes);
        u64::try_from(cost).unwrap_or(u64::MAX)
    }

    /// Sends `len` bytes at `now`, or says from when on that is allowed.
    pub fn send(&self, now: Instant, len: u32) -> Result<(), Instant> {
        let at =
            u64::try_from(now.saturating_duration_since(self.start).as_nanos()).unwrap_or(u64::MAX);
        let cost = self.cost(len);
        let pay = |paid: u64| {
            let paid = paid.max(at).saturating_add(cost);
            (paid <= at.saturating_add(self.slack)).then_some(paid)
        };
        let outcome = self.paid.fetch_update(Ordering::Relaxed, Ordering::Relaxed, pay);
        let from = |paid: u64| paid.saturating_add(cost).saturating_sub(self.slack);
        outcome.map(drop).map_err(|paid| self.start + Duration::from_nanos(from(paid)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends frames of `len` bytes as fast as it may; how many bytes went in `time`.
    fn sent(rate: &Rate, len: u32, time: Duration) -> u64 {
        let (mut now, end) = (rate.start, rate.start + time);
        let mut bytes = 0;
        while now < end {
            match rate.send(now, len) {
                Ok(()) => bytes += u64::from(len),
                Err(until) => {
                    assert!(until > now);
                    now = until;
                }
            }
        }
        bytes
    }

    #[test]
    fn over_time_no_more_goes_than_is_allowed_and_hardly_less() {
        for (bytes, micros) in [(1000, 1000), (100_000, 50_000), (12_500_000, 1_000_000), (7, 13)] {
            for len in [60, 1514, 65_000] {
                let rate = Rate::new(bytes, Duration::from_micros(micros)).unwrap();
                let seconds = 20;
                let sent = sent(&rate, len, Duration::from_secs(seconds));
                let allowed = rate.per_second() * seconds;
                assert!(sent <= allowed + allowed / 1000 + bytes.max(LEAST), "{sent} of {allowed}");
                assert!(sent + u64::from(len) >= allowed, "{sent} of {allowed}");
            }
        }
    }

    #[test]
    fn what_was_not_used_is_not_saved_up() {
        let rate = Rate::new(1_000_000, Duration::from_secs(1)).unwrap();
        let grant_copies = rate.start + Duration::from_secs(100);
        let mut bytes = 0;
        while rate.send(grant_copies, 1000).is_ok() {
            bytes += 1000;
        }
        assert_eq!(bytes, 1_000_000);
    }

    #[test]
    fn what_is_given_back_can_be_sent_again() {
        let rate = Rate::new(1_000_000, Duration::from_secs(1)).unwrap();
        for _ in 0..1000 {
            rate.send(rate.start, 1000).unwrap();
        }
        assert!(rate.send(rate.start, 1000).is_err());
        rate.refund(1000);
        assert!(rate.send(rate.start, 1000).is_ok());
        assert!(rate.send(rate.start, 1000).is_err());
    }

    #[test]
    fn the_toolstacks_way_of_writing_it() {
        assert_eq!(Rate::parse("625000,50000").unwrap().per_second(), 12_500_000);
        for text in ["", "1", "1,", "0,50000", "100,0", "4294967295,50000", "x,y", "-1,5"] {
            assert!(Rate::parse(text).is_none(), "{text}");
        }
    }
}
