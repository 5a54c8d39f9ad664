//! A frontend's control ring: the page, its event channel, and what came through it so far.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hypervisor::{Channel, DomId, GrantRef, Granted};
use network::port::QueueError;
use ring::xen::BackRing;
use ring::{Engine, Memory, Violation};

use crate::netif::cache::{Cache, Lists};
use crate::netif::control::{Control, Slot};
use crate::netif::fault::Fault;

/// Messages that may come at once: what setting up takes, many times over.
const AT_ONCE: u32 = 1024;

/// Pages to be mapped or unmapped that are as much work as a message.
const PAGES: u32 = 32;

/// How long it takes to earn another one.
const EACH: Duration = Duration::from_millis(10);

/// A control ring.
pub struct Mailbox {
    ring: BackRing<4>,
    channel: Box<dyn Channel>,
    control: Control,
    cache: Cache,
    domain: DomId,
    engine: Arc<dyn Engine>,
    /// When all messages so far would have come, at the rate that is allowed.
    paid: Instant,
}

impl Mailbox {
    /// Over the ring in `page`, of a vif for which `control` holds, and of which `cache` keeps
    /// pages.
    ///
    /// # Errors
    /// When its indices contradict each other.
    pub fn new(
        page: Arc<Memory>,
        channel: Box<dyn Channel>,
        domain: DomId,
        engine: Arc<dyn Engine>,
        (control, cache): (Control, Cache),
    ) -> Result<Self, Violation> {
        let ring = BackRing::attach(page, 0)?;
        Ok(Mailbox { ring, channel, control, cache, domain, engine, paid: Instant::now() })
    }

    /// Becomes readable when there is something.
    pub fn waker(&self) -> BorrowedFd<'_> {
        self.channel.waker()
    }

    /// What the frontend has set.
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// The pages that are kept of it.
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Whether an answer has to wait until a burst is over.
    pub fn is_waiting(&self) -> bool {
        self.cache.is_unsettled()
    }

    /// Obeys what has come, at most one ring of messages; how many. The frontend learns it by
    /// [`answer`](Self::answer).
    ///
    /// # Errors
    /// When the frontend breaks the rules.
    pub fn work(&mut self, now: Instant) -> Result<u32, QueueError> {
        let signalled = self.channel.take();
        let (mut count, waited) = (self.settle(), self.is_waiting());
        while count < BackRing::<4>::SIZE
            && !self.is_waiting()
            && (self.ring.ready(1)? > 0 || self.ring.arm()? > 0)
        {
            let request = self.ring.request(0);
            self.pay(now, 1 + Cache::weight(request) / PAGES)?;
            self.ring.take(1);
            count += match self.obey(request) {
                Some(response) => {
                    self.ring.respond(response);
                    1
                }
                None => self.settle(),
            };
        }
        if signalled && count == 0 && (waited || !self.is_waiting()) {
            // A signal for nothing costs us as much.
            self.pay(now, 1)?;
        }
        Ok(count)
    }

    /// Publishes answers. Whether more messages are there already, of which nobody would tell.
    ///
    /// # Errors
    /// When the frontend breaks the rules.
    pub fn answer(&mut self) -> Result<bool, QueueError> {
        if self.ring.publish() == Some(true) {
            self.channel.notify();
        }
        Ok(self.ring.arm()? > 0 && !self.is_waiting())
    }

    /// Answers the message that had to wait, if it can be: how many that are.
    fn settle(&mut self) -> u32 {
        match self.cache.settle() {
            Some(response) => {
                self.ring.respond(response);
                1
            }
            None => 0,
        }
    }

    fn pay(&mut self, now: Instant, messages: u32) -> Result<(), QueueError> {
        self.paid = self.paid.max(now) + EACH * messages;
        match self.paid > now + EACH * AT_ONCE {
            true => Err(QueueError::Device(Fault::ControlFlood.name())),
            false => Ok(()),
        }
    }

    /// The answer. `None`: not now.
    fn obey(&mut self, request: Slot) -> Option<Slot> {
        let granted = GrantedPages { domain: self.domain, engine: &*self.engine };
        if self.cache.is_for(request) {
            return self.cache.answer(request, &granted);
        }
        Some(self.control.answer(request, |reference, len| granted.read(GrantRef(reference), len)))
    }
}

/// What messages are about lies in pages that the frontend grants.
struct GrantedPages<'a> {
    domain: DomId,
    engine: &'a dyn Engine,
}

impl GrantedPages<'_> {
    fn start(&self, reference: GrantRef) -> Granted {
        Granted { domain: self.domain, reference, offset: 0 }
    }
}

impl Lists for GrantedPages<'_> {
    fn read(&self, reference: GrantRef, len: usize) -> Option<Vec<u8>> {
        ring::grant_copy_batch::read(self.engine, self.start(reference), len)
    }

    fn write(&self, reference: GrantRef, bytes: &[u8]) -> bool {
        ring::grant_copy_batch::write(self.engine, self.start(reference), bytes)
    }
}
