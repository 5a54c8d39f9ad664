//! A daemon that is killed at any point, and the next one, which continues with the same rings.

use std::sync::Arc;

use crate::front::netfront::Netfront;
use crate::front::tcp::tcp;
use crate::front::{
    CSUM_BLANK, Front, FrontQueue, FrontSpec, Host, RSP_PROD, SLOTS, frame, introduce, mac, wait,
    what,
};
use hypervisor::{DomId, Hypervisor};
use network::burst::Burst;
use network::port::QueuePair;
use proptest::prelude::*;
use ring::device::Put;
use ring::{Engine, GrantCopyBatch};
use xen::netif::groups::Groups;
use xen::netif::negotiation::FrontendFeatures;
use xen::netif::queue::{Queue, QueueParts, QueueStats, VifShared};
use xen::xenbus::GrantCopyEngine;

/// The steps of a worker with two queues.
struct Daemon {
    a: Queue,
    b: Queue,
    burst: Burst,
    grant_copies: GrantCopyBatch,
}

/// Where it is killed in a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kill {
    /// With requests taken, and looked at.
    Fetched,
    /// With buffers taken and copies waiting.
    Put,
    /// With copies made.
    Copied,
    /// While responses to so many buffers are written.
    Delivering(usize),
    /// When the receiver knows, and the sender does not.
    Delivered,
    /// While responses to so many requests are written.
    Completing(usize),
    /// Not in this turn.
    Never,
}

fn kill() -> impl Strategy<Value = Kill> {
    prop_oneof![
        Just(Kill::Fetched),
        Just(Kill::Put),
        Just(Kill::Copied),
        (0usize..40).prop_map(Kill::Delivering),
        Just(Kill::Delivered),
        (0usize..40).prop_map(Kill::Completing),
        Just(Kill::Never),
        Just(Kill::Never),
    ]
}

fn queue(hypervisor: &Hypervisor, engine: &Arc<dyn Engine>, front: &Front, resumed: bool) -> Queue {
    let (domain, keys) = (front.guest.id(), &front.queues[0]);
    let map = |ring: crate::front::Granted| hypervisor.grants.map(domain, &[ring.1]).unwrap();
    let bind =
        |port: &hypervisor::test::Port| hypervisor.events.bind(domain, port.number()).unwrap();
    let features = FrontendFeatures {
        sg: true,
        gso_v4: true,
        gso_v6: true,
        csum_v4: true,
        csum_v6: true,
        rx_notify: true,
        ..FrontendFeatures::default()
    };
    let vif = Arc::new(VifShared {
        domain,
        engine: Arc::clone(engine),
        features,
        groups: Groups::default(),
        align: false,
        transitive_grants: None,
        paused: false.into(),
    });
    Queue::new(QueueParts {
        tx_ring: map(keys.tx_ring),
        rx_ring: map(keys.rx_ring),
        tx_channel: bind(&keys.tx_port),
        rx_channel: keys.rx_port.as_ref().map(bind),
        vif,
        stats: Arc::<QueueStats>::default(),
        mapped_pages: None,
        resumed,
    })
    .unwrap()
}

impl Daemon {
    fn new(host: &Host, (a, b): (&Front, &Front), resumed: bool) -> Daemon {
        let hypervisor = host.machine.hypervisor(DomId(0));
        let engine: Arc<dyn Engine> = Arc::new(GrantCopyEngine(Arc::clone(&hypervisor.grants)));
        let queue = |front| queue(&hypervisor, &engine, front, resumed);
        Daemon {
            a: queue(a),
            b: queue(b),
            burst: Burst::new(),
            grant_copies: GrantCopyBatch::new(),
        }
    }

    /// One turn, in the order of the datapath: fetch, put, copy, publish to the receiver, publish
    /// to the sender. False: it was killed.
    fn turn(&mut self, (a, b): (&Front, &Front), kill: Kill) -> bool {
        self.burst.reset();
        self.burst.set_limit(16);
        self.a.fetch(&mut self.burst).unwrap();
        let count = self.burst.frames().len();
        if kill == Kill::Fetched {
            return false;
        }
        self.b.prepare(count).unwrap();
        let put = |i: &usize| {
            self.b.put(&self.burst.packet(*i), &mut self.grant_copies).unwrap() == Put::Done
        };
        let finished = (0..count).take_while(put).count();
        if kill == Kill::Put {
            return false;
        }
        assert_eq!(self.grant_copies.flush().count(), 0, "all copies can be made");
        if kill == Kill::Copied {
            return false;
        }
        let flush = |pair: &mut Queue, queue: &FrontQueue, ring, slot, written| {
            let before = Page::of(queue, ring);
            pair.flush().unwrap();
            if let Some(written) = written {
                before.restore(queue, ring, slot, written);
            }
            written.is_none()
        };
        let written = if let Kill::Delivering(n) = kill { Some(n) } else { None };
        if !flush(&mut self.b, &b.queues[0], b.queues[0].rx_ring, 8, written)
            || kill == Kill::Delivered
        {
            return false;
        }
        self.a.rewind(count - finished);
        self.a.complete(finished);
        let written = if let Kill::Completing(n) = kill { Some(n) } else { None };
        flush(&mut self.a, &a.queues[0], a.queues[0].tx_ring, 12, written)
    }
}

/// A ring's page as it was.
struct Page(Vec<u32>);

impl Page {
    fn of(queue: &FrontQueue, ring: crate::front::Granted) -> Page {
        Page((0..1024).map(|word| queue.get(ring, 4 * word)).collect())
    }

    /// Makes it look as if only the first `written` responses had been written, and not been
    /// published.
    fn restore(&self, queue: &FrontQueue, ring: crate::front::Granted, slot: u64, written: usize) {
        let word = |at: u64| self.0[at as usize / 4];
        let (from, to) = (word(RSP_PROD), queue.get(ring, RSP_PROD));
        queue.set(ring, RSP_PROD, from);
        for number in (0..to.wrapping_sub(from)).skip(written).map(|n| from.wrapping_add(n)) {
            let at = SLOTS + slot * u64::from(number % 256);
            (at..at + slot).step_by(4).for_each(|at| queue.set(ring, at, word(at)));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, failure_persistence: None, ..ProptestConfig::default() })]

    /// Killed at any point, any number of times: nothing that was sent is lost, nothing comes out
    /// of order, nothing is answered twice or wrongly, and nobody is to blame for anything. Only
    /// frames that had arrived without their sender knowing arrive once more.
    #[test]
    fn requests_under_way_are_taken_up_again(
        start in prop_oneof![Just(0u32), Just(u32::MAX - 60)],
        turns in prop::collection::vec((0u32..9, 0usize..4, kill()), 1..40),
    ) {
        let host = Host::bare();
        let spec = FrontSpec { start, post: 60, ..FrontSpec::default() };
        let mut pair = [1, 2].map(|domain| Front::attached(&host, domain, spec.clone()));
        pair.iter_mut().for_each(Front::make);
        let both = (&pair[0], &pair[1]);
        let (a, b) = (&both.0.queues[0], &both.1.queues[0]);
        let mut daemon = Some(Daemon::new(&host, both, false));
        let (mut sent, mut arrived) = (0u32, Vec::new());
        let mut turns = turns.into_iter();
        loop {
            let turn = turns.next();
            let (send, size, kill) = turn.unwrap_or((0, 0, Kill::Never));
            for _ in 0..send {
                a.collect();
                if a.sending.borrow().len() < 40 {
                    break;
                }
                match size {
                    3 => a.queue(&numbered(sent), CSUM_BLANK, Some((1, 1000))),
                    _ => a.queue(&frame(1, 2, [40, 3000, 9000][size], sent), 0, None),
                }
                sent += 1;
            }
            a.push_tx();
            let now = daemon.get_or_insert_with(|| Daemon::new(&host, both, true));
            if !now.turn(both, kill) {
                daemon = None;
            }
            // Only what is published is looked at.
            for got in b.received() {
                let number = if got.gso.is_some() { u32::from_be_bytes(got.frame[38..42].try_into().unwrap()) } else { what(&got.frame) };
                let expected = if got.gso.is_some() { numbered(number) } else { frame(1, 2, got.frame.len() - 18, number) };
                prop_assert!(got.frame == expected, "frame {} is not what it was", number);
                arrived.push(number);
            }
            if turn.is_none() && a.is_idle() {
                break;
            }
        }
        // The first arrival of each.
        let mut next = 0;
        for number in &arrived {
            prop_assert!(*number <= next, "{} came before {}", number, next);
            next = next.max(number + 1);
        }
        prop_assert_eq!(next, sent);
        prop_assert!(a.outcomes.borrow().iter().all(|outcome| *outcome >= 0));
        // Whoever looks for pages in slots that were half answered finds none; nothing else was
        // refused.
        let refusals = host.machine.refusals();
        prop_assert!(refusals.iter().all(|refusal| refusal.domain == DomId(2) && refusal.reference.0 >= 1 << 16), "{:?}", refusals);
    }
}

/// A TCP frame with a number.
fn numbered(number: u32) -> Vec<u8> {
    let mut frame = tcp(1, 2, 5000);
    frame[38..42].copy_from_slice(&number.to_be_bytes());
    frame
}

/// Settings that a guest has made over its control ring also apply in the next daemon.
#[test]
fn a_guests_steering_outlives_the_daemon() {
    let mut host = Host::new();
    let a = Front::connected(&host, 1, FrontSpec::default());
    let b =
        Front::connected(&host, 2, FrontSpec { control: true, queues: 4, ..FrontSpec::default() });
    introduce((&a, 1), (&b, 2));
    let control_ring = b.control_ring.as_ref().unwrap();
    let (key, table) = ([7u8; 40], [2u32, 3, 1]);
    control_ring.write(&key);
    assert_eq!(control_ring.ask(7, [1, 0, 0]), (0, 0));
    assert_eq!(control_ring.ask(2, [15, 0, 0]), (0, 0));
    assert_eq!(control_ring.ask(3, [control_ring.page.1.0, 40, 0]), (0, 0));
    control_ring.write(&table.map(u32::to_le_bytes).concat());
    assert_eq!(control_ring.ask(5, [3, 0, 0]), (0, 0));
    assert_eq!(control_ring.ask(6, [control_ring.page.1.0, 3, 0]), (0, 0));
    host.service = None;
    // A message that nobody has answered when the next one comes.
    control_ring.post(4, [0; 3]);
    host.restart();
    wait(|| host.connected(&a) && host.connected(&b));
    assert_eq!(control_ring.answer(), (0, 128));
    let toeplitz = xen::netif::toeplitz::Toeplitz::new(&key);
    for port in 0..30u16 {
        let mut frame = tcp(1, 2, 100);
        frame[34..36].copy_from_slice(&port.to_be_bytes());
        let queue =
            table[toeplitz.hash(&[&frame[26..34], &frame[34..38]].concat()) as usize % 3] as usize;
        a.queues[0].send(&frame, CSUM_BLANK, None);
        wait(|| b.queues[queue].received().iter().any(|got| got.frame == frame));
        assert!(b.received().is_empty());
    }
    // One that begins anew has said nothing.
    b.begin_anew();
    wait(|| b.back_state() == Some(2));
    assert_eq!(b.back_key("ringmain/steering"), None);
}

/// Groups that a guest has named to one daemon are not known to the next, so it gets all until it
/// begins anew.
#[test]
fn multicast_groups_survive_a_restart() {
    let mut host = Host::new();
    let a = Front::connected(&host, 1, FrontSpec::default());
    let keys = vec![("request-multicast-control", "1")];
    let mut b = Front::connected(&host, 2, FrontSpec { keys, ..FrontSpec::default() });
    introduce((&a, 1), (&b, 2));
    let to_group =
        |last: u8| [&[0x33, 0x33, 0, 0, 0, last], &frame(1, 0, 60, last.into())[6..]].concat();
    let join = |front: &Front, last: u32| {
        front.queues[0].tx_slot([0, 8 << 16, 0], None);
        front.queues[0].tx_slot([2 | 0x3333 << 16, last << 24, 0], None);
        front.queues[0].push_tx();
        wait(|| front.queues[0].is_idle());
    };
    let come = |b: &Front| {
        (1..4).for_each(|last| a.send(&to_group(last)));
        a.send(&frame(1, 2, 60, 99));
        let mut got: Vec<u32> = Vec::new();
        wait(|| {
            got.extend(b.received().iter().map(|got| what(&got.frame)));
            got.last() == Some(&99)
        });
        got
    };
    join(&b, 2);
    assert_eq!(come(&b), [2, 99]);
    host.restart();
    wait(|| host.connected(&a) && host.connected(&b));
    introduce((&a, 1), (&b, 2));
    assert_eq!(come(&b), [1, 2, 3, 99]);
    // The backend reads its own key again now and then.
    b.put("request-multicast-control", 1);
    assert_eq!(come(&b), [1, 2, 3, 99]);
    b.begin_anew();
    b.connect();
    wait(|| host.connected(&b));
    introduce((&a, 1), (&b, 2));
    assert_eq!(come(&b), [99]);
    let full: Vec<u32> = (0..70).collect();
    b.queues[0].outcomes.borrow_mut().clear();
    full.iter().for_each(|last| join(&b, *last));
    let outcomes = b.queues[0].outcomes.borrow();
    assert_eq!(
        outcomes.iter().filter(|outcome| **outcome == -1).count(),
        6,
        "64 groups are enough"
    );
}

/// Vifs that were connected, waiting, or about to connect: all continue.
#[test]
fn a_new_daemon_finds_vifs_in_any_state() {
    let mut host = Host::new();
    let a = Front::connected(&host, 1, FrontSpec { queues: 4, ..FrontSpec::default() });
    let b = Front::connected(&host, 2, FrontSpec { split: false, ..FrontSpec::default() });
    let mut waiting = Front::attached(&host, 3, FrontSpec::default());
    let mut about_to = Front::attached(&host, 4, FrontSpec::default());
    let closing = Front::connected(&host, 5, FrontSpec::default());
    let bad = Front::connected(&host, 6, FrontSpec::default());
    wait(|| waiting.back_state() == Some(2) && about_to.back_state() == Some(2));
    bad.queues[0].set(bad.queues[0].tx_ring, crate::front::REQ_PROD, 999);
    hypervisor::Channel::notify(&bad.queues[0].tx_port);
    host.stopped(&bad);
    introduce((&a, 1), (&b, 2));
    host.service = None;
    about_to.make();
    about_to.put("state", 4);
    closing.put("state", 5);
    let mut new = Front::attached(&host, 7, FrontSpec::default());
    host.restart();
    waiting.connect();
    new.connect();
    wait(|| [&a, &b, &waiting, &about_to, &new].iter().all(|front| host.connected(front)));
    wait(|| closing.back_state() == Some(5));
    introduce((&a, 1), (&b, 2));
    introduce((&waiting, 3), (&about_to, 4));
    introduce((&new, 7), (&b, 2));
    // One that was stopped stays so until it begins anew.
    assert_eq!((bad.back_state(), host.connected(&bad)), (Some(5), false));
    assert_eq!(host.vif(&a).unwrap().connections, 1);
}

/// The vif that is connected first may have frames for the vif that is connected last.
#[test]
fn frames_that_wait_for_the_next_daemon_arrive() {
    let mut host = Host::new();
    let fronts: Vec<Netfront> =
        (1..9).map(|domain| Netfront::connected(&host, domain, FrontSpec::default())).collect();
    host.service = None;
    let (first, last) = (&fronts[0], &fronts[7]);
    (0..20).for_each(|n| first.queues[0].queue(&frame(1, 8, 2000, n), 0, None));
    first.queues[0].push_tx();
    (0..20).for_each(|n| last.queues[0].queue(&frame(8, 1, 2000, n), 0, None));
    last.queues[0].push_tx();
    host.restart();
    for (front, from) in [(last, 1), (first, 8)] {
        let mut got = Vec::new();
        wait(|| {
            got.extend(
                front
                    .received()
                    .into_iter()
                    .filter(|got| got.frame[6..12] == mac(from))
                    .map(|got| what(&got.frame)),
            );
            got.len() == 20
        });
        assert!(got.is_sorted());
    }
}
