//! The role of a guest: its number, its peer, its sender and its receiver.

use std::sync::Arc;

use ring::driver::BadUsed;

use crate::Error;
use crate::direction_counters::DirectionCounters;
use crate::packet::{self, Fault, Shape};
use crate::receive::{Arrived, Receiver};
use crate::time::Pace;

/// The sending side of a guest.
pub struct Sender {
    /// Its frames.
    pub shape: Shape,
    /// Counters shared with the receiver.
    pub counters: Arc<DirectionCounters>,
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
    /// The peer's number.
    pub peer: u16,
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
    /// Frames of the guest that have arrived at its peer.
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

/// Handles a frame that is not one of the peer's numbered ones; true if it is the peer's
/// announcement.
#[cold]
fn odd(role: &mut Role, doorbells: &mut Doorbells, arrived: &Arrived) -> bool {
    let mut head = [0; 12];
    arrived.read_frame(&mut head);
    if packet::is_multicast(&head) {
        return head[6..] == packet::mac(role.peer);
    }
    if role.receiver.is_none() {
        doorbells.strays += 1;
    }
    false
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

/// Checks a frame; true if it was the peer's announcement.
#[inline]
pub fn deliver(role: &mut Role, doorbells: &mut Doorbells, arrived: &Arrived, now: u64) -> bool {
    let ours = role.receiver.as_mut().is_some_and(|receiver| receiver.receive(arrived, now));
    !ours && odd(role, doorbells, arrived)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Verify;
    use crate::packet::Ends;

    #[test]
    fn a_guest_is_complete_when_frames_of_both_directions_have_arrived() {
        let shape = |from, to| Shape::new(Ends { from, to }, 64, None, Verify::Sampled, 7);
        let [out, back] = [(); 2].map(|()| Arc::new(DirectionCounters::default()));
        let sender = Sender {
            shape: shape(0, 1),
            counters: out.clone(),
            pace: Pace::Open,
            flows: [0].into(),
            bursts: 0,
            full: 0,
        };
        let receiver = Receiver::new(shape(1, 0), back.clone(), 1, true);
        let role = Role { number: 0, peer: 1, sender: Some(sender), receiver: Some(receiver) };
        out.add_sent(16);
        out.close();
        assert!(!role.is_complete(), "the other guest may send more");
        back.close();
        assert!(!role.is_complete(), "16 frames are under way to the other guest");
        out.set_received(16);
        assert!(role.is_complete());
        assert_eq!(role.arrived(), 16);
    }
}
