//! A frontend's control ring: the page, its event channel, and what came through it so far.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use datapath::port::Breach;
use datapath::steer::Steer;
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
    /// Over the ring in `page`, of a vif with so many queues.
    ///
    /// # Errors
    /// When its indices contradict each other.
    pub fn new(
        page: Arc<Memory>,
        channel: Box<dyn Channel>,
        domain: DomId,
        engine: Arc<dyn Engine>,
        queues: u16,
    ) -> Result<Self, Violation> {
        let (ring, control) = (BackRing::attach(page, 0)?, Control::new(queues));
        Ok(Mailbox { ring, channel, control, domain, engine, paid: Instant::now() })
    }

    /// Becomes readable when there is something.
    pub fn waker(&self) -> BorrowedFd<'_> {
        self.channel.waker()
    }

    /// Obeys what has come, at most one ring of messages. How frames are to be spread from now on, if there was any.
    ///
    /// # Errors
    /// When the frontend breaks the rules.
    pub fn work(&mut self, now: Instant) -> Result<Option<Option<Arc<dyn Steer>>>, Breach> {
        self.channel.take();
        let mut any = false;
        for _ in 0..BackRing::<4>::SIZE {
            if self.ring.ready(1)? == 0 && self.ring.arm()? == 0 {
                break;
            }
            self.pay(now)?;
            let request = self.ring.request(0);
            self.ring.take(1);
            let response = self.answer(request);
            self.ring.respond(response);
            any = true;
        }
        // More may be there: then the event is in the past, and nobody would tell.
        if self.ring.publish() == Some(true) {
            self.channel.notify();
        }
        Ok(any.then(|| self.control.steering()))
    }

    /// Whether more is there than [`work`](Self::work) took.
    ///
    /// # Errors
    /// When the frontend breaks the rules.
    pub fn has_more(&mut self) -> Result<bool, Breach> {
        Ok(self.ring.arm()? > 0)
    }

    fn pay(&mut self, now: Instant) -> Result<(), Breach> {
        self.paid = self.paid.max(now) + EACH;
        match self.paid > now + EACH * AT_ONCE {
            true => Err(Breach::Device(Fault::ControlFlood.name())),
            false => Ok(()),
        }
    }

    fn answer(&mut self, request: Slot) -> Slot {
        let (domain, engine) = (self.domain, &self.engine);
        self.control.answer(request, |reference, len| {
            ring::later::read(&**engine, Granted { domain, reference: GrantRef(reference), offset: 0 }, len)
        })
    }
}
