//! Queues whose peers do not signal.
//!
//! A vhost-user front-end may start a transmit ring without a kick descriptor, and expects the ring
//! to be polled. Such a queue cannot be armed, and polling it in every round would keep an idle
//! worker awake. So after each empty poll, the queue is left alone for twice as long as before, up
//! to a bound ([`PollInterval`](crate::poll_interval::PollInterval)). A frame resets the interval.

use crate::pipeline::FramePipeline;
use crate::wait::Wait;

impl FramePipeline {
    /// Delays the next poll of the queue in slot `src` if its peer does not signal. Called when
    /// nothing was fetched.
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
