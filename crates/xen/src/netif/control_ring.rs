//! A frontend's control ring (netif.h, "Control ring"): the page, its event channel, and the state
//! that messages change.
//!
//! # What a hostile frontend could try
//!
//! Keeping the control thread busy: messages, and signals without a message, are charged against a
//! rate of one in 10 ms, with a burst of 1024; a message about pages costs one more for each 32 of
//! them. A frontend beyond that is stopped.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hypervisor::{Channel, DomId, GrantRef, Granted};
use network::port::QueueError;
use ring::xen::BackRing;
use ring::{Engine, Memory, Violation};

use crate::netif::fault::Fault;
use crate::netif::hash_control::{CtrlSlot, HashControl};
use crate::netif::static_grants::{GrantedLists, StaticGrants};

/// Messages that may come in a burst: many times as many as the setup of a frontend needs.
const BURST: u32 = 1024;

/// Pages to be mapped or unmapped that cost as much as a message.
const PAGES_PER_MESSAGE: u32 = 32;

/// Time in which credit for one message accrues.
const PERIOD: Duration = Duration::from_millis(10);

/// A control ring.
pub struct ControlRing {
    ring: BackRing<4>,
    channel: Box<dyn Channel>,
    control: HashControl,
    static_grants: StaticGrants,
    domain: DomId,
    engine: Arc<dyn Engine>,
    /// The time at which all messages so far would have come at the allowed rate.
    charged_until: Instant,
}

impl ControlRing {
    /// The ring in `page`.
    ///
    /// # Errors
    /// When its indices contradict each other.
    pub fn new(
        page: Arc<Memory>,
        channel: Box<dyn Channel>,
        domain: DomId,
        engine: Arc<dyn Engine>,
        control: HashControl,
        static_grants: StaticGrants,
    ) -> Result<Self, Violation> {
        let ring = BackRing::attach(page, 0)?;
        Ok(ControlRing {
            ring,
            channel,
            control,
            static_grants,
            domain,
            engine,
            charged_until: Instant::now(),
        })
    }

    /// Becomes readable with a signal of the frontend.
    pub fn waker(&self) -> BorrowedFd<'_> {
        self.channel.waker()
    }

    /// The hash settings.
    pub fn control(&self) -> &HashControl {
        &self.control
    }

    /// The pages that stay mapped.
    pub fn static_grants(&self) -> &StaticGrants {
        &self.static_grants
    }

    /// Whether a response waits for the end of bursts.
    pub fn is_waiting(&self) -> bool {
        self.static_grants.is_unmap_pending()
    }

    /// Executes the messages in the ring, one ringful at most, and returns their number.
    /// [`publish`](Self::publish) makes the responses visible.
    ///
    /// # Errors
    /// When the frontend breaks the rules.
    pub fn execute(&mut self, now: Instant) -> Result<u32, QueueError> {
        let signalled = self.channel.take();
        let (mut count, waited) = (self.finish_unmap(), self.is_waiting());
        while count < BackRing::<4>::SIZE
            && !self.is_waiting()
            && (self.ring.ready(1)? > 0 || self.ring.arm()? > 0)
        {
            let request = self.ring.request(0);
            self.charge(now, 1 + StaticGrants::weight(request) / PAGES_PER_MESSAGE)?;
            self.ring.take(1);
            count += match self.execute_one(request) {
                Some(response) => {
                    self.ring.respond(response);
                    1
                }
                None => self.finish_unmap(),
            };
        }
        if signalled && count == 0 && (waited || !self.is_waiting()) {
            // A signal without a message is charged like a message.
            self.charge(now, 1)?;
        }
        Ok(count)
    }

    /// Publishes responses. True when the ring holds more messages already, which no signal will
    /// announce.
    ///
    /// # Errors
    /// When the frontend breaks the rules.
    pub fn publish(&mut self) -> Result<bool, QueueError> {
        if self.ring.publish() == Some(true) {
            self.channel.notify();
        }
        Ok(self.ring.arm()? > 0 && !self.is_waiting())
    }

    /// Responds to the message that waits for the end of bursts, if they have ended. Returns the
    /// number of responses.
    fn finish_unmap(&mut self) -> u32 {
        match self.static_grants.finish_unmap() {
            Some(response) => {
                self.ring.respond(response);
                1
            }
            None => 0,
        }
    }

    fn charge(&mut self, now: Instant, messages: u32) -> Result<(), QueueError> {
        self.charged_until = self.charged_until.max(now) + PERIOD * messages;
        match self.charged_until > now + PERIOD * BURST {
            true => Err(QueueError::Device(Fault::ControlFlood.name())),
            false => Ok(()),
        }
    }

    /// The response. `None`: later, by `finish_unmap`.
    fn execute_one(&mut self, request: CtrlSlot) -> Option<CtrlSlot> {
        let granted = ParameterPages { domain: self.domain, engine: &*self.engine };
        if self.static_grants.is_for(request) {
            return self.static_grants.answer(request, &granted);
        }
        Some(self.control.answer(request, |reference, len| granted.read(GrantRef(reference), len)))
    }
}

/// Pages that the frontend grants for parameters of messages.
struct ParameterPages<'a> {
    domain: DomId,
    engine: &'a dyn Engine,
}

impl ParameterPages<'_> {
    fn start(&self, reference: GrantRef) -> Granted {
        Granted { domain: self.domain, reference, offset: 0 }
    }
}

impl GrantedLists for ParameterPages<'_> {
    fn read(&self, reference: GrantRef, len: usize) -> Option<Vec<u8>> {
        ring::granted_copy::read(self.engine, self.start(reference), len)
    }

    fn write(&self, reference: GrantRef, bytes: &[u8]) -> bool {
        ring::granted_copy::write(self.engine, self.start(reference), bytes)
    }
}
