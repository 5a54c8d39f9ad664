//! Queues whose Rx ring a device fills by itself: its frames pass the pipeline by, and are only
//! counted and published.

use crate::pipeline::FramePipeline;

impl FramePipeline {
    /// Nothing was fetched from the queue in slot `at`: perhaps because a device has put frames on
    /// its Rx ring. True when it has.
    pub(crate) fn poll_device(&mut self, at: usize) -> bool {
        let Some(slot) = self.slots.get_mut(at) else { return false };
        let Some(device) = slot.on.pair.device_queue() else { return false };
        let received = device.take_received();
        if received.frames == 0 {
            return false;
        }
        slot.sending.wait = None;
        slot.on.counters.direct.frames.add(received.frames);
        slot.on.counters.direct.bytes.add(received.bytes);
        self.profile_device(at, received, |pipeline| pipeline.flush(at));
        true
    }
}
