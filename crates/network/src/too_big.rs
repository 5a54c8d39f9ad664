//! Reports to senders whose packets are longer than their receiver's MTU.
//!
//! A guest that does not know the MTU of an overlay learns the MTU of the path from such a report,
//! as behind a router. The report is the sender's packet turned round, in a ring of the sender's
//! port: a sender of packets that are too long costs others no more than one that sends shorter
//! ones.

use frame::TagEdit;
use switch::{PortId, Target};

use crate::pipeline::FramePipeline;
use crate::sharing::Sharing;

impl FramePipeline {
    /// Reports to the sender of frame `i` of the burst of the queue in slot `src` that the frame,
    /// which was dropped, is too long for port `to`. The report does not wait for room: the sender
    /// repeats its packet.
    ///
    /// Nobody is told about frames from tunnels, whose senders are not here, about frames with
    /// several receivers, and about reports.
    #[cold]
    pub(crate) fn report_too_big(&mut self, src: usize, i: usize, to: PortId) {
        let Some(mtu) = self.routes.to(to).and_then(|route| route.mtu) else { return };
        let Some(port) = self.slots.get(src).map(|slot| slot.on.port) else { return };
        let is_alone = self.burst.frame(i).sharing == Sharing::Sole;
        if !is_alone || self.burst.ingress().is_some() || self.routes.moving {
            return;
        }
        self.capture_request(src, i);
        if !self.burst.report_too_big(i, mtu) {
            return;
        }
        let blocked = self.output(src, i..i + 1, Target { port, tag: TagEdit::Keep });
        // The packet was dropped. The report is one frame more.
        if let Some(slot) = self.slots.get(src).filter(|_| blocked.is_none()) {
            slot.on.counters.copies.add(1);
        }
    }
}
