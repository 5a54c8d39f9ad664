//! Queues whose peers do not signal.
//!
//! A vhost-user front-end may start a transmit ring without a kick descriptor, and expects the ring
//! to be polled. Such a queue cannot be armed. Polled in every round, it would keep a worker awake
//! that has nothing to do. So each time that nothing is found, the queue is left alone for twice as
//! long as before, up to a bound ([`PollInterval`](crate::poll_interval::PollInterval)); a frame ends
//! that.

use crate::pipeline::FramePipeline;
use crate::wait::Wait;

impl FramePipeline {
    /// Nothing was fetched from the queue in slot `src`: its next poll is later, if its peer does
    /// not signal.
    #[inline]
    pub(crate) fn poll_later(&mut self, src: usize) {
        let now = self.clock.now;
        let Some(slot) = self.slots.get_mut(src) else { return };
        if let Some(interval) = &mut slot.unsignalled
            && slot.sending.wait.is_none()
        {
            slot.sending.wait = Some(Wait::Until(now + interval.lengthen()));
        }
    }
}
