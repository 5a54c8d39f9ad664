//! The block device of one connection: starts and stops queues for the session.
//!
//! Invariant: between messages, a queue that is started and enabled is attached to the pipeline;
//! one that is started and disabled is kept here. While a message is handled, all queues that it
//! changes are kept here.

use std::sync::Arc;

use ring::{Memory, PackedRequests, Recovery, RequestRing, SplitRequests, Violation};
use runtime::QueueId;
use storage::Disk;
use storage::queue::RequestQueue;

use super::config_space::{self, WCE_AT};
use super::feature::{self, bit};
use super::queue::{BlkQueue, VringQueue};
use crate::transport::device::{Declined, Device, LostVring, VringControl, VringStart};
use crate::transport::feature::Features;

/// The host of the queues at work.
pub trait RequestHost {
    /// Hands over queue number `index`; returns the id by which it is taken back.
    fn attach(&self, index: u16, queue: Box<dyn RequestQueue>) -> Option<QueueId>;

    /// Takes a queue back, once none of its requests is in flight.
    fn detach(&self, queue: QueueId) -> Option<Box<dyn RequestQueue>>;

    /// Notes that the image has grown, so that the front-end is told.
    fn grown(&self) {}
}

/// A queue of the device.
#[derive(Default)]
enum Queue {
    /// Not started.
    #[default]
    None,
    /// Started, and disabled or being changed.
    Here(Box<dyn VringQueue>),
    /// Started and enabled.
    Attached(QueueId),
}

/// The block device of one connection.
pub struct BlkDevice<H: RequestHost> {
    host: H,
    disk: Arc<Disk>,
    features: Features,
    /// The write cache is on, if the driver can make writes stable at all.
    write_cache: bool,
    queues: Vec<Queue>,
    /// Queues that were taken back since the last commit.
    changed: u32,
}

impl<H: RequestHost> BlkDevice<H> {
    /// A device with `queues` queues, none of which is started.
    pub fn new(host: H, disk: Arc<Disk>, queues: u16) -> Self {
        let queues = (0..queues.max(1)).map(|_| Queue::None).collect();
        let mut device = BlkDevice {
            host,
            disk,
            features: Features::default(),
            write_cache: true,
            queues,
            changed: 0,
        };
        device.update_write_through();
        device
    }

    /// Sets whether writes are written through. Writes may wait for a flush only if the driver can
    /// send one, or can switch the cache off (virtio 1.2, 5.2.5.2). If the switch fails, unstable
    /// writes may be lost, as after any flush that fails.
    fn update_write_through(&mut self) {
        let can_flush = self.features.0 & (bit::FLUSH | bit::CONFIG_WCE) != 0;
        if let Err(error) = self.disk.set_write_through(!(can_flush && self.write_cache)) {
            tracing::warn!(
                image = %self.disk.image().path().display(), reason = %error,
                "cannot make the image's data stable"
            );
        }
    }

    /// Takes note of a change of the image's length while it was not locked here.
    fn follow_length(&self) {
        let image = self.disk.image();
        if image.has_grown() && image.resize(None).is_ok() {
            self.host.grown();
        }
    }

    /// Takes a queue back from the pipeline; `None`: it is not started.
    fn take(&mut self, index: usize) -> Option<Box<dyn VringQueue>> {
        match std::mem::take(&mut self.queues[index]) {
            Queue::None => None,
            Queue::Here(queue) => Some(queue),
            Queue::Attached(id) => {
                self.changed += 1;
                let queue = self.host.detach(id)?.into_any();
                queue.downcast::<Box<dyn VringQueue>>().ok().map(|queue| *queue)
            }
        }
    }

    /// Keeps a queue until [`commit`](Device::commit).
    fn put(&mut self, index: usize, queue: Box<dyn VringQueue>) {
        self.queues[index] = Queue::Here(queue);
    }

    fn start_as<R: RequestRing + 'static>(
        &mut self,
        vring: usize,
        VringStart { memory, config, control, record }: VringStart<'_>,
    ) -> Result<Recovery, Violation> {
        let (ring, recovery) = R::start(Arc::clone(memory), config, record)?;
        self.put(vring, Box::new(BlkQueue::new(ring, control)));
        Ok(recovery)
    }
}

impl<H: RequestHost> Device for BlkDevice<H> {
    fn features(&self) -> u64 {
        feature::offered(&self.disk)
    }

    fn feature_names(&self, features: Features) -> Vec<&'static str> {
        feature::names(features)
    }

    fn protocol_features(&self) -> u64 {
        feature::PROTOCOL
    }

    fn queue_num(&self) -> u16 {
        self.queues.len() as u16
    }

    fn vring_count(&self) -> usize {
        self.queues.len()
    }

    fn describe_vrings(&self, active: &[usize]) -> String {
        active.len().to_string()
    }

    fn read_config(&self, offset: u32, bytes: &mut [u8]) -> bool {
        config_space::read(&self.disk, self.queue_num(), self.write_cache, offset, bytes);
        true
    }

    /// Only the field that switches the write cache can be written. Front-ends may write it as a
    /// part of the whole space.
    fn write_config(&mut self, offset: u32, bytes: &[u8]) -> Result<(), Declined> {
        let at = WCE_AT.checked_sub(offset).and_then(|at| bytes.get(at as usize));
        match at {
            Some(0) => self.write_cache = false,
            Some(1) => self.write_cache = true,
            Some(other) => return Err(Declined::Value(format!("a write cache of {other}"))),
            None => return Err(Declined::Value(format!("a change at offset {offset}"))),
        }
        self.update_write_through();
        Ok(())
    }

    fn set_features(&mut self, features: Features) {
        self.features = features;
        self.update_write_through();
    }

    /// Locks the image. During a migration, the back-end at the guest's former host keeps the lock
    /// until the guest has stopped there.
    fn acquire(&mut self) -> Result<(), String> {
        self.disk.image().lock().map_err(|error| error.to_string())?;
        self.follow_length();
        Ok(())
    }

    /// Unlocks the image for another back-end. If the guest may continue there, its writes are
    /// flushed from this host's page cache to the image first.
    fn release(&mut self, migrated: bool) {
        let image = self.disk.image();
        let synced = if migrated && !image.is_read_only() { image.sync() } else { Ok(()) };
        if let Err(error) = synced.and_then(|()| image.unlock()) {
            tracing::warn!(
                image = %image.path().display(), reason = %error,
                "the image stays locked: its data cannot be made stable, or the lock not given up"
            );
        }
    }

    fn start(&mut self, vring: usize, start: VringStart<'_>) -> Result<Recovery, Violation> {
        match self.features.has(bit::RING_PACKED) {
            true => self.start_as::<PackedRequests>(vring, start),
            false => self.start_as::<SplitRequests>(vring, start),
        }
    }

    fn stop(&mut self, vring: usize) -> Option<u32> {
        let mut queue = self.take(vring)?;
        // The ring is dropped anyway.
        let _ = queue.flush();
        Some(queue.position())
    }

    fn hold_all(&mut self) {
        for index in 0..self.queues.len() {
            if let Some(queue) = self.take(index) {
                self.put(index, queue);
            }
        }
    }

    fn commit(&mut self) -> u32 {
        let mut changed = std::mem::take(&mut self.changed);
        for (index, place) in self.queues.iter_mut().enumerate() {
            match std::mem::take(place) {
                Queue::Here(queue) if queue.is_enabled() => {
                    let attached = self.host.attach(index as u16, queue.into_request_queue());
                    *place = attached.map_or(Queue::None, Queue::Attached);
                    changed += 1;
                }
                other => *place = other,
            }
        }
        changed
    }

    fn control(&mut self, vring: usize, control: VringControl) {
        if let Some(mut queue) = self.take(vring) {
            queue.control(control);
            self.put(vring, queue);
        }
    }

    fn set_memory(&mut self, memory: &Arc<Memory>) -> Vec<LostVring> {
        let mut lost = Vec::new();
        // All queues are taken back before any of them changes.
        let queues: Vec<_> = (0..self.queues.len()).map(|index| self.take(index)).collect();
        for (vring, queue) in queues.into_iter().enumerate() {
            let Some(mut queue) = queue else { continue };
            match queue.set_memory(Arc::clone(memory)) {
                Ok(()) => self.put(vring, queue),
                Err(violation) => {
                    lost.push(LostVring { vring, base: Some(queue.position()), violation });
                }
            }
        }
        lost
    }
}
