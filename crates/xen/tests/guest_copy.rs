//! Frames that their receivers fetch, between kind and hostile guests.

mod front;

use front::station::{Station, introduce, reach, station, station_with, talk};
use front::{Host, frame, wait, what};
use hypervisor::test::{Device, Reason, Refusal};
use hypervisor::{CopyOp, DomId, Domain, GrantRef, Granted};
use network::count::DropReason;
use ring::copies::Status;
use xen::netif::frontend::{FrontendConfig, Sender};
use xen::netif::slots::Meta;

const GUEST: &[(&str, &str)] = &[("ringmain/copy", "guest")];
/// Grants ranges, and has copied for it.
const RANGES: &[(&str, &str)] = &[("ringmain/grants", "range")];

/// Two that fetch what they send each other.
fn pair(host: &Host) -> (Station, Station) {
    let config = FrontendConfig::default();
    (station_with(host, 1, &config, GUEST), station_with(host, 2, &config, GUEST))
}

/// Frames dropped on all queues of a vif for that reason.
fn drops(host: &Host, id: u16, reason: DropReason) -> u64 {
    let vifs = host.service.as_ref().unwrap().vifs();
    let port = vifs.into_iter().find(|vif| vif.id.domain == DomId(id)).unwrap().port.unwrap();
    host.fabric.counters(port).iter().map(|queue| queue.dropped(reason)).sum()
}

/// Frames dropped on all queues of all vifs, for whatever reason.
fn lost(host: &Host) -> u64 {
    let ports = host.service.as_ref().unwrap().vifs().into_iter().filter_map(|vif| vif.port);
    ports.flat_map(|port| host.fabric.counters(port)).map(|queue| queue.dropped_total()).sum()
}

/// A word of a station's ring.
fn word(station: &Station, ring: u64, at: u64) -> u32 {
    let mut word = [0; 4];
    station.guest.memory().read(ring + at, &mut word).unwrap();
    u32::from_le_bytes(word)
}

/// Waits for a frame; others may have come before, such as greetings that went to all.
fn gets(station: &mut Station, frame: &[u8]) {
    wait(|| station.received().iter().any(|(_, bytes, _)| bytes == frame));
}

fn idle(station: &mut Station) {
    let tx = &mut station.queues[0].tx;
    wait(|| {
        tx.collect().unwrap();
        tx.is_idle()
    });
}

/// A frame that lies with `a`, and that `b` has been told of but has not looked at.
struct PassedFrame {
    /// Under what `a` has granted it.
    granted: GrantRef,
    /// Under what it is passed on to `b`, and from where on.
    passed: GrantRef,
    offset: u16,
}

/// Sends a frame; it is in `b`'s next slots.
fn pass_frame(a: &mut Station, b: &Station, bytes: &[u8]) -> PassedFrame {
    let (tx, rx) = (a.queues[0].tx.ring().page().addr(0), b.queues[0].rx.ring().page().addr(0));
    let (sent, there) = (word(a, tx, 0), word(b, rx, 8));
    a.send(bytes);
    wait(|| word(b, rx, 8) != there);
    let slot = |n: u32| 64 + u64::from(n % 256) * 8;
    let extra = word(b, rx, slot(there + 1));
    assert_eq!(
        (extra as u8, word(b, rx, 8) - there),
        (6, 2),
        "one slot with data, one that says where the rest is"
    );
    PassedFrame {
        granted: GrantRef(word(a, tx, 64 + u64::from(sent % 256) * 12)),
        passed: GrantRef(word(b, rx, slot(there + 1) + 4)),
        offset: (extra >> 16) as u16,
    }
}

/// Has a station's hypervisor copy something of what domain 0 passes on; what became of it.
fn pull(by: &Station, reference: GrantRef, offset: u16, len: u16) -> Status {
    let from = Granted { domain: DomId(0), reference, offset };
    let page = by.guest.domain().pages() - 1;
    let mut outcomes = Vec::new();
    by.guest
        .domain()
        .hypercalls()
        .unwrap()
        .grant_copy(&[CopyOp { from, page, offset: 0, len }], &mut outcomes)
        .unwrap();
    outcomes[0]
}

/// Tries something that takes some time until it was quick enough: until nothing was recalled
/// meanwhile.
fn in_time(mut tries: impl FnMut(&Host, &mut Station, &mut Station)) {
    for _ in 0..20 {
        let host = Host::new();
        let (mut a, mut b) = pair(&host);
        introduce(&mut a, &mut b);
        let attempt =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| tries(&host, &mut a, &mut b)));
        match attempt {
            Err(_) if drops(&host, 2, DropReason::NotFetched) > 0 => {}
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => return,
        }
    }
    panic!("never quick enough");
}

#[test]
fn frames_go_both_ways_and_no_worker_copies_them() {
    let host = Host::new();
    let (mut a, mut b) = pair(&host);
    talk(&mut a, &mut b);
    let before = (host.machine.counts(), host.machine.copy_usage(DomId(2)));
    let frames = 200;
    for n in 0..frames {
        a.send(&frame(1, 2, 60_000, n));
        assert!(b.expect(1)[0].1 == frame(1, 2, 60_000, n));
    }
    let after = (host.machine.counts(), host.machine.copy_usage(DomId(2)));
    // The daemon's workers have read and written the heads, and nothing else.
    assert_eq!(after.0.bytes - before.0.bytes, u64::from(frames) * 2 * 128);
    let fetched = u64::from(frames) * (60_018 - 128);
    assert_eq!(
        (after.0.guest_copied_bytes - before.0.guest_copied_bytes, after.1.bytes - before.1.bytes),
        (fetched, fetched)
    );
    assert!(after.1.time > before.1.time);
    assert_eq!(host.machine.refusals(), []);
    assert_eq!(drops(&host, 2, DropReason::NotFetched), 0);
}

/// Over queues of one worker, and over those of two.
#[test]
fn many_frames_in_order_over_many_queues() {
    for (theirs, ours) in [(4, 4), (4, 1), (1, 4)] {
        let host = Host::new();
        let config = |queues| FrontendConfig { queues, ..FrontendConfig::default() };
        let mut a = station_with(&host, 1, &config(theirs), GUEST);
        let mut b = station_with(&host, 2, &config(ours), GUEST);
        introduce(&mut a, &mut b);
        let before = lost(&host);
        let mut next = [0; 4];
        let mut count = 0;
        let mut note = |b: &mut Station| {
            for (_, bytes, _) in b.received() {
                let (flow, number) = ((what(&bytes) >> 16) as usize, what(&bytes) & 0xffff);
                // On a machine with much else to do, some may not be taken in time; they are
                // counted.
                assert!(number >= next[flow], "flow {flow}: {number} after {}", next[flow]);
                assert!(
                    bytes == frame(1, 2, bytes.len() - 18, what(&bytes)),
                    "flow {flow}, frame {number}"
                );
                next[flow] = number + 1;
                count += 1;
            }
            count
        };
        let flows = theirs.into();
        for n in 0..500u32 {
            for flow in 0..flows {
                let bytes = frame(1, 2, (n as usize * 41) % 9000, (flow as u32) << 16 | n);
                // While one has no room, the other has to fetch.
                wait(|| {
                    note(&mut b);
                    a.queues[flow].tx.collect().unwrap();
                    a.queues[flow].tx.place().is_some()
                });
                a.send_on(flow, &bytes, Meta::default());
            }
        }
        // One may be counted as lost that was fetched at the last moment.
        wait(|| note(&mut b) as u64 + lost(&host) - before >= 500 * flows as u64);
        assert!(host.machine.counts().guest_copied_bytes > 1_000_000, "most was fetched");
    }
}

#[test]
fn what_can_not_be_passed_on_is_copied() {
    let host = Host::new();
    let (mut a, mut b) = pair(&host);
    let mut plain = station(&host, 3, &FrontendConfig::default());
    let mut ranges = station_with(&host, 4, &FrontendConfig::default(), RANGES);
    introduce(&mut a, &mut b);
    reach(&mut plain, &mut b, (3, 2));
    reach(&mut ranges, &mut a, (4, 1));
    let before = host.machine.counts().guest_copied_bytes;
    // Whole pages are granted; the receiver does not fetch; there are many receivers; it is not
    // worth it.
    plain.send(&frame(3, 2, 3000, 1));
    gets(&mut b, &frame(3, 2, 3000, 1));
    a.send(&frame(1, 4, 3000, 2));
    gets(&mut ranges, &frame(1, 4, 3000, 2));
    let all = [[0xff; 6].to_vec(), frame(1, 2, 3000, 3)[6..].to_vec()].concat();
    a.send(&all);
    for station in [&mut b, &mut plain, &mut ranges] {
        gets(station, &all);
    }
    a.send(&frame(1, 2, 200, 4));
    gets(&mut b, &frame(1, 2, 200, 4));
    assert_eq!(host.machine.counts().guest_copied_bytes, before);
    ranges.send(&frame(4, 2, 3000, 5));
    gets(&mut b, &frame(4, 2, 3000, 5));
    assert_eq!(host.machine.counts().guest_copied_bytes, before + 3018 - 128);
}

/// The head is rewritten on its way, and the rest is fetched behind it.
#[test]
fn tags_come_and_go() {
    let host = Host::new();
    let config = FrontendConfig::default();
    let mut a = station_with(&host, 1, &config, &[GUEST, &[("ringmain/vlan", "5")]].concat());
    let mut b = station_with(&host, 2, &config, &[GUEST, &[("ringmain/trunk", "5")]].concat());
    let tagged = |bytes: Vec<u8>| [&bytes[..12], &[0x81, 0, 0, 5], &bytes[12..]].concat();
    // What is for somebody who was never heard of goes to all, as copies.
    b.send(&tagged(frame(2, 1, 3000, 7)));
    assert!(a.expect(1)[0].1 == frame(2, 1, 3000, 7));
    wait(|| {
        a.send(&frame(1, 2, 20_000, 8));
        let got = b.expect(1).remove(0).1;
        assert!(got == tagged(frame(1, 2, 20_000, 8)));
        host.machine.counts().guest_copied_bytes >= 20_018 - 128
    });
}

#[test]
fn a_receiver_gets_its_frame_and_not_a_byte_more() {
    in_time(|host, a, b| {
        let third = station_with(host, 3, &FrontendConfig::default(), GUEST);
        let passed_frame = pass_frame(a, b, &frame(1, 2, 1000, 0));
        assert_eq!(passed_frame.offset, 128);
        host.machine.refusals();
        let refused = |by: &Station, offset, len| {
            let status = pull(by, passed_frame.passed, offset, len);
            (
                status,
                host.machine
                    .refusals()
                    .into_iter()
                    .map(|Refusal { reason, .. }| reason)
                    .collect::<Vec<_>>(),
            )
        };
        // As often as it likes, all of it.
        for _ in 0..2 {
            assert_eq!(refused(b, 0, 1018), (Status::DONE, vec![]));
        }
        for (offset, len) in [(0, 1019), (1018, 1), (128, 891), (4095, 1)] {
            assert_eq!(
                refused(b, offset, len),
                (Status(-10), vec![Reason::Beyond]),
                "{len} bytes from {offset}"
            );
        }
        assert_eq!(refused(&third, 128, 10), (Status::REFUSED, vec![Reason::NotToUs]));
        assert_eq!(refused(a, 128, 10), (Status::REFUSED, vec![Reason::NotToUs]));
        for other in [0, 7, 9000, u32::MAX]
            .map(GrantRef)
            .into_iter()
            .filter(|other| *other != passed_frame.passed)
        {
            assert_ne!(pull(b, other, 0, 10), Status::DONE);
        }
        assert!(b.expect(1)[0].1 == frame(1, 2, 1000, 0));
        idle(a);
        host.machine.refusals();
        assert_eq!(refused(b, 128, 10), (Status::REFUSED, vec![Reason::Revoked]));
    });
}

/// A part of a page that does not begin where the page does.
#[test]
fn not_a_byte_before_either() {
    in_time(|host, a, b| {
        let passed_frame = pass_frame(a, b, &frame(1, 2, 1000, 0));
        // The sender says: only its payload.
        let part = hypervisor::domain::Extent::SubPage { offset: 128, len: 890 };
        let page = (a.queues[0].tx.place().unwrap() / 4096) as u32 - 1;
        assert!(a.guest.domain().end_access(passed_frame.granted));
        a.guest.domain().grant_at(passed_frame.granted, DomId(0), page, part).unwrap();
        host.machine.refusals();
        for (offset, len) in [(127, 1), (127, 891), (0, 128)] {
            assert_eq!(
                pull(b, passed_frame.passed, offset, len),
                Status(-10),
                "{len} bytes from {offset}"
            );
            assert_eq!(host.machine.refusals().pop().unwrap().reason, Reason::Beyond);
        }
        assert!(b.expect(1)[0].1 == frame(1, 2, 1000, 0));
    });
}

/// What was checked is what is delivered, whatever the sender writes over it.
#[test]
fn a_sender_that_rewrites_its_headers() {
    in_time(|_, a, b| {
        let at = a.queues[0].tx.place().unwrap();
        pass_frame(a, b, &frame(1, 2, 1000, 0));
        a.guest.memory().write(at, &[0xee; 300]).unwrap();
        let got = b.expect(1).remove(0).1;
        let sent = frame(1, 2, 1000, 0);
        assert_eq!((&got[..128], &got[300..]), (&sent[..128], &sent[300..]));
        assert_eq!(got[128..300], [0xee; 172], "its payload is its own");
    });
}

#[test]
fn a_sender_that_thinks_better_of_it() {
    in_time(|host, a, b| {
        let passed_frame = pass_frame(a, b, &frame(1, 2, 1000, 0));
        assert!(a.guest.domain().end_access(passed_frame.granted));
        wait(|| {
            assert!(b.received().is_empty());
            b.queues[0].rx.missed() == 1
        });
        idle(a);
        assert_eq!(drops(host, 2, DropReason::NotFetched), 0);
        talk(a, b);
    });
}

#[test]
fn a_receiver_that_never_fetches_is_waited_for_once() {
    let host = Host::new();
    let (mut a, mut b) = pair(&host);
    let mut c = station_with(&host, 3, &FrontendConfig::default(), GUEST);
    introduce(&mut a, &mut b);
    reach(&mut c, &mut a, (3, 1));
    reach(&mut a, &mut c, (1, 3));
    let before = host.machine.counts().guest_copied_bytes;
    (0..10).for_each(|n| a.send(&frame(1, 2, 1000, n)));
    a.send(&frame(1, 3, 1000, 99));
    assert_eq!(c.expect(1)[0].1, frame(1, 3, 1000, 99), "others go on");
    idle(&mut a);
    assert_eq!(drops(&host, 2, DropReason::NotFetched), 10);
    // From here on it gets copies.
    (10..20).for_each(|n| a.send(&frame(1, 2, 1000, n)));
    idle(&mut a);
    let got: Vec<u32> = b.expect(10).iter().map(|(_, bytes, _)| what(bytes)).collect();
    assert_eq!(got, (10..20).collect::<Vec<_>>());
    assert_eq!(b.queues[0].rx.missed(), 10);
    assert_eq!(drops(&host, 2, DropReason::NotFetched), 10);
    assert_eq!(
        host.machine.counts().guest_copied_bytes,
        before + 1018 - 128,
        "what the other one fetched"
    );
    // Until it has earned some time.
    for n in 0..200 {
        a.send(&frame(1, 2, 60_000, n));
        assert!(b.expect(1)[0].1 == frame(1, 2, 60_000, n));
    }
    assert!(host.machine.counts().guest_copied_bytes > before + 1018);
}

/// It says that it is through, and is not: what was passed to it is gone.
#[test]
fn a_receiver_that_posts_its_slots_before_it_has_fetched() {
    in_time(|host, a, b| {
        let passed_frame = pass_frame(a, b, &frame(1, 2, 1000, 0));
        let rx = b.queues[0].rx.ring().page().addr(0);
        let posted = word(b, rx, 0);
        b.guest.memory().write(rx, &(posted + 2).to_le_bytes()).unwrap();
        b.queues[0].rx.ring().channel().notify();
        idle(a);
        assert_eq!(pull(b, passed_frame.passed, 128, 890), Status::REFUSED);
        assert_eq!(drops(host, 2, DropReason::NotFetched), 0, "as it said");
    });
}

#[test]
fn ends_that_are_destroyed() {
    let host = Host::new();
    let mut c = station_with(&host, 3, &FrontendConfig::default(), GUEST);
    // Each takes 128 references of the daemon's table with it, of which there are some 16000.
    for round in 0..150 {
        let (mut a, mut b) = pair(&host);
        if round % 10 == 0 {
            introduce(&mut a, &mut b);
            (0..5).for_each(|n| a.send(&frame(1, 2, 5000, n)));
            host.machine.destroy(DomId(if round % 20 == 0 { 1 } else { 2 }));
            if round % 20 == 0 {
                let got = b.received().len() as u64;
                assert!(got + b.queues[0].rx.missed() <= 5);
            } else {
                idle(&mut a);
            }
            let (mut other, own) = if round % 20 == 0 { (b, 2) } else { (a, 1) };
            reach(&mut other, &mut c, (own, 3));
            reach(&mut c, &mut other, (3, own));
        }
        for id in [1, 2].map(DomId) {
            host.machine.destroy(id);
            let (class, frontend, backend) = ("vif", id, DomId(0));
            let device = Device {
                class,
                handle: 0,
                frontend,
                backend,
                frontend_keys: &[],
                backend_keys: &[],
            };
            host.machine.forget(&device).unwrap();
        }
        wait(|| host.service.as_ref().unwrap().vifs().len() == 1);
    }
    let (mut a, mut b) = pair(&host);
    talk(&mut a, &mut b);
    let before = host.machine.counts().guest_copied_bytes;
    a.send(&frame(1, 2, 5000, 0));
    b.expect(1);
    assert!(host.machine.counts().guest_copied_bytes > before, "references were not used up");
}

#[test]
fn a_daemon_that_ends_while_frames_are_lent() {
    let mut host = Host::new();
    let (mut a, mut b) = pair(&host);
    for _ in 0..5 {
        introduce(&mut a, &mut b);
        let missed = b.queues[0].rx.missed();
        (0..5).for_each(|n| a.send(&frame(1, 2, 5000, n)));
        host.restart();
        idle(&mut a);
        wait(|| host.service.as_ref().unwrap().vifs().len() == 2);
        let got = b.received().len() as u64;
        assert!(got + b.queues[0].rx.missed() - missed <= 5);
    }
    introduce(&mut a, &mut b);
    let before = host.machine.counts().guest_copied_bytes;
    wait(|| {
        a.send(&frame(1, 2, Sender::LONGEST - 18, 0));
        b.received();
        host.machine.counts().guest_copied_bytes > before
    });
}
