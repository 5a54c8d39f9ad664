//! Queues whose Rx ring a device fills by itself. The device's frames bypass the pipeline, which
//! only counts and publishes them.

use crate::pipeline::FramePipeline;

impl FramePipeline {
    /// Counts and publishes frames that a device has put on the Rx ring of the queue in slot `at`.
    /// Called when nothing was fetched from the queue. True when there were such frames.
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
