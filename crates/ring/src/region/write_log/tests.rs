use std::collections::BTreeSet;

use proptest::prelude::*;
use rustix::fs::ftruncate;

use super::*;
use crate::violation::Violation;

const PAGES: u64 = 64;

/// A log of `PAGES` pages, behind one word of its file, and a memory of as many that uses it.
fn logged() -> (OwnedFd, Memory) {
    let (_, file) = Memory::shared(4096).unwrap();
    let log = WriteLog::map(file.try_clone().unwrap(), 8, PAGES / 8).unwrap();
    let (memory, _) = Memory::shared((PAGES * LOG_PAGE) as usize).unwrap();
    (file, memory.with_log(Some(Arc::new(log))))
}

/// The bytes of the log's file around the log.
fn bytes(file: &OwnedFd) -> [u8; 24] {
    let mut bytes = [0; 24];
    rustix::io::pread(file, &mut bytes, 0).unwrap();
    bytes
}

fn marked(file: &OwnedFd) -> BTreeSet<u64> {
    let [before, marks, after] = bytes(file).as_chunks().0.try_into().unwrap();
    assert_eq!((u64::from_le_bytes(before), u64::from_le_bytes(after)), (0, 0), "outside the log");
    let marks = u64::from_le_bytes(marks);
    (0..PAGES).filter(|page| marks >> page & 1 != 0).collect()
}

proptest! {
    #[test]
    fn exactly_the_pages_that_were_written_are_marked(
        writes in prop::collection::vec((0..PAGES * LOG_PAGE, 0usize..3 * LOG_PAGE as usize), 0..20),
    ) {
        let (file, memory) = logged();
        let mut expected = BTreeSet::new();
        for (addr, len) in writes {
            let written = memory.write(addr, &vec![1; len]).is_ok();
            if written && len > 0 {
                expected.extend(addr / LOG_PAGE..=(addr + len as u64 - 1) / LOG_PAGE);
            }
            prop_assert_eq!(marked(&file), expected.clone());
        }
    }

    /// Addresses of the log come from the front-end as they are.
    #[test]
    fn no_range_whatever_marks_outside_the_log(addr in any::<u64>(), len in 0..1u64 << 24) {
        let (file, memory) = logged();
        memory.log(addr, len);
        memory.log(PAGES * LOG_PAGE, len);
        let in_log = addr < PAGES * LOG_PAGE && len > 0;
        prop_assert_eq!(!marked(&file).is_empty(), in_log);
    }

    #[test]
    fn host_addresses_are_logged_as_those_of_the_guest(at in 0..PAGES * LOG_PAGE) {
        let (file, memory) = logged();
        memory.log_host(memory.host(at, 1, 1).unwrap().as_ptr(), 1);
        prop_assert_eq!(marked(&file), BTreeSet::from([at / LOG_PAGE]));
    }
}

/// The front-end takes marks while others are made; none is lost, and none is invented.
#[test]
fn marks_are_made_and_taken_at_a_time() {
    let (file, memory) = logged();
    let theirs = Memory::map(vec![RegionSpec {
        guest_addr: 0,
        user_addr: 0,
        len: 16,
        offset: 0,
        fd: file.try_clone().unwrap(),
    }])
    .unwrap();
    let word = theirs.atomic_u64(8).unwrap();
    let rounds = 20_000u64;
    let taken = std::thread::scope(|scope| {
        let writers: Vec<_> = [0, 1]
            .map(|odd| {
                let memory = &memory;
                scope.spawn(move || {
                    // Each page of this writer is written once more than it was before.
                    for n in 0..rounds {
                        let at = (2 * (n % (PAGES / 2)) + odd) * LOG_PAGE;
                        memory.write(at, &(n + 1).to_le_bytes()).unwrap();
                    }
                })
            })
            .into();
        let mut copies = vec![0; PAGES as usize];
        let mut take = |all: bool| {
            let mut marks = word.swap(0, Ordering::AcqRel);
            while marks != 0 {
                let page = u64::from(marks.trailing_zeros());
                marks &= marks - 1;
                let mut copy = [0; 8];
                memory.read(page * LOG_PAGE, &mut copy).unwrap();
                copies[page as usize] = u64::from_le_bytes(copy);
            }
            all
        };
        while !writers.iter().all(|writer| writer.is_finished()) {
            take(false);
        }
        take(true);
        copies
    });
    for (page, copy) in (0..).zip(taken) {
        let mut last = [0; 8];
        memory.read(page * LOG_PAGE, &mut last).unwrap();
        assert_eq!(copy, u64::from_le_bytes(last), "the last state of page {page} was not sent");
    }
}

#[test]
fn a_log_that_is_truncated_is_a_violation_and_no_crash() {
    use rustix::fs::{MemfdFlags, memfd_create};
    let file = memfd_create(c"log", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, 4096).unwrap();
    let log = WriteLog::map(file.try_clone().unwrap(), 0, 4096).unwrap();
    assert!(log.is_at(file.as_fd(), 0, 4096));
    assert!(!log.is_at(file.as_fd(), 0, 4095));
    let (memory, _) = Memory::shared(1 << 20).unwrap();
    let memory = memory.with_log(Some(Arc::new(log)));
    memory.write(0, &[1]).unwrap();
    assert_eq!(memory.violation(), None);
    ftruncate(&file, 0).unwrap();
    memory.write(1 << 16, &[1]).unwrap();
    assert_eq!(memory.violation(), Some(Violation::LogTruncated));
    assert_eq!(memory.with_log(None).violation(), None);
}

#[test]
fn impossible_logs_are_refused() {
    let file = || Memory::shared(4096).unwrap().1;
    assert!(WriteLog::map(file(), 0, 4096).is_ok());
    assert!(matches!(WriteLog::map(file(), 0, 0), Err(MapError::Empty(0))));
    assert!(matches!(WriteLog::map(file(), 1, 4096), Err(MapError::ShortFile { .. })));
    assert!(matches!(WriteLog::map(file(), u64::MAX, 4096), Err(MapError::Wraps(0))));
    assert!(matches!(WriteLog::map(file(), 0, MAX_LOG + 1), Err(MapError::TooBig(_))));
    let disk = std::fs::File::open("/proc/self/exe").unwrap();
    assert!(matches!(WriteLog::map(disk.into(), 0, 8), Err(MapError::NotMemory(0))));
}
