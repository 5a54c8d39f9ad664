//! A worker with nothing to do: it looks a little longer, or sleeps in the kernel until something is signalled.

use std::time::{Duration, Instant};

use crate::lap::Step;
use crate::poll;
use crate::slot::{Wait, Watch};
use crate::topology::QueueId;
use crate::watch::{SIGNALS, Signal};
use crate::worker::Worker;

impl Worker {
    /// Nothing moved: looks a little longer, or sleeps.
    pub(crate) fn rest(&mut self) {
        let waits = |at| self.slots.get(at).is_some_and(|slot| slot.wait.is_some() || slot.settle);
        let idle = self.active.iter().all(waits) && self.now - self.moved >= self.window.of(false);
        if !idle {
            std::hint::spin_loop();
            self.look_on();
            return;
        }
        let (receivers, until) = self.full_receivers();
        if !receivers.is_empty() || !self.active.is_empty() {
            self.wait_for_room(&receivers, until);
        } else {
            self.sleep(None);
        }
    }

    /// Goes on without sleep.
    fn look_on(&mut self) {
        self.glance_again();
        self.tick();
    }

    /// Receivers that frames wait for, and when the first wait of any kind ends.
    pub(crate) fn full_receivers(&self) -> (Vec<usize>, Option<Instant>) {
        let mut receivers = Vec::new();
        let mut until = None;
        for at in self.active.iter() {
            let end = match self.slots.get(at).and_then(|slot| slot.wait) {
                Some(Wait::Receiver { slot, until }) => {
                    receivers.push(slot);
                    until
                }
                Some(Wait::Rest { until }) => until,
                Some(Wait::Parcels) | None => continue,
            };
            until = Some(until.map_or(end, |u: Instant| u.min(end)));
        }
        for &at in &self.debtors {
            // What it fetches frees its senders; if it fetches nothing, its time ends.
            if let Some(due) = self.slots.get(at).and_then(|slot| slot.loans.due(self.now)) {
                receivers.push(at);
                until = Some(until.map_or(due, |u: Instant| u.min(due)));
            }
        }
        for parcel in self.crossing.held() {
            receivers.extend(self.slots.find(parcel.receiver));
            until = Some(self.now + poll::MAX);
        }
        (receivers, until)
    }

    /// Sleeps until one of `receivers` has room, or the first wait is over, or anything else happens.
    pub(crate) fn wait_for_room(&mut self, receivers: &[usize], until: Option<Instant>) {
        let mut room = false;
        for &at in receivers {
            if let Some(slot) = self.slots.get_mut(at).filter(|slot| slot.is_sound()) {
                match slot.on.pair.arm(true) {
                    Ok(there) => room |= there,
                    Err(breach) => slot.break_off(breach),
                }
            }
        }
        if room {
            self.look_on();
        } else {
            let limit = until.map_or(poll::MAX * 20, |u| u.saturating_duration_since(self.now));
            self.sleep(Some(limit));
        }
        for &at in receivers {
            self.disarm(at);
        }
    }

    /// Takes back the wish for Rx signals; Tx signals stay as the slot's watch says.
    pub(crate) fn disarm(&mut self, at: usize) {
        let Some(slot) = self.slots.get_mut(at).filter(|slot| slot.is_sound()) else { return };
        slot.on.pair.disarm();
        if slot.watch == Watch::Armed {
            match slot.on.pair.arm(false) {
                Ok(true) => self.activate(at),
                Ok(false) => {}
                Err(breach) => slot.break_off(breach),
            }
        }
    }

    /// Sleeps in the kernel until a signal comes or `limit` has passed.
    pub(crate) fn sleep(&mut self, limit: Option<Duration>) {
        let doorbell = &self.shared.doorbells[self.own].sleeping;
        doorbell.announce();
        if self.has_mail() {
            doorbell.awake();
            self.look_on();
            return;
        }
        self.counters.sleeps.add(1);
        self.laps.lap(Step::Look);
        self.glance(self.held.limit(limit, self.now));
        self.laps.lap(Step::Sleep);
        self.shared.doorbells[self.own].sleeping.awake();
        let slept = self.now;
        self.tick();
        // A sleep that ended because an interrupt is to be sent says nothing of what it was worth.
        if !self.held.is_due(self.now) {
            self.window.slept(self.now - slept);
        }
        (self.moved, self.glanced) = (self.now, self.now);
    }

    /// Whether another thread has left something for this worker.
    pub(crate) fn has_mail(&self) -> bool {
        let shared = &self.shared;
        self.crossing.has_mail()
            || shared.mailboxes[self.own].has_mail()
            || shared.topology.is_newer(self.seen)
            || shared.sampling.get() != self.laps.number()
    }

    /// Takes note of the signals that have come, waiting for one up to `limit`.
    pub(crate) fn glance(&mut self, limit: Option<Duration>) {
        self.glanced = self.now;
        let mut woken = [QueueId(0); SIGNALS];
        let mut count = 0;
        self.watcher.wait(limit, |signal| {
            if let Signal::Tx(queue) = signal {
                woken[count] = queue;
                count += 1;
            }
        });
        for &queue in &woken[..count] {
            if let Some(at) = self.slots.find(queue) {
                self.activate(at);
            }
        }
    }

    /// Looks at an armed queue again.
    pub(crate) fn activate(&mut self, at: usize) {
        let Some(slot) = self.slots.get_mut(at) else { return };
        if slot.watch == Watch::Armed {
            slot.on.counters.kicks.add(1);
            slot.on.pair.disarm();
            slot.watch = Watch::Polled { found: self.now };
            self.active.push(slot.on.port, at);
        }
    }
}
