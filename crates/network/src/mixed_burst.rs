//! Bursts whose frames go to several queues.
//!
//! Senders mix flows, so consecutive frames go to different queues, and work that is done once for
//! each run of frames would be done for nearly each frame. Such a burst is therefore
//! [partitioned](crate::partition) by egress before it is delivered: frames for one queue become
//! consecutive.
//!
//! A burst whose frames were reordered is not in the order of its sender's ring any more, so no
//! part of it can be put back there. Frames that a full receiver leaves go to the
//! [`backlog`](crate::backlog) instead. A burst whose frames might not all find room there stays in
//! order.

use std::ops::Range;

use switch::{PortId, Target};

use crate::action::Action;
use crate::deliver::NextHop;
use crate::partition::Group;
use crate::pipeline::{Blocked, FramePipeline};

impl FramePipeline {
    /// Whether frames of the burst may go to several queues: the first `end` go to `target`.
    #[inline]
    pub(crate) fn may_be_mixed(&self, target: Target, end: usize) -> bool {
        end < self.burst.frames().len()
            || self.routes.to(target.port).is_some_and(|route| !route.is_simple())
    }

    /// Partitions the burst of the queue in slot `src`. False when the burst has to be delivered
    /// frame by frame, in order: frames of it may have to wait for other reasons than a full
    /// receiver, are copied, or are dropped.
    #[inline]
    pub(crate) fn partition(&mut self, src: usize) -> bool {
        let frames = self.burst.frames().len();
        let found = self.receivers.partition.find(&self.burst, &self.routes);
        if found < frames || (self.receivers.partition.is_mixed() && !self.may_reorder(src)) {
            self.refund_each(0..found);
            return false;
        }
        if self.receivers.partition.is_mixed() {
            self.receivers.partition.reorder(&mut self.burst);
        }
        true
    }

    /// Whether each group of the burst finds room in the backlog, and no capture is to show the
    /// frames in the order in which they were sent.
    fn may_reorder(&self, src: usize) -> bool {
        let groups = self.receivers.partition.len();
        self.slots
            .get(src)
            .is_some_and(|slot| slot.captures == 0 && self.handoff.has_room(slot.on.port, groups))
    }

    /// Delivers a burst that was partitioned, group by group. `last` is the port that its sender
    /// sent to before.
    #[inline]
    pub(crate) fn output_groups(
        &mut self,
        src: usize,
        mut last: Option<PortId>,
    ) -> Option<Blocked> {
        let reordered = self.receivers.partition.is_mixed();
        let mut index = 0;
        while let Some(group) = self.receivers.partition.get(index) {
            let Group { target, egress, ref frames, .. } = *group;
            let frames = frames.clone();
            self.note_destination(src, target.port, &mut last);
            let hop = NextHop { egress, over_mtu: false };
            let blocked = self.output_to(src, frames.clone(), target, hop);
            if let Some(Blocked { at, .. }) = blocked {
                if !reordered {
                    self.refund_each(at..self.burst.frames().len());
                    return blocked;
                }
                self.add_to_backlog(src, at..frames.end, target, egress);
            }
            index += 1;
        }
        None
    }

    /// Refunds the charge of frames to their flows, for any targets.
    #[cold]
    fn refund_each(&self, frames: Range<usize>) {
        for i in frames {
            if let Action::Output(target) = &self.burst.frames()[i].action {
                self.refund(i..i + 1, *target);
            }
        }
    }
}
