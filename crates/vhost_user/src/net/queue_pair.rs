//! A guest's queue pair: the rings of one vhost-user connection as the datapath sees them.
//!
//! A pair has one owner at a time. While a worker has the pair, only that worker touches it. To
//! change it, the session takes it back, makes the change, and hands it over again. All work of a
//! worker here is bounded by its burst, and nothing blocks.

use std::any::Any;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use frame::{Accepts, Mac};
use network::action::Action;
use network::burst::Burst;
use network::count::DropReason;
use network::packet::Packet;
use network::port::{Coalescing, Notified, QueueError, QueuePair, RxProgress};
use ring::{DeviceRing, GrantCopyBatch, Memory, Put, Recovery, Violation};

use super::announcement::Announcement;
use super::feature::{self, bit};
use super::net_vring::{NetVring, RxFormat};
use super::vring_pair::{Direction, VringPair};
use crate::transport::device::{VringControl, VringStart};
use crate::transport::feature::Features;

/// A queue pair over virtqueues of one layout.
pub struct NetQueuePair<R> {
    tx: Option<NetVring<R>>,
    rx: Option<NetVring<R>>,
    /// The memory of the rings.
    memory: Option<Arc<Memory>>,
    vnet_len: usize,
    mergeable: bool,
    accepts: Accepts,
    /// A frame of this side that is sent before those of the guest.
    announcement: Option<Announcement>,
}

impl<R: DeviceRing + 'static> NetQueuePair<R> {
    /// A pair without rings, for a guest with these features.
    pub fn new(features: Features) -> Self {
        NetQueuePair {
            tx: None,
            rx: None,
            memory: None,
            vnet_len: feature::header_len(features),
            mergeable: features.has(bit::MRG_RXBUF),
            accepts: feature::accepts(features),
            announcement: None,
        }
    }

    fn vring(&mut self, direction: Direction) -> &mut Option<NetVring<R>> {
        match direction {
            Direction::Rx => &mut self.rx,
            Direction::Tx => &mut self.tx,
        }
    }

    #[inline]
    fn format(&self) -> RxFormat {
        RxFormat { vnet_len: self.vnet_len, mergeable: self.mergeable, csum: self.accepts.csum }
    }

    /// Fails when the guest's memory has a hole, since reads then return zeros, and when more of it
    /// was allocated here than allowed.
    #[inline]
    fn check_memory(&self) -> Result<(), Violation> {
        self.memory.as_ref().and_then(|memory| memory.violation()).map_or(Ok(()), Err)
    }

    /// The root cause of a violation: zeros in place of a ring can look like any violation.
    #[cold]
    fn breach(&self, violation: Violation) -> QueueError {
        self.check_memory().err().unwrap_or(violation).into()
    }
}

impl<R: DeviceRing + 'static> VringPair for NetQueuePair<R> {
    fn start(
        &mut self,
        direction: Direction,
        VringStart { memory, config, control, record }: VringStart<'_>,
    ) -> Result<Recovery, Violation> {
        let mut ring = R::new(Arc::clone(memory), config)?;
        let recovery = ring.recover(record);
        ring.set_used_log(control.used_log);
        ring.disarm();
        self.memory = Some(Arc::clone(memory));
        *self.vring(direction) = Some(NetVring { ring, control, unpublished: false });
        Ok(recovery)
    }

    fn stop(&mut self, direction: Direction) -> Option<u32> {
        let mut vring = self.vring(direction).take()?;
        // The ring is dropped anyway.
        let _ = vring.publish();
        Some(vring.ring.position())
    }

    fn control(&mut self, direction: Direction, control: VringControl) {
        if let Some(vring) = self.vring(direction) {
            vring.ring.set_used_log(control.used_log);
            vring.control = control;
        }
    }

    fn set_memory(&mut self, direction: Direction, memory: Arc<Memory>) -> Result<(), Violation> {
        if let Some(vring) = self.vring(direction) {
            vring.ring.set_memory(Arc::clone(&memory))?;
            self.memory = Some(memory);
        }
        Ok(())
    }

    fn announce(&mut self, mac: Mac) {
        self.announcement = self.tx.as_ref().and_then(|_| Announcement::new(mac, self.vnet_len));
    }

    fn has(&self, direction: Direction) -> bool {
        match direction {
            Direction::Rx => self.rx.is_some(),
            Direction::Tx => self.tx.is_some(),
        }
    }

    fn receives(&self) -> bool {
        self.rx.as_ref().is_some_and(|rx| rx.control.enabled)
    }
}

impl<R: DeviceRing + 'static> QueuePair for NetQueuePair<R> {
    fn fetch(&mut self, burst: &mut Burst) -> Result<(), QueueError> {
        let Some(tx) = &mut self.tx else {
            return Ok(());
        };
        let filled = match &mut self.announcement {
            None => {
                burst.fill(self.vnet_len, |gather, chains, max| tx.ring.fetch(gather, chains, max))
            }
            // Frames complete in order, so the announcement waits until no frame of the guest is in
            // flight.
            Some(_) if tx.ring.in_flight() > 0 => return Ok(()),
            Some(announcement) => announcement.fetch(self.vnet_len, burst),
        };
        if !tx.control.enabled {
            refuse(burst);
        }
        match filled.and_then(|()| self.check_memory()) {
            Ok(()) => Ok(()),
            Err(violation) => Err(self.breach(violation)),
        }
    }

    fn complete(&mut self, n: usize) {
        if self.announcement.as_ref().is_some_and(Announcement::is_fetched) {
            self.announcement = self.announcement.take().filter(|_| n == 0);
            return;
        }
        if let Some(tx) = self.tx.as_mut().filter(|_| n > 0) {
            tx.ring.complete(n);
            tx.unpublished = true;
        }
    }

    fn rewind(&mut self, n: usize) {
        if let Some(announcement) = self.announcement.as_mut().filter(|it| it.is_fetched()) {
            announcement.rewind(n);
            return;
        }
        if let Some(tx) = &mut self.tx {
            tx.ring.rewind(n);
        }
    }

    fn accepts(&self) -> Accepts {
        self.accepts
    }

    fn prepare(&mut self, n: usize) -> Result<(), QueueError> {
        if let Some(rx) = self.rx.as_mut().filter(|rx| rx.control.enabled) {
            rx.ring.prepare(n).map_err(|violation| self.breach(violation))?;
        }
        Ok(())
    }

    fn put(
        &mut self,
        packet: &Packet<'_>,
        grant_copies: &mut GrantCopyBatch,
    ) -> Result<Put, QueueError> {
        let format = self.format();
        let Some(rx) = self.rx.as_mut().filter(|rx| rx.control.enabled) else {
            return Ok(Put::Full);
        };
        let put = rx.put(format, packet, grant_copies);
        rx.unpublished |= put == Ok(Put::Done);
        put.map_err(|violation| self.breach(violation))
    }

    fn put_run(
        &mut self,
        burst: &Burst,
        run: Range<usize>,
        _: bool,
        grant_copies: &mut GrantCopyBatch,
    ) -> (usize, Result<Put, QueueError>) {
        let format = self.format();
        let Some(rx) = self.rx.as_mut().filter(|rx| rx.control.enabled) else {
            return (0, Ok(Put::Full));
        };
        let first = run.start;
        let mut next = first;
        let mut put = Ok(Put::Done);
        while next < run.end {
            next = rx.put_each_alone(format, burst, next..run.end);
            if next < run.end {
                put = rx.put(format, &burst.packet(next), grant_copies);
                if !matches!(put, Ok(Put::Done)) {
                    break;
                }
                next += 1;
            }
        }
        let done = next - first;
        rx.unpublished |= done > 0;
        (done, put.map_err(|violation| self.breach(violation)))
    }

    fn excess_faults(&self, faults: u64) -> u64 {
        self.memory.as_ref().map_or(0, |memory| {
            memory.faulted(faults);
            memory.excess_faults(faults)
        })
    }

    fn settle_faults(&self, faults: u64) {
        if let Some(memory) = &self.memory {
            memory.examine(faults);
        }
    }

    fn take_extra_pieces(&mut self) -> u32 {
        self.rx.as_mut().map_or(0, |rx| rx.ring.take_extra_pieces())
    }

    fn invalidate(&mut self, token: u32) {
        if let Some(rx) = &mut self.rx {
            rx.ring.invalidate(token);
        }
    }

    fn room(&mut self) -> Result<usize, QueueError> {
        let Some(rx) = &mut self.rx else { return Ok(0) };
        let available = rx.ring.available().map_err(|violation| self.breach(violation))?;
        Ok(if available { usize::MAX } else { 0 })
    }

    fn flush(&mut self) -> Result<[Notified; 2], QueueError> {
        let publish = |vring: &mut Option<NetVring<R>>| {
            vring.as_mut().map_or(Ok(Notified::Nothing), NetVring::publish)
        };
        let told = [publish(&mut self.tx)?, publish(&mut self.rx)?];
        self.check_memory()?;
        Ok(told)
    }

    fn arm(&mut self, rx: bool) -> Result<bool, QueueError> {
        let arm = |vring: &mut Option<NetVring<R>>| vring.as_mut().map_or(Ok(false), NetVring::arm);
        let there = arm(&mut self.tx).and_then(|tx| Ok(tx | (rx && arm(&mut self.rx)?)));
        let there = there.map(|there| there || self.announcement.is_some());
        there.map_err(|violation| self.breach(violation))
    }

    fn disarm(&mut self) {
        for vring in [&mut self.tx, &mut self.rx].into_iter().flatten() {
            vring.ring.disarm();
        }
    }

    fn wakers(&self) -> [Option<BorrowedFd<'_>>; 2] {
        [&self.tx, &self.rx].map(|vring| vring.as_ref().and_then(NetVring::kick))
    }

    fn is_unsignalled(&self) -> bool {
        self.tx.as_ref().is_some_and(|tx| tx.control.kick.is_none())
    }

    /// A `Box<dyn VringPair>`, whatever the layout.
    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        let pair: Box<dyn VringPair> = self;
        Box::new(pair)
    }

    fn coalescing(&mut self) -> Option<&mut dyn Coalescing> {
        Some(self)
    }

    fn rx_progress(&self) -> Option<&dyn RxProgress> {
        Some(self)
    }
}

impl<R: DeviceRing + 'static> Coalescing for NetQueuePair<R> {
    fn flush_deferred(&mut self) -> Result<[Notified; 2], QueueError> {
        let tx = self.tx.as_mut().map_or(Ok(Notified::Nothing), NetVring::publish)?;
        let rx = self.rx.as_mut().map_or(Notified::Nothing, NetVring::publish_quietly);
        self.check_memory()?;
        Ok([tx, rx])
    }

    fn interrupt(&mut self) -> Result<(), QueueError> {
        Ok(self.rx.as_ref().map_or(Ok(()), NetVring::interrupt)?)
    }
}

impl<R: DeviceRing + 'static> RxProgress for NetQueuePair<R> {
    fn position(&self) -> u32 {
        self.rx.as_ref().map_or(0, |rx| rx.ring.mark())
    }

    fn has_consumed(&self, position: u32) -> bool {
        self.rx.as_ref().is_none_or(|rx| rx.ring.has_consumed(position))
    }
}

/// Drops the frames of a ring that is not enabled.
#[cold]
fn refuse(burst: &mut Burst) {
    for frame in burst.frames_mut() {
        frame.action = Action::Drop(DropReason::TxDisabled);
    }
}
