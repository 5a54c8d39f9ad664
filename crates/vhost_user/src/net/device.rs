//! The network device of one connection: starts and stops queue pairs as the session says.
//!
//! Pairs work elsewhere, where a [`QueueHost`] takes them: the frame pipeline, or a test. Invariant:
//! between calls, a pair with at least one vring is attached, and no other.
//!
//! A worker owns an attached pair. Whatever changes a pair detaches it first, so no worker ever sees
//! a pair that is half changed.

use std::sync::Arc;

use network::port::QueuePair;
use network::topology::QueueId;
use ring::inflight::RingRecord;
use ring::{Memory, PackedDevice, Recovery, RingConfig, SplitDevice, Violation};

use super::feature::{self, bit};
use super::queue_pair::NetQueuePair;
use super::vring_pair::{Direction, VringPair};
use crate::transport::device::{Declined, Device, LostVring, VringControl};
use crate::transport::feature::Features;

/// Smallest MTU of a link, in bytes, as for IPv4 (RFC 791).
const MIN_MTU: u64 = 68;

/// Where queue pairs are taken to work.
pub trait QueueHost {
    /// Hands pair number `index` over; returns the name by which it is taken back. `receives`:
    /// frames may be sent to it.
    fn attach(&self, index: u16, pair: Box<dyn QueuePair>, receives: bool) -> Option<QueueId>;

    /// Takes a pair back, when nothing of it is under way any more.
    fn detach(&self, queue: QueueId) -> Option<Box<dyn QueuePair>>;
}

/// What the device offers.
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

/// The network device of one connection.
pub struct NetDevice<H: QueueHost> {
    host: H,
    offer: Offer,
    features: Features,
    attached: Vec<Option<QueueId>>,
}

impl<H: QueueHost> NetDevice<H> {
    /// A device without queue pairs.
    pub fn new(host: H, offer: Offer) -> Self {
        let queues = usize::from(offer.queues.max(1));
        NetDevice { host, offer, features: Features::default(), attached: vec![None; queues] }
    }

    /// Detaches a pair; an empty one if there is none yet.
    fn detach(&mut self, index: usize) -> Box<dyn VringPair> {
        let attached = self.attached[index].take().and_then(|queue| self.host.detach(queue));
        let pair = attached.and_then(|pair| pair.into_any().downcast::<Box<dyn VringPair>>().ok());
        match pair {
            Some(pair) => *pair,
            None if self.features.has(bit::RING_PACKED) => {
                Box::new(NetQueuePair::<PackedDevice>::new(self.features))
            }
            None => Box::new(NetQueuePair::<SplitDevice>::new(self.features)),
        }
    }

    /// Attaches a pair, if it has a vring.
    fn attach(&mut self, index: usize, pair: Box<dyn VringPair>) {
        if pair.has(Direction::Rx) || pair.has(Direction::Tx) {
            let receives = pair.receives();
            self.attached[index] = self.host.attach(index as u16, pair, receives);
        }
    }

    /// Changes the pair of a vring while no worker has it.
    fn with_pair<T>(
        &mut self,
        vring: usize,
        change: impl FnOnce(&mut dyn VringPair, Direction) -> T,
    ) -> T {
        let mut pair = self.detach(vring / 2);
        let result = change(&mut *pair, Direction::of(vring));
        self.attach(vring / 2, pair);
        result
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
        2 * self.attached.len()
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

    fn set_features(&mut self, features: Features) {
        self.features = features;
    }

    fn start(
        &mut self,
        vring: usize,
        memory: &Arc<Memory>,
        config: &RingConfig,
        control: VringControl,
        record: Option<RingRecord>,
    ) -> Result<Recovery, Violation> {
        self.with_pair(vring, |pair, direction| {
            pair.start(direction, Arc::clone(memory), config, control, record)
        })
    }

    fn stop(&mut self, vring: usize) -> Option<u32> {
        self.with_pair(vring, |pair, direction| pair.stop(direction))
    }

    fn control(&mut self, vring: usize, control: VringControl) {
        self.with_pair(vring, |pair, direction| pair.control(direction, control));
    }

    fn set_memory(&mut self, memory: &Arc<Memory>) -> Vec<LostVring> {
        let mut lost = Vec::new();
        // All pairs are detached before any of them changes.
        let pairs: Vec<_> = (0..self.attached.len()).map(|index| self.detach(index)).collect();
        for (index, mut pair) in pairs.into_iter().enumerate() {
            for vring in [2 * index, 2 * index + 1] {
                let direction = Direction::of(vring);
                if let Err(violation) = pair.set_memory(direction, Arc::clone(memory)) {
                    lost.push(LostVring { vring, base: pair.stop(direction), violation });
                }
            }
            self.attach(index, pair);
        }
        lost
    }
}

#[cfg(test)]
mod tests;
