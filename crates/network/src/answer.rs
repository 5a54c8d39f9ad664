//! Answers to requests for the addresses of stations on other hosts, in the name of these stations.
//!
//! The switch says who has an address ([`Switch::direct`](switch::Switch::direct)). The request is
//! its sender's, in a ring of the sender's port, and so is the answer: a sender that asks a million
//! times a second costs others no more than one that sends other frames.

use frame::{Owner, TagEdit};
use switch::Target;

use crate::count::DropReason;
use crate::pipeline::{Blocked, FramePipeline};

impl FramePipeline {
    /// Turns frame `i` of the burst of the queue in slot `src` into the answer, and delivers it to
    /// the sender. The answer does not wait for room: a sender without room asks again. It waits
    /// only while the sender's queue migrates to another worker.
    #[cold]
    pub(crate) fn answer(&mut self, src: usize, i: usize, owner: Owner) -> Option<Blocked> {
        let port = self.slots.get(src)?.on.port;
        let target = Target { port, tag: TagEdit::Keep };
        if self.routes.moving && self.meets_migration(i, &[target]) {
            return Some(self.wait_for_migration(i));
        }
        self.capture_request(src, i);
        if !self.burst.answer(i, owner) {
            self.drop_at(src, DropReason::NoReceiver, 1);
        } else if self.output(src, i..i + 1, target).is_some() {
            self.drop_at(src, DropReason::HandoffFull, 1);
        } else if let Some(slot) = self.slots.get(src) {
            slot.on.counters.answered_requests.add(1);
        }
        None
    }

    /// Counts addresses that the sender claimed to have and that were refused.
    #[cold]
    pub(crate) fn count_refused_addresses(&self, src: usize, refused: u64) {
        if let Some(slot) = self.slots.get(src) {
            slot.on.counters.refused_addresses.add(refused);
        }
    }
}
