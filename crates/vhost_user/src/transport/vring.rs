//! The state that the front-end has set for one vring.
//!
//! A vring has two independent states: started or stopped, enabled or disabled. A vring starts once
//! its kick descriptor, size, addresses and memory are known, in any order; `GET_VRING_BASE` stops
//! it.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use ring::{Memory, RingConfig, Violation};

use super::device::VringControl;
use super::error::SessionError;
use super::event::Event;
use super::feature::{Features, bit};
use super::message::{HasFd, RingAddress};

/// Where a packed ring without a position starts: at 0, with both wrap counters at 1 (virtio 1.2,
/// 2.8.1).
const PACKED_START: u32 = 0x8000_8000;

/// One vring, as the front-end described it so far.
#[derive(Debug, Default)]
pub struct Vring {
    /// Number of entries.
    pub size: Option<u16>,
    /// Where its parts lie, in the front-end's address space.
    pub address: Option<RingAddress>,
    /// Position at which it continues.
    pub base: Option<u32>,
    /// The last `SET_VRING_ENABLE`, if there was one.
    pub enable: Option<bool>,
    /// The front-end has requested the start.
    pub started: bool,
    /// The driver kicks through this; `None`: it does not kick.
    pub kick: Option<Arc<Event>>,
    /// The driver is interrupted through this; `None`: it is not interrupted.
    pub call: Option<Arc<Event>>,
    /// The event that signals errors to the front-end.
    pub err: Option<Arc<Event>>,
    /// The device has started it.
    pub running: bool,
    /// The ring did not show its position when it was started.
    pub unclear: bool,
}

/// A part of a vring that is in no region of the front-end's memory.
#[derive(Clone, Copy, Debug)]
pub struct OutsideMemory {
    /// Name of the part.
    pub part: &'static str,
    /// Its address in the front-end's address space.
    pub addr: u64,
}

impl Vring {
    /// Whether everything that a start needs is known.
    pub fn is_ready(&self) -> bool {
        self.started && self.size.is_some() && self.address.is_some()
    }

    /// Whether data may pass. Vrings start enabled unless protocol features were negotiated, and
    /// then disabled.
    pub fn is_enabled(&self, features: Features) -> bool {
        self.enable.unwrap_or(!features.has(bit::PROTOCOL_FEATURES))
    }

    /// Interrupts the driver once. An interrupt that was sent through another descriptor, or by a
    /// back-end before this one, may be lost, and a spurious interrupt is always allowed.
    ///
    /// # Errors
    /// When the descriptor was made to block.
    pub fn interrupt(&self) -> Result<(), Violation> {
        self.call.as_ref().filter(|_| self.running).map_or(Ok(()), |call| call.signal())
    }

    /// The settings of a running vring, as a device needs them.
    pub fn control(&self, features: Features) -> VringControl {
        VringControl {
            kick: self.kick.clone(),
            call: self.call.clone(),
            enabled: self.is_enabled(features),
            used_log: self.address.and_then(|address| address.used_log()),
        }
    }

    /// The vring's configuration, in guest addresses.
    ///
    /// # Errors
    /// The part that is in no region of `memory`.
    pub fn config(&self, memory: &Memory, features: Features) -> Result<RingConfig, OutsideMemory> {
        let guest = |part, addr| memory.user_to_guest(addr).ok_or(OutsideMemory { part, addr });
        let address = self.address.ok_or(OutsideMemory { part: "ring", addr: 0 })?;
        let packed = features.has(bit::RING_PACKED);
        let (driver, device) = match packed {
            true => ("driver event area", "device event area"),
            false => ("available ring", "used ring"),
        };
        Ok(RingConfig {
            size: self.size.unwrap_or(0),
            desc: guest("descriptors", address.desc)?,
            driver: guest(driver, address.avail)?,
            device: guest(device, address.used)?,
            event_idx: features.has(bit::EVENT_IDX),
            indirect: features.has(bit::INDIRECT_DESC),
            start: self.base.unwrap_or(if packed { PACKED_START } else { 0 }),
        })
    }
}

/// The event descriptor beside a message, if it has one.
pub(super) fn event(
    ring: u8,
    has: HasFd,
    fd: Option<OwnedFd>,
    name: &'static str,
) -> Result<Option<Arc<Event>>, SessionError> {
    match fd.filter(|_| has) {
        None => Ok(None),
        Some(fd) => {
            let event = Event::adopt(fd).ok_or(SessionError::NoEvent { name, ring })?;
            Ok(Some(Arc::new(event)))
        }
    }
}
