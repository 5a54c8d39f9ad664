use std::os::fd::{AsFd, AsRawFd};

use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

use super::*;
use crate::region::{Memory, RegionSpec};

const PAGE: u64 = 4096;
/// Length of the sparse files.
const LEN: u64 = 1 << 40;

fn file() -> OwnedFd {
    let fd = memfd_create(c"account", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, LEN).unwrap();
    fd
}

fn map(account: &Arc<MemoryAccount>, fd: &OwnedFd) -> Memory {
    try_map(account, fd, LEN).unwrap()
}

fn try_map(account: &Arc<MemoryAccount>, fd: &OwnedFd, len: u64) -> Result<Memory, MapError> {
    let fd = fd.as_fd().try_clone_to_owned().unwrap();
    let region = RegionSpec { guest_addr: 0, user_addr: 0, len, offset: 0, fd };
    Memory::map_charged(vec![region], Arc::clone(account))
}

/// Touches `pages` pages from number `first` on, as a worker that counts its faults does.
fn touch(memory: &Memory, first: u64, pages: u64) {
    for page in first..first + pages {
        memory.write(page * PAGE, &[1]).unwrap();
        memory.faulted(1);
    }
}

fn limit(bytes: u64) -> Arc<MemoryAccount> {
    Arc::new(MemoryAccount::new(bytes))
}

#[test]
fn new_pages_of_a_sparse_file_are_charged_and_end_at_the_limit() {
    let (account, fd) = (limit(2 * STEP * PAGE), file());
    let memory = map(&account, &fd);
    touch(&memory, 0, 2 * STEP);
    assert_eq!(account.allocated(), 2 * STEP * PAGE);
    assert_eq!(memory.violation(), None);
    touch(&memory, 2 * STEP, STEP);
    assert_eq!(memory.violation(), Some(Violation::MemoryLimit { limit: 2 * STEP * PAGE }));
    // Another peer is not concerned.
    let (other, other_fd) = (limit(2 * STEP * PAGE), file());
    assert_eq!(map(&other, &other_fd).violation(), None);
    drop((memory, fd));
    settles_at(&account, 0);
    assert_eq!((map(&account, &file()).violation(), account.allocated()), (None, 0));
}

#[test]
fn what_a_former_session_has_mapped_counts() {
    let (account, fd) = (limit(LEN), file());
    let memory = map(&account, &fd);
    touch(&memory, 0, STEP);
    account.begin_session();
    touch(&memory, STEP, STEP);
    let own = map(&account, &file());
    touch(&own, 0, STEP);
    assert_eq!(account.allocated(), 3 * STEP * PAGE);
    drop((memory, fd));
    settles_at(&account, STEP * PAGE);
}

#[test]
fn a_session_with_the_file_of_a_former_one_goes_on_at_its_charge() {
    let (account, fd) = (limit(2 * STEP * PAGE), file());
    for session in 0..3 {
        account.begin_session();
        let memory = map(&account, &fd);
        assert_eq!(account.allocated(), session * STEP * PAGE);
        touch(&memory, session * STEP, STEP);
    }
    account.begin_session();
    let refused = try_map(&account, &fd, LEN).unwrap_err();
    let violation = Violation::MemoryLimit { limit: 2 * STEP * PAGE };
    assert!(matches!(refused, MapError::Limit(limit) if limit == violation), "{refused}");
    // A larger limit lets the peer in again.
    account.set_limit(3 * STEP * PAGE);
    account.begin_session();
    assert_eq!(map(&account, &fd).violation(), None);
}

#[test]
fn mappings_of_a_peer_are_limited_over_all_its_tables() {
    let (account, fd) = (limit(LEN), file());
    let mut tables: Vec<Memory> =
        (0..MAX_MAPPED).map(|_| page_of(&account, &fd).unwrap()).collect();
    account.begin_session();
    let refused = page_of(&account, &fd).unwrap_err();
    assert!(matches!(refused, MapError::TooManyMapped), "{refused}");
    assert!(page_of(&limit(LEN), &fd).is_ok(), "another peer is not concerned");
    tables.pop();
    assert!(page_of(&account, &fd).is_ok());
}

fn page_of(account: &Arc<MemoryAccount>, fd: &OwnedFd) -> Result<Memory, MapError> {
    try_map(account, fd, PAGE)
}

#[test]
fn a_bounded_number_of_files_is_remembered_and_all_of_a_session_are_charged() {
    let account = limit(LEN);
    let files = 3 * REMEMBERED as u64;
    let kept: Vec<OwnedFd> = (0..files).map(|_| file()).collect();
    for fd in &kept {
        let memory = page_of(&account, fd).unwrap();
        memory.write(0, &[1]).unwrap();
        memory.examine(1);
        // Nothing is charged for this one.
        drop(page_of(&account, &file()).unwrap());
    }
    assert!(account.lock().list.len() <= REMEMBERED + 2);
    assert_eq!(account.allocated(), files * PAGE);
    account.begin_session();
    assert_eq!(account.allocated(), files * PAGE, "a new session renews nothing");
}

#[test]
fn pages_that_the_peer_touched_first_are_not_charged() {
    let (account, fd) = (limit(0), file());
    for page in 0..4 * STEP {
        rustix::io::pwrite(&fd, &[1], page * PAGE).unwrap();
    }
    let memory = map(&account, &fd);
    touch(&memory, 0, 4 * STEP);
    assert_eq!((account.allocated(), memory.violation()), (0, None));
}

#[test]
fn pages_that_the_peer_gave_back_are_not_charged_any_more() {
    let (account, fd) = (limit(LEN), file());
    let memory = map(&account, &fd);
    touch(&memory, 0, STEP);
    fallocate(&fd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, LEN).unwrap();
    account.examine(0);
    assert_eq!(account.allocated(), 0);
    touch(&memory, 0, STEP);
    assert_eq!(account.allocated(), STEP * PAGE);
}

#[test]
fn another_table_of_the_same_file_goes_on_and_another_file_adds_up() {
    let (account, fd) = (limit(LEN), file());
    let memory = map(&account, &fd);
    touch(&memory, 0, STEP);
    let again = map(&account, &fd);
    drop(memory);
    touch(&again, STEP, STEP);
    assert_eq!(account.allocated(), 2 * STEP * PAGE);
    drop(again);
    let other = map(&account, &file());
    touch(&other, 0, STEP);
    assert_eq!(account.allocated(), 3 * STEP * PAGE, "the peer may keep the first file");
}

#[test]
fn faults_that_nobody_attributed_are_charged_where_a_file_has_grown() {
    let (grown, still) = (limit(LEN), limit(LEN));
    let (memory, other) = (map(&grown, &file()), map(&still, &file()));
    for page in 0..100 {
        memory.write(page * PAGE, &[1]).unwrap();
    }
    memory.examine(1000);
    other.examine(1000);
    assert_eq!((grown.allocated(), still.allocated()), (100 * PAGE, 0));
}

#[test]
fn a_limit_that_is_lowered_holds_from_then_on() {
    let (account, fd) = (limit(LEN), file());
    let memory = map(&account, &fd);
    touch(&memory, 0, STEP);
    account.set_limit(PAGE);
    touch(&memory, STEP, STEP);
    assert_eq!(memory.violation(), Some(Violation::MemoryLimit { limit: PAGE }));
}

/// Begins sessions until this much is charged. A file that was dropped lives on for a moment where
/// another test starts a process, which has a copy of each descriptor at first.
#[track_caller]
fn settles_at(account: &MemoryAccount, bytes: u64) {
    let start = std::time::Instant::now();
    loop {
        account.begin_session();
        let allocated = account.allocated();
        if allocated == bytes {
            return;
        }
        assert!(start.elapsed().as_secs() < 60, "{allocated} bytes are charged, not {bytes}");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// Has `pages` of a new file charged in a session of its own.
fn session(account: &Arc<MemoryAccount>, pages: u64) -> Result<OwnedFd, MapError> {
    account.begin_session();
    let fd = file();
    let memory = try_map(account, &fd, LEN)?;
    touch(&memory, 0, pages);
    memory.violation().map_or(Ok(fd), |violation| Err(MapError::Limit(violation)))
}

#[test]
fn a_peer_that_brings_a_new_file_with_each_session_and_keeps_the_former_is_refused() {
    let account = limit(3 * STEP * PAGE);
    let mut kept: Vec<OwnedFd> = (0..3).map(|_| session(&account, STEP).unwrap()).collect();
    let refused = session(&account, STEP).unwrap_err();
    assert!(matches!(refused, MapError::Limit(_)), "{refused}");
    kept.pop();
    settles_at(&account, 2 * STEP * PAGE);
    session(&account, STEP).unwrap();
}

#[test]
fn a_guest_that_starts_again_and_again_with_new_memory_is_not_refused() {
    let account = limit(2 * STEP * PAGE);
    for _ in 0..2 * REMEMBERED {
        drop(session(&account, 2 * STEP).unwrap());
        settles_at(&account, 0);
    }
}

#[test]
fn a_file_is_kept_by_a_mapping_and_by_a_descriptor_that_can_only_name_it() {
    type Keep = fn(&OwnedFd) -> Box<dyn std::any::Any>;
    let keep_by: [Keep; 2] = [
        |fd| {
            let fd = fd.try_clone().unwrap();
            let region = RegionSpec { guest_addr: 0, user_addr: 0, len: PAGE, offset: 0, fd };
            Box::new(Memory::map(vec![region]).unwrap())
        },
        |fd| {
            let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
            Box::new(fs::open(path, fs::OFlags::PATH, fs::Mode::empty()).unwrap())
        },
    ];
    for keep_by in keep_by {
        let account = limit(LEN);
        let fd = session(&account, STEP).unwrap();
        let kept = keep_by(&fd);
        drop(fd);
        account.begin_session();
        assert_eq!(account.allocated(), STEP * PAGE);
        drop(kept);
        settles_at(&account, 0);
    }
}

/// The test runs in a thread that lacks the capability to read such a memfd.
#[test]
fn a_memfd_that_this_process_may_not_read_is_taken_to_exist() {
    let attack = || {
        let none = CapabilitySet::empty();
        let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
        set_capabilities(None, sets).unwrap();
        let account = limit(LEN);
        account.begin_session();
        let fd = file();
        fs::fchmod(&fd, fs::Mode::empty()).unwrap();
        let memory = map(&account, &fd);
        touch(&memory, 0, STEP);
        drop((memory, fd));
        account.begin_session();
        account.allocated()
    };
    assert_eq!(std::thread::spawn(attack).join().unwrap(), STEP * PAGE);
}

#[test]
fn a_file_that_is_made_for_the_peer_counts_until_the_peer_drops_it() {
    let (account, fd) = (limit(2 * PAGE), file());
    account.begin_session();
    account.charge(&fd, PAGE).unwrap();
    account.begin_session();
    assert_eq!(account.allocated(), PAGE);
    let more = file();
    assert!(account.charge(&more, 2 * PAGE).is_err());
    drop((fd, more));
    settles_at(&account, 0);
}

/// Several names can lead to such a file, so its watch would prove nothing.
#[test]
fn a_file_of_a_mounted_tmpfs_counts_in_its_own_session() {
    let file = tempfile();
    ftruncate(&file, LEN).unwrap();
    let account = limit(LEN);
    account.begin_session();
    let memory = map(&account, &file);
    touch(&memory, 0, STEP);
    assert_eq!(account.allocated(), STEP * PAGE);
    drop(memory);
    account.begin_session();
    assert_eq!(account.allocated(), 0);
    drop(map(&account, &file));
    assert_eq!(account.allocated(), STEP * PAGE);
}

fn tempfile() -> OwnedFd {
    let flags = fs::OFlags::TMPFILE | fs::OFlags::RDWR | fs::OFlags::CLOEXEC;
    fs::open("/dev/shm", flags, fs::Mode::RUSR | fs::Mode::WUSR).unwrap()
}
