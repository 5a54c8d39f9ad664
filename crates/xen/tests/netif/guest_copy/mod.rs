//! Passed grants: receivers copy frames for themselves, between well-behaved and hostile guests.

mod hostile;

use std::time::{Duration, Instant};

use crate::front::station::{Station, introduce, reach, station, station_with};
use crate::front::{Host, frame, wait, what};
use hypervisor::test::{Device, Reason, Refusal};
use hypervisor::{CopyOp, DomId, Domain, GrantRef, Granted};
use network::count::DropReason;
use ring::copies::Status;
use xen::netif::frontend::{FrontendConfig, Sender};
use xen::netif::slots::Meta;

const GUEST: &[(&str, &str)] = &[("ringmain/copy", "guest")];
/// Keys of a guest that grants ranges, and for which the backend copies.
const RANGES: &[(&str, &str)] = &[("ringmain/grants", "range")];

/// How long a receiver may be slow in all before it gets copies: the daemon's limit is 50 ms.
const SLOW: Duration = Duration::from_millis(40);

/// Two stations that copy received frames for themselves.
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

/// A frame in the memory of `a`, which is in the ring of `b` but has not been fetched.
struct PassedFrame {
    /// The grant of `a`.
    granted: GrantRef,
    /// The transitive grant for `b`, and the offset of the part that `b` has to copy.
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

/// Makes a grant copy from a transitive grant of domain 0, and returns its status.
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

/// The next frame that comes to a station on this domain. `None`: the daemon has recalled a frame
/// that was passed to it, because this thread did not get the CPU in time.
#[must_use]
fn arrival(host: &Host, to: &mut Station, id: u16) -> Option<Vec<u8>> {
    let mut got = to.received();
    wait(|| {
        got.extend(to.received());
        !got.is_empty() || drops(host, id, DropReason::NotFetched) > 0
    });
    got.into_iter().next().map(|(_, bytes, _)| bytes)
}

/// Has `a` send a frame to `b`, which has this domain, and waits until the daemon has completed it.
/// `None`: it was recalled.
#[must_use]
fn carry(host: &Host, a: &mut Station, (b, id): (&mut Station, u16), bytes: &[u8]) -> Option<()> {
    a.send(bytes);
    let got = arrival(host, b, id)?;
    assert!(got == bytes, "{} bytes of {}", got.len(), bytes.len());
    idle(a);
    // A frame can be counted as recalled although it was fetched at the last moment.
    (drops(host, id, DropReason::NotFetched) == 0).then_some(())
}

/// Frames of all lengths both ways between domain 1 and domain 2. `None`: one was recalled.
#[must_use]
fn exchange(host: &Host, a: &mut Station, b: &mut Station) -> Option<()> {
    for len in [0, 42, 110, 1500, 4078, 4079, 9000, 40_000, Sender::LONGEST - 18] {
        carry(host, a, (b, 2), &frame(1, 2, len, 0))?;
        carry(host, b, (a, 1), &frame(2, 1, len, 0))?;
    }
    Some(())
}

/// Tries something that has to be done in a few milliseconds, on a new host each time, until it was
/// done in time: until it ends without a frame that was recalled. `None`: one was.
fn in_time(mut tries: impl FnMut(&Host, &mut Station, &mut Station) -> Option<()>) {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(60) {
        let host = Host::new();
        let (mut a, mut b) = pair(&host);
        introduce(&mut a, &mut b);
        let attempt =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| tries(&host, &mut a, &mut b)));
        match attempt {
            Ok(Some(())) => return,
            Ok(None) => {}
            Err(_) if drops(&host, 2, DropReason::NotFetched) > 0 => {}
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
    panic!("never in time");
}

/// Each frame counts on its own, and none is sent to a receiver that was so slow before that it may
/// get copies.
#[test]
fn frames_go_both_ways_and_no_worker_copies_them() {
    in_time(exchange);
    let mut count = 0;
    while count < 200 {
        in_time(|host, a, b| {
            let counts = || (host.machine.counts(), host.machine.copy_usage(DomId(2)));
            let (first, mut slow) = (count, Duration::ZERO);
            // Both are known, and nothing of that is left to be counted.
            idle(a);
            idle(b);
            while count < 200 && slow < SLOW {
                let (before, start) = (counts(), Instant::now());
                let Some(()) = carry(host, a, (b, 2), &frame(1, 2, 60_000, count)) else { break };
                let after = counts();
                // The daemon's workers have read and written the head, and nothing else.
                assert_eq!(after.0.bytes - before.0.bytes, 2 * 128);
                let fetched = 60_018 - 128;
                assert_eq!(
                    (
                        after.0.guest_copied_bytes - before.0.guest_copied_bytes,
                        after.1.bytes - before.1.bytes
                    ),
                    (fetched, fetched)
                );
                assert!(after.1.time > before.1.time);
                assert_eq!(host.machine.refusals(), []);
                count += 1;
                slow += start.elapsed();
            }
            (count > first).then_some(())
        });
    }
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
        // On a machine with much else to do, more are recalled.
        let few = || host.machine.counts().guest_copied_bytes <= 1_000_000;
        let mut rounds = 0;
        while rounds < 500 || few() && rounds < 50_000 {
            let n = rounds;
            rounds += 1;
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
        wait(|| note(&mut b) as u64 + lost(&host) - before >= u64::from(rounds) * flows as u64);
        assert!(host.machine.counts().guest_copied_bytes > 1_000_000, "most was fetched");
    }
}

/// A receiver is late on one queue, so its frames there are revoked. On another queue the receiver
/// earns new credit, and frames are passed on both queues again. The receiver must not take such a
/// frame for the one that was revoked.
#[test]
fn a_late_receiver_takes_no_frame_for_another() {
    let host = Host::new();
    let config = FrontendConfig { queues: 4, ..FrontendConfig::default() };
    let mut a = station_with(&host, 1, &config, GUEST);
    let mut b = station_with(&host, 2, &config, GUEST);
    introduce(&mut a, &mut b);
    let mut led_to = |flow| {
        a.send_on(flow, &frame(1, 2, 40, flow as u32), Meta::default());
        b.expect(1)[0].0
    };
    let late = led_to(0);
    let other = (1..4).find(|flow| led_to(*flow) != late).expect("flows are spread");
    let fetched = || host.machine.counts().guest_copied_bytes;
    let rx = b.queues[late].rx.ring().page().addr(0);
    wait(|| {
        let (revoked, there) = (drops(&host, 2, DropReason::NotFetched), word(&b, rx, 8));
        a.send_on(0, &frame(1, 2, 3000, 100), Meta::default());
        wait(|| word(&b, rx, 8) != there);
        let is_passed = word(&b, rx, 8) - there == 2;
        if is_passed {
            wait(|| drops(&host, 2, DropReason::NotFetched) > revoked);
        } else {
            // The receiver had no credit, and got a copy.
            b.received_on(late);
        }
        let before = fetched();
        wait(|| {
            a.send_on(other, &frame(1, 2, 60_000, 0), Meta::default());
            for queue in (0..4).filter(|queue| *queue != late) {
                b.received_on(queue);
            }
            fetched() > before
        });
        if !is_passed {
            return false;
        }
        let (there, missed, before) = (word(&b, rx, 8), b.queues[late].rx.missed(), fetched());
        a.send_on(0, &frame(1, 2, 3000, 200), Meta::default());
        wait(|| word(&b, rx, 8) != there);
        let got = b.received_on(late);
        assert!(got.iter().all(|(_, bytes, _)| *bytes == frame(1, 2, 3000, 200)));
        assert_eq!(b.queues[late].rx.missed(), missed + 2 - got.len() as u64);
        // On a machine with much else to do, the second frame may be copied, or revoked as well.
        fetched() > before
    });
}

#[test]
fn frames_that_cannot_be_passed_are_copied() {
    in_time(|host, a, b| {
        let mut plain = station(host, 3, &FrontendConfig::default());
        let mut ranges = station_with(host, 4, &FrontendConfig::default(), RANGES);
        reach(&mut plain, b, (3, 2));
        reach(&mut ranges, a, (4, 1));
        let before = host.machine.counts().guest_copied_bytes;
        // In turn: whole pages are granted, the receiver does not copy for itself, there are
        // several receivers, the frame is too short.
        plain.send(&frame(3, 2, 3000, 1));
        gets(b, &frame(3, 2, 3000, 1));
        a.send(&frame(1, 4, 3000, 2));
        gets(&mut ranges, &frame(1, 4, 3000, 2));
        let all = [[0xff; 6].to_vec(), frame(1, 2, 3000, 3)[6..].to_vec()].concat();
        a.send(&all);
        for station in [&mut *b, &mut plain, &mut ranges] {
            gets(station, &all);
        }
        a.send(&frame(1, 2, 200, 4));
        gets(b, &frame(1, 2, 200, 4));
        assert_eq!(host.machine.counts().guest_copied_bytes, before);
        carry(host, &mut ranges, (b, 2), &frame(4, 2, 3000, 5))?;
        assert_eq!(host.machine.counts().guest_copied_bytes, before + 3018 - 128);
        Some(())
    });
}

/// The head is rewritten on its way, and the rest is fetched behind it.
#[test]
fn tags_are_added_and_removed() {
    let host = Host::new();
    let config = FrontendConfig::default();
    let mut a = station_with(&host, 1, &config, &[GUEST, &[("ringmain/vlan", "5")]].concat());
    let mut b = station_with(&host, 2, &config, &[GUEST, &[("ringmain/trunk", "5")]].concat());
    let tagged = |bytes: Vec<u8>| [&bytes[..12], &[0x81, 0, 0, 5], &bytes[12..]].concat();
    // A frame for an unknown station is flooded, as copies.
    b.send(&tagged(frame(2, 1, 3000, 7)));
    assert!(a.expect(1)[0].1 == frame(2, 1, 3000, 7));
    wait(|| {
        a.send(&frame(1, 2, 20_000, 8));
        // Perhaps it is recalled.
        let dropped = drops(&host, 2, DropReason::NotFetched);
        let mut got = Vec::new();
        wait(|| {
            got.extend(b.received());
            !got.is_empty() || drops(&host, 2, DropReason::NotFetched) > dropped
        });
        assert!(got.iter().all(|(_, bytes, _)| *bytes == tagged(frame(1, 2, 20_000, 8))));
        host.machine.counts().guest_copied_bytes >= 20_018 - 128
    });
}

#[test]
fn a_daemon_ends_while_grants_are_passed() {
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
