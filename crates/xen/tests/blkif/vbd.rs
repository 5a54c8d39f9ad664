//! The life of a vbd: what is offered and told, connections of all kinds, closing, growing, and
//! daemons that come and go.

use crate::blkfront::{ERROR, Front, Host, OKAY, SECTOR, SECTORS, Spec, wait};
use proptest::prelude::*;
use ring::xen::{REQ_PROD, RSP_PROD};
use storage::count::ErrorReason;
use xen::blkif::layout::Layout;

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(31) ^ (at >> 9) ^ seed) as u8).collect()
}

#[test]
fn a_frontend_is_told_what_it_needs() {
    let host = Host::new(3);
    let image = host.new_image("a.raw");
    let mut front = Front::attached(&host, 1, Spec::default(), &image);
    wait(|| front.back_state() == Some(2));
    for (key, value) in [
        ("multi-queue-max-queues", 3),
        ("max-ring-page-order", 4),
        ("feature-max-indirect-segments", 256),
    ] {
        assert_eq!(front.back_number(key), Some(value), "{key}");
    }
    assert_eq!(front.back_number("sectors"), None);
    front.connect();
    for (key, value) in [
        ("sectors", SECTORS),
        ("sector-size", 512),
        ("info", 0),
        ("feature-flush-cache", 1),
        ("feature-discard", 1),
        ("discard-granularity", 4096),
        ("discard-alignment", 0),
    ] {
        assert_eq!(front.back_number(key), Some(value), "{key}");
    }
    assert!(front.back_number("physical-sector-size") >= Some(512));
    assert_eq!(front.back_key("feature-barrier"), None);
    assert_eq!(front.back_number("feature-persistent"), Some(0), "this frontend has none");
    wait(|| host.is_connected(&front));
    let vbd = host.vbd(&front).unwrap();
    let connected = vbd.connected.unwrap();
    assert_eq!((connected.queues, connected.ring_pages), (1, 1));
    assert_eq!((vbd.bus.connections, vbd.bus.violations), (1, 0));
}

#[test]
fn any_layout_and_any_number_of_queues_and_pages() {
    let host = Host::new(4);
    let mut domain = 0;
    for layout in [Some(Layout::Bits64), Some(Layout::Bits32), None] {
        for (queues, order) in [(1, None), (1, Some(4)), (2, Some(0)), (4, Some(1)), (4, None)] {
            domain += 1;
            let (start, persistent) = (u32::MAX - 40, domain % 2 == 0);
            let spec = Spec { layout, queues, order, start, persistent, ..Spec::default() };
            let front = Front::connected(&host, domain, spec);
            assert_eq!(host.vbd(&front).unwrap().connected.unwrap().queues, queues as usize);
            for (n, queue) in front.queues.iter().enumerate() {
                // A whole ring of requests, and more.
                let sector = |i: u32| u64::from(i % 100 + 100 * n as u32) * 4;
                for round in 0..2 {
                    let count = queue.size.min(100);
                    let write = |i| queue.start_write(sector(i), &pattern(sector(i) + round, 2048));
                    let writes: Vec<_> = (0..count).map(write).collect();
                    queue.push();
                    writes.iter().for_each(|io| assert_eq!(queue.end(io), OKAY));
                    for i in 0..count {
                        let (status, bytes) = front.read(n, sector(i), 4);
                        assert_eq!((status, bytes), (OKAY, pattern(sector(i) + round, 2048)));
                    }
                }
            }
        }
    }
    assert_eq!(host.machine.refusals(), []);
}

#[test]
fn a_closing_frontend_is_served_until_it_is_closed() {
    let host = Host::new(1);
    let mut front = Front::connected(&host, 1, Spec::default());
    let device = |front: &Front| front.device(|device| host.machine.detach(device).unwrap());
    front.put("state", 5);
    wait(|| front.back_state() == Some(5));
    assert_eq!(front.write(0, 8, &pattern(1, 4096)), OKAY);
    front.put("state", 6);
    wait(|| front.back_state() == Some(6) && !host.is_connected(&front));
    assert_eq!(front.guest.mapped(), 0);
    // And again, with another layout.
    front.spec.layout = Some(Layout::Bits32);
    front.put("state", 1);
    front.connect();
    assert_eq!(front.read(0, 8, 8), (OKAY, pattern(1, 4096)));
    // The toolstack takes the device away, of which the frontend has still to be rid.
    device(&front);
    assert_eq!(front.read(0, 8, 8), (OKAY, pattern(1, 4096)));
    front.close();
    assert_eq!(host.vbd(&front).unwrap().bus.connections, 2);
}

#[test]
fn a_guest_that_is_destroyed_takes_its_vbd_along() {
    let host = Host::new(1);
    let front = Front::connected(&host, 1, Spec::default());
    for _ in 0..20 {
        front.queues[0].start_read(0, 64);
    }
    front.queues[0].push();
    host.machine.destroy(front.guest.id());
    wait(|| !host.is_connected(&front));
    front.device(|device| host.machine.forget(device).unwrap());
    wait(|| host.vbd(&front).is_none());
    // The image is free.
    let mut again = Front::attached(&host, 2, Spec::default(), &front.image);
    again.connect();
    assert_eq!(again.read(0, 0, 1).0, OKAY);
}

#[test]
fn a_disk_that_grows_is_announced() {
    let host = Host::new(1);
    let front = Front::connected(&host, 1, Spec::default());
    assert_eq!(front.write(0, SECTORS, &[1; SECTOR]), ERROR);
    let (service, id) = (host.service.as_ref().unwrap(), host.vbd(&front).unwrap().bus.id);
    let bytes = 2 * SECTORS * SECTOR as u64;
    assert_eq!(service.resize(id, Some(bytes)).unwrap(), Some(bytes));
    wait(|| front.back_number("sectors") == Some(2 * SECTORS));
    assert_eq!(front.back_state(), Some(4));
    assert_eq!(front.write(0, SECTORS, &[1; SECTOR]), OKAY);
    assert_eq!(host.failed(&front, ErrorReason::OutOfRange), 1);
    assert!(service.resize(id, Some(SECTOR as u64)).is_err());
}

#[test]
fn a_disk_may_be_read_only_and_without_discards() {
    let host = Host::new(1);
    let image = host.new_image("a.raw");
    let back_keys = vec![("mode", "r"), ("device-type", "cdrom"), ("removable", "1")];
    let mut front = Front::attached(&host, 1, Spec { back_keys, ..Spec::default() }, &image);
    front.connect();
    assert_eq!(
        (front.back_number("info"), front.back_number("feature-discard")),
        (Some(7), Some(0))
    );
    assert_eq!((front.write(0, 0, &[1; SECTOR]), front.read(0, 0, 1).0), (ERROR, OKAY));
    let flush = front.queues[0].start_flush();
    assert_eq!(front.end(0, &flush), OKAY);
    assert_eq!(host.failed(&front, ErrorReason::ReadOnly), 1);

    let spec = Spec { back_keys: vec![("discard-enable", "0")], ..Spec::default() };
    let front = Front::connected(&host, 2, spec);
    assert_eq!(front.back_number("feature-discard"), Some(0));
}

#[test]
fn an_image_that_is_missing_or_locked_is_waited_for() {
    let host = Host::new(1);
    let mut front = Front::attached(&host, 1, Spec::default(), &host.image("late.raw"));
    wait(|| front.back_state() == Some(2));
    front.make();
    front.put("state", 3);
    let reason = || host.vbd(&front).and_then(|vbd| vbd.bus.reason);
    wait(|| reason().is_some_and(|reason| reason.contains("cannot open")));
    assert_eq!(front.back_state(), Some(2));
    host.new_image("late.raw");
    wait(|| front.back_state() == Some(4));
    wait(|| reason().is_none());
    assert_eq!(front.write(0, 0, &[1; SECTOR]), OKAY);

    let mut second = Front::attached(&host, 2, Spec::default(), &front.image);
    wait(|| second.back_state() == Some(2));
    second.make();
    second.put("state", 3);
    let locked = |reason: String| reason.contains("another process uses it");
    wait(|| host.vbd(&second).and_then(|vbd| vbd.bus.reason).is_some_and(locked));
    front.device(|device| host.machine.forget(device).unwrap());
    wait(|| second.back_state() == Some(4));
}

#[test]
fn an_image_elsewhere_is_refused() {
    let host = Host::new(1);
    let mut front = Front::attached(&host, 1, Spec::default(), "/etc/passwd".as_ref());
    wait(|| front.back_state() == Some(2));
    front.make();
    front.put("state", 3);
    wait(|| host.vbd(&front).is_some_and(|vbd| vbd.bus.violations == 1));
    assert_eq!(front.back_state(), Some(5));
    let reason = host.vbd(&front).unwrap().bus.reason.unwrap();
    assert_eq!(reason, "/etc/passwd is in none of the folders of images");
}

#[test]
fn keys_that_change_end_a_connection() {
    let host = Host::new(1);
    let front = Front::connected(&host, 1, Spec::default());
    front.put("ring-ref", 4000);
    wait(|| host.vbd(&front).is_some_and(|vbd| vbd.bus.violations == 1));
    let reason = host.vbd(&front).unwrap().bus.reason.unwrap();
    assert_eq!(reason, "keys changed after connecting");
    assert_eq!(front.back_state(), Some(5));
}

/// Requests that another daemon left are carried out, in whatever state it left them.
#[test]
fn a_daemon_that_comes_later_goes_on() {
    let mut host = Host::new(2);
    let kinds = [(Layout::Bits64, false), (Layout::Bits32, false), (Layout::Bits64, true)];
    for (domain, (layout, persistent)) in (1..).zip(kinds) {
        let (layout, order) = (Some(layout), Some(1));
        let spec = Spec { layout, queues: 2, order, persistent, ..Spec::default() };
        let front = Front::connected(&host, domain, spec);
        for round in 0..5 {
            let under_way = |queue: usize| {
                let write = |i: u64| {
                    let sector = 1000 * queue as u64 + 8 * i;
                    front.queues[queue].start_write(sector, &pattern(sector + round, 4096))
                };
                let writes: Vec<_> = (0..30).map(write).collect();
                front.queues[queue].push();
                writes
            };
            let queue = &front.queues[0];
            let before = queue.get(RSP_PROD);
            let writes = [under_way(0), under_way(1)];
            host.stop();
            assert_eq!(front.back_state(), Some(4));
            // As if it had been killed after it wrote its last answers, and before it published
            // them.
            let (done, posted) = (queue.get(RSP_PROD), queue.get(REQ_PROD));
            queue.set(RSP_PROD, done - (done - before).min(2));
            host.start();
            wait(|| host.is_connected(&front) && queue.get(RSP_PROD) == posted);
            for (n, writes) in writes.iter().enumerate() {
                writes.iter().for_each(|io| assert_eq!(front.queues[n].end(io), OKAY));
                for i in 0..30 {
                    let sector = 1000 * n as u64 + 8 * i;
                    let want = (OKAY, pattern(sector + round, 4096));
                    assert_eq!(front.read(n, sector, 8), want);
                }
            }
        }
    }
}

/// A frontend sends requests for the blocks that a daemon before has told it.
#[test]
fn a_frontend_that_goes_on_keeps_its_blocks() {
    let mut host = Host::new(1);
    let front = Front::connected(&host, 1, Spec::default());
    assert_eq!(front.write(0, 1, &[1; SECTOR]), OKAY);
    host.stop();
    front.put_back("sector-size", 4096);
    host.start();
    wait(|| host.is_connected(&front));
    assert_eq!((front.write(0, 8, &[1; 4096]), front.write(0, 1, &[1; SECTOR])), (OKAY, ERROR));
    assert_eq!(host.failed(&front, ErrorReason::Unaligned), 1);
    host.stop();
    // No daemon has ever written that.
    front.put_back("sector-size", 1 << 20);
    host.start();
    wait(|| host.is_connected(&front));
    assert_eq!(front.write(0, 1, &[1; SECTOR]), OKAY);
}

/// What is done in one step of a test against the model.
#[derive(Clone, Debug)]
enum Step {
    Write { sector: u64, sectors: usize, seed: u64 },
    Read { sector: u64, sectors: usize },
    Discard { sector: u64, sectors: u64 },
    Flush,
}

fn steps() -> impl Strategy<Value = Vec<(Step, u8)>> {
    // Some reach beyond the end; some are indirect.
    let sector = prop_oneof![4 => 0..SECTORS, 1 => SECTORS - 8..SECTORS + 4];
    let sectors = prop_oneof![4 => 1usize..64, 1 => 64usize..1500];
    let step = prop_oneof![
        4 => (sector.clone(), sectors.clone(), any::<u64>())
            .prop_map(|(sector, sectors, seed)| Step::Write { sector, sectors, seed }),
        4 => (sector.clone(), sectors).prop_map(|(sector, sectors)| Step::Read { sector, sectors }),
        1 => (sector, 0u64..300).prop_map(|(sector, sectors)| Step::Discard { sector, sectors }),
        1 => Just(Step::Flush),
    ];
    // With the sector of the first page where the data begins.
    prop::collection::vec((step, 0u8..8), 1..40)
}

fn play(front: &Front, model: &mut [u8], steps: &[(Step, u8)]) {
    for (n, (step, shift)) in steps.iter().enumerate() {
        let at = n % front.queues.len();
        let queue = &front.queues[at];
        queue.shift.set(*shift);
        let range = |sector: u64, sectors: usize| {
            let from = sector as usize * SECTOR;
            let to = from + sectors * SECTOR;
            (to <= model.len()).then_some(from..to)
        };
        match *step {
            Step::Write { sector, sectors, seed } => {
                let (data, range) = (pattern(seed, sectors * SECTOR), range(sector, sectors));
                let status = front.write(at, sector, &data);
                assert_eq!(status, if range.is_some() { OKAY } else { ERROR }, "{step:?}");
                range.into_iter().for_each(|range| model[range].copy_from_slice(&data));
            }
            Step::Read { sector, sectors } => {
                let (status, data) = front.read(at, sector, sectors);
                match range(sector, sectors) {
                    Some(range) => assert_eq!((status, data), (OKAY, model[range].to_vec())),
                    None => assert_eq!(status, ERROR, "{step:?}"),
                }
            }
            Step::Discard { sector, sectors } => {
                let range = range(sector, sectors as usize);
                let io = queue.start_discard(sector, sectors);
                let status = front.end(at, &io);
                assert_eq!(status, if range.is_some() { OKAY } else { ERROR }, "{step:?}");
                range.into_iter().for_each(|range| model[range].fill(0));
            }
            Step::Flush => {
                let io = queue.start_flush();
                assert_eq!(front.end(at, &io), OKAY);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn requests_do_what_they_do_to_a_list_of_bytes(steps in steps()) {
        let host = Host::new(2);
        let kinds = [(Some(Layout::Bits64), false), (None, false), (Some(Layout::Bits64), true)];
        for (domain, (layout, persistent)) in (1..).zip(kinds) {
            let spec = Spec { layout, queues: 2, persistent, ..Spec::default() };
            let front = Front::connected(&host, domain, spec);
            let mut model = vec![0; SECTORS as usize * SECTOR];
            play(&front, &mut model, &steps);
            prop_assert!(std::fs::read(&front.image).unwrap() == model, "the image");
        }
        prop_assert_eq!(host.machine.refusals(), []);
    }
}

#[test]
fn a_discard_may_be_longer_than_the_kernel_takes_at_once() {
    let host = Host::new(1);
    let image = host.new_image("a.raw");
    std::fs::File::options().write(true).open(&image).unwrap().set_len(5 << 30).unwrap();
    let mut front = Front::attached(&host, 1, Spec::default(), &image);
    front.connect();
    let (last, all) = ((5u64 << 21) - 8, 5u64 << 21);
    assert_eq!((front.write(0, 0, &[1; 4096]), front.write(0, last, &[2; 4096])), (OKAY, OKAY));
    let io = front.queues[0].start_discard(0, all);
    assert_eq!(front.end(0, &io), OKAY);
    for sector in [0, last] {
        assert_eq!(front.read(0, sector, 8), (OKAY, vec![0; 4096]));
    }
    // One that reaches beyond the end discards nothing.
    assert_eq!(front.write(0, 0, &[3; 4096]), OKAY);
    for (sector, sectors) in [(0, all + 1), (1, all), (u64::MAX, 2), (1, u64::MAX)] {
        let io = front.queues[0].start_discard(sector, sectors);
        assert_eq!(front.end(0, &io), ERROR);
    }
    assert_eq!(front.read(0, 0, 8), (OKAY, vec![3; 4096]));
}
