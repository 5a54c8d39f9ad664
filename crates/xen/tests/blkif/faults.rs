//! Images of vbds that fail: a full file system, and a file that is cut off. The guest gets errors,
//! counters name them, a neighbour gets none, nothing that was answered is lost, and service goes
//! on when the fault is over.

use std::fs::File;
use std::io::{self, Write};
use std::process::Command;

use crate::blkfront::{ERROR, Front, Host, OKAY, SECTOR, SECTORS, Spec};
use hypervisor::PAGE;
use storage::count::ErrorReason;

/// Sectors of a page, and pages of an image.
const EACH: u64 = (PAGE / SECTOR) as u64;
const BLOCKS: u64 = SECTORS / EACH;

/// What write number `number` writes.
fn pattern(number: u64) -> Vec<u8> {
    (0..PAGE as u64 / 8).flat_map(|at| (number << 32 | at).to_le_bytes()).collect()
}

fn write(front: &Front, block: u64, number: u64) -> i16 {
    front.write(0, block * EACH, &pattern(number))
}

fn read(front: &Front, block: u64) -> (i16, Vec<u8>) {
    front.read(0, block * EACH, EACH as usize)
}

#[track_caller]
fn check(front: &Front, block: u64, number: u64) {
    assert!(read(front, block) == (OKAY, pattern(number)), "block {block}");
}

#[track_caller]
fn flush(front: &Front) {
    let flush = front.queues[0].start_flush();
    assert_eq!(front.end(0, &flush), OKAY);
}

/// Only these requests of the first have failed, for this reason, and no request of the second.
/// Both go on.
#[track_caller]
fn check_failed(host: &Host, [failing, neighbour]: [&Front; 2], reason: ErrorReason, times: u64) {
    let failed = |front: &Front| -> u64 {
        ErrorReason::ALL.iter().map(|reason| host.failed(front, *reason)).sum()
    };
    assert_eq!((host.failed(failing, reason), failed(failing)), (times, times));
    for block in 0..4 {
        assert_eq!(write(neighbour, block, times), OKAY);
        check(neighbour, block, times);
    }
    flush(neighbour);
    assert_eq!(failed(neighbour), 0);
    for front in [failing, neighbour] {
        assert!(host.is_connected(front));
        assert_eq!(host.vbd(front).unwrap().bus.violations, 0);
    }
}

#[test]
fn an_image_that_is_cut_off() {
    let host = Host::new(1);
    let [front, neighbour] = [1, 2].map(|domain| Front::connected(&host, domain, Spec::default()));
    let both = [&front, &neighbour];
    (0..BLOCKS).for_each(|block| assert_eq!(write(&front, block, block), OKAY));
    let file = File::options().write(true).open(&front.image).unwrap();
    // In the middle of a page, and of a sector.
    file.set_len(100 * PAGE as u64 + 1000).unwrap();
    for block in 100..104 {
        assert_eq!(read(&front, block).0, ERROR, "block {block}");
    }
    check_failed(&host, both, ErrorReason::Truncated, 4);
    (0..100).for_each(|block| check(&front, block, block));
    // A write makes the file longer again.
    assert_eq!(write(&front, 200, 1000), OKAY);
    flush(&front);
    check(&front, 200, 1000);
    assert_eq!(read(&front, 150), (OKAY, vec![0; PAGE]));
    assert_eq!(read(&front, 201).0, ERROR);
    file.set_len(SECTORS * SECTOR as u64).unwrap();
    assert_eq!(read(&front, 201), (OKAY, vec![0; PAGE]));
    (0..100).for_each(|block| check(&front, block, block));
    check_failed(&host, both, ErrorReason::Truncated, 5);
}

/// Set for the process that has mounts of its own.
const PART: &str = "RINGMAIN_FULL_FILE_SYSTEM";

/// In a process that has a file system of few bytes for its temporary files, which it alone sees.
#[test]
fn a_full_file_system() {
    if std::env::var_os(PART).is_some() {
        return full_file_system();
    }
    let folder = tempfile::tempdir().unwrap();
    let in_namespace = |command: &str| {
        let program = std::env::current_exe().unwrap();
        let mut part = Command::new("unshare");
        part.args(["--mount", "--propagation", "private", "sh", "-c", command]).arg(program);
        part.args(["--exact", "a_full_file_system", "--nocapture"]);
        part.env("TMPDIR", folder.path()).env(PART, "1").output()
    };
    let mount = "mount -t tmpfs -o size=1m tmpfs \"$TMPDIR\"";
    let missing = match in_namespace(mount) {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Some(error.to_string()),
    };
    if let Some(missing) = missing {
        // Not by a macro: the test harness would swallow what a passing test prints.
        let line = format!("vbd_faults.rs: not tested, no mounts: {missing}\n");
        io::stderr().write_all(line.as_bytes()).unwrap();
        return;
    }
    let output = in_namespace(&format!("{mount} && exec \"$0\" \"$@\"")).unwrap();
    assert!(output.status.success(), "{output:#?}");
}

fn full_file_system() {
    let host = Host::new(1);
    let [front, neighbour] = [1, 2].map(|domain| Front::connected(&host, domain, Spec::default()));
    let both = [&front, &neighbour];
    // The neighbour has all the space that it needs.
    check_failed(&host, both, ErrorReason::NoSpace, 0);
    let full = (0..BLOCKS).find(|block| write(&front, *block, *block) != OKAY);
    let full = full.expect("the image is larger than the file system");
    assert!(full > 0, "not even one page fits");
    assert_eq!(write(&front, BLOCKS - 1, 1000), ERROR);
    check_failed(&host, both, ErrorReason::NoSpace, 2);
    (0..full).for_each(|block| check(&front, block, block));
    assert_eq!(write(&front, 0, 2000), OKAY);
    flush(&front);
    // Space that the guest gives back itself, and space that comes from elsewhere.
    let discard = front.queues[0].start_discard(EACH, EACH);
    assert_eq!(front.end(0, &discard), OKAY);
    assert_eq!((write(&front, BLOCKS - 1, 3000), write(&front, 1, 1000)), (OKAY, ERROR));
    check_failed(&host, both, ErrorReason::NoSpace, 3);
    let remount = "mount -o remount,size=16m \"$TMPDIR\"";
    assert!(Command::new("sh").args(["-c", remount]).status().unwrap().success());
    (full..BLOCKS - 1).chain([1]).for_each(|block| assert_eq!(write(&front, block, block), OKAY));
    flush(&front);
    let number = |block| match block {
        0 => 2000,
        last if last == BLOCKS - 1 => 3000,
        block => block,
    };
    (0..BLOCKS).for_each(|block| check(&front, block, number(block)));
    let all: Vec<u8> = (0..BLOCKS).flat_map(|block| pattern(number(block))).collect();
    assert!(std::fs::read(&front.image).unwrap() == all, "the image");
    check_failed(&host, both, ErrorReason::NoSpace, 3);
}
