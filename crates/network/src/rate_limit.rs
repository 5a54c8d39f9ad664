//! Senders that have used up their rate: they wait in their rings.

use crate::pipeline::FramePipeline;
use crate::wait::Wait;

impl FramePipeline {
    /// Nothing was fetched from the queue in slot `src`: perhaps because it has used up its rate.
    pub(crate) fn poll_rate_limit(&mut self, src: usize) {
        let now = self.clock.now;
        let Some(slot) = self.slots.get_mut(src).filter(|slot| slot.is_healthy()) else { return };
        if slot.sending.wait.is_none() {
            let until = slot.on.pair.rate_limit().and_then(|limit| limit.limited_until());
            slot.sending.wait = until.filter(|until| *until > now).map(Wait::Until);
        }
    }
}
