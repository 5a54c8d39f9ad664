//! Restrictions that the operator puts on a port: the addresses that it may claim, the connections
//! that it may have, and how much it may send and receive.
//!
//! Restrictions change while the port is in service. They are in a cell of the port; a worker reads
//! the cell when it takes a queue over, and when it follows a new topology, and the fabric
//! publishes one after each change. So no lookup is needed for a frame or a burst.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use switch::SourceGuard;
use switch::filter::RuleSet;

use crate::burst::{Frame, Frames};
use crate::port_filter::PortFilter;
use crate::token_bucket::{Rate, TokenBucket, Unit};

/// The restrictions of a port. The default restricts nothing.
#[derive(Clone, Debug, Default)]
pub struct Restrictions {
    /// The addresses that the port's frames may claim; `None`: anything.
    pub guard: Option<Arc<SourceGuard>>,
    /// The connections that the port may have; `None`: any.
    pub filter: Option<Arc<PortFilter>>,
    /// Token buckets that limit all frames from the port. Buckets may be shared with other ports.
    pub transmit: Limits,
    /// Token buckets that limit all frames for the port.
    pub receive: Limits,
}

impl Restrictions {
    /// Whether there is no restriction at all.
    pub fn is_none(&self) -> bool {
        self.guard.is_none()
            && self.filter.is_none()
            && self.transmit.is_empty()
            && self.receive.is_empty()
    }

    /// The single addresses that the port's frames may claim.
    pub fn given_addresses(&self) -> Vec<IpAddr> {
        self.guard.iter().flat_map(|guard| guard.addresses()).collect()
    }
}

/// The parts from which restrictions of ports are made: limits that each port has for itself, and
/// those that it shares.
#[derive(Clone, Debug, Default)]
pub struct RestrictionsTemplate {
    /// The addresses that frames may claim.
    pub guard: Option<Arc<SourceGuard>>,
    /// The connections that a port may have. Each port has a table of its own.
    pub rules: Option<Arc<RuleSet>>,
    /// Limits of a port's own.
    pub transmit: Vec<(Unit, Rate)>,
    /// Limits of a port's own.
    pub receive: Vec<(Unit, Rate)>,
    /// Limits that are shared.
    pub shared: SharedLimits,
    /// Named limits that a port may share instead of `shared`.
    pub budgets: BTreeMap<String, SharedLimits>,
}

/// Limits that several ports share.
#[derive(Clone, Debug, Default)]
pub struct SharedLimits {
    /// Limits of sending.
    pub transmit: Limits,
    /// Limits of receiving.
    pub receive: Limits,
}

impl RestrictionsTemplate {
    /// The restrictions of one more port.
    pub fn instantiate(&self) -> Restrictions {
        let limits = |own: &[(Unit, Rate)], shared: &Limits| {
            let own = own.iter().map(|(unit, rate)| Arc::new(TokenBucket::new(*unit, *rate)));
            Limits(own.chain(shared.0.iter().cloned()).collect())
        };
        Restrictions {
            guard: self.guard.clone(),
            filter: self.rules.clone().map(|rules| Arc::new(PortFilter::new(rules))),
            transmit: limits(&self.transmit, &self.shared.transmit),
            receive: limits(&self.receive, &self.shared.receive),
        }
    }
}

/// The restrictions of a port, for all workers that serve a queue of it.
#[derive(Debug, Default)]
pub struct RestrictionsCell(Mutex<Option<Arc<Restrictions>>>);

impl RestrictionsCell {
    /// A cell with these restrictions.
    pub fn new(restrictions: Restrictions) -> Self {
        let cell = RestrictionsCell::default();
        cell.set(restrictions);
        cell
    }

    /// The present ones; `None`: nothing is restricted.
    pub fn get(&self) -> Option<Arc<Restrictions>> {
        self.0.lock().clone()
    }

    /// Replaces the restrictions. A port that has a filter keeps the connections that the new rules
    /// allow.
    pub fn set(&self, mut restrictions: Restrictions) {
        let mut present = self.0.lock();
        let filters = (present.as_ref().and_then(|it| it.filter.clone()), &mut restrictions.filter);
        if let (Some(kept), Some(wanted)) = filters {
            kept.set_rules(wanted.rules());
            *wanted = kept;
        }
        *present = (!restrictions.is_none()).then(|| Arc::new(restrictions));
    }
}

/// Several limits, all of which apply.
#[derive(Clone, Debug, Default)]
pub struct Limits(pub Vec<Arc<TokenBucket>>);

/// The load that frames put on a limit: bytes and frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    bytes: u64,
    frames: u64,
}

impl Load {
    /// The load of one frame, as it would be on a wire: one that stands for several segments counts
    /// as all of them, headers included.
    #[inline]
    fn of(frame: &Frame) -> Load {
        let (len, headers) = (u64::from(frame.len), u64::from(frame.headers.end));
        let segments = frame.offload.gso.map_or(1, |gso| {
            len.saturating_sub(headers).div_ceil(u64::from(gso.size.max(1))).max(1)
        });
        Load { bytes: len + (segments - 1) * headers, frames: segments }
    }

    /// The load of several frames.
    #[inline]
    pub fn sum(frames: Frames<'_>) -> Load {
        frames.iter().fold(Load::default(), |sum, frame| sum.plus(Load::of(frame)))
    }

    #[inline]
    fn plus(self, other: Load) -> Load {
        Load { bytes: self.bytes + other.bytes, frames: self.frames + other.frames }
    }

    #[inline]
    fn in_units(self, unit: Unit) -> u64 {
        match unit {
            Unit::Bytes => self.bytes,
            Unit::Items => self.frames,
        }
    }
}

/// Room that a sender's next frame has taken in advance.
#[derive(Debug)]
pub struct Reservation {
    load: Load,
    /// When the frame may go.
    pub ready: Instant,
}

impl Limits {
    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes room for as many frames as fit, from the first on. Returns how many.
    pub fn take<'a>(&self, now: Instant, frames: impl Into<Frames<'a>>) -> usize {
        let frames = frames.into();
        let mut fitting = frames.len();
        for (at, bucket) in self.0.iter().enumerate() {
            let fits = take_prefix(bucket, now, frames.range(0..fitting));
            let rest = Load::sum(frames.range(fits..fitting));
            self.0[..at].iter().for_each(|bucket| bucket.give_back(rest.in_units(bucket.unit())));
            fitting = fits;
        }
        fitting
    }

    /// Gives back what was taken for these frames.
    pub fn give_back<'a>(&self, frames: impl Into<Frames<'a>>) {
        let load = Load::sum(frames.into());
        self.0.iter().for_each(|bucket| bucket.give_back(load.in_units(bucket.unit())));
    }

    /// Takes room for a frame in advance, behind all that was taken before.
    pub fn reserve(&self, now: Instant, frame: &Frame) -> Reservation {
        let load = Load::of(frame);
        let ready = self.0.iter().map(|bucket| bucket.reserve(now, load.in_units(bucket.unit())));
        Reservation { load, ready: ready.max().unwrap_or(now) }
    }

    /// Takes room for the frames, the first of which has a reservation that is ready. Returns for
    /// how many there is room.
    pub fn take_reserved<'a>(
        &self,
        now: Instant,
        reserved: Reservation,
        frames: impl Into<Frames<'a>>,
    ) -> usize {
        let frames = frames.into();
        // A guest may have changed the frame, so its present load counts.
        let fits = frames.first().is_some_and(|first| Load::of(first) == reserved.load);
        if !fits {
            self.cancel(&reserved);
            return self.take(now, frames);
        }
        1 + self.take(now, frames.range(1..frames.len()))
    }

    /// Gives back what was taken in advance.
    pub fn cancel(&self, reserved: &Reservation) {
        self.0.iter().for_each(|bucket| bucket.give_back(reserved.load.in_units(bucket.unit())));
    }
}

/// How often a worker tries again when others have taken the room that it saw.
const ATTEMPTS: usize = 4;

fn take_prefix(bucket: &TokenBucket, now: Instant, frames: Frames<'_>) -> usize {
    let (unit, burst) = (bucket.unit(), bucket.rate().burst);
    let mut fits = frames.len();
    for _ in 0..ATTEMPTS {
        let load = Load::sum(frames.range(0..fits)).in_units(unit);
        // A frame bigger than the limit's burst goes alone.
        if (load <= burst || fits <= 1) && bucket.take(now, load) {
            return fits;
        }
        fits = match bucket.room(now) {
            u64::MAX => prefix(frames, unit, burst).max(1),
            room => prefix(frames, unit, room),
        };
        if fits == 0 {
            break;
        }
    }
    0
}

/// The number of frames, from the first on, that fit into `room`.
#[cold]
fn prefix(frames: Frames<'_>, unit: Unit, room: u64) -> usize {
    let mut load = Load::default();
    let fits = |frame: &&Frame| {
        load = load.plus(Load::of(frame));
        load.in_units(unit) <= room
    };
    frames.iter().take_while(fits).count()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use frame::{Gso, GsoKind, Offload};

    use super::*;

    #[allow(clippy::field_reassign_with_default)] // Some of its fields are private.
    fn frames(lens: &[u32]) -> Vec<Frame> {
        let frame = |&len: &u32| {
            let mut frame = Frame::default();
            frame.len = len;
            frame
        };
        lens.iter().map(frame).collect()
    }

    fn limits(rates: &[(Unit, u64)]) -> Limits {
        let bucket =
            |&(unit, burst)| Arc::new(TokenBucket::new(unit, Rate { per_second: 1000, burst }));
        Limits(rates.iter().map(bucket).collect())
    }

    #[test]
    fn frames_go_as_far_as_every_limit_allows() {
        let now = Instant::now() + Duration::from_secs(5);
        let burst = frames(&[100, 100, 100]);
        assert_eq!(limits(&[]).take(now, &burst), 3);
        assert_eq!(limits(&[(Unit::Bytes, 300)]).take(now, &burst), 3);
        assert_eq!(limits(&[(Unit::Bytes, 299)]).take(now, &burst), 2);
        assert_eq!(limits(&[(Unit::Bytes, 500), (Unit::Items, 1)]).take(now, &burst), 1);
        assert_eq!(limits(&[(Unit::Bytes, 50)]).take(now, &burst), 1, "too big, so alone");
        let both = limits(&[(Unit::Bytes, 500), (Unit::Items, 1)]);
        assert_eq!(both.take(now, &burst), 1);
        assert_eq!(both.0[0].room(now), 400, "what the other limit refused was given back");
        let limits = limits(&[(Unit::Bytes, 250), (Unit::Items, 10)]);
        assert_eq!((limits.take(now, &burst), limits.take(now, &burst)), (2, 0));
        assert_eq!(limits.take(now, &frames(&[50])), 1, "there was room for something shorter");
        limits.give_back(&burst[..1]);
        assert_eq!(limits.take(now, &burst), 1);
    }

    #[test]
    fn a_frame_with_a_reservation_goes_before_those_that_came_later() {
        let now = Instant::now() + Duration::from_secs(5);
        let limits = limits(&[(Unit::Bytes, 200), (Unit::Items, 10)]);
        assert_eq!(limits.take(now, &frames(&[150])), 1);
        let long = frames(&[120, 20]);
        assert_eq!(limits.take(now, &long), 0);
        let reserved = limits.reserve(now, &long[0]);
        assert_eq!(reserved.ready, now + Duration::from_millis(70));
        // Without the reservation, a shorter frame would fit until then, and one more after it.
        let short = frames(&[20, 20]);
        assert_eq!(limits.take(now + Duration::from_millis(69), &short), 0);
        assert_eq!(limits.take_reserved(reserved.ready, reserved, &long), 1);
        // A reservation whose frame has changed, or was never sent, gives its room back.
        let later = now + Duration::from_secs(1);
        assert_eq!(limits.take(later, &frames(&[150])), 1);
        let reserved = limits.reserve(later, &long[0]);
        assert_eq!(limits.take_reserved(later, reserved, &short), 2);
        let reserved = limits.reserve(later, &long[0]);
        limits.cancel(&reserved);
        assert_eq!(limits.take(later, &frames(&[10])), 1);
    }

    #[test]
    fn a_frame_that_stands_for_several_counts_as_all_of_them() {
        let mut frame = frames(&[54 + 3001]).remove(0);
        frame.headers.end = 54;
        let gso = Gso { kind: GsoKind::TcpV4, size: 1000, ecn: false };
        frame.offload = Offload { gso: Some(gso), ..Offload::default() };
        assert_eq!(Load::of(&frame), Load { bytes: 3055 + 3 * 54, frames: 4 });
    }

    #[test]
    fn a_cell_without_restrictions_is_empty() {
        let cell = RestrictionsCell::new(Restrictions::default());
        assert!(cell.get().is_none());
        cell.set(Restrictions { transmit: limits(&[(Unit::Items, 1)]), ..Restrictions::default() });
        assert!(cell.get().is_some());
    }
}
