//! A session with a device that is no network interface: three queues of one vring each, and a
//! configuration space.

use std::sync::Arc;

use ring::{Memory, MemoryAccount, Recovery, Violation};

use super::*;
use crate::transport::device::{LostVring, VringControl, VringStart};
use crate::transport::message::HEADER_LEN;

const CONFIG: [u8; 60] = [0xa5; 60];
const SIZE: u64 = 1 << 16;

#[derive(Default)]
struct Disk {
    calls: Vec<(&'static str, usize)>,
}

impl Device for Disk {
    fn features(&self) -> u64 {
        1 << 9
    }

    fn feature_names(&self, features: Features) -> Vec<&'static str> {
        features.names(&[(1 << 9, "flush")])
    }

    fn protocol_features(&self) -> u64 {
        protocol::CONFIG
    }

    fn queue_num(&self) -> u16 {
        3
    }

    fn vring_count(&self) -> usize {
        3
    }

    fn describe_vrings(&self, active: &[usize]) -> String {
        format!("{} queues", active.len())
    }

    fn read_config(&self, offset: u32, bytes: &mut [u8]) -> bool {
        let range = CONFIG.get(offset as usize..).and_then(|rest| rest.get(..bytes.len()));
        range.map(|range| bytes.copy_from_slice(range)).is_some()
    }

    fn set_features(&mut self, features: Features) {
        self.calls.push(("features", features.0.count_ones() as usize));
    }

    fn start(&mut self, vring: usize, _: VringStart<'_>) -> Result<Recovery, Violation> {
        self.calls.push(("start", vring));
        Ok(Recovery::AsTold)
    }

    fn stop(&mut self, vring: usize) -> Option<u32> {
        self.calls.push(("stop", vring));
        Some(7)
    }

    fn hold_all(&mut self) {}

    fn commit(&mut self) -> u32 {
        0
    }

    fn control(&mut self, vring: usize, control: VringControl) {
        self.calls.push((if control.enabled { "enable" } else { "disable" }, vring));
    }

    fn set_memory(&mut self, _: &Arc<Memory>) -> Vec<LostVring> {
        Vec::new()
    }
}

fn account() -> Arc<MemoryAccount> {
    Arc::new(MemoryAccount::new(u64::MAX))
}

fn send(session: &mut Session<Disk>, code: u32, payload: &[u8], fds: Vec<OwnedFd>) -> Answer {
    let header = Header { code, need_reply: false, size: payload.len() };
    session.answer(&header, payload, fds)
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn longs(longs: &[u64]) -> Vec<u8> {
    longs.iter().flat_map(|long| long.to_le_bytes()).collect()
}

fn eventfd() -> OwnedFd {
    rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap()
}

#[test]
fn the_offers_of_device_and_transport_are_joined() {
    let mut session = Session::new(Disk::default(), account());
    let mut number = |code| {
        let reply = send(&mut session, code, &[], vec![]).reply.unwrap();
        u64::from_le_bytes(reply[HEADER_LEN..].try_into().unwrap())
    };
    assert_eq!(number(1), feature::OFFERED | 1 << 9);
    assert_eq!(number(15), protocol::OFFERED | protocol::CONFIG);
    assert_eq!(number(17), 3);
}

#[test]
fn any_range_of_the_configuration_space_is_read() {
    let mut session = Session::new(Disk::default(), account());
    let mut read = |offset: u32, size: u32| {
        let payload = [words(&[offset, size, 0]), vec![0; size as usize]].concat();
        send(&mut session, 24, &payload, vec![]).reply.unwrap()[HEADER_LEN..].to_vec()
    };
    for (offset, size) in [(0, 60), (59, 1), (8, 4), (60, 0)] {
        let bytes = &CONFIG[offset as usize..(offset + size) as usize];
        assert_eq!(read(offset, size), [&words(&[offset, size, 0]), bytes].concat());
    }
    for (offset, size) in [(60, 1), (1, 60), (u32::MAX, 256)] {
        assert!(read(offset, size).is_empty(), "an empty payload says that it failed");
    }
}

#[test]
fn every_vring_is_started_and_stopped_by_itself() {
    let mut session = Session::new(Disk::default(), account());
    let (_, file) = Memory::shared(SIZE as usize).unwrap();
    let mut say = |code, payload: Vec<u8>, fds| {
        let answer = send(&mut session, code, &payload, fds);
        assert!(answer.error.is_none(), "{:?}", answer.error);
    };
    say(2, longs(&[1 << 32 | 1 << 9]), vec![]);
    say(5, [words(&[1, 0]), longs(&[0, SIZE, 0, 0])].concat(), vec![file]);
    for ring in 0..3u32 {
        say(8, words(&[ring, 16]), vec![]);
        say(9, [words(&[ring, 0]), longs(&[0, 0x2000, 0x1000, 0])].concat(), vec![]);
        say(12, longs(&[ring.into()]), vec![eventfd()]);
    }
    say(18, words(&[1, 0]), vec![]);
    say(11, words(&[2, 0]), vec![]);
    assert_eq!(session.active_vrings(), [0]);
    assert_eq!(
        session.device().calls,
        [("features", 2), ("start", 0), ("start", 1), ("start", 2), ("disable", 1), ("stop", 2)]
    );
    let refused = send(&mut session, 18, &words(&[3, 1]), vec![]).error.unwrap();
    assert_eq!(refused.to_string(), "SET_VRING_ENABLE for ring 3, the port has 3");
}

#[test]
fn a_request_that_the_device_does_not_have_is_not_offered() {
    let mut session = Session::new(Disk::default(), account());
    let answer = send(&mut session, 20, &longs(&[1500]), vec![]);
    assert_eq!(answer.error.unwrap().to_string(), "NET_SET_MTU, which is not offered");
}

/// All records count, because a front-end may keep their files.
#[test]
fn in_flight_records_count_as_memory_that_the_front_end_has_allocated() {
    let account = Arc::new(MemoryAccount::new(20_000));
    let mut session = Session::new(Disk::default(), Arc::clone(&account));
    // Records of three rings of 256 entries.
    let wanted = [longs(&[0, 0]), words(&[3 | 256 << 16, 0])].concat();
    let made = send(&mut session, 31, &wanted, vec![]);
    assert!(made.file.is_some() && made.error.is_none());
    let len = account.allocated();
    assert!((3 * 256 * 16..20_000).contains(&len), "{len}");
    let refused = send(&mut session, 31, &wanted, vec![]);
    assert!(refused.file.is_none() && refused.closes);
    assert_eq!(
        refused.error.unwrap().to_string(),
        "in-flight records: memory limit: more than 20000 bytes of the peer's memory were \
         allocated by its buffers"
    );
}

/// A page that is read is allocated, and the front-end keeps the file.
#[test]
fn in_flight_records_that_a_front_end_brings_are_charged_as_its_memory_is() {
    let account = Arc::new(MemoryAccount::new(3 * 4096));
    let mut kept = Vec::new();
    let mut session = || {
        let (_, records) = Memory::shared(SIZE as usize).unwrap();
        kept.push(records.try_clone().unwrap());
        account.begin_session();
        start_with_records(&mut Session::new(Disk::default(), Arc::clone(&account)), records)
    };
    assert!((0..3).all(|_| session().error.is_none()));
    let refused = session();
    assert!(refused.closes);
    assert_eq!(
        refused.error.unwrap().to_string(),
        "memory table: memory limit: more than 12288 bytes of the peer's memory were allocated \
         by its buffers"
    );
}

/// Starts a ring with in-flight records in this file. Returns the answer to the last message.
fn start_with_records(session: &mut Session<Disk>, records: OwnedFd) -> Answer {
    let (_, file) = Memory::shared(SIZE as usize).unwrap();
    let described = [longs(&[SIZE, 0]), words(&[3 | 256 << 16, 0])].concat();
    let region = [words(&[1, 0]), longs(&[0, SIZE, 0, 0])].concat();
    let address = [words(&[0, 0]), longs(&[0, 0x2000, 0x1000, 0])].concat();
    let messages = [
        (2, longs(&[1 << 32]), vec![]),
        (32, described, vec![records]),
        (5, region, vec![file]),
        (8, words(&[0, 16]), vec![]),
        (9, address, vec![]),
        (12, longs(&[0]), vec![eventfd()]),
    ];
    let answers = messages.map(|(code, payload, fds)| send(session, code, &payload, fds));
    let [before @ .., last] = answers;
    assert!(before.iter().all(|answer| answer.error.is_none()), "{before:?}");
    last
}
