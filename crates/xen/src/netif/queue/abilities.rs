//! Abilities of a vif's queues beyond those of a plain queue pair: defer interrupts, tell the
//! frontend's progress, pause, pass grants on.

use std::time::Instant;

use network::port::{Coalescing, GrantPassing, Notified, QueueError, RateLimit, RxProgress};

use super::Queue;
use crate::netif::passed_grants::PassedGrants;

impl Coalescing for Queue {
    fn flush_deferred(&mut self) -> Result<[Notified; 2], QueueError> {
        if self.mapping.pages.is_some() {
            self.mapping.rx = None;
            self.tally();
        }
        let (tx, rx) = (self.tx.publish(), self.rx.publish());
        if tx == Some(true) {
            self.tx_channel.notify();
        }
        // A frontend with one channel looks at both rings after one signal.
        let told = tx == Some(true) && self.rx_channel.is_none();
        let wanted = if told { Notified::Sent } else { Notified::Deferred };
        let outcome = |asked, wanted| match asked {
            None => Notified::Nothing,
            Some(true) => wanted,
            Some(false) => Notified::Suppressed,
        };
        Ok([outcome(tx, Notified::Sent), outcome(rx, wanted)])
    }

    fn interrupt(&mut self) -> Result<(), QueueError> {
        self.rx_channel.as_ref().unwrap_or(&self.tx_channel).notify();
        Ok(())
    }
}

impl RxProgress for Queue {
    fn position(&self) -> u32 {
        self.rx.position()
    }

    fn has_consumed(&self, position: u32) -> bool {
        self.rx.has_consumed(position)
    }
}

impl RateLimit for Queue {
    fn limited_until(&self) -> Option<Instant> {
        self.paused_until
    }
}

impl GrantPassing for Queue {
    fn released(&mut self) -> Result<usize, QueueError> {
        let Some(passed_grants) = &mut self.passed_grants else { return Ok(0) };
        Ok(passed_grants.released(self.rx.posted()?))
    }

    fn revoke(&mut self) -> usize {
        self.passed_grants.as_mut().map_or(0, PassedGrants::revoke)
    }
}
