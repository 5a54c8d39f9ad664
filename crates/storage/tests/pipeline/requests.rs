//! Requests against a model, hostile requests, and images that fail.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;

use crate::guest::{SECTOR, Sent, Site, options};
use proptest::prelude::*;
use ring::Violation;
use ring::driver::{Direction, DriverRing, Piece};
use rustix::event::{EventfdFlags, eventfd};
use storage::Image;
use storage::count::ErrorReason;
use storage::engine::{Engine, Finished, ThreadEngine, UringEngine};
use storage::image::{Direct, ImageOptions};
use storage::queue::QueueError;
use storage::request::Request;

/// Sectors of the images.
const SECTORS: u64 = 256;

const OK: u8 = 0;
const IOERR: u8 = 1;
const UNSUPP: u8 = 2;

/// An image of zeros in a file system that takes space for what is written only.
fn file() -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(SECTORS * SECTOR as u64).unwrap();
    file
}

/// The same in memory.
fn file_in_memory() -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
    file.as_file().set_len(SECTORS * SECTOR as u64).unwrap();
    file
}

fn site(file: &tempfile::NamedTempFile, queues: u16, engine: Box<dyn Engine>) -> Site {
    Site::new(Image::open(&options(file.path())).unwrap(), queues, engine)
}

/// Both engines, where the kernel has both.
fn engines() -> Vec<Box<dyn Engine>> {
    let uring = UringEngine::new().map(|engine| Box::new(engine) as Box<dyn Engine>);
    let threads = Box::new(ThreadEngine::new().unwrap()) as Box<dyn Engine>;
    uring.into_iter().chain([threads]).collect()
}

fn failed(site: &Site, reason: ErrorReason) -> u64 {
    site.disks.counters(site.id).iter().map(|(queue, _)| queue.failed(reason)).sum()
}

/// One step of a test against the model.
#[derive(Clone, Debug)]
enum Step {
    Write { sector: u64, sectors: u64, fill: u8 },
    Read { sector: u64, sectors: u64 },
    Discard { sector: u64, sectors: u32 },
    Zeroes { sector: u64, sectors: u32, unmap: bool },
    Flush,
}

fn steps() -> impl Strategy<Value = Vec<(Step, usize, u32)>> {
    // Some reach beyond the end.
    let (sector, sectors) = (0..SECTORS + 4, 1u64..32);
    let step = prop_oneof![
        4 => (sector.clone(), sectors.clone(), any::<u8>())
            .prop_map(|(sector, sectors, fill)| Step::Write { sector, sectors, fill }),
        4 => (sector.clone(), sectors).prop_map(|(sector, sectors)| Step::Read { sector, sectors }),
        1 => (sector.clone(), 0u32..64).prop_map(|(sector, sectors)| Step::Discard { sector, sectors }),
        1 => (sector, 0u32..64, any::<bool>())
            .prop_map(|(sector, sectors, unmap)| Step::Zeroes { sector, sectors, unmap }),
        1 => Just(Step::Flush),
    ];
    // With the queue, and the length of pieces. The longest request fits into 160 of the shortest.
    let piece = prop_oneof![Just(1u32 << 20), Just(4096u32), Just(512u32), 110u32..2000];
    proptest::collection::vec((step, 0usize..3, piece), 1..60)
}

/// Carries out one step after the other. Each has the effect that it has on a list of bytes.
fn play(site: &mut Site, steps: &[(Step, usize, u32)]) {
    let mut model = vec![0u8; (SECTORS * SECTOR as u64) as usize];
    for (step, queue, piece) in steps {
        let bytes = |sector: u64, sectors: u64| {
            let (from, to) = (sector as usize * SECTOR, (sector + sectors) as usize * SECTOR);
            (to <= (SECTORS as usize) * SECTOR).then_some(from..to)
        };
        let (request, range) = match *step {
            Step::Write { sector, sectors, fill } => {
                let data = vec![fill; sectors as usize * SECTOR];
                (Sent::write(sector, data), bytes(sector, sectors))
            }
            Step::Read { sector, sectors } => (Sent::read(sector, sectors), bytes(sector, sectors)),
            Step::Discard { sector, sectors } => {
                (Sent::range(11, sector, sectors, 0), bytes(sector, sectors.into()))
            }
            Step::Zeroes { sector, sectors, unmap } => {
                let request = Sent::range(13, sector, sectors, unmap.into());
                (request, bytes(sector, sectors.into()))
            }
            Step::Flush => (Sent::flush(), Some(0..0)),
        };
        site.send(*queue, &request, *piece).unwrap();
        let answer = site.answers(1).remove(0).1;
        let Some(range) = range else {
            assert_eq!(answer.status, IOERR, "{step:?}");
            continue;
        };
        assert_eq!(answer.status, OK, "{step:?}");
        match *step {
            Step::Write { fill, .. } => model[range].fill(fill),
            Step::Read { .. } => assert_eq!(answer.data, model[range], "{step:?}"),
            // A hole reads as zeros.
            Step::Discard { .. } | Step::Zeroes { .. } => model[range].fill(0),
            Step::Flush => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn requests_do_what_they_do_to_a_list_of_bytes(steps in steps(), write_through: bool) {
        for engine in engines() {
            let file = file();
            let mut site = site(&file, 3, engine);
            site.disk.set_write_through(write_through).unwrap();
            play(&mut site, &steps);
        }
        let file = file_in_memory();
        let mut site = site(&file, 3, Box::new(ThreadEngine::new().unwrap()));
        site.disk.set_write_through(write_through).unwrap();
        play(&mut site, &steps);
    }
}

/// An engine that is given nothing.
struct Unused(Arc<OwnedFd>);

impl Engine for Unused {
    fn submit(&mut self, _: Box<Request>) {
        panic!("the worker copies from and to memory itself");
    }

    fn flush(&mut self) {}

    fn has_unsubmitted(&self) -> bool {
        false
    }

    fn reap(&mut self, _: &mut Vec<Finished>) {}

    fn event(&self) -> &Arc<OwnedFd> {
        &self.0
    }
}

#[test]
fn requests_for_an_image_in_memory_need_no_engine() {
    if rustix::system::sysinfo().totalswap > 0 {
        return println!("skipped: this host may swap the image out");
    }
    let file = file_in_memory();
    let event = Arc::new(eventfd(0, EventfdFlags::empty()).unwrap());
    let mut site = site(&file, 2, Box::new(Unused(event)));
    let fill = |step: u8| Step::Write { sector: 7 * u64::from(step), sectors: 20, fill: step };
    let mut steps: Vec<_> = (0..30).map(|step| (fill(step), usize::from(step) % 2, 512)).collect();
    steps.push((Step::Flush, 0, 512));
    steps.push((Step::Read { sector: 0, sectors: 100 }, 1, 4096));
    steps.push((Step::Read { sector: SECTORS - 4, sectors: 8 }, 1, 4096));
    play(&mut site, &steps);
    site.disk.set_write_through(true).unwrap();
    play(&mut site, &[(fill(0), 0, 4096)]);
    // The image ends before the disk does.
    file.as_file().set_len(10 * SECTOR as u64).unwrap();
    assert_eq!(site.ask(&Sent::read(20, 4)).status, IOERR);
    assert_eq!(site.ask(&Sent::read(8, 4)).status, IOERR, "the second step of two");
    assert_eq!(failed(&site, ErrorReason::Truncated), 2);
}

#[test]
fn many_requests_at_once_are_all_answered() {
    for engine in engines() {
        let file = file();
        let mut site = site(&file, 2, engine);
        for round in 0..50u64 {
            let mut numbers = Vec::new();
            for i in 0..32u64 {
                let data = vec![(round + i) as u8; 2 * SECTOR];
                numbers.push(site.send((i % 2) as usize, &Sent::write(4 * i, data), 512).unwrap());
            }
            let answers = site.answers(32);
            let mut answered: Vec<u64> = answers.iter().map(|(number, _)| *number).collect();
            answered.sort_unstable();
            assert_eq!(answered, numbers);
            assert!(answers.iter().all(|(_, answer)| answer.status == OK && answer.len == 1));
        }
        let mut bytes = [0; SECTOR];
        file.as_file().read_exact_at(&mut bytes, 4 * 31 * SECTOR as u64).unwrap();
        assert_eq!(bytes, [49 + 31; SECTOR]);
    }
}

#[test]
fn a_serial_number_is_padded_with_zeros() {
    let file = file();
    let mut site = site(&file, 1, engines().remove(0));
    let ask = |room| Sent { kind: 8, sector: 0, data: Vec::new(), room };
    let answer = site.ask(&ask(20));
    assert_eq!((answer.status, answer.len), (OK, 21));
    assert_eq!(answer.data, *b"serial\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
    assert_eq!(site.ask(&ask(4)).data, *b"seri");
}

#[test]
fn what_is_not_offered_is_not_supported() {
    let file = file();
    let mut site = site(&file, 1, engines().remove(0));
    for request in [
        Sent { kind: 77, sector: 0, data: Vec::new(), room: 512 },
        Sent::range(14, 0, 8, 0),
        Sent::range(11, 0, 8, 1),
        Sent::range(13, 0, 8, 4),
    ] {
        assert_eq!(site.ask(&request).status, UNSUPP, "{request:?}");
    }
    assert_eq!(failed(&site, ErrorReason::Unsupported), 4);
    for request in [
        Sent::read(u64::MAX, 1),
        Sent::read(u64::MAX / 512, 1),
        Sent::write(SECTORS, vec![1; SECTOR]),
        Sent { kind: 0, sector: 0, data: Vec::new(), room: 100 },
        Sent { kind: 1, sector: 0, data: vec![1; 513], room: 0 },
        Sent { kind: 0, sector: 0, data: Vec::new(), room: 0 },
    ] {
        assert_eq!(site.ask(&request).status, IOERR, "{request:?}");
    }
    // The queue goes on.
    assert_eq!(site.ask(&Sent::read(0, 1)).status, OK);
}

#[test]
fn a_header_in_sixteen_pieces_is_a_header() {
    let file = file();
    let mut site = site(&file, 1, engines().remove(0));
    site.send(0, &Sent::write(3, vec![9; SECTOR]), 1 << 20).unwrap();
    site.send(0, &Sent { room: 64, ..Sent::read(3, 0) }, 1).unwrap();
    site.send(0, &Sent { kind: 8, sector: 0, data: Vec::new(), room: 20 }, 1).unwrap();
    let answers = site.answers(3);
    let status: Vec<u8> = answers.iter().map(|(_, answer)| answer.status).collect();
    // 64 bytes are no sector.
    assert_eq!(status.iter().filter(|status| **status == OK).count(), 2, "{answers:?}");
}

#[test]
fn a_request_without_room_for_its_status_ends_the_queue() {
    let file = file();
    let mut site = site(&file, 1, engines().remove(0));
    let (_, driver) = site.raw(0);
    driver.add(&[Piece { addr: 1 << 20, len: 16 }], Direction::Out).unwrap();
    driver.publish();
    (0..3).for_each(|_| _ = site.worker.run_once(std::time::Instant::now()));
    assert_eq!(*site.errors.lock(), [QueueError::Malformed("a status byte")]);
    site.send(0, &Sent::flush(), 512).unwrap();
    (0..3).for_each(|_| _ = site.worker.run_once(std::time::Instant::now()));
    assert_eq!(site.collect(), []);
}

#[test]
fn a_request_without_a_header_fails() {
    let file = file();
    let mut site = site(&file, 1, engines().remove(0));
    let (memory, driver) = site.raw(0);
    memory.write(1 << 20, &[0xff; 64]).unwrap();
    driver.add_request(&[Piece { addr: 1 << 20, len: 8 }], &[Piece { addr: 1 << 20, len: 1 }]);
    driver.publish();
    (0..3).for_each(|_| _ = site.worker.run_once(std::time::Instant::now()));
    let mut status = [0];
    site.raw(0).0.read(1 << 20, &mut status).unwrap();
    assert_eq!((status[0], failed(&site, ErrorReason::BadLength)), (IOERR, 1));
}

#[test]
fn buffers_outside_of_the_memory_end_the_queue_of_that_guest_only() {
    let file = file();
    let mut site = site(&file, 2, engines().remove(0));
    let outside = [Piece { addr: 1 << 40, len: 512 }];
    let (_, driver) = site.raw(0);
    driver.add_request(&[Piece { addr: 1 << 20, len: 16 }], &outside);
    driver.publish();
    site.send(1, &Sent::read(0, 1), 512).unwrap();
    assert_eq!(site.answers(1)[0].1.status, OK);
    let violation = Violation::Outside { addr: 1 << 40, len: 512 };
    assert_eq!(*site.errors.lock(), [QueueError::Protocol(violation)]);
}

#[test]
fn descriptors_that_loop_end_the_queue_of_that_guest_only() {
    let file = file();
    let mut site = site(&file, 2, engines().remove(0));
    let (memory, driver) = site.raw(0);
    driver.add(&[Piece { addr: 1 << 20, len: 16 }], Direction::Out).unwrap();
    // The first descriptor, at address 0, names itself as the next.
    memory.write(12, &[1, 0, 0, 0]).unwrap();
    driver.publish();
    site.send(1, &Sent::read(0, 1), 512).unwrap();
    assert_eq!(site.answers(1)[0].1.status, OK);
    let errors = site.errors.lock();
    assert!(matches!(**errors, [QueueError::Protocol(Violation::ChainTooLong(_))]), "{errors:?}");
}

#[test]
fn an_image_that_was_cut_off_fails_the_requests_behind_its_end() {
    for engine in engines() {
        let file = file();
        let mut site = site(&file, 1, engine);
        assert_eq!(site.ask(&Sent::read(200, 8)).status, OK);
        file.as_file().set_len(100 * SECTOR as u64).unwrap();
        assert_eq!(site.ask(&Sent::read(200, 8)).status, IOERR);
        assert_eq!(site.ask(&Sent::read(96, 8)).status, IOERR);
        assert_eq!(site.ask(&Sent::read(92, 8)).status, OK);
        assert_eq!(failed(&site, ErrorReason::Truncated), 2);
    }
}

#[test]
fn a_read_only_disk_refuses_changes() {
    let file = file();
    let read_only = ImageOptions { read_only: true, direct: Direct::Never, ..options(file.path()) };
    let mut site = Site::new(Image::open(&read_only).unwrap(), 1, engines().remove(0));
    assert_eq!(site.ask(&Sent::write(0, vec![1; SECTOR])).status, IOERR);
    assert_eq!(site.ask(&Sent::range(11, 0, 8, 0)).status, IOERR);
    assert_eq!((site.ask(&Sent::flush()).status, site.ask(&Sent::read(0, 1)).status), (OK, OK));
    assert_eq!(failed(&site, ErrorReason::ReadOnly), 2);
}

#[test]
fn discarded_ranges_give_their_space_back() {
    for engine in engines() {
        let file = file();
        let mut site = site(&file, 1, engine);
        if !site.disk.image().discards() {
            return;
        }
        assert_eq!(site.ask(&Sent::write(0, vec![1; 64 * SECTOR])).status, OK);
        assert_eq!(site.ask(&Sent::flush()).status, OK);
        let full = file.as_file().metadata().unwrap().blocks();
        assert_eq!(site.ask(&Sent::range(11, 0, 64, 0)).status, OK);
        let blocks = |file: &File| file.metadata().unwrap().blocks();
        assert!(blocks(file.as_file()) < full, "{} of {full}", blocks(file.as_file()));
    }
}

#[test]
fn a_grown_image_can_be_used_to_its_end() {
    let file = file();
    let mut site = site(&file, 1, engines().remove(0));
    assert_eq!(site.ask(&Sent::write(SECTORS, vec![1; SECTOR])).status, IOERR);
    site.disk.image().resize(Some(2 * SECTORS * SECTOR as u64)).unwrap();
    assert_eq!(site.ask(&Sent::write(2 * SECTORS - 1, vec![1; SECTOR])).status, OK);
    assert_eq!(site.ask(&Sent::write(2 * SECTORS, vec![1; SECTOR])).status, IOERR);
}
