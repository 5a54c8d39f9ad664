//! Two queues of vifs whose frontends write anything anywhere in their rings, grant and revoke as
//! they like, and have pages kept mapped.

use std::cell::RefCell;
use std::sync::Arc;

use hypervisor::test::{Guest, Machine, Port};
use hypervisor::{DomId, GrantRef, Hypervisor, PAGE};
use network::action::Action;
use network::burst::Burst;
use network::port::{QueueError, QueuePair};
use ring::GrantCopyBatch;
use ring::device::Put;
use xen::netif::groups::Groups;
use xen::netif::negotiation::FrontendFeatures;
use xen::netif::queue::{Queue, QueueParts, VifShared};
use xen::netif::static_grants::{GrantedLists, GrefEntry, StaticGrants};
use xen::xenbus::GrantCopyEngine;

use crate::input::Input;

/// Most steps of one run.
const STEPS: usize = 200;

/// Pages of a frontend: its rings, and those that it sends from and receives into.
const PAGES: u32 = 24;

/// Pages that are kept of one at most.
const KEPT: u32 = 12;

struct Front {
    guest: Guest,
    grants: Vec<GrantRef>,
    ports: [Port; 2],
}

/// The lives of two frontends.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let machine = Machine::new();
    let hypervisor = machine.hypervisor(DomId(0));
    let fronts = [1, 2].map(|domain| Front::new(&machine, DomId(domain), &mut input));
    let mut caches = fronts.each_ref().map(|front| front.static_grants(&hypervisor));
    let mut queues =
        [0, 1].map(|who: usize| fronts[who].queue(&hypervisor, &caches[who], input.u8()));
    let (mut burst, mut grant_copies) = (Burst::new(), GrantCopyBatch::new());
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        let who = usize::from(input.u8() & 1);
        match input.below(16) {
            0..3 => fronts[who].scribble(&mut input),
            3..6 => fronts[who].ask(&mut input),
            6..9 => fronts[who].publish(&mut input),
            9 => fronts[who].regrant(&mut input),
            10 if input.u8() < 16 => {
                queues[who] = fronts[who].queue(&hypervisor, &caches[who], 255)
            }
            10 => fronts[who].keep(&mut caches[who], &mut input),
            _ => turn(&mut queues, who, &mut burst, &mut grant_copies, &mut input),
        }
    }
}

impl Front {
    fn new(machine: &Machine, domain: DomId, input: &mut Input<'_>) -> Front {
        let guest = machine.guest(domain, PAGES).expect("memory");
        // The rings must be writable; the rest as it comes.
        let grants = (0..PAGES)
            .map(|page| guest.grant(DomId(0), page, page < 2 || input.u8() < 200))
            .collect();
        let ports = [(), ()].map(|()| guest.open(DomId(0)).expect("a channel"));
        Front { guest, grants, ports }
    }

    fn static_grants(&self, hypervisor: &Hypervisor) -> StaticGrants {
        StaticGrants::new(self.guest.id(), Arc::clone(&hypervisor.grants), KEPT, 1, Arc::default())
    }

    /// A message about pages that are to be kept, or not any more.
    fn keep(&self, static_grants: &mut StaticGrants, input: &mut Input<'_>) {
        let kind = 8 + u32::from(input.u8() % 3);
        let count = if input.u8() < 8 { input.u32() } else { input.below(KEPT + 2) };
        let entry = |_| {
            let choice = input.u8();
            let reference = if choice < 8 {
                GrantRef(input.u32())
            } else {
                self.grants[usize::from(choice) % self.grants.len()]
            };
            GrefEntry { reference, flags: u16::from(choice) >> 6 & 1, status: 0 }
        };
        let entries: Vec<GrefEntry> = (0..count.min(64)).map(entry).collect();
        let list =
            List { bytes: RefCell::new(GrefEntry::encode_all(&entries)), writable: input.u8() > 8 };
        let queue = u32::from(input.u8() < 8);
        let request = [7 | kind << 16, queue, u32::from(input.u8() < 8), count];
        let before = static_grants.size().0;
        assert!(static_grants.is_for(request));
        // No burst is under way, so nothing has to wait.
        let [head, status, data, end] = static_grants
            .answer(request, &list)
            .or_else(|| static_grants.finish_unmap())
            .expect("an answer");
        assert!(head == request[0] && status <= 3 && end == 0);
        let after = static_grants.size().0;
        match kind {
            9 => assert_eq!(after, before + if status == 0 { count as usize } else { 0 }),
            10 => assert_eq!(after + data as usize, before),
            _ => assert_eq!((after, data), (before, if status == 0 { KEPT } else { 0 })),
        }
        assert!(after <= KEPT as usize && self.guest.mapped() <= after + 2);
    }

    /// The backend's end, or none when the rings are nonsense.
    fn queue(
        &self,
        hypervisor: &Hypervisor,
        static_grants: &StaticGrants,
        kind: u8,
    ) -> Option<Queue> {
        let map = |page: usize| hypervisor.grants.map(self.guest.id(), &[self.grants[page]]).ok();
        let bind = |port: &Port| hypervisor.events.bind(self.guest.id(), port.number()).ok();
        let on = |bit: u8| kind >> bit & 1 == 1;
        let features = FrontendFeatures {
            sg: on(0),
            gso_v4: on(1),
            gso_v6: on(2),
            csum_v4: on(3),
            csum_v6: on(4),
            rx_notify: on(5),
            ..FrontendFeatures::default()
        };
        let vif = VifShared {
            transitive_grants: None,
            domain: self.guest.id(),
            engine: Arc::new(GrantCopyEngine(Arc::clone(&hypervisor.grants))),
            features,
            groups: Groups::default(),
            align: false,
            paused: false.into(),
        };
        Queue::new(QueueParts {
            tx_ring: map(0)?,
            rx_ring: map(1)?,
            tx_channel: bind(&self.ports[0])?,
            rx_channel: Some(bind(&self.ports[1])?),
            vif: Arc::new(vif),
            stats: Arc::default(),
            mapped_pages: static_grants.mapped_pages(0).ok().cloned(),
            resumed: on(6),
        })
        .ok()
    }

    fn write(&self, at: u64, word: u32) {
        self.guest.memory().write(at, &word.to_le_bytes()).expect("within its memory");
    }

    /// Any word anywhere in a ring.
    fn scribble(&self, input: &mut Input<'_>) {
        let ring = u64::from(input.u8() & 1) * PAGE as u64;
        let at = if input.u8() < 64 { input.below(4) } else { 16 + input.below(1008) };
        self.write(ring + 4 * u64::from(at), input.u32());
    }

    /// A request that makes sense, or almost.
    fn ask(&self, input: &mut Input<'_>) {
        let (slot, kind) = (u64::from(input.u8() % 32), input.u8());
        let reference = match input.u8() {
            0..8 => input.u32(),
            choice => self.grants[usize::from(choice) % self.grants.len()].0,
        };
        if kind & 1 == 0 {
            self.write(PAGE as u64 + 64 + 8 * slot + 4, reference);
            return;
        }
        let (offset, size) = (u32::from(input.u16() % 4100), u32::from(input.u16() % 4200));
        let words = match kind {
            0..32 => [1 | size << 16, 1 + u32::from(kind >> 4), 0],
            _ => [reference, offset | u32::from(kind >> 4) << 16, size << 16],
        };
        (64 + 12 * slot..).step_by(4).zip(words).for_each(|(at, word)| self.write(at, word));
    }

    /// A request index.
    fn publish(&self, input: &mut Input<'_>) {
        let ring = u64::from(input.u8() & 1) * PAGE as u64;
        let index = if input.u8() < 8 { input.u32() } else { u32::from(input.u8() % 64) };
        self.write(ring, index);
    }

    fn regrant(&self, input: &mut Input<'_>) {
        let reference = self.grants[2 + input.below(PAGES - 2) as usize];
        if self.guest.revoke(reference) && input.u8() & 1 == 0 {
            self.guest.grant(DomId(u16::from(input.u8() & 1)), 2, true);
        }
    }
}

/// A list of pages, under reference 0.
struct List {
    bytes: RefCell<Vec<u8>>,
    writable: bool,
}

impl GrantedLists for List {
    fn read(&self, reference: GrantRef, len: usize) -> Option<Vec<u8>> {
        let mut bytes = self.bytes.borrow().clone();
        bytes.resize(len, 0);
        (reference.0 == 0).then_some(bytes)
    }

    fn write(&self, _: GrantRef, bytes: &[u8]) -> bool {
        *self.bytes.borrow_mut() = bytes.to_vec();
        self.writable
    }
}

/// The work of a worker: a burst from one to the other, or to itself.
fn turn(
    queues: &mut [Option<Queue>; 2],
    from: usize,
    burst: &mut Burst,
    grant_copies: &mut GrantCopyBatch,
    input: &mut Input<'_>,
) {
    let to = from ^ usize::from(input.u8() & 1);
    burst.reset();
    on(&mut queues[from], |queue| queue.fetch(burst));
    let frames = burst.frames().len();
    let finished = frames.min(usize::from(input.u8()));
    on(&mut queues[to], |queue| {
        queue.prepare(finished)?;
        for i in 0..finished {
            let undecided = matches!(burst.frames()[i].action, Action::Unclassified);
            if undecided
                && queue.accepts().takes(&burst.frames()[i].offload)
                && queue.put(&burst.packet(i), grant_copies)? == Put::Full
            {
                assert_eq!(queue.room()?, 0);
                break;
            }
        }
        Ok(())
    });
    let failures: Vec<_> = grant_copies.flush().collect();
    on(&mut queues[to], |queue| {
        failures
            .iter()
            .filter_map(|failure| failure.frame)
            .for_each(|(token, _)| queue.invalidate(token));
        queue.flush().map(drop)
    });
    burst.reset();
    on(&mut queues[from], |queue| {
        queue.rewind(frames - finished);
        queue.complete(finished);
        queue.flush()?;
        queue.arm(finished % 2 == 0).map(drop)
    });
}

/// Does something with a queue; one that breaks the rules is not there any more.
fn on(queue: &mut Option<Queue>, work: impl FnOnce(&mut Queue) -> Result<(), QueueError>) {
    if queue.as_mut().is_some_and(|queue| work(queue).is_err()) {
        *queue = None;
    }
}
