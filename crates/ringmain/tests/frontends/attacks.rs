//! The steps of a hostile frontend, one at a time, and the charges to its port.

use std::time::Duration;

use control::api::PortReport;
use hypervisor::GrantRef;
use ring::Memory;
use xen::netif::frontend::{Frame, FrameSource, FrontError, GrantedPages, Queue};
use xen::xenbus::State;

use super::guest::{Guest, frame};

/// The number of the hostile guest, and of one that is not hostile.
pub const NUMBER: u8 = 9;
const OTHER: u8 = 2;

/// Where a ring's page has the indices of requests and responses, and the first slot.
const REQ_PROD: u64 = 0;
const RSP_PROD: u64 = 8;
const SLOTS: u64 = 64;

/// Slots of a ring, and bytes of a slot of a Tx ring.
const SIZE: u32 = 256;
const TX_SLOT: u64 = 12;

const MORE_DATA: u16 = 4;
const EXTRA_INFO: u16 = 8;

type Outcome = Result<(), FrontError>;

/// Keys that make no sense: the name, and a value so many times over.
const KEYS: [(&str, &str, usize); 5] = [
    // A page that was never granted, and a port that was never opened.
    ("tx-ring-ref", "7000", 1),
    ("event-channel-tx", "1000", 1),
    ("multi-queue-num-queues", "1000000000", 1),
    ("ctrl-ring-ref", "-1", 1),
    ("feature-sg", "\u{1b}[2J\n", 300),
];

/// What ports are stopped for with such keys.
const BAD_KEYS: &[&str] = &[
    "is not a number in range",
    "has not granted page",
    "has no event channel",
    "multi-queue-num-queues is 1000000000",
];

/// The hostile guest.
pub struct Foe {
    guest: Guest,
    /// Steps so far.
    pub steps: u64,
    /// Index of the next slot of its Tx ring.
    next: u32,
}

/// An attack by the hostile guest.
pub struct Attack {
    pub name: &'static str,
    step: fn(&mut Foe) -> Outcome,
    /// Whether the port is charged as it should be.
    pub is_charged: fn(&PortReport) -> bool,
    /// Whether others send to the hostile guest.
    pub receives: bool,
}

pub const ATTACKS: &[Attack] = &[
    attack("states", Foe::flip_states, |port| port.control_delayed > 0),
    attack("keys", Foe::write_keys, |port| is_stopped(port, BAD_KEYS)),
    attack("events", Foe::signal, |port| port.total.kicks > 100),
    attack("control events", Foe::signal_control, |port| {
        is_stopped(port, &["a flood of control messages"])
    }),
    attack("indices", Foe::publish_garbage, |port| is_stopped(port, &["request index jumped"])),
    attack("revoked", Foe::revoke_under_way, |port| is_stopped(port, &["is not granted for"])),
    Attack {
        receives: true,
        ..attack("trickle", Foe::receive_one, |port| {
            ["rx_full", "head_of_line"].iter().any(|name| port.total.drops[*name] > 0)
        })
    },
    attack("fragments", Foe::send_fragments, |port| port.total.tx_frames > 1000),
    attack("extras", Foe::send_extras, |port| {
        is_stopped(port, &["extra info", "too many slots", "last slots are missing"])
    }),
    attack("store", Foe::flood_store, |port| {
        port.store.is_some_and(|store| store.refused > 0 && store.throttled_us > 0)
    }),
];

const fn attack(
    name: &'static str,
    step: fn(&mut Foe) -> Outcome,
    is_charged: fn(&PortReport) -> bool,
) -> Attack {
    Attack { name, step, is_charged, receives: false }
}

/// Whether the port was stopped several times, at last for one of these reasons.
fn is_stopped(port: &PortReport, reasons: &[&str]) -> bool {
    let is_reason = |why: &String| reasons.iter().any(|reason| why.contains(reason));
    port.violations >= 3 && port.reason.as_ref().is_some_and(is_reason)
}

impl Attack {
    /// Carries out the next step.
    pub fn step(&self, foe: &mut Foe) -> Outcome {
        (self.step)(foe)?;
        foe.steps += 1;
        Ok(())
    }
}

impl Foe {
    pub fn new(guest: Guest) -> Foe {
        Foe { guest, steps: 0, next: 0 }
    }

    fn queue(&mut self) -> &mut Queue {
        self.guest.queue.as_mut().unwrap()
    }

    /// Waits until the backend has stopped the interface, and connects it again.
    fn begin_anew(&mut self) -> Outcome {
        self.guest.wait_until_stopped()?;
        self.next = 0;
        self.guest.connect_again()
    }

    /// Every state, without waiting for the backend; sometimes with it.
    fn flip_states(&mut self) -> Outcome {
        use State::{Closed, Closing, Connected, InitWait, Initialised, Initialising};
        for state in [Initialised, Connected, Closing, InitWait, Connected, Closed, Initialising] {
            self.guest.frontend.bus().set_state(state)?;
        }
        match self.steps % 16 {
            0 => self.guest.connect_again(),
            _ => Ok(()),
        }
    }

    /// Connects with a key that makes no sense.
    fn write_keys(&mut self) -> Outcome {
        let (key, value, times) = KEYS[self.steps as usize % KEYS.len()];
        self.guest.begin()?;
        let bus = self.guest.frontend.bus();
        let node = format!("{}/{key}", bus.path());
        let before = bus.key(key)?;
        bus.nodes().put(&node, value.repeat(times))?;
        bus.set_state(State::Connected)?;
        self.guest.wait_until_stopped()?;
        match before {
            Some(before) => bus.nodes().put(&node, before)?,
            None => bus.nodes().remove(&node)?,
        }
        Ok(())
    }

    /// Signals without work, on both event channels.
    fn signal(&mut self) -> Outcome {
        let queue = self.queue();
        for _ in 0..1000 {
            queue.tx.ring().channel().notify();
            queue.rx.ring().channel().notify();
        }
        Ok(())
    }

    /// Signals of the control ring without messages, until the backend stops the interface.
    fn signal_control(&mut self) -> Outcome {
        while self.guest.frontend.bus().backend_state()? == State::Connected {
            let control = self.guest.control.as_ref().unwrap();
            (0..1000).for_each(|_| control.ring().channel().notify());
        }
        self.begin_anew()
    }

    /// Indices that no ring can have, of requests and of responses.
    fn publish_garbage(&mut self) -> Outcome {
        let garbage = [SIZE + 1, 0x8000_0000, u32::MAX][self.steps as usize % 3];
        let queue = self.queue();
        for (page, memory) in [rx_ring(queue), tx_ring(queue)] {
            put(memory, page.addr(0) + RSP_PROD, garbage)?;
            put(memory, page.addr(0) + REQ_PROD, garbage)?;
        }
        queue.rx.ring().channel().notify();
        queue.tx.ring().channel().notify();
        self.begin_anew()
    }

    /// Frames whose pages are revoked as soon as they are published.
    fn revoke_under_way(&mut self) -> Outcome {
        for n in 0..64 {
            let (page, reference) = self.page(n)?;
            self.write_frame(page, 1514)?;
            self.slot(data(reference, 0, 0, 1514))?;
        }
        self.publish()?;
        for n in 0..64 {
            let (_, reference) = self.page(n)?;
            self.guest.domain.revoke(reference);
        }
        // The rest is never granted.
        for n in 0..64 {
            let (_, reference) = self.page(n)?;
            self.slot(data(reference, 0, 0, 1514))?;
        }
        self.publish()?;
        self.begin_anew()
    }

    /// Takes one frame, posts its buffer, and rests.
    fn receive_one(&mut self) -> Outcome {
        if self.steps == 0 {
            // The switch learns the address.
            let (page, reference) = self.page(0)?;
            self.write_frame(page, 100)?;
            self.slot(data(reference, 0, 0, 100))?;
            self.publish()?;
        }
        let rx = &mut self.queue().rx;
        let _ = rx.next(&mut Frame::default())?;
        rx.post()?;
        std::thread::sleep(Duration::from_millis(10));
        Ok(())
    }

    /// Frames in as many slots as there may be, all but the first of one byte.
    fn send_fragments(&mut self) -> Outcome {
        const FRAGMENTS: u16 = 17;
        let answered = get(tx_ring(self.queue()), RSP_PROD)?;
        if self.next.wrapping_sub(answered) > SIZE - 32 {
            std::thread::yield_now();
            return Ok(());
        }
        let (page, reference) = self.page(0)?;
        self.write_frame(page, 100)?;
        self.slot(data(reference, 0, MORE_DATA, 100))?;
        for n in 1..=FRAGMENTS {
            let more = if n < FRAGMENTS { MORE_DATA } else { 0 };
            self.slot(data(reference, 82 + n, more, 1))?;
        }
        self.publish()
    }

    /// Extra info that does not end, of no known type, or that makes no sense, and frames that do
    /// not end.
    fn send_extras(&mut self) -> Outcome {
        let (page, reference) = self.page(0)?;
        self.write_frame(page, 1000)?;
        match self.steps % 5 {
            0 => {
                self.slot(data(reference, 0, EXTRA_INFO, 1000))?;
                (0..200).try_for_each(|_| self.slot([4 | 1 << 8, 0, 0]))?;
            }
            1 => {
                self.slot(data(reference, 0, EXTRA_INFO, 1000))?;
                self.slot([9, 0, 0])?;
            }
            2 => {
                self.slot(data(reference, 0, EXTRA_INFO, 1000))?;
                self.slot([1 | 1448 << 16, 3, 0])?;
            }
            3 => {
                self.slot(data(reference, 0, MORE_DATA, 1000))?;
                (0..40).try_for_each(|_| self.slot(data(reference, 0, MORE_DATA, 1)))?;
            }
            _ => self.slot(data(reference, 0, MORE_DATA, 1000))?,
        }
        self.publish()?;
        self.begin_anew()
    }

    /// Nodes, transactions and watches, until the store refuses more, and then more.
    fn flood_store(&mut self) -> Outcome {
        let bus = self.guest.frontend.bus();
        let store = self.guest.domain.store();
        let node = |n: u64| format!("{}/flood/{n}", bus.path());
        let first = self.steps * 100;
        for n in first..first + 100 {
            // Refused when the guest has as many nodes as it may have.
            let _ = store.nodes().write(&node(n), &[b'x'; 1024]);
        }
        let transactions: Vec<_> = (0..20).map_while(|_| store.begin().ok()).collect();
        for transaction in transactions {
            let _ = transaction.nodes().write(&node(0), b"again");
            let _ = transaction.commit();
        }
        let watches: Vec<_> =
            (0..200).map_while(|n| store.watch(&node(n), Box::new(|_| ())).ok()).collect();
        drop(watches);
        Ok(())
    }

    /// Address and reference of a page to send from.
    fn page(&mut self, n: u32) -> Result<(u64, GrantRef), FrontError> {
        let pages = self.queue().tx.pages();
        Ok((pages.addr(n), pages.reference(n)))
    }

    fn write_frame(&mut self, addr: u64, len: usize) -> Outcome {
        let memory = self.queue().tx.ring().memory();
        Ok(memory.write(addr, &frame(OTHER, NUMBER, len))?)
    }

    /// Writes the next slot of the Tx ring.
    fn slot(&mut self, words: [u32; 3]) -> Outcome {
        let at = SLOTS + TX_SLOT * u64::from(self.next % SIZE);
        self.next = self.next.wrapping_add(1);
        let (page, memory) = tx_ring(self.queue());
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        Ok(memory.write(page.addr(0) + at, &bytes)?)
    }

    /// Publishes the slots that were written, and signals in any case.
    fn publish(&mut self) -> Outcome {
        let next = self.next;
        let queue = self.queue();
        let (page, memory) = tx_ring(queue);
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        put(memory, page.addr(0) + REQ_PROD, next)?;
        queue.tx.ring().channel().notify();
        Ok(())
    }
}

/// The words of a slot with data.
fn data(reference: GrantRef, offset: u16, flags: u16, size: u16) -> [u32; 3] {
    [reference.0, u32::from(offset) | u32::from(flags) << 16, u32::from(size) << 16]
}

/// The page of the Tx ring, and the memory that it lies in.
fn tx_ring(queue: &Queue) -> (&GrantedPages, &Memory) {
    (queue.tx.ring().page(), queue.tx.ring().memory())
}

/// The page of the Rx ring, and the memory that it lies in.
fn rx_ring(queue: &Queue) -> (&GrantedPages, &Memory) {
    (queue.rx.ring().page(), queue.rx.ring().memory())
}

fn put(memory: &Memory, addr: u64, value: u32) -> Outcome {
    Ok(memory.write(addr, &value.to_le_bytes())?)
}

fn get((page, memory): (&GrantedPages, &Memory), at: u64) -> Result<u32, FrontError> {
    let mut word = [0; 4];
    memory.read(page.addr(0) + at, &mut word)?;
    Ok(u32::from_le_bytes(word))
}
