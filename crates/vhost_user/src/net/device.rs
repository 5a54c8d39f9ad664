//! The network device of one connection: starts and stops queue pairs for the session.
//!
//! Pairs work at a [`QueueHost`]: the frame pipeline, or a test. Invariant: between calls, exactly
//! the pairs with at least one vring are attached.
//!
//! A worker owns an attached pair. Each change of a pair takes it from its worker first, so no
//! worker ever sees a pair that is half changed. All pairs that a message has changed are handed
//! back together, so workers follow a new topology at most once per message.

use std::ops::Range;
use std::sync::Arc;

use frame::Mac;
use network::fabric::PairChange;
use network::port::QueuePair;
use network::topology::QueueId;
use ring::{Memory, PackedDevice, Recovery, SplitDevice, Violation};

use super::feature::{self, bit};
use super::queue_pair::NetQueuePair;
use super::vring_pair::{Direction, VringPair};
use crate::transport::device::{Declined, Device, LostVring, VringControl, VringStart};
use crate::transport::feature::Features;

/// Smallest MTU of a link, in bytes, as for IPv4 (RFC 791).
const MIN_MTU: u64 = 68;

/// The host of the queue pairs at work.
pub trait QueueHost {
    /// Takes pairs back, once nothing of them is in flight.
    fn take_out(&self, queues: &[QueueId]) -> Vec<Option<Box<dyn QueuePair>>>;

    /// Hands pairs over that are new, or were taken back; returns the ids by which they are taken
    /// back again.
    fn put_back(&self, changes: Vec<PairChange>) -> Vec<Option<QueueId>>;
}

/// The features that the device offers.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    /// Queue pairs, at least one.
    pub queues: u16,
    /// The port's MTU in bytes, if it is limited.
    pub mtu: Option<u16>,
}

/// How many vrings pass data, by direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ActiveVrings {
    /// Transmit queues.
    pub tx: usize,
    /// Receive queues.
    pub rx: usize,
}

impl ActiveVrings {
    /// Counts vrings by their numbers.
    pub fn count(active: &[usize]) -> ActiveVrings {
        let rx = active.iter().filter(|ring| Direction::of(**ring) == Direction::Rx).count();
        ActiveVrings { tx: active.len() - rx, rx }
    }
}

/// One queue pair.
#[derive(Default)]
struct Place {
    /// The id of the pair at its worker, or the last one.
    queue: Option<QueueId>,
    /// The pair, while it changes.
    held: Option<Box<dyn VringPair>>,
}

/// The network device of one connection.
pub struct NetDevice<H: QueueHost> {
    host: H,
    offer: Offer,
    features: Features,
    places: Vec<Place>,
}

impl<H: QueueHost> NetDevice<H> {
    /// A device without queue pairs.
    pub fn new(host: H, offer: Offer) -> Self {
        let queues = usize::from(offer.queues.max(1));
        let places = (0..queues).map(|_| Place::default()).collect();
        NetDevice { host, offer, features: Features::default(), places }
    }

    /// Takes these pairs from their host, unless they are held already.
    fn hold(&mut self, indices: Range<usize>) {
        let places = self.places.get_mut(indices).unwrap_or_default().iter_mut();
        let mut places: Vec<_> =
            places.filter(|place| place.held.is_none() && place.queue.is_some()).collect();
        let queues: Vec<QueueId> = places.iter().filter_map(|place| place.queue).collect();
        for (place, pair) in places.iter_mut().zip(self.host.take_out(&queues)) {
            let pair = pair.and_then(|pair| pair.into_any().downcast::<Box<dyn VringPair>>().ok());
            place.held = pair.map(|pair| *pair);
        }
    }

    /// Changes the pair of a vring while no worker has it: an empty one if there was none yet.
    fn with_pair<T>(
        &mut self,
        vring: usize,
        change: impl FnOnce(&mut dyn VringPair, Direction) -> T,
    ) -> T {
        let index = vring / 2;
        self.hold(index..index + 1);
        let features = self.features;
        let pair = self.places[index].held.get_or_insert_with(|| empty_pair(features));
        change(&mut **pair, Direction::of(vring))
    }
}

/// A pair without rings.
fn empty_pair(features: Features) -> Box<dyn VringPair> {
    match features.has(bit::RING_PACKED) {
        true => Box::new(NetQueuePair::<PackedDevice>::new(features)),
        false => Box::new(NetQueuePair::<SplitDevice>::new(features)),
    }
}

impl<H: QueueHost> Device for NetDevice<H> {
    fn features(&self) -> u64 {
        feature::offered()
    }

    fn feature_names(&self, features: Features) -> Vec<&'static str> {
        feature::names(features)
    }

    fn protocol_features(&self) -> u64 {
        feature::PROTOCOL
    }

    fn queue_num(&self) -> u16 {
        self.offer.queues
    }

    fn vring_count(&self) -> usize {
        2 * self.places.len()
    }

    fn describe_vrings(&self, active: &[usize]) -> String {
        let ActiveVrings { tx, rx } = ActiveVrings::count(active);
        format!("{tx} tx, {rx} rx")
    }

    fn set_mtu(&mut self, mtu: u64) -> Result<(), Declined> {
        let limit = self.offer.mtu.unwrap_or(u16::MAX);
        match (MIN_MTU..=u64::from(limit)).contains(&mtu) {
            true => Ok(()),
            false => Err(Declined::Value(format!(
                "MTU {mtu}, the port is configured for at most {limit}"
            ))),
        }
    }

    fn announce(&mut self, mac: [u8; 6]) -> Result<(), Declined> {
        let mac = Mac(mac);
        if mac.is_multicast() {
            return Err(Declined::Value(format!(
                "SEND_RARP for {mac}, which is no guest's address"
            )));
        }
        self.with_pair(0, |pair, _| pair.announce(mac));
        Ok(())
    }

    fn set_features(&mut self, features: Features) {
        self.features = features;
    }

    fn start(&mut self, vring: usize, start: VringStart<'_>) -> Result<Recovery, Violation> {
        self.with_pair(vring, |pair, direction| pair.start(direction, start))
    }

    fn stop(&mut self, vring: usize) -> Option<u32> {
        self.with_pair(vring, |pair, direction| pair.stop(direction))
    }

    fn control(&mut self, vring: usize, control: VringControl) {
        self.with_pair(vring, |pair, direction| pair.control(direction, control));
    }

    fn set_memory(&mut self, memory: &Arc<Memory>) -> Vec<LostVring> {
        let mut lost = Vec::new();
        // No pair works any more when the first one changes.
        self.hold_all();
        for (index, place) in self.places.iter_mut().enumerate() {
            let Some(pair) = &mut place.held else { continue };
            for vring in [2 * index, 2 * index + 1] {
                let direction = Direction::of(vring);
                if let Err(violation) = pair.set_memory(direction, Arc::clone(memory)) {
                    lost.push(LostVring { vring, base: pair.stop(direction), violation });
                }
            }
        }
        lost
    }

    fn hold_all(&mut self) {
        self.hold(0..self.places.len());
    }

    fn commit(&mut self) -> u32 {
        let mut changes = Vec::new();
        for (index, place) in (0..).zip(&mut self.places) {
            let Some(pair) = place.held.take() else { continue };
            let (queue, receives) = (place.queue.take(), pair.receives());
            let has_vring = pair.has(Direction::Rx) || pair.has(Direction::Tx);
            let pair = has_vring.then_some((pair as Box<dyn QueuePair>, receives));
            if queue.is_some() || pair.is_some() {
                changes.push(PairChange { index, queue, pair });
            }
        }
        let indices: Vec<u16> = changes.iter().map(|change| change.index).collect();
        let count = indices.len() as u32;
        if count > 0 {
            for (index, queue) in indices.into_iter().zip(self.host.put_back(changes)) {
                self.places[usize::from(index)].queue = queue;
            }
        }
        count
    }
}

#[cfg(test)]
mod tests;
