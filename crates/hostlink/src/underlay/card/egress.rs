//! Frames to one VTEP in one network, through a card: the receiving side of its port.

use std::any::Any;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use frame::vxlan::outer::{Prefix, Template};
use frame::{Accepts, Headers, Mac, flow_hash};
use network::burst::{AHEAD, Burst};
use network::packet::Packet;
use network::port::{Notified, QueueError, QueuePair};
use parking_lot::{Mutex, MutexGuard};
use ring::GrantCopyBatch;
use ring::device::Put;

use super::super::counters::UnderlayCounters;
use super::SharedMac;
use super::sender::{CardSender, Sent};

/// What a pair sends to.
pub(in super::super) struct Destination {
    /// The outer headers, except the next hop's address.
    pub template: Template,
    /// The next hop.
    pub next_hop: Arc<SharedMac>,
}

/// A pair that encapsulates. Nothing is fetched from it.
pub(in super::super) struct CardEgress {
    destination: Destination,
    sender: Arc<Mutex<CardSender>>,
    counters: Arc<UnderlayCounters>,
}

impl CardEgress {
    pub fn new(
        destination: Destination,
        sender: Arc<Mutex<CardSender>>,
        counters: Arc<UnderlayCounters>,
    ) -> Self {
        CardEgress { destination, sender, counters }
    }

    /// The tunnel's headers with the next hop's present address; `None`: the address is not known.
    fn tunnel(&self) -> Option<Prefix> {
        let Destination { template, next_hop } = &self.destination;
        let own: Mac = template.link.0;
        next_hop.get().map(|hop| Template { link: (own, hop), ..*template }.prefix())
    }

    fn sender(&self) -> MutexGuard<'_, CardSender> {
        self.sender.lock()
    }

    /// Counts the outcome. A frame that was not sent is lost, as on a wire.
    fn count(&self, sent: Sent) -> Put {
        match sent {
            Sent::Taken => self.counters.sent_to_card(1),
            Sent::Full => self.counters.full(1),
            Sent::Refused => return Put::Refused,
        }
        Put::Done
    }
}

impl QueuePair for CardEgress {
    fn fetch(&mut self, _: &mut Burst) -> Result<(), QueueError> {
        Ok(())
    }

    fn complete(&mut self, _: usize) {}

    fn rewind(&mut self, _: usize) {}

    fn accepts(&self) -> Accepts {
        // A card completes and segments nothing for AF_XDP.
        Accepts::default()
    }

    fn prepare(&mut self, _: usize) -> Result<(), QueueError> {
        Ok(())
    }

    fn put(&mut self, packet: &Packet<'_>, _: &mut GrantCopyBatch) -> Result<Put, QueueError> {
        let Some(tunnel) = self.tunnel() else {
            self.counters.unreachable(1);
            return Ok(Put::Done);
        };
        let mut headers = Headers::default();
        let known = frame::parse_into(packet.head, &mut headers);
        let hash = if known { flow_hash(&headers, packet.head) } else { 0 };
        let sent = self.sender().add(&tunnel, hash, packet)?;
        Ok(self.count(sent))
    }

    fn put_run(
        &mut self,
        burst: &Burst,
        run: Range<usize>,
        _: bool,
        _: &mut GrantCopyBatch,
    ) -> (usize, Result<Put, QueueError>) {
        let Some(tunnel) = self.tunnel() else {
            self.counters.unreachable(run.len() as u64);
            return (run.len(), Ok(Put::Done));
        };
        let (mut sender, mut taken) = (self.sender(), 0);
        let mut add = |i: usize| {
            burst.prefetch(i + AHEAD);
            let hash = flow_hash(&burst.frames()[i].headers, burst.head(i).as_slice());
            match sender.add(&tunnel, hash, &burst.packet(i))? {
                Sent::Taken => taken += 1,
                Sent::Full => self.counters.full(1),
                Sent::Refused => return Ok(Put::Refused),
            }
            Ok(Put::Done)
        };
        let other = run.clone().map(|i| (i, add(i))).find(|(_, put)| *put != Ok(Put::Done));
        self.counters.sent_to_card(taken);
        other.map_or((run.len(), Ok(Put::Done)), |(i, put)| (i - run.start, put))
    }

    fn room(&mut self) -> Result<usize, QueueError> {
        Ok(usize::MAX)
    }

    fn flush(&mut self) -> Result<[Notified; 2], QueueError> {
        match self.sender().flush()? {
            true => {
                self.counters.send_call();
                Ok([Notified::Nothing, Notified::Sent])
            }
            false => Ok([Notified::Nothing; 2]),
        }
    }

    fn arm(&mut self, _: bool) -> Result<bool, QueueError> {
        Ok(false)
    }

    fn disarm(&mut self) {}

    fn wakers(&self) -> [Option<BorrowedFd<'_>>; 2] {
        [None, None]
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}
