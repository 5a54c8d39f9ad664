//! What the front-end has said about one ring.
//!
//! A ring has two states that do not depend on each other: started or stopped, enabled or disabled.
//! It starts with its kick descriptor, as soon as its size, place and memory are known too, in
//! whatever order they came; it stops when its position is asked for.

use std::sync::Arc;

use ring::{Memory, RingConfig, Violation};

use crate::event::Event;
use crate::feature::{Features, bit};
use crate::message::RingAddress;
use crate::queue::Wires;

/// Where a packed ring starts that nobody gave a position: at 0, with both wrap counters at 1
/// (virtio 1.2, 2.8.1).
const PACKED_START: u32 = 0x8000_8000;

/// One ring, as the front-end described it so far.
#[derive(Debug, Default)]
pub struct Vring {
    /// Entries.
    pub size: Option<u16>,
    /// Where it lies, in the front-end's addresses.
    pub address: Option<RingAddress>,
    /// Where to go on.
    pub base: Option<u32>,
    /// What `SET_VRING_ENABLE` said, if it said something.
    pub enable: Option<bool>,
    /// The front-end wants the ring started.
    pub started: bool,
    /// The driver signals through this; `None`: not at all.
    pub kick: Option<Arc<Event>>,
    /// The driver is interrupted through this; `None`: not at all.
    pub call: Option<Arc<Event>>,
    /// The front-end is told of errors through this.
    pub err: Option<Arc<Event>>,
    /// The ring is part of a queue pair.
    pub running: bool,
}

/// A part of a ring that is nowhere in the front-end's memory: its name and address.
pub type Astray = (&'static str, u64);

impl Vring {
    /// Whether all is known that it takes to start.
    pub fn is_ready(&self) -> bool {
        self.started && self.size.is_some() && self.address.is_some()
    }

    /// Whether data may pass. Rings start enabled unless protocol features were negotiated, and
    /// then disabled.
    pub fn is_enabled(&self, features: Features) -> bool {
        self.enable.unwrap_or(!features.has(bit::PROTOCOL_FEATURES))
    }

    /// Interrupts the driver once. What was signalled through another descriptor, or should have
    /// been by a backend before us, may be lost, and an interrupt too many is always allowed.
    ///
    /// # Errors
    /// When the descriptor was made to block.
    pub fn interrupt(&self) -> Result<(), Violation> {
        self.call.as_ref().filter(|_| self.running).map_or(Ok(()), |call| call.signal())
    }

    /// The wires for a pair.
    pub fn wires(&self, features: Features) -> Wires {
        Wires {
            kick: self.kick.clone(),
            call: self.call.clone(),
            enabled: self.is_enabled(features),
        }
    }

    /// The ring's place in guest addresses, and how to use it.
    ///
    /// # Errors
    /// The part that is in no region of `memory`.
    pub fn config(&self, memory: &Memory, features: Features) -> Result<RingConfig, Astray> {
        let guest = |part, addr| memory.user_to_guest(addr).ok_or((part, addr));
        let address = self.address.ok_or(("ring", 0))?;
        let packed = features.has(bit::RING_PACKED);
        Ok(RingConfig {
            size: self.size.unwrap_or(0),
            desc: guest("descriptors", address.desc)?,
            driver: guest(
                if packed { "driver event area" } else { "available ring" },
                address.avail,
            )?,
            device: guest(if packed { "device event area" } else { "used ring" }, address.used)?,
            event_idx: features.has(bit::EVENT_IDX),
            indirect: features.has(bit::INDIRECT_DESC),
            start: self.base.unwrap_or(if packed { PACKED_START } else { 0 }),
        })
    }
}
