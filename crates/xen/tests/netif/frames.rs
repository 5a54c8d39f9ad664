//! Frames in slots, over real rings: how frames may be divided, which responses they get, and what
//! a frontend cannot change afterwards.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::front::netfront::Netfront;
use crate::front::tcp::{is_right, tcp, tcp6};
use crate::front::{
    CSUM_BLANK, EXTRA_INFO, Front, FrontSpec, Host, MORE_DATA, RSP_PROD, SLOTS, frame, introduce,
    mac, wait, what,
};
use hypervisor::PAGE;
use network::count::DropReason;
use ring::Memory;
use xen::netif::options::PortOptions;

fn two(host: &Host) -> (Front, Front) {
    let (a, b) = (
        Front::connected(host, 1, FrontSpec::default()),
        Front::connected(host, 2, FrontSpec::default()),
    );
    introduce((&a, 1), (&b, 2));
    (a, b)
}

/// Sends a frame in so many slots of data, with a hash as extra info after the first if `extra`.
fn send_in(a: &Front, slots: usize, number: u32, extra: bool) -> Vec<u8> {
    let queue = &a.queues[0];
    let bytes = frame(1, 2, slots * 100 - 18, number);
    let mut parts = bytes.chunks(100).enumerate().peekable();
    while let Some((n, part)) = parts.next() {
        let page = queue.take_page();
        queue.write(page, 7 * n as u64, part);
        let more = if parts.peek().is_some() { MORE_DATA } else { 0 };
        let (info, size) = if n == 0 {
            (if extra { EXTRA_INFO } else { 0 }, bytes.len())
        } else {
            (0, part.len())
        };
        queue.data(page, 7 * n as u16, more | info, size as u16);
        if n == 0 && extra {
            queue.tx_slot([4 | 1 << 8, 0, 0], None);
            queue.tx_slot([4, 0, 0], None);
        }
    }
    queue.push_tx();
    bytes
}

/// As in Linux' backend: a frame may have a first slot and eighteen more. One with two more slots
/// is dropped with an error.
#[test]
fn frames_of_too_many_slots_are_dropped() {
    let host = Host::new();
    let (a, b) = two(&host);
    wait(|| a.queues[0].is_idle());
    for (slots, extra) in [(1, false), (2, true), (16, true), (18, false), (18, true), (19, true)] {
        a.queues[0].outcomes.borrow_mut().clear();
        let sent = send_in(&a, slots, slots as u32, extra);
        assert_eq!(b.expect(1)[0].frame, sent);
        wait(|| a.queues[0].is_idle());
        let outcomes = a.queues[0].outcomes.borrow();
        let null = outcomes.iter().filter(|outcome| **outcome == 1).count();
        assert_eq!(
            (outcomes.len(), null),
            (slots + null, if extra { 2 } else { 0 }),
            "extras have no response"
        );
        assert!(outcomes.iter().all(|outcome| *outcome >= 0));
    }
    for slots in [20, 21] {
        a.queues[0].outcomes.borrow_mut().clear();
        send_in(&a, slots, 1, true);
        wait(|| a.queues[0].is_idle());
        let outcomes = a.queues[0].outcomes.borrow().clone();
        assert_eq!(outcomes.iter().filter(|outcome| **outcome == -1).count(), slots);
        assert_eq!(outcomes.iter().filter(|outcome| **outcome == 1).count(), 2);
    }
    // The sum of the parts overflows 16 bits: the parts are larger than the whole.
    let queue = &a.queues[0];
    queue.outcomes.borrow_mut().clear();
    queue.data(queue.take_page(), 0, MORE_DATA, 1000);
    queue.data(queue.take_page(), 0, 0, 1001);
    queue.push_tx();
    wait(|| queue.is_idle());
    assert_eq!(*queue.outcomes.borrow(), [-1, -1]);
    // Too short to be a frame.
    queue.data(queue.take_page(), 0, 0, 13);
    queue.data(queue.take_page(), 0, 0, 0);
    queue.push_tx();
    wait(|| queue.is_idle());
    assert!(host.connected(&a), "no reason to stop it");
    let counters = host.fabric.counters(host.vif(&a).unwrap().port.unwrap());
    let dropped = |reason| counters[0].dropped(reason);
    assert_eq!(
        [DropReason::TooManySlots, DropReason::Oversized, DropReason::Runt].map(dropped),
        [2, 1, 2]
    );
    a.send(&frame(1, 2, 60, 77));
    assert_eq!(what(&b.expect(1)[0].frame), 77);
}

/// The longest frames with segmentation, over IPv4 and IPv6.
#[test]
fn the_longest_frames() {
    let host = Host::new();
    let (a, b) = (
        Netfront::connected(&host, 1, FrontSpec::default()),
        Netfront::connected(&host, 2, FrontSpec::default()),
    );
    introduce((&a, 1), (&b, 2));
    for (kind, make, headers) in [(1, tcp as fn(u8, u8, usize) -> Vec<u8>, 54), (2, tcp6, 74)] {
        let sent = make(1, 2, 65_535 - headers);
        a.queues[0].send(&sent, CSUM_BLANK, Some((kind, 1448)));
        let got = b.expect(1).remove(0);
        assert!(got.frame == sent);
        assert_eq!((got.gso, got.blank, got.validated), (Some((kind, 1448)), true, true));
    }
}

/// Indices of 32 bits come to their end while frames are under way.
#[test]
fn indices_wrap_around() {
    let host = Host::new();
    let old = |queues| FrontSpec { start: u32::MAX - 100, queues, ..FrontSpec::default() };
    let (a, b) = (Front::connected(&host, 1, old(1)), Front::connected(&host, 2, old(2)));
    introduce((&a, 1), (&b, 2));
    for n in 0..300 {
        a.queues[0].send(&frame(1, 2, n as usize * 30, n), 0, None);
        b.queues[1].send(&frame(2, 1, n as usize * 30, n), 0, None);
        assert_eq!(b.expect(1)[0].frame, frame(1, 2, n as usize * 30, n));
        assert_eq!(a.expect(1)[0].frame, frame(2, 1, n as usize * 30, n));
    }
    assert!(a.queues[0].tx_prod.get() < 2000 && b.queues[0].rx_prod.get() < 2000, "they did");
    assert!(host.connected(&a) && host.connected(&b));
}

/// Writes to a guest's memory from another thread, over and over, until it is dropped.
struct Scribbler {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Scribbler {
    fn new(front: &Front, scribble: impl Fn(&Memory, u32) + Send + 'static) -> Scribbler {
        let (memory, stop) = (Arc::clone(front.guest.memory()), Arc::new(AtomicBool::new(false)));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            (0..)
                .take_while(|_| !stopped.load(Ordering::Relaxed))
                .for_each(|n| scribble(&memory, n));
        });
        Scribbler { stop, thread: Some(thread) }
    }
}

impl std::ops::Drop for Scribbler {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

/// A frontend rewrites its headers while they are checked. The headers that were checked arrive.
#[test]
fn rewriting_headers_changes_nothing_but_payload() {
    let host = Host::new();
    let (a, b) = two(&host);
    let c = Front::connected(&host, 3, FrontSpec::default());
    introduce((&c, 3), (&b, 2));
    let queue = &a.queues[0];
    let page = queue.take_page();
    let at = u64::from(page.0) * PAGE as u64;
    queue.write(page, 0, &frame(1, 2, 1000, 5));
    let scribbler = Scribbler::new(&a, move |memory, n| {
        // Receiver and length of the packet.
        let to = 2 + (n % 2) as u8;
        memory.write(at, &[&mac(to)[..], &mac(1), &[0x88, 0xb5, to, to]].concat()).unwrap();
    });
    let mut arrived = 0;
    for _ in 0..500 {
        queue.data(page, 0, 0, 1018);
        queue.push_tx();
        for (front, own) in [(&b, 2), (&c, 3)] {
            for got in front.received() {
                assert_eq!(got.frame[..6], mac(own), "it is for somebody else");
                assert_eq!(got.frame.len(), 1018);
                arrived += 1;
            }
        }
        wait(|| queue.is_idle());
    }
    drop(scribbler);
    assert!(arrived > 100 && host.connected(&a));
}

/// Requests change while they are read. Each combination of their values is valid, and the frame
/// that arrives is one of these combinations.
#[test]
fn requests_rewritten_while_read_stay_within_a_page() {
    let host = Host::new();
    let (a, b) = two(&host);
    let queue = &a.queues[0];
    let pages = [queue.take_page(), queue.take_page()];
    pages
        .iter()
        .for_each(|page| queue.write(*page, 0, &[frame(1, 2, 1000, 5), vec![9; 3000]].concat()));
    let (ring, refs) =
        (u64::from(queue.tx_ring.0) * PAGE as u64 + SLOTS, pages.map(|page| page.1.0));
    let scribble = move |memory: &Memory, n: u32| {
        for slot in 0..256 {
            let words = [refs[n as usize & 1], 0, [60, 2000][n as usize >> 1 & 1] << 16];
            for (at, word) in (ring + 12 * slot..).step_by(4).zip(words) {
                memory.write(at, &word.to_le_bytes()).unwrap();
            }
        }
    };
    scribble(a.guest.memory(), 0);
    let scribbler = Scribbler::new(&a, scribble);
    let mut arrived = 0;
    // Once around at most: a slot that was answered holds no request until it is scribbled on
    // again.
    for _ in 0..250 {
        // Only the index is ours.
        queue.tx_prod.set(queue.tx_prod.get().wrapping_add(1));
        queue.push_tx();
        let answered = || queue.get(queue.tx_ring, crate::front::RSP_PROD) == queue.tx_prod.get();
        wait(answered);
        for got in b.received() {
            assert!(
                matches!(got.frame.len(), 60 | 2000)
                    && got.frame[..12] == [mac(2), mac(1)].concat()
            );
            arrived += 1;
        }
    }
    drop(scribbler);
    assert_eq!((arrived, host.connected(&a)), (250, true));
    assert_eq!(host.machine.refusals(), []);
}

/// Each receiver gets the flooded frame in the form that it accepts: whole, or segmented with
/// finished checksums.
#[test]
fn a_flooded_frame_reaches_receivers_with_and_without_offloads() {
    let host = Host::new();
    let a = Netfront::connected(&host, 1, FrontSpec::default());
    let all: Vec<(Netfront, bool)> = (2..8)
        .map(|domain| {
            let plain = domain % 2 == 0;
            let spec = FrontSpec {
                sg: !plain,
                gso: !plain,
                csum: !plain,
                queues: 1 + domain % 3,
                ..FrontSpec::default()
            };
            (Netfront::connected(&host, domain as u16, spec), plain)
        })
        .collect();
    let mut sent = tcp(1, 2, 20_000);
    sent[..6].fill(0xff);
    let before = host.machine.counts();
    a.queues[0].send(&sent, CSUM_BLANK, Some((1, 1000)));
    for (front, plain) in &all {
        let got = front.expect(if *plain { 20 } else { 1 });
        let payload: Vec<u8> = got.iter().flat_map(|got| got.frame[54..].to_vec()).collect();
        assert_eq!(payload, sent[54..]);
        assert!(got.iter().all(|got| got.blank != *plain && (got.blank || is_right(&got.frame))));
    }
    assert_eq!(host.machine.counts().maps, before.maps);
    wait(|| a.queues[0].is_idle());
}

/// Two workers, and receivers with a queue on only one of them. Heads and scatter lists are handed
/// off, payload is not.
#[test]
fn granted_frames_are_handed_off_between_workers() {
    let host = Host::new();
    let many = |queues| FrontSpec { queues, ..FrontSpec::default() };
    let (a, b) = (Netfront::connected(&host, 1, many(4)), Netfront::connected(&host, 2, many(1)));
    introduce((&a, 1), (&b, 2));
    wait(|| a.queues.iter().all(|queue| queue.is_idle()) && b.queues[0].is_idle());
    let before = host.machine.counts();
    let crossed =
        || host.fabric.worker_counters().iter().map(|worker| worker.handed_off.get()).sum::<u64>();
    let crossed_before = crossed();
    for n in 0..100 {
        for (q, queue) in (0..).zip(&a.queues) {
            queue.send(&frame(1, 2, 3000, q << 16 | n), 0, None);
        }
        let got = b.expect(4);
        assert!(got.iter().all(|got| got.frame == frame(1, 2, 3000, what(&got.frame))));
    }
    assert!(crossed() > crossed_before, "some did");
    let counts = host.machine.counts();
    assert_eq!(counts.bytes - before.bytes, 400 * (3018 + 128), "each byte once, and heads twice");
    assert_eq!(counts.maps, before.maps);
    assert_eq!(host.machine.refusals(), []);
}

/// A frame takes as few slots as possible, whatever its alignment at the sender. A frame that fits
/// a page takes one.
#[test]
fn a_frame_that_fits_a_page_takes_one_slot() {
    for align in [false, true] {
        let host = Host::switched(PortOptions { align, ..PortOptions::default() });
        let (a, b) = two(&host);
        let (from, to) = (&a.queues[0], &b.queues[0]);
        let mut offsets = std::collections::BTreeSet::new();
        for n in 0..600usize {
            // Every offset in a line, and lengths up to the whole page in steps that are no
            // divisors of anything.
            let (offset, len) = (n % 64, 14 + (n * 37) % (PAGE - 13));
            let bytes = frame(1, 2, len.max(18) - 18, n as u32);
            let first = bytes.len().min(PAGE - offset);
            let page = from.take_page();
            from.write(page, offset as u64, &bytes[..first]);
            let more = if first < bytes.len() { MORE_DATA } else { 0 };
            from.data(page, offset as u16, more, bytes.len() as u16);
            if more != 0 {
                let page = from.take_page();
                from.write(page, 3, &bytes[first..]);
                from.data(page, 3, 0, (bytes.len() - first) as u16);
            }
            let before = to.get(to.rx_ring, RSP_PROD);
            from.push_tx();
            let mut got = Vec::new();
            wait(|| {
                let after = to.get(to.rx_ring, RSP_PROD);
                let slot = SLOTS + 8 * u64::from(before % 256);
                offsets.insert(if after == before { 0 } else { to.get(to.rx_ring, slot) >> 16 });
                got.extend(b.received());
                !got.is_empty()
            });
            assert_eq!(
                to.get(to.rx_ring, RSP_PROD).wrapping_sub(before),
                1,
                "{len} bytes at {offset}"
            );
            assert_eq!(got[0].frame, bytes, "{len} bytes at {offset}");
        }
        // Frames of stock guests begin anywhere, and are put where their copies are aligned.
        assert_eq!(offsets.len() > 32, align, "{offsets:?}");
        for len in [5000, 9000, 40_000, 65_000] {
            a.send(&frame(1, 2, len, 7));
            assert_eq!(b.expect(1)[0].frame, frame(1, 2, len, 7));
        }
        assert_eq!(host.machine.refusals(), []);
    }
}
