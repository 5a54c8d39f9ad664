//! A worker's dealings with other workers: parcels that come in, and own parcels that come back.

use crate::count::Drop;
use crate::flowcache::Fate;
use crate::lap::Step;
use crate::parcel::Parcel;
use crate::put::deliver_to;
use crate::slot::Wait;
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
        slot.on.counters.lose(Drop::PortDown, parcel.lost);
        if let Some(breach) = parcel.breach {
            slot.break_off(breach);
        }
        let complete = slot.tickets.returned(parcel.ticket);
        if slot.wait == Some(Wait::Parcels) {
            slot.wait = None;
        }
        if slot.is_sound() && complete > 0 {
            slot.on.pair.complete(complete);
            slot.dirty = true;
            self.held.add(at, slot.flush(self.now));
        }
        self.release(at);
    }

    /// Delivers what other workers' queues have for queues of this one.
    pub(crate) fn unpack(&mut self, worker: usize) -> bool {
        let mut moved = false;
        while let Some(mut parcel) = self.crossing.receive(worker) {
            self.laps.lap(Step::Look);
            self.laps.forget();
            let before = parcel.next;
            let whole = self.deliver_parcel(&mut parcel);
            moved |= parcel.next > before;
            parcel.breach = self.flush().or(parcel.breach);
            if self.laps.is_on() {
                self.laps.lap(Step::Publish);
                self.laps.take(std::mem::take(&mut parcel.spent));
                self.laps.charge();
            }
            if !whole {
                self.crossing.hold(worker, parcel);
                break;
            }
            moved = true;
            self.crossing.give_back(worker, parcel);
            self.shared.doorbells[worker].ring();
        }
        moved
    }

    /// Delivers a parcel's frames. False when its receiver is full, and may have a little more time.
    pub(crate) fn deliver_parcel(&mut self, parcel: &mut Parcel) -> bool {
        let frames = parcel.burst.frames().len();
        let Some(at) = self.slots.find(parcel.receiver) else {
            parcel.lost = (frames - parcel.next) as u64;
            parcel.next = frames;
            return true;
        };
        let Some(slot) = self.slots.get_mut(at) else { return true };
        if !slot.dirty && slot.is_sound() {
            slot.dirty = true;
            if self.laps.is_on() {
                slot.mark();
            }
            self.dirty.push(at);
            if let Err(breach) = slot.on.pair.prepare(frames - parcel.next) {
                slot.break_off(breach);
            }
        }
        self.later.set_receiver(at as u32);
        while let Some(frame) = parcel.burst.frames().get(parcel.next) {
            if let Fate::To(target) = frame.fate
                && deliver_to(slot, &parcel.burst, parcel.next, target.tag, self.now, &mut self.later).is_some()
            {
                return false;
            }
            parcel.next += 1;
        }
        true
    }
}
