//! Frames that are handed off: into batches, and batches into the channels to other workers.

use std::ops::Range;

use switch::Target;

use crate::flowcache::Action;
use crate::pipeline::FramePipeline;
use crate::topology::QueueLocation;

impl FramePipeline {
    /// Adds frames of the present burst to a batch for a queue of another worker. Returns the
    /// first for which there is no batch.
    pub(crate) fn hand_off(
        &mut self,
        src: usize,
        frames: Range<usize>,
        location: QueueLocation,
        target: Target,
    ) -> Option<usize> {
        let slot = self.slots.get(src)?;
        let (port, sender, burst) = (slot.on.port, slot.on.id, slot.in_flight.next());
        for at in frames {
            let action = Action::Output(target);
            let added = match self.handoff.own.open(location, port, sender, burst) {
                Some(batch) => batch.burst.adopt(&self.burst, at, action),
                None => false,
            };
            if !added {
                return Some(at);
            }
        }
        None
    }

    /// Sends the batches of the present burst. Returns how many there were.
    #[inline]
    pub(crate) fn send_batches(&mut self) -> usize {
        if self.handoff.own.open.is_empty() {
            return 0;
        }
        let counters = &self.counters;
        self.handoff.send_open(|frames| {
            counters.handoff_batches.add(1);
            counters.handed_off.add(frames as u64);
        })
    }
}
