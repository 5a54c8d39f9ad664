use std::os::fd::AsFd;

use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};

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
    let fd = fd.as_fd().try_clone_to_owned().unwrap();
    let region = RegionSpec { guest_addr: 0, user_addr: 0, len: LEN, offset: 0, fd };
    Memory::map_charged(vec![region], Arc::clone(account)).unwrap()
}

/// Touches so many pages from number `first` on, as a worker does that counts its faults.
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
    account.reset();
    assert_eq!((memory.violation(), account.allocated()), (None, 0));
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
    account.settle(0);
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
    memory.settle(1000);
    other.settle(1000);
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
