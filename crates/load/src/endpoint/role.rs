//! The role of a guest: its number, its peer, its sender and its receiver.

use ring::driver::BadUsed;

use crate::Error;
use crate::direction_counters::SenderCounters;
use crate::packet::{self, Fault};
use crate::receive::{Arrived, Receiver};
use crate::shapes::Shapes;
use crate::time::Pace;

/// The sending side of a guest.
pub struct Sender {
    /// Its frames.
    pub shapes: Shapes,
    /// Counters shared with the receivers.
    pub counters: SenderCounters,
    /// Its pace.
    pub pace: Pace,
    /// Next number of each flow.
    pub flows: Box<[u32]>,
    /// Attempts to send for which the ring had room.
    pub bursts: u64,
    /// Attempts to send for which the ring had no room.
    pub full: u64,
}

/// The role of a guest.
pub struct Role {
    /// The guest's number, from which its addresses are derived.
    pub number: u16,
    /// The numbers of the peers whose announcement has not come yet.
    pub silent: Vec<u16>,
    /// The sending side.
    pub sender: Option<Sender>,
    /// The receiving side.
    pub receiver: Option<Receiver>,
}

/// The doorbells beside checked frames.
#[derive(Clone, Copy, Debug, Default)]
pub struct Doorbells {
    /// Kicks given.
    pub kicks: u64,
    /// Interrupts taken.
    pub interrupts: u64,
    /// Unicast frames that came to a guest without a sender.
    pub strays: u64,
}

impl Role {
    /// Frames of the guest that have arrived at its peers.
    pub fn arrived(&self) -> u64 {
        self.sender.as_ref().map_or(0, |sender| sender.counters.received())
    }

    /// Whether no frame from or to the guest is under way, and none will be.
    pub fn is_complete(&self) -> bool {
        self.sender.as_ref().is_none_or(|sender| sender.counters.is_complete())
            && self.receiver.as_ref().is_none_or(|receiver| receiver.counters().is_complete())
    }

    /// The error of a back-end that broke the protocol on a ring.
    pub fn blame(&self, ring: &'static str, error: BadUsed) -> Error {
        blame(self.number, ring, error)
    }
}

#[cold]
pub fn blame(number: u16, ring: &'static str, error: BadUsed) -> Error {
    Error::Used { guest: number, ring, error }
}

/// Handles a frame that is not one of a peer's numbered ones, such as the peer's announcement.
#[cold]
fn odd(role: &mut Role, doorbells: &mut Doorbells, arrived: &Arrived) {
    let mut head = [0; 12];
    arrived.read_frame(&mut head);
    if packet::is_multicast(&head) {
        role.silent.retain(|peer| head[6..] != packet::mac(*peer));
    } else if role.receiver.is_none() {
        doorbells.strays += 1;
    }
}

/// Handles a frame with fewer buffers than its header announces, although the back-end has
/// published all that it has.
#[cold]
pub fn torn(role: &mut Role, arrived: &Arrived) {
    let fault = Fault::Torn { got: arrived.buffers(), announced: arrived.announced() };
    if let Some(receiver) = &mut role.receiver {
        receiver.corrupt(fault, arrived);
    }
}

/// Checks a frame.
#[inline]
pub fn deliver(role: &mut Role, doorbells: &mut Doorbells, arrived: &Arrived, now: u64) {
    let ours = role.receiver.as_mut().is_some_and(|receiver| receiver.receive(arrived, now));
    if !ours {
        odd(role, doorbells, arrived);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::args::Verify;
    use crate::packet::{Ends, Shape};
    use crate::receive::Incoming;

    #[test]
    fn a_guest_is_complete_when_frames_of_both_directions_have_arrived() {
        let shapes =
            |from, to| Shapes::same(Shape::new(Ends { from, to }, 64, None, Verify::Sampled, 7));
        let (out, back) = (SenderCounters::new(1), SenderCounters::new(1));
        let sender = Sender {
            shapes: shapes(0, 1),
            counters: out.clone(),
            pace: Pace::Open,
            flows: [0].into(),
            bursts: 0,
            full: 0,
        };
        let counters = Arc::clone(back.each().next().unwrap());
        let incoming = Incoming { from: 1, receiver: 0, shapes: shapes(1, 0), counters, flows: 1 };
        let receiver = Receiver::new(incoming, true);
        let (sender, receiver) = (Some(sender), Some(receiver));
        let role = Role { number: 0, silent: Vec::new(), sender, receiver };
        let direction = out.each().next().unwrap();
        direction.add_sent(16);
        out.close();
        assert!(!role.is_complete(), "the other guest may send more");
        back.close();
        assert!(!role.is_complete(), "16 frames are under way to the other guest");
        direction.set_received(16);
        assert!(role.is_complete());
        assert_eq!(role.arrived(), 16);
    }
}
