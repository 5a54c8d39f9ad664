//! The interface between the transport and a device.

use std::sync::Arc;

use ring::inflight::RingRecord;
use ring::{Memory, Recovery, RingConfig, Violation};

use super::event::Event;
use super::feature::Features;

/// How the two ends of a vring notify each other, and whether it passes data. All of it may change
/// while the vring runs.
#[derive(Clone, Debug, Default)]
pub struct VringControl {
    /// The driver kicks through this. `None`: the driver expects the vring to be polled.
    pub kick: Option<Arc<Event>>,
    /// The driver is called (interrupted) through this. `None`: the driver polls.
    pub call: Option<Arc<Event>>,
    /// A disabled vring makes no requests take effect.
    pub enabled: bool,
    /// Guest address of the used ring in the log of written pages. `None`: the ring is not logged.
    pub used_log: Option<u64>,
}

/// What a vring is started with.
#[derive(Debug)]
pub struct VringStart<'a> {
    /// The guest's memory.
    pub memory: &'a Arc<Memory>,
    /// The ring's place in it, and its position according to the front-end.
    pub config: &'a RingConfig,
    /// How it notifies, and whether it passes data.
    pub control: VringControl,
    /// The front-end's record of the ring's position, if there is one.
    pub record: Option<RingRecord>,
}

/// A vring that a change of memory has stopped.
#[derive(Debug)]
pub struct LostVring {
    /// Number of the vring.
    pub vring: usize,
    /// Its position, as `GET_VRING_BASE` reports it.
    pub base: Option<u32>,
    /// Why it is not usable in the new memory.
    pub violation: Violation,
}

/// Why a device declines a well-formed request.
#[derive(Debug)]
pub enum Declined {
    /// The device does not offer the request.
    NotOffered,
    /// The device does not accept the value.
    Value(String),
}

/// A virtio device that is served over vhost-user.
///
/// A session calls `start` only for a vring that is stopped, and the other vring methods for any
/// vring below [`vring_count`](Device::vring_count). Vrings that these methods change pass no data
/// until [`commit`](Device::commit), which the session calls once for each message.
pub trait Device {
    /// Device feature bits that are offered (virtio 1.2, 2.2: bits 0 to 23 and 50 to 127).
    fn features(&self) -> u64;

    /// Names of the device feature bits in `features`, in the order of the bits.
    fn feature_names(&self, features: Features) -> Vec<&'static str>;

    /// Protocol feature bits that are offered beside those of the transport.
    fn protocol_features(&self) -> u64 {
        0
    }

    /// The answer to `GET_QUEUE_NUM`: queues in the unit of the device.
    fn queue_num(&self) -> u16;

    /// Number of vrings.
    fn vring_count(&self) -> usize;

    /// A summary of the vrings that pass data, for the log.
    fn describe_vrings(&self, active: &[usize]) -> String;

    /// Reads `bytes.len()` bytes of the configuration space from `offset` on. False: the range is
    /// not within the space.
    fn read_config(&self, offset: u32, bytes: &mut [u8]) -> bool {
        let _ = (offset, bytes);
        false
    }

    /// Writes `bytes` to the configuration space from `offset` on, for the driver.
    ///
    /// # Errors
    /// When the device declines.
    fn write_config(&mut self, offset: u32, bytes: &[u8]) -> Result<(), Declined> {
        let _ = (offset, bytes);
        Err(Declined::NotOffered)
    }

    /// `NET_SET_MTU`: the guest will be told an MTU of `mtu` bytes.
    ///
    /// # Errors
    /// When the device declines.
    fn set_mtu(&mut self, mtu: u64) -> Result<(), Declined> {
        let _ = mtu;
        Err(Declined::NotOffered)
    }

    /// `SEND_RARP`: the guest with this address has migrated to this host, and the device must
    /// announce that to the network.
    ///
    /// # Errors
    /// When the device declines.
    fn announce(&mut self, mac: [u8; 6]) -> Result<(), Declined> {
        let _ = mac;
        Err(Declined::NotOffered)
    }

    /// The features that were negotiated, apart from the log. Called only while all vrings are
    /// stopped.
    fn set_features(&mut self, features: Features);

    /// Takes the resources that the vrings need. Called before a vring is started while none runs.
    ///
    /// # Errors
    /// Why the resources are not available, in a line for people.
    fn acquire(&mut self) -> Result<(), String> {
        Ok(())
    }

    /// Releases these resources, since no vring runs any more. `migrated`: a log of written pages
    /// was in use, so the guest may continue at another host.
    fn release(&mut self, migrated: bool) {
        let _ = migrated;
    }

    /// Starts a vring at the position that the ring itself shows, and returns how that was found.
    ///
    /// # Errors
    /// When the vring's place or position is not valid.
    fn start(&mut self, vring: usize, start: VringStart<'_>) -> Result<Recovery, Violation>;

    /// Stops a vring; returns its position as `GET_VRING_BASE` reports it. `None`: the vring was
    /// not started.
    fn stop(&mut self, vring: usize) -> Option<u32>;

    /// Holds all vrings, because several are about to change. None passes data until
    /// [`commit`](Device::commit).
    fn hold_all(&mut self);

    /// Ends the changes: vrings pass data again. Returns how many queues have changed.
    fn commit(&mut self) -> u32;

    /// Changes how a started vring notifies and whether it passes data.
    fn control(&mut self, vring: usize, control: VringControl);

    /// Moves all started vrings to changed memory. None of them passes data meanwhile. Those that
    /// are not usable there are stopped and returned.
    fn set_memory(&mut self, memory: &Arc<Memory>) -> Vec<LostVring>;
}
