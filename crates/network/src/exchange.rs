//! A worker's dealings with other workers: parcels that come in, and own parcels that come back.

use crate::count::DropReason;
use crate::drr::{QUANTUM, cost};
use crate::flowcache::Action;
use crate::loan::Origin;
use crate::parcel::Parcel;
use crate::put::{Delivery, deliver_to};
use crate::slot::Wait;
use crate::stage_profiler::Step;
use crate::worker::Worker;

impl Worker {
    /// Own parcels that have come back: their frames are complete.
    pub(crate) fn take_back(&mut self, worker: usize) -> bool {
        let mut moved = false;
        while let Some(parcel) = self.crossing.returned(worker) {
            moved = true;
            if let Some(at) = self.slots.find(parcel.sender) {
                self.settle_parcel(at, &parcel);
            }
            self.crossing.recycle(parcel);
        }
        moved
    }

    pub(crate) fn settle_parcel(&mut self, at: usize, parcel: &Parcel) {
        let Some(slot) = self.slots.get_mut(at) else { return };
        slot.on.counters.lose(DropReason::PortDown, parcel.lost);
        if let Some(error) = parcel.error {
            slot.fail(error);
        }
        self.settle_ticket(at, parcel.ticket);
    }

    /// Something that a burst of the queue in slot `at` waited for has come back.
    fn settle_ticket(&mut self, at: usize, ticket: u64) {
        let Some(slot) = self.slots.get_mut(at) else { return };
        if slot.wait == Some(Wait::Parcels) {
            slot.wait = None;
        }
        let complete = slot.tickets.returned(ticket);
        if slot.is_healthy() && complete > 0 {
            slot.on.pair.complete(complete);
            slot.dirty = true;
            self.held.add(at, slot.flush(self.now));
        }
        self.release(at);
    }

    /// Delivers what other workers' queues have for queues of this one: in each turn, about as much
    /// as a port of this worker may send.
    pub(crate) fn unpack(&mut self, worker: usize) -> bool {
        let (mut moved, mut spent) = (false, 0);
        while spent < QUANTUM
            && let Some(mut parcel) = self.crossing.receive(worker)
        {
            self.profiler.mark(Step::Look);
            self.profiler.forget();
            let before = parcel.next;
            spent += cost(parcel.burst.frames().len(), parcel.burst.bytes());
            let whole = self.deliver_parcel(&mut parcel);
            moved |= parcel.next > before;
            parcel.error = self.flush().or(parcel.error);
            if self.profiler.is_on() {
                self.profiler.mark(Step::Publish);
                self.profiler.take(std::mem::take(&mut parcel.spent));
                self.profiler.charge();
            }
            if !whole {
                self.crossing.hold(worker, parcel);
                break;
            }
            moved = true;
            if parcel.lent > 0 {
                self.crossing.keep(worker, parcel);
            } else {
                self.hand_back(worker, parcel);
            }
        }
        moved
    }

    fn hand_back(&mut self, worker: usize, parcel: Box<Parcel>) {
        self.crossing.give_back(worker, parcel);
        self.shared.doorbells[worker].ring();
    }

    /// Remembers that frames are lent to the queue in slot `at`.
    pub(crate) fn note_debtor(&mut self, at: usize) {
        if !self.debtors.contains(&at) {
            self.debtors.push(at);
        }
    }

    /// Frames that were lent and are not any more: whatever waited for them goes on.
    pub(crate) fn collect(&mut self) -> bool {
        let (mut moved, mut turn) = (false, 0);
        while let Some(&at) = self.debtors.get(turn) {
            moved |= self.collect_from(at);
            match self.slots.get(at) {
                Some(slot) if !slot.loans.is_empty() => turn += 1,
                _ => {
                    self.debtors.swap_remove(turn);
                    self.release(at);
                }
            }
        }
        moved
    }

    fn collect_from(&mut self, at: usize) -> bool {
        let Some((count, fetched)) = self.slots.get_mut(at).map(|slot| slot.returned(self.now))
        else {
            return false;
        };
        for _ in 0..count {
            let Some(slot) = self.slots.get_mut(at) else { break };
            let Some(loan) = slot.loans.end() else { break };
            if !fetched && loan.counts {
                slot.on.counters.rx_frames.take_back(1);
                slot.on.counters.rx_bytes.take_back(loan.len.into());
                slot.on.counters.lose(DropReason::NotFetched, 1);
            }
            match loan.origin {
                Origin::Burst { sender, ticket } => {
                    if let Some(sender) = self.slots.find(sender) {
                        self.settle_ticket(sender, ticket);
                    }
                }
                Origin::Parcel(number) => {
                    if let Some((worker, parcel)) = self.crossing.repaid(number) {
                        self.hand_back(worker, parcel);
                    }
                }
            }
        }
        count > 0
    }

    /// Delivers a parcel's frames. False when its receiver is full, and may have a little more
    /// time.
    pub(crate) fn deliver_parcel(&mut self, parcel: &mut Parcel) -> bool {
        let frames = parcel.burst.frames().len();
        let Some(at) = self.slots.find(parcel.receiver) else {
            parcel.lost = (frames - parcel.next) as u64;
            parcel.next = frames;
            return true;
        };
        let Some(slot) = self.slots.get_mut(at) else { return true };
        if slot.open(frames - parcel.next, self.profiler.is_on()) {
            self.dirty.push(at);
        }
        self.grant_copies.set_receiver(at as u32);
        let (mut whole, before) = (true, slot.loans.made());
        while let Some(frame) = parcel.burst.frames().get(parcel.next) {
            let Action::To(target) = frame.action else {
                parcel.next += 1;
                continue;
            };
            let (burst, i, end) =
                (&parcel.burst, parcel.next, parcel.burst.run(parcel.next, target));
            let (origin, tag, now) = (Origin::Parcel(parcel.number), target.tag, self.now);
            let held = deliver_to(
                slot,
                Delivery { burst, i, end, tag, origin, now },
                &mut self.grant_copies,
            );
            parcel.next = held.as_ref().map_or(end, |held| held.at);
            if let Some(since) = self.profiler.since() {
                slot.on.counters.charged.received.note(since, parcel.burst.flows(i..parcel.next));
            }
            if held.is_some() {
                whole = false;
                break;
            }
        }
        let lent = (slot.loans.made() - before) as usize;
        if lent > 0 {
            parcel.lent += lent;
            self.note_debtor(at);
        }
        whole
    }
}
