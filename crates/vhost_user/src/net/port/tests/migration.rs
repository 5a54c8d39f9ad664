//! Migrations of guests: the log of written pages, positions of rings, announcements.

use std::collections::BTreeSet;

use vhost_user_driver::WriteLog;

use super::*;

const PAGE: usize = 4096;

/// No pages.
const NONE: [u64; 0] = [];

fn config(features: u64) -> FrontEndConfig {
    FrontEndConfig {
        features,
        required: features,
        queue_pairs: 1,
        mtu: Some(1500),
        protocol: FrontEndConfig::migrating_protocol(),
    }
}

/// A guest that can migrate, and its log.
fn migrating<R: DriverRing>(lab: &Lab, name: &str, features: u64) -> (Plugged<R>, WriteLog) {
    let plugged = Plugged::<R>::with(lab.connect(name), &config(features));
    let log = WriteLog::new(plugged.guest.size()).unwrap();
    (plugged, log)
}

fn memory(guest: &Guest) -> Vec<u8> {
    let mut bytes = vec![0; guest.size() as usize];
    guest.memory().read(0, &mut bytes).unwrap();
    bytes
}

/// Pages of a memory that differ.
fn differing(before: &[u8], after: &[u8]) -> BTreeSet<u64> {
    let pages = before.chunks(PAGE).zip(after.chunks(PAGE));
    (0..).zip(pages).filter(|(_, (old, new))| old != new).map(|(page, _)| page).collect()
}

/// Pages that a target of the migration would lack: they differ, and are not marked.
fn forgotten(differ: &BTreeSet<u64>, marked: &BTreeSet<u64>) -> Vec<u64> {
    differ.difference(marked).copied().collect()
}

impl<R: DriverRing> Plugged<R> {
    /// Stops both rings; where they stand.
    fn stop_rings(&mut self) -> [u32; 2] {
        [0, 1].map(|ring| self.front.stop(ring).unwrap())
    }

    /// The pages that the device's parts of the rings lie in, and those of packed descriptors.
    fn ring_pages(&self) -> BTreeSet<u64> {
        let configs = [self.driver.rx.config(), self.driver.tx.config()];
        configs.iter().flat_map(|ring| [ring.device, ring.desc].map(|at| at / 4096)).collect()
    }

    fn add_buffers(&mut self, count: u64) {
        for _ in 0..count {
            let addr = self.guest.alloc(2048, 64).unwrap();
            self.driver.rx.ring.add(&[Piece { addr, len: 2048 }], Direction::In).unwrap();
        }
        self.driver.rx.publish();
    }
}

/// The driver of both guests does nothing while the device works, so the device has written
/// whatever differs.
fn all_that_is_written_is_marked<R: DriverRing>(features: u64) {
    let lab = Lab::new();
    let (_a, _b) = (lab.device("a"), lab.device("b"));
    let (mut a, a_log) = migrating::<R>(&lab, "a", features);
    let (mut b, b_log) = migrating::<R>(&lab, "b", features);
    for (guest, log) in [(&mut a, &a_log), (&mut b, &b_log)] {
        guest.front.share_log(log).unwrap();
        guest.front.log(true, &guest.driver).unwrap();
    }
    let base = a.front.stop(1).unwrap();
    (0..16).for_each(|mark| a.send(mark));
    let before = [memory(&a.guest), memory(&b.guest)];
    // What was marked before is copied with the rest.
    for log in [&a_log, &b_log] {
        log.take().unwrap();
    }

    a.front.start(&a.driver.tx, base).unwrap();
    let mut received = 0;
    eventually("all frames arrive", || {
        received += b.received();
        received == 16
    });
    let guests = [(&mut a, &a_log), (&mut b, &b_log)];
    for ((guest, log), before) in guests.into_iter().zip(&before) {
        guest.stop_rings();
        let differ = differing(before, &memory(&guest.guest));
        let marked: BTreeSet<u64> = log.take().unwrap().into_iter().collect();
        assert_eq!(forgotten(&differ, &marked), NONE);
        let vain: BTreeSet<u64> = marked.difference(&differ).copied().collect();
        assert!(vain.is_subset(&guest.ring_pages()), "{vain:?} are marked in vain");
        // Each mark is needed: without it, the page would be missed.
        for page in &differ {
            let rest = marked.iter().filter(|mark| *mark != page).copied().collect();
            assert_eq!(forgotten(&differ, &rest), [*page]);
        }
        assert!(!differ.is_empty());
    }
}

#[test]
fn all_that_is_written_to_split_rings_and_buffers_is_marked() {
    all_that_is_written_is_marked::<SplitDriver>(FEATURES);
    all_that_is_written_is_marked::<SplitDriver>(bit::VERSION_1);
}

#[test]
fn all_that_is_written_to_packed_rings_and_buffers_is_marked() {
    all_that_is_written_is_marked::<PackedDriver>(FEATURES | bit::RING_PACKED);
}

/// Frames flow while the log is switched on and off, and is replaced: what differs since the log
/// was acknowledged is marked.
#[test]
fn a_log_begins_with_its_acknowledgement() {
    let lab = Lab::new();
    let (_a, _b) = (lab.device("a"), lab.device("b"));
    let mut a = guest(&lab, "a");
    let (mut b, _) = migrating::<SplitDriver>(&lab, "b", FEATURES);
    let addr = a.guest.alloc(2048, 64).unwrap();
    let mut frame = [0; 1012];
    frame[12..18].fill(0xff);
    frame[18..26].copy_from_slice(&[0x52, 0x54, 0, 0, 0, 1, 0x88, 0xb5]);
    let (stop, mut sent) = (std::sync::atomic::AtomicBool::new(false), 0u8);
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                sent = sent.wrapping_add(1);
                frame[26..].fill(sent);
                a.guest.memory().write(addr, &frame).unwrap();
                let piece = Piece { addr, len: frame.len() as u32 };
                a.driver.tx.ring.add(&[piece], Direction::Out).unwrap();
                a.driver.tx.publish();
                eventually("completion", || {
                    a.driver.tx.ring.collect(&mut [Used::default(); 4]).unwrap() == 1
                });
            }
        });
        for _ in 0..16 {
            let log = WriteLog::new(b.guest.size()).unwrap();
            b.front.share_log(&log).unwrap();
            b.front.log(true, &b.driver).unwrap();
            let before = memory(&b.guest);
            let mut came = 0;
            b.add_buffers(8);
            eventually("frames while the log is on", || {
                came += b.received();
                came >= 8
            });
            b.stop_rings().into_iter().zip([0, 1]).for_each(|(base, ring)| {
                let vring = if ring == 0 { &b.driver.rx } else { &b.driver.tx };
                b.front.start(vring, base).unwrap();
            });
            let differ = differing(&before, &memory(&b.guest));
            let marked = log.take().unwrap().into_iter().collect();
            // The driver itself writes to its rings and to its memory's administration only there.
            let rings = b.ring_pages();
            let forgotten: Vec<_> = forgotten(&differ, &marked)
                .into_iter()
                .filter(|page| !rings.contains(page))
                .collect();
            assert_eq!(forgotten, NONE);
            b.front.log(false, &b.driver).unwrap();
            assert!(log.take().is_ok());
            b.add_buffers(4);
            came = 0;
            eventually("frames while the log is off", || {
                came += b.received();
                came >= 4
            });
            assert_eq!(log.take().unwrap(), NONE);
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        b.add_buffers(8);
        sender.join().unwrap();
    });
}

/// Both guests go to a second fabric and back, with rings at any position.
fn rings_go_on_elsewhere<R: DriverRing>(features: u64) {
    let labs = [Lab::new(), Lab::new()];
    let _ports: Vec<_> =
        labs.iter().flat_map(|lab| ["a", "b"].map(|name| lab.device(name))).collect();
    let [mut a, mut b] = ["a", "b"].map(|name| migrating::<R>(&labs[0], name, features).0);
    for round in 0..10u8 {
        for mark in 0..3 {
            a.reaches(&mut b, 16 * round + mark);
        }
        b.add_buffers(3);
        let mut complete = 0;
        eventually("completion", || {
            let ring = &mut a.driver.tx.ring;
            complete += ring.collect(&mut [Used::default(); 64]).unwrap();
            complete == 3
        });
        let target = &labs[usize::from(round + 1) % 2];
        for (guest, name) in [(&mut a, "a"), (&mut b, "b")] {
            let [rx, tx] = guest.stop_rings();
            let mut front = FrontEnd::negotiate(target.connect(name), &config(features)).unwrap();
            front.share(&guest.guest).unwrap();
            front.start(&guest.driver.rx, rx).unwrap();
            front.start(&guest.driver.tx, tx).unwrap();
            guest.front = front;
        }
    }
}

#[test]
fn rings_go_on_in_another_fabric() {
    rings_go_on_elsewhere::<SplitDriver>(FEATURES);
    rings_go_on_elsewhere::<PackedDriver>(FEATURES | bit::RING_PACKED);
}

#[test]
fn a_guest_is_announced_and_found_where_it_is_now() {
    let lab = Lab::new();
    let _ports = ["a", "b", "c"].map(|name| lab.device(name));
    let (mut a, _) = migrating::<SplitDriver>(&lab, "a", FEATURES);
    let (mut b, mut c) = (guest(&lab, "b"), guest(&lab, "c"));
    let mac = [0x52, 0x54, 0, 0, 0, 77];
    for round in 0..3 {
        a.front.send_rarp(mac).unwrap();
        eventually("the announcement arrives", || b.received() == 1);
        eventually("everywhere", || c.received() == 1);
        // Frames of the guest itself go on behind it.
        a.reaches(&mut b, round);
        eventually("a broadcast", || c.received() == 1);
    }
    let addr = b.guest.alloc(2048, 64).unwrap();
    let frame = [&[0; 12][..], &mac, &[0x52, 0x54, 0, 0, 0, 1, 0x88, 0xb5], &[0; 46]].concat();
    b.guest.memory().write(addr, &frame).unwrap();
    b.driver.tx.ring.add(&[Piece { addr, len: 72 }], Direction::Out).unwrap();
    b.driver.tx.publish();
    eventually("a frame for the announced address", || a.received() == 1);
    assert_eq!(c.received(), 0);
}

#[test]
fn wrong_logs_have_names() {
    let lab = Lab::new();
    let device = lab.device("a");
    let connect = || migrating::<SplitDriver>(&lab, "a", FEATURES).0;
    let ended = |reason: &str, violations| {
        eventually(reason, || device.status().violations == violations);
        let status = device.status();
        assert!(status.reason.as_ref().is_some_and(|told| told.contains(reason)), "{status:?}");
    };
    let mut short = connect();
    let log = WriteLog::new(short.guest.size() / 8).unwrap();
    short.front.share_log(&log).unwrap();
    assert!(short.front.log(true, &short.driver).is_err());
    ended("the log of written pages ends at guest address", 1);

    let mut hostile = connect();
    let file = tempfile::tempfile_in("/dev/shm").unwrap();
    file.set_len(4096).unwrap();
    let area = [4096u64, 0].map(u64::to_le_bytes).concat();
    hostile.front.send_raw(6, 1, &area, &[&file.try_clone().unwrap().into()]).unwrap();
    let mut reply = [0; 12];
    std::io::Read::read_exact(&mut hostile.front.stream(), &mut reply).unwrap();
    hostile.front.log(true, &hostile.driver).unwrap();
    file.set_len(0).unwrap();
    hostile.send(1);
    ended("the log of written pages was truncated", 2);

    let hostile = connect();
    let huge = [1u64 << 40, 0].map(u64::to_le_bytes).concat();
    hostile.front.send_raw(6, 1, &huge, &[hostile.guest.file()]).unwrap();
    ended("SET_LOG_BASE", 3);
    let hostile = connect();
    hostile.front.send_raw(19, 1, &[0xff; 8], &[]).unwrap();
    ended("SEND_RARP for ff:ff:ff:ff:ff:ff", 4);
}
