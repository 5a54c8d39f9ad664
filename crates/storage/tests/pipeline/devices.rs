//! Block devices: loop devices over a file, where the system has them.

use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::guest::{SECTOR, Sent, Site, options};
use storage::Image;
use storage::count::ErrorReason;
use storage::engine::{self, Engine, ThreadEngine};
use storage::image::{Direct, ImageError, ImageOptions};

const BYTES: u64 = 4 << 20;

const OK: u8 = 0;
const IOERR: u8 = 1;

/// A loop device over a file, detached when it is dropped.
struct Loop {
    device: PathBuf,
    file: tempfile::NamedTempFile,
}

impl Loop {
    /// A device with such sectors. `None`: there are none here, and what is missing is said.
    fn new(sector: u32) -> Option<Loop> {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(BYTES).unwrap();
        let sector = format!("--sector-size={sector}");
        match losetup(&["--find", "--show", &sector], file.path()) {
            Ok(device) => Some(Loop { device: device.trim().into(), file }),
            Err(missing) => {
                // Not by a macro: the test harness would swallow what a passing test prints.
                let line = format!("devices.rs: not tested, no loop device: {missing}\n");
                io::stderr().write_all(line.as_bytes()).unwrap();
                None
            }
        }
    }

    fn blocks(&self) -> u64 {
        self.file.as_file().metadata().unwrap().blocks()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = losetup(&["--detach"], &self.device);
    }
}

fn losetup(args: &[&str], path: &Path) -> Result<String, String> {
    let output = Command::new("losetup").args(args).arg(path).output();
    let output = output.map_err(|error| format!("losetup: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
    }
}

fn engines() -> [Box<dyn Engine>; 2] {
    [engine::best().unwrap(), Box::new(ThreadEngine::new().unwrap())]
}

#[test]
fn a_device_with_large_sectors_takes_whole_ones_only() {
    for engine in engines() {
        let Some(device) = Loop::new(4096) else { return };
        let image = Image::open(&options(&device.device)).unwrap();
        assert_eq!((image.bytes(), image.block(), image.physical_block()), (BYTES, 4096, 4096));
        assert_eq!(image.alignment().map(|align| align.of_offsets()), Some(4096));
        let mut site = Site::new(image, 1, engine);
        let data: Vec<u8> = (0..16 * SECTOR).map(|at| (at / SECTOR) as u8).collect();
        assert_eq!(site.ask(&Sent::write(8, data.clone())).status, OK);
        let read = site.ask(&Sent::read(8, 16));
        assert_eq!((read.status, read.data), (OK, data));
        for request in [
            Sent::read(1, 8),
            Sent::read(8, 4),
            Sent::write(8, vec![1; SECTOR]),
            Sent::range(11, 8, 4, 0),
            Sent::range(13, 4, 8, 0),
        ] {
            assert_eq!(site.ask(&request).status, IOERR, "{request:?}");
        }
        let counters = site.disks.counters(site.id);
        assert_eq!(counters[0].0.failed(ErrorReason::Unaligned), 5);
    }
}

#[test]
fn what_is_discarded_or_zeroed_on_a_device_reads_as_zeros() {
    for engine in engines() {
        let Some(device) = Loop::new(512) else { return };
        let image = Image::open(&options(&device.device)).unwrap();
        assert!(image.discards(), "a loop device deallocates in its file");
        let mut site = Site::new(image, 1, engine);
        assert_eq!(site.ask(&Sent::write(0, vec![7; 128 * SECTOR])).status, OK);
        assert_eq!(site.ask(&Sent::flush()).status, OK);
        let full = device.blocks();
        for range in [
            Sent::range(11, 0, 64, 0),
            // Allocated, and deallocated.
            Sent::range(13, 64, 16, 0),
            Sent::range(13, 80, 16, 1),
        ] {
            assert_eq!(site.ask(&range).status, OK, "{range:?}");
        }
        assert!(device.blocks() < full, "{} of {full}", device.blocks());
        let read = site.ask(&Sent::read(0, 97));
        assert!(read.data[..96 * SECTOR].iter().all(|byte| *byte == 0));
        assert_eq!(read.data[96 * SECTOR..], [7; SECTOR]);
    }
}

#[test]
fn a_device_belongs_to_one_disk() {
    let Some(device) = Loop::new(512) else { return };
    let image = Image::open(&options(&device.device)).unwrap();
    image.lock().unwrap();
    let second = Image::open(&options(&device.device));
    assert!(matches!(second, Err(ImageError::Busy(_))), "{second:?}");
    Image::check(&options(&device.device)).unwrap();
    let reader = ImageOptions { read_only: true, ..options(&device.device) };
    let reader = Image::open(&reader).unwrap();
    assert!(matches!(reader.lock(), Err(ImageError::Locked(_))));
    drop(image);
    reader.lock().unwrap();
}

#[test]
fn a_device_that_has_grown_is_noticed() {
    let Some(device) = Loop::new(512) else { return };
    let image = Image::open(&options(&device.device)).unwrap();
    assert!(matches!(image.resize(Some(2 * BYTES)), Err(ImageError::Size(_))));
    assert!(!image.has_grown());
    device.file.as_file().set_len(2 * BYTES).unwrap();
    losetup(&["--set-capacity"], &device.device).unwrap();
    assert!(image.has_grown());
    assert_eq!((image.resize(None).unwrap(), image.bytes()), (2 * BYTES, 2 * BYTES));
    assert!(!image.has_grown());
}

/// Blocks that the guest is shown may be smaller than the device's: then the page cache reads and
/// writes whole ones.
#[test]
fn small_blocks_on_large_sectors_pass_through_the_page_cache() {
    let Some(device) = Loop::new(4096) else { return };
    for direct in [Direct::Auto, Direct::Never] {
        let options = ImageOptions { sector_size: Some(512), direct, ..options(&device.device) };
        let image = Image::open(&options).unwrap();
        assert_eq!((image.block(), image.physical_block()), (512, 4096));
        let mut site = Site::new(image, 1, engine::best().unwrap());
        assert_eq!(site.ask(&Sent::write(0, vec![1; 16 * SECTOR])).status, OK);
        assert_eq!(site.ask(&Sent::write(3, vec![9; SECTOR])).status, OK);
        let read = site.ask(&Sent::read(2, 3)).data;
        let want: Vec<u8> = [1, 9, 1].into_iter().flat_map(|byte| [byte; SECTOR]).collect();
        assert_eq!(read, want);
    }
}
