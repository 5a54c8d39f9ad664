//! A vring as its driver sees it, with the eventfds of both directions.

use ring::RingConfig;
use ring::driver::{DriverRing, Tables};
use virtio_bindings::virtio_config::VIRTIO_F_RING_PACKED;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

use crate::error::DriverError;
use crate::guest::{Guest, PAGE};

/// One ring of a guest: the driver's half, and the doorbells in both directions.
pub struct Vring<R> {
    /// The driver half.
    pub ring: R,
    index: u16,
    config: RingConfig,
    kick: EventFd,
    call: EventFd,
    kicks: u64,
}

impl<R: DriverRing> Vring<R> {
    /// Sets a ring aside in the guest's memory, with indirect tables of `entries` descriptors if
    /// that is not 0.
    ///
    /// # Errors
    /// When the guest's memory is full, the ring's size is not allowed, or there are no more file
    /// descriptors.
    pub fn new(
        guest: &mut Guest,
        index: u16,
        size: u16,
        features: u64,
        entries: u16,
    ) -> Result<Self, DriverError> {
        let bytes = R::footprint(size);
        let indirect = entries > 0 && features & (1 << VIRTIO_RING_F_INDIRECT_DESC) != 0;
        let config = RingConfig {
            size,
            desc: guest.alloc_in_region(bytes.desc, PAGE)?,
            driver: guest.alloc_in_region(bytes.driver, 64)?,
            device: guest.alloc_in_region(bytes.device, 64)?,
            event_idx: features & (1 << VIRTIO_RING_F_EVENT_IDX) != 0,
            indirect,
            start: if features & (1 << VIRTIO_F_RING_PACKED) != 0 { 0x8000_8000 } else { 0 },
        };
        let tables = match indirect {
            true => Some(Tables { addr: guest.alloc(Tables::bytes(size, entries), 64)?, entries }),
            false => None,
        };
        let eventfd =
            || EventFd::new(EFD_NONBLOCK | EFD_CLOEXEC).map_err(|e| DriverError::Io("eventfd", e));
        let ring = R::new(guest.memory().clone(), &config, tables)?;
        Ok(Self { ring, index, config, kick: eventfd()?, call: eventfd()?, kicks: 0 })
    }

    /// Publishes what was added, and kicks if the device asked for it.
    pub fn publish(&mut self) {
        if self.ring.publish() {
            self.kick();
        }
    }

    /// Kicks, whether the device asked for it or not.
    pub fn kick(&mut self) {
        self.kicks += 1;
        // An eventfd whose counter is full has a wake-up pending anyway.
        let _ = self.kick.write(1);
    }

    /// Kicks so far.
    pub fn kicks(&self) -> u64 {
        self.kicks
    }

    /// The interrupt: readable when the device raised it.
    pub fn call(&self) -> &EventFd {
        &self.call
    }

    /// The kick: the front-end hands it to the back-end.
    pub(crate) fn kick_event(&self) -> &EventFd {
        &self.kick
    }

    /// Consumes a raised interrupt. True: there was one.
    pub fn acknowledge(&self) -> bool {
        self.call.read().is_ok()
    }

    /// Number of the ring: Rx rings are even, Tx rings odd.
    pub fn index(&self) -> u16 {
        self.index
    }

    /// The ring's place.
    pub fn config(&self) -> &RingConfig {
        &self.config
    }
}

/// The driver of one queue pair.
pub struct Driver<R> {
    /// The vring that the guest transmits on.
    pub tx: Vring<R>,
    /// The vring that the guest receives on.
    pub rx: Vring<R>,
}
