//! A worker's side of all traffic with other workers: its lanes, and its own parcels.

use crate::burst::Burst;
use crate::parcel::{Lane, PARCELS, Parcel};
use crate::stage_profiler::Ticks;
use crate::topology::{QueueId, QueueLocation};

/// Lanes to the other workers, spare parcels, and those being filled.
pub struct Crossing {
    lanes: Vec<Option<Lane>>,
    // Boxed, because a parcel moves between threads as a pointer.
    #[allow(clippy::vec_box)]
    spare: Vec<Box<Parcel>>,
    made: usize,
    /// How many have been sent; the numbers of those that are not back, and the queues that they
    /// are for.
    sent: u64,
    out: Vec<(u64, QueueId)>,
    open: Vec<(usize, Box<Parcel>)>,
    held: Vec<Option<Box<Parcel>>>,
    /// Parcels of others that are delivered, but for frames that are lent; with the workers that
    /// they came from.
    #[allow(clippy::vec_box)]
    lent: Vec<(usize, Box<Parcel>)>,
    /// How many parcels have come in, and from each worker.
    received: u64,
    from: Vec<u64>,
}

impl Crossing {
    /// Over the lanes of one worker.
    pub fn new(lanes: Vec<Option<Lane>>) -> Self {
        let held = lanes.iter().map(|_| None).collect();
        let (out, open) = (Vec::with_capacity(PARCELS), Vec::with_capacity(PARCELS));
        let from = vec![0; lanes.len()];
        Crossing {
            lanes,
            spare: Vec::new(),
            made: 0,
            sent: 0,
            out,
            open,
            held,
            lent: Vec::new(),
            received: 0,
            from,
        }
    }

    /// The parcel of the current burst that goes to `seat`, with room for one more frame; `None`
    /// when all parcels are under way.
    pub fn parcel(
        &mut self,
        location: QueueLocation,
        sender: QueueId,
        ticket: u64,
    ) -> Option<&mut Parcel> {
        let fits =
            |(_, p): &(usize, Box<Parcel>)| p.receiver == location.queue && p.burst.room() > 0;
        if let Some(found) = self.open.iter().position(fits) {
            return Some(&mut self.open[found].1);
        }
        let mut parcel = self.blank()?;
        (parcel.receiver, parcel.sender, parcel.ticket, parcel.next) =
            (location.queue, sender, ticket, 0);
        self.sent += 1;
        parcel.stamp = self.sent;
        self.out.push((parcel.stamp, location.queue));
        self.open.push((location.worker, parcel));
        self.open.last_mut().map(|(_, parcel)| &mut **parcel)
    }

    fn blank(&mut self) -> Option<Box<Parcel>> {
        if let Some(parcel) = self.spare.pop() {
            return Some(parcel);
        }
        if self.made == PARCELS {
            return None;
        }
        self.made += 1;
        Some(Box::new(Parcel {
            burst: Burst::new(),
            receiver: QueueId(0),
            sender: QueueId(0),
            ticket: 0,
            stamp: 0,
            next: 0,
            lost: 0,
            error: None,
            number: 0,
            lent: 0,
            spent: Ticks::default(),
        }))
    }

    /// The parcels of the current burst.
    pub fn open(&mut self) -> impl Iterator<Item = &mut Parcel> {
        self.open.iter_mut().map(|(_, parcel)| &mut **parcel)
    }

    /// Sends the parcels of the current burst; `sent` is told the worker and the frames of each.
    /// Returns how many.
    pub fn dispatch(&mut self, mut sent: impl FnMut(usize, usize)) -> usize {
        let mut count = 0;
        for (worker, parcel) in self.open.drain(..) {
            let frames = parcel.burst.frames().len();
            let Some(lane) = self.lanes.get_mut(worker).and_then(Option::as_mut) else { continue };
            // A lane holds as many parcels as a worker has, so there is room.
            if lane.out.push(parcel).is_ok() {
                sent(worker, frames);
                count += 1;
            }
        }
        count
    }

    /// How many workers there are.
    pub fn workers(&self) -> usize {
        self.lanes.len()
    }

    /// The next parcel from `worker` to deliver here: first the one that was held.
    pub fn receive(&mut self, worker: usize) -> Option<Box<Parcel>> {
        if let Some(held) = self.held[worker].take() {
            return Some(held);
        }
        let mut parcel = self.lanes[worker].as_mut()?.inbox.pop().ok()?;
        self.received += 1;
        self.from[worker] += 1;
        (parcel.number, parcel.lent) = (self.received, 0);
        Some(parcel)
    }

    /// How many parcels will have come in, from each worker, with those that are on their way now.
    pub fn expected(&self) -> Vec<u64> {
        let waiting =
            |lane: &Option<Lane>| lane.as_ref().map_or(0, |lane| lane.inbox.slots() as u64);
        self.from.iter().zip(&self.lanes).map(|(from, lane)| from + waiting(lane)).collect()
    }

    /// The number of the newest own parcel.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Whether all own parcels for `queue` up to this one are back, and so have been delivered.
    pub fn has_arrived(&self, queue: QueueId, sent: u64) -> bool {
        !self.out.iter().any(|&(stamp, receiver)| receiver == queue && stamp <= sent)
    }

    /// Whether so many parcels have come in, from each worker.
    pub fn has_received(&self, parcels: &[u64]) -> bool {
        self.from.iter().zip(parcels).all(|(from, parcels)| from >= parcels)
    }

    /// Keeps a parcel from `worker` whose receiver is full. The ones behind it wait, to keep their
    /// order.
    pub fn hold(&mut self, worker: usize, parcel: Box<Parcel>) {
        self.held[worker] = Some(parcel);
    }

    /// The parcels that are held.
    pub fn held(&self) -> impl Iterator<Item = &Parcel> {
        self.held.iter().flatten().map(|parcel| &**parcel)
    }

    /// Keeps a parcel from `worker` of which frames are lent.
    pub fn keep(&mut self, worker: usize, parcel: Box<Parcel>) {
        self.lent.push((worker, parcel));
    }

    /// A frame of parcel `number` is not lent any more. The parcel, and whose it is, if it was the
    /// last.
    pub fn repaid(&mut self, number: u64) -> Option<(usize, Box<Parcel>)> {
        if let Some(held) = self.held.iter_mut().flatten().find(|parcel| parcel.number == number) {
            held.lent = held.lent.saturating_sub(1);
            return None;
        }
        let at = self.lent.iter().position(|(_, parcel)| parcel.number == number)?;
        let (_, parcel) = self.lent.get_mut(at)?;
        parcel.lent = parcel.lent.saturating_sub(1);
        (parcel.lent == 0).then(|| self.lent.swap_remove(at))
    }

    /// Gives a parcel back to `worker`, who sent it.
    pub fn give_back(&mut self, worker: usize, parcel: Box<Parcel>) {
        if let Some(lane) = &mut self.lanes[worker] {
            // The way back has room for all parcels of a worker, too.
            let _ = lane.done.push(parcel);
        }
    }

    /// An own parcel that has come back from `worker`.
    pub fn returned(&mut self, worker: usize) -> Option<Box<Parcel>> {
        self.lanes[worker].as_mut()?.back.pop().ok()
    }

    /// Keeps an own parcel for the next time, and lets go of the memory that it pins.
    pub fn recycle(&mut self, mut parcel: Box<Parcel>) {
        parcel.burst.reset(crate::burst::BURST);
        (parcel.lost, parcel.error, parcel.spent) = (0, None, Ticks::default());
        self.out.retain(|(stamp, _)| *stamp != parcel.stamp);
        self.spare.push(parcel);
    }

    /// Whether anything lies in a lane for this worker.
    pub fn has_mail(&self) -> bool {
        self.lanes.iter().flatten().any(|lane| !lane.inbox.is_empty() || !lane.back.is_empty())
    }
}
