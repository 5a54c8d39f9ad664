//! Devices of the device mapper, whose tables say which sectors fail: `error` fails all requests,
//! `flakey` with `error_writes` fails writes alone.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::Loop;
use super::front::{DiskFront, IOERR, OK};
use super::site::{BLOCK, BLOCKS, Folder, SECTORS, Site, check, not_tested, write};

/// Sectors of a device.
const LENGTH: u64 = BLOCKS * SECTORS;

/// Runs `dmsetup` with a table. Device nodes are made without udev.
fn dmsetup(verb: &str, name: &str, table: &str) -> Result<(), String> {
    let mut command = Command::new("dmsetup");
    let command = command.args(["--noudevsync", "--noudevrules", verb, name]);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let failed = |error| format!("dmsetup {verb}: {error}");
    let mut child = command.spawn().map_err(failed)?;
    // Whoever needs no table ends without reading.
    let _ = child.stdin.take().map(|mut input| input.write_all(table.as_bytes()));
    let output = child.wait_with_output().map_err(failed)?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("dmsetup {verb}: {said}")) }
}

/// A device of the device mapper over a loop device. It goes when it is dropped.
struct Mapped {
    name: String,
    // After the device that is on it.
    below: Loop,
    /// A table with which no request fails.
    sound: String,
}

impl Mapped {
    /// `None`: there is no device mapper here, which is said.
    fn new(name: &str, below: Loop) -> Option<Mapped> {
        let name = format!("ringmain-test-{}-{name}", std::process::id());
        let sound = format!("0 {LENGTH} linear {} 0\n", below.0.display());
        match dmsetup("create", &name, &sound) {
            Ok(()) => {
                let mapped = Mapped { name, below, sound };
                // Where no udev makes nodes.
                dmsetup("mknodes", &mapped.name, "").unwrap();
                Some(mapped)
            }
            Err(missing) => {
                not_tested(&missing);
                None
            }
        }
    }

    fn below(&self) -> &Path {
        &self.below.0
    }

    /// A table with which all writes fail.
    fn fails_writes(&self) -> String {
        format!("0 {LENGTH} flakey {} 0 0 3600 1 error_writes\n", self.below().display())
    }

    /// A table with which all requests of these blocks fail.
    fn fails(&self, from: u64, to: u64) -> String {
        let (below, from, to) = (self.below().display(), from * SECTORS, to * SECTORS);
        let (len, rest) = (to - from, LENGTH - to);
        format!("0 {from} linear {below} 0\n{from} {len} error\n{to} {rest} linear {below} {to}\n")
    }

    /// The device has this table from now on. Requests wait meanwhile.
    #[track_caller]
    fn set(&self, table: &str) {
        dmsetup("load", &self.name, table).unwrap();
        dmsetup("suspend", &self.name, "").unwrap();
        dmsetup("resume", &self.name, "").unwrap();
    }

    fn path(&self) -> PathBuf {
        Path::new("/dev/mapper").join(&self.name)
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        let removed = dmsetup("remove", &self.name, "");
        assert!(removed.is_ok() || std::thread::panicking(), "{removed:?}");
    }
}

/// A disk over a mapped device, and its guest. They go in the opposite order.
fn on_a_mapped_device(name: &str, direct: &str) -> Option<(Folder, Mapped, Site, DiskFront)> {
    let folder = Folder::new("16m")?;
    let device = Loop::new("--sector-size=512", &folder.image("small/failing.raw"))?;
    let mapped = Mapped::new(name, device)?;
    let site = Site::new(&folder, &mapped.path(), direct);
    let guest = site.guest();
    Some((folder, mapped, site, guest))
}

#[test]
fn writes_that_a_device_fails_past_the_page_cache() {
    let parts = on_a_mapped_device("direct", "auto");
    let Some((_folder, mapped, mut site, mut guest)) = parts else { return };
    (0..BLOCKS).for_each(|block| assert_eq!(write(&mut guest, block, block), OK));
    assert_eq!(guest.flush(), OK);
    mapped.set(&mapped.fails_writes());
    for block in 10..14 {
        assert_eq!(write(&mut guest, block, 1000), IOERR, "block {block}");
    }
    site.check_failed(&["io"], 4);
    site.check_neighbour();
    (0..BLOCKS).for_each(|block| check(&mut guest, block, block));
    mapped.set(&mapped.sound);
    (10..14).for_each(|block| assert_eq!(write(&mut guest, block, 2000 + block), OK));
    assert_eq!(guest.flush(), OK);
    for block in 0..BLOCKS {
        check(&mut guest, block, if (10..14).contains(&block) { 2000 + block } else { block });
    }
    site.check_failed(&["io"], 4);
    site.check_neighbour();
}

/// Writes into the page cache succeed. The flush that cannot make them stable fails.
#[test]
fn writes_that_a_device_fails_through_the_page_cache() {
    let parts = on_a_mapped_device("buffered", "off");
    let Some((_folder, mapped, mut site, mut guest)) = parts else { return };
    (0..BLOCKS).for_each(|block| assert_eq!(write(&mut guest, block, block), OK));
    assert_eq!(guest.flush(), OK);
    mapped.set(&mapped.fails_writes());
    (10..14).for_each(|block| assert_eq!(write(&mut guest, block, 1000), OK));
    assert_eq!(guest.flush(), IOERR);
    site.check_failed(&["io"], 1);
    site.check_neighbour();
    mapped.set(&mapped.sound);
    // A flush makes up for nothing that was lost: the guest writes it again.
    (10..14).for_each(|block| assert_eq!(write(&mut guest, block, 2000 + block), OK));
    assert_eq!(guest.flush(), OK);
    for block in 0..BLOCKS {
        check(&mut guest, block, if (10..14).contains(&block) { 2000 + block } else { block });
    }
    site.check_failed(&["io"], 1);
    site.check_neighbour();
}

#[test]
fn sectors_that_a_device_cannot_read_or_write() {
    let parts = on_a_mapped_device("sectors", "auto");
    let Some((_folder, mapped, mut site, mut guest)) = parts else { return };
    (0..BLOCKS).for_each(|block| assert_eq!(write(&mut guest, block, block), OK));
    assert_eq!(guest.flush(), OK);
    mapped.set(&mapped.fails(20, 24));
    for block in 20..24 {
        assert_eq!(guest.read(block * SECTORS, BLOCK).0, IOERR, "block {block}");
        assert_eq!(guest.read(block * SECTORS + 7, 512).0, IOERR, "block {block}");
        assert_eq!(write(&mut guest, block, 1000), IOERR, "block {block}");
    }
    // A request of which a part fails.
    assert_eq!(guest.read(20 * SECTORS - 1, 1024).0, IOERR);
    site.check_failed(&["io"], 13);
    site.check_neighbour();
    (0..20).chain(24..BLOCKS).for_each(|block| check(&mut guest, block, block));
    assert_eq!((write(&mut guest, 24, 2000), guest.flush()), (OK, OK));
    mapped.set(&mapped.sound);
    check(&mut guest, 24, 2000);
    (0..24).for_each(|block| check(&mut guest, block, block));
    site.check_failed(&["io"], 13);
    site.check_neighbour();
}
