//! Where frames meet the filters of ports with security groups ([`port_filter`]).
//!
//! A sender's filter is asked before the switch, so no address is learned from a frame that does
//! not pass. A receiver's filter is asked by the worker that puts frames on the receiver's ring,
//! and frames that do not pass are counted there.
//!
//! [`port_filter`]: crate::port_filter

use ring::GrantCopyBatch;
use switch::filter::Direction;

use crate::cost::MISS;
use crate::pipeline::FramePipeline;
use crate::run::Run;
use crate::slot::Slot;

impl FramePipeline {
    /// Drops the frames of the burst that their port may not send.
    #[cold]
    pub(crate) fn filter_sent(&mut self, src: usize) {
        let restrictions = self.slots.get_mut(src).and_then(|slot| slot.restrictions.as_mut());
        let Some(filter) = restrictions.and_then(|it| it.filter.as_mut()) else { return };
        filter.set_time(self.clock.now);
        self.burst.refuse(|head, headers| filter.check(Direction::Out, head, headers));
        self.service.cost += filter.take_asked() * MISS;
    }
}

impl Slot {
    /// Whether frames for it have to pass a filter.
    #[inline]
    pub(crate) fn is_filtered(&self) -> bool {
        self.restrictions.as_ref().is_some_and(|restrictions| restrictions.filter.is_some())
    }

    /// [`receive`](Self::receive) for the frames that pass the filter. The others are dropped.
    #[cold]
    pub(crate) fn receive_filtered(
        &mut self,
        run: Run<'_>,
        grant_copies: &mut GrantCopyBatch,
    ) -> Option<usize> {
        // Without the filter, what is left is received.
        let mut filter = self.restrictions.as_mut()?.filter.take()?;
        filter.set_time(run.now);
        let mut check = |i: usize| {
            let (head, headers) = (run.burst.head(i), &run.burst.frames()[i].headers);
            filter.check(Direction::In, head.as_slice(), headers)
        };
        let (mut i, mut full) = (run.i, None);
        while i < run.end && full.is_none() {
            let refused = (i..run.end).find_map(|at| Some((at, check(at).err()?)));
            let end = refused.map_or(run.end, |(at, _)| at);
            full = self.receive(Run { i, end, ..run }, grant_copies);
            if let (Some((_, reason)), None) = (refused, full) {
                // If a frame has to wait, the frames behind it are offered again.
                self.on.counters.lose(reason.into(), 1);
            }
            i = end + 1;
        }
        self.receiving.added += filter.take_asked() * MISS;
        if let Some(restrictions) = &mut self.restrictions {
            restrictions.filter = Some(filter);
        }
        full
    }
}
