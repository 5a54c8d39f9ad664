//! A frontend's control ring: the page, its event channel, and what came through it so far.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use datapath::port::Breach;
use hypervisor::{Channel, DomId, GrantRef, Granted};
use ring::xen::BackRing;
use ring::{Engine, Memory, Violation};

use crate::control::{Control, Slot};
use crate::fault::Fault;

/// Messages that may come at once: what setting up takes, many times over.
const AT_ONCE: u32 = 1024;

/// How long it takes to earn another one.
const EACH: Duration = Duration::from_millis(10);

/// A control ring.
pub struct Mailbox {
    ring: BackRing<4>,
    channel: Box<dyn Channel>,
    control: Control,
    domain: DomId,
    engine: Arc<dyn Engine>,
    /// When all messages so far would have come, at the rate that is allowed.
    paid: Instant,
}

impl Mailbox {
    /// Over the ring in `page`, of a vif for which `control` holds.
    ///
    /// # Errors
    /// When its indices contradict each other.
    pub fn new(
        page: Arc<Memory>,
        channel: Box<dyn Channel>,
        domain: DomId,
        engine: Arc<dyn Engine>,
        control: Control,
    ) -> Result<Self, Violation> {
        let ring = BackRing::attach(page, 0)?;
        Ok(Mailbox { ring, channel, control, domain, engine, paid: Instant::now() })
    }

    /// Becomes readable when there is something.
    pub fn waker(&self) -> BorrowedFd<'_> {
        self.channel.waker()
    }

    /// What the frontend has set.
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// Obeys what has come, at most one ring of messages; how many. The frontend learns it by [`answer`](Self::answer).
    ///
    /// # Errors
    /// When the frontend breaks the rules.
    pub fn work(&mut self, now: Instant) -> Result<u32, Breach> {
        let signalled = self.channel.take();
        let mut count = 0;
        while count < BackRing::<4>::SIZE && (self.ring.ready(1)? > 0 || self.ring.arm()? > 0) {
            self.pay(now)?;
            let request = self.ring.request(0);
            self.ring.take(1);
            let response = self.obey(request);
            self.ring.respond(response);
            count += 1;
        }
        if signalled && count == 0 {
            // A signal for nothing costs us as much.
            self.pay(now)?;
        }
        Ok(count)
    }

    /// Publishes answers. Whether more messages are there already, of which nobody would tell.
    ///
    /// # Errors
    /// When the frontend breaks the rules.
    pub fn answer(&mut self) -> Result<bool, Breach> {
        if self.ring.publish() == Some(true) {
            self.channel.notify();
        }
        Ok(self.ring.arm()? > 0)
    }

    fn pay(&mut self, now: Instant) -> Result<(), Breach> {
        self.paid = self.paid.max(now) + EACH;
        match self.paid > now + EACH * AT_ONCE {
            true => Err(Breach::Device(Fault::ControlFlood.name())),
            false => Ok(()),
        }
    }

    fn obey(&mut self, request: Slot) -> Slot {
        let (domain, engine) = (self.domain, &self.engine);
        self.control.answer(request, |reference, len| {
            ring::later::read(&**engine, Granted { domain, reference: GrantRef(reference), offset: 0 }, len)
        })
    }
}
