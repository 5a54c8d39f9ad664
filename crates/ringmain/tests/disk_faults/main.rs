//! Images that fail under a daemon: full file systems, devices with errors, files that are cut off.
//! The guest of such a disk gets errors, counters name them, its neighbour on the same worker gets
//! none, nothing that was answered is lost, and service goes on when the fault is over.
//!
//! Each test has mounts of its own, so it needs root. What the system does not have is said.

mod front;
mod mapper;
mod site;
mod stock_guest;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use front::{DiskFront, IOERR, OK};
use site::{BLOCK, BLOCKS, Folder, SECTORS, Site, check, not_tested, pattern, run, write};

/// Writes one block after the other until one fails. Returns how many have succeeded.
#[track_caller]
fn fill(guest: &mut DiskFront) -> u64 {
    let full = (0..BLOCKS).find(|block| write(guest, *block, *block) != OK);
    let full = full.expect("the image has more blocks than the file system");
    assert!(full > 0, "not even one block fits");
    full
}

/// A disk over a file in a small file system of this size, and its guest. `None`: there is no such
/// file system here.
fn on_a_file(size: &str, direct: &str) -> Option<(Folder, PathBuf, Site, DiskFront)> {
    let folder = Folder::new(size)?;
    let image = folder.image("small/failing.raw");
    let site = Site::new(&folder, &image, direct);
    let guest = site.guest();
    Some((folder, image, site, guest))
}

fn full_file_system(direct: &str) {
    let Some((folder, image, mut site, mut guest)) = on_a_file("2m", direct) else { return };
    let full = fill(&mut guest);
    assert_eq!(write(&mut guest, full, 1000), IOERR);
    assert_eq!(write(&mut guest, BLOCKS - 1, 1000), IOERR);
    site.check_failed(&["no_space"], 3);
    site.check_neighbour();
    // What needs no space goes on.
    (0..full).for_each(|block| check(&mut guest, block, block));
    assert_eq!((write(&mut guest, 0, 2000), guest.flush()), (OK, OK));
    check(&mut guest, 0, 2000);
    // Space that the guest gives back itself can be used.
    assert_eq!(guest.discard(SECTORS, SECTORS as u32), OK);
    assert_eq!(write(&mut guest, BLOCKS - 1, 3000), OK);
    assert_eq!(write(&mut guest, 1, 1000), IOERR);
    site.check_failed(&["no_space"], 4);
    // And so can space that comes from elsewhere, for all that failed before.
    folder.resize("16m");
    (full..BLOCKS - 1).chain([1]).for_each(|block| {
        assert_eq!(write(&mut guest, block, block), OK, "block {block}");
    });
    assert_eq!(guest.flush(), OK);
    let file = File::open(&image).unwrap();
    for block in 0..BLOCKS {
        let number = if block == 0 {
            2000
        } else if block == BLOCKS - 1 {
            3000
        } else {
            block
        };
        check(&mut guest, block, number);
        let mut bytes = vec![0; BLOCK];
        file.read_exact_at(&mut bytes, block * BLOCK as u64).unwrap();
        assert!(bytes == pattern(number), "block {block} of the image");
    }
    site.check_failed(&["no_space"], 4);
    site.check_neighbour();
}

#[test]
fn a_full_file_system_past_the_page_cache() {
    full_file_system("auto");
}

#[test]
fn a_full_file_system_through_the_page_cache() {
    full_file_system("off");
}

fn cut_off_image(direct: &str) {
    let Some((_folder, image, mut site, mut guest)) = on_a_file("16m", direct) else { return };
    (0..BLOCKS).for_each(|block| assert_eq!(write(&mut guest, block, block), OK));
    let file = File::options().write(true).open(&image).unwrap();
    // In the middle of a block, and of a sector.
    file.set_len(20 * BLOCK as u64 + 1000).unwrap();
    for block in 20..24 {
        assert_eq!(guest.read(block * SECTORS, BLOCK).0, IOERR, "block {block}");
    }
    site.check_failed(&["truncated"], 4);
    site.check_neighbour();
    (0..20).for_each(|block| check(&mut guest, block, block));
    assert_eq!(guest.read(20 * SECTORS, 512).0, OK);
    // A write makes the file longer again; what lies before reads as zeros.
    assert_eq!((write(&mut guest, 30, 1000), guest.flush()), (OK, OK));
    check(&mut guest, 30, 1000);
    assert_eq!(guest.read(25 * SECTORS, BLOCK), (OK, vec![0; BLOCK]));
    assert_eq!(guest.read(31 * SECTORS, BLOCK).0, IOERR);
    // And as long as it was before.
    file.set_len(BLOCKS * BLOCK as u64).unwrap();
    assert_eq!(guest.read(63 * SECTORS, BLOCK), (OK, vec![0; BLOCK]));
    assert_eq!(write(&mut guest, 63, 2000), OK);
    check(&mut guest, 63, 2000);
    (0..20).for_each(|block| check(&mut guest, block, block));
    site.check_failed(&["truncated"], 5);
    site.check_neighbour();
}

#[test]
fn an_image_that_is_cut_off_past_the_page_cache() {
    cut_off_image("auto");
}

#[test]
fn an_image_that_is_cut_off_through_the_page_cache() {
    cut_off_image("off");
}

/// A loop device over a file, detached when it is dropped.
struct Loop(PathBuf);

impl Loop {
    /// `None`: there are none here, which is said.
    fn new(options: &str, file: &Path) -> Option<Loop> {
        match run(&format!("losetup --find --show {options} {}", file.display())) {
            Ok(device) => Some(Loop(device.into())),
            Err(missing) => {
                not_tested(&missing);
                None
            }
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = run(&format!("losetup --detach {}", self.0.display()));
    }
}

/// A disk over a loop device, and its guest. `place` is the size of the small file system, and the
/// device's file. `None`: there is no such thing here.
fn on_a_device(
    place: (&str, &str),
    options: &str,
    direct: &str,
) -> Option<(Folder, PathBuf, Loop, Site, DiskFront)> {
    let folder = Folder::new(place.0)?;
    let file = folder.image(place.1);
    let device = Loop::new(options, &file)?;
    let site = Site::new(&folder, &device.0, direct);
    let guest = site.guest();
    Some((folder, file, device, site, guest))
}

/// The reasons of writes that find no room in the file of a loop device, as kernels report them.
const NO_ROOM: [&str; 2] = ["io", "no_space"];

#[test]
fn a_device_without_room_past_the_page_cache() {
    let place = ("2m", "small/failing.raw");
    let parts = on_a_device(place, "--sector-size=512", "auto");
    let Some((folder, _, _device, mut site, mut guest)) = parts else { return };
    let full = fill(&mut guest);
    assert_eq!(write(&mut guest, full, 1000), IOERR);
    site.check_failed(&NO_ROOM, 2);
    site.check_neighbour();
    (0..full).for_each(|block| check(&mut guest, block, block));
    assert_eq!((write(&mut guest, 0, 2000), guest.flush()), (OK, OK));
    folder.resize("16m");
    (full..BLOCKS).for_each(|block| assert_eq!(write(&mut guest, block, block), OK));
    assert_eq!(guest.flush(), OK);
    check(&mut guest, 0, 2000);
    (1..BLOCKS).for_each(|block| check(&mut guest, block, block));
    site.check_failed(&NO_ROOM, 2);
    site.check_neighbour();
}

/// Writes into the page cache succeed. The flush that cannot make them stable fails, and is the
/// one that the guest has to rely on.
#[test]
fn a_device_without_room_through_the_page_cache() {
    let place = ("2m", "small/failing.raw");
    let parts = on_a_device(place, "--sector-size=512", "off");
    let Some((folder, file, _device, mut site, mut guest)) = parts else { return };
    let flushed = (0..BLOCKS).find(|block| {
        assert_eq!(write(&mut guest, *block, *block), OK);
        guest.flush() != OK
    });
    let full = flushed.expect("the device has more blocks than the file system");
    assert!(full > 0, "not even one block fits");
    site.check_failed(&NO_ROOM, 1);
    site.check_neighbour();
    folder.resize("16m");
    // A flush makes up for nothing that was lost: the guest writes it again.
    (full..BLOCKS).for_each(|block| assert_eq!(write(&mut guest, block, block), OK));
    assert_eq!(guest.flush(), OK);
    (0..BLOCKS).for_each(|block| check(&mut guest, block, block));
    let file = File::open(&file).unwrap();
    for block in 0..BLOCKS {
        let mut bytes = vec![0; BLOCK];
        file.read_exact_at(&mut bytes, block * BLOCK as u64).unwrap();
        assert!(bytes == pattern(block), "block {block} of the file");
    }
    site.check_failed(&NO_ROOM, 1);
    site.check_neighbour();
}

/// Reads of a loop device beyond the end of its file are errors of the device, where the file is
/// read directly.
#[test]
fn a_device_that_cannot_be_read() {
    let place = ("16m", "failing.raw");
    let parts = on_a_device(place, "--direct-io=on --sector-size=512", "auto");
    let Some((_folder, file, _device, mut site, mut guest)) = parts else { return };
    (0..BLOCKS).for_each(|block| assert_eq!(write(&mut guest, block, block), OK));
    assert_eq!(guest.flush(), OK);
    let file = File::options().write(true).open(&file).unwrap();
    file.set_len(20 * BLOCK as u64).unwrap();
    for block in 20..24 {
        assert_eq!(guest.read(block * SECTORS, BLOCK).0, IOERR, "block {block}");
    }
    site.check_failed(&["io"], 4);
    site.check_neighbour();
    (0..20).for_each(|block| check(&mut guest, block, block));
    file.set_len(BLOCKS * BLOCK as u64).unwrap();
    assert_eq!((write(&mut guest, 20, 1000), guest.flush()), (OK, OK));
    check(&mut guest, 20, 1000);
    assert_eq!(guest.read(21 * SECTORS, BLOCK), (OK, vec![0; BLOCK]));
    (0..20).for_each(|block| check(&mut guest, block, block));
    site.check_failed(&["io"], 4);
    site.check_neighbour();
}
