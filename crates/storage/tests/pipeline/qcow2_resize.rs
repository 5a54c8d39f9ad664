//! qcow2 images that become longer while their guests use them, as `qemu-img` sees them afterwards.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use crate::guest::{SECTOR, Sent, Site, options};
use storage::Image;
use storage::engine;
use storage::image::{Format, ImageError, ImageOptions};

const OK: u8 = 0;
const MIB: u64 = 1 << 20;

/// Runs `qemu-img` in a folder.
#[track_caller]
fn qemu_img(folder: &Path, arguments: &str) -> String {
    let mut command = Command::new("qemu-img");
    command.current_dir(folder).args(arguments.split_whitespace());
    let output = command.output().expect("qemu-img runs (package qemu-utils)");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "qemu-img {arguments}: {said}{errors}");
    said
}

fn open(folder: &Path) -> Image {
    let options = ImageOptions { format: Format::Qcow2, ..options(&folder.join("disk")) };
    let image = Image::open(&options).unwrap();
    image.lock().unwrap();
    image
}

/// A disk, and what has to be on it.
struct Tested {
    folder: tempfile::TempDir,
    site: Option<Site>,
    model: Vec<u8>,
}

impl Tested {
    /// Serves the image `disk` of a folder, which has these bytes.
    fn new(folder: tempfile::TempDir, model: Vec<u8>) -> Tested {
        let site = Some(Site::new(open(folder.path()), 1, engine::best().unwrap()));
        Tested { folder, site, model }
    }

    fn site(&mut self) -> &mut Site {
        self.site.as_mut().expect("the disk is served")
    }

    fn image(&mut self) -> Arc<Image> {
        Arc::clone(self.site().disk.image())
    }

    /// Resizes the disk while its guest writes and reads.
    #[track_caller]
    fn resize(&mut self, bytes: u64) {
        let image = self.image();
        let resize = std::thread::spawn(move || image.resize(Some(bytes)));
        let mut rounds = 0;
        while !resize.is_finished() || rounds == 0 {
            self.write(rounds % 3 * 11, rounds as u8 | 1, 20);
            rounds += 1;
        }
        assert_eq!(resize.join().unwrap().unwrap(), bytes);
        assert_eq!(self.image().bytes(), bytes);
        self.model.resize(bytes as usize, 0);
    }

    #[track_caller]
    fn write(&mut self, sector: u64, fill: u8, sectors: usize) {
        let data = vec![fill; sectors * SECTOR];
        self.model[sector as usize * SECTOR..][..data.len()].copy_from_slice(&data);
        assert_eq!(self.site().ask(&Sent::write(sector, data)).status, OK);
    }

    /// The guest, and QEMU, read what they must. QEMU finds nothing wrong, not even a leak.
    #[track_caller]
    fn check(&mut self) {
        let (all, most) = (self.model.len() / SECTOR, crate::guest::LONGEST as usize / SECTOR);
        for sector in (0..all).step_by(most) {
            let sectors = most.min(all - sector);
            let answer = self.site().ask(&Sent::read(sector as u64, sectors as u64));
            assert_eq!(answer.status, OK);
            let model = &self.model[sector * SECTOR..][..sectors * SECTOR];
            assert!(answer.data == model, "sector {sector}");
        }
        self.site = None;
        let folder = self.folder.path();
        // The kernel may let go of the last request a little later.
        drop(open(folder));
        qemu_img(folder, "check -q -f qcow2 disk");
        std::fs::write(folder.join("model"), &self.model).unwrap();
        qemu_img(folder, "compare -q -f qcow2 -F raw disk model");
        let said = qemu_img(folder, "info --output=json -f qcow2 disk");
        let size = format!("\"virtual-size\": {}", self.model.len());
        assert!(said.contains(&size), "{said}");
        self.site = Some(Site::new(open(folder), 1, engine::best().unwrap()));
    }
}

#[test]
fn a_disk_grows_in_service() {
    for keys in ["-o cluster_size=512", "-o cluster_size=4k", "", "-o compat=0.10"] {
        let folder = tempfile::tempdir().unwrap();
        let bytes = MIB + 3 * SECTOR as u64;
        qemu_img(folder.path(), &format!("create -q -f qcow2 {keys} disk {bytes}"));
        let mut disk = Tested::new(folder, vec![0; bytes as usize]);
        disk.write(bytes / SECTOR as u64 - 5, 7, 5);
        // One more sector, one more L2 table, L1 tables of one cluster and of several.
        for bytes in [bytes + 512, 3 * MIB, 5 * MIB, 20 * MIB + 512] {
            disk.resize(bytes);
            let last = bytes / SECTOR as u64 - 9;
            disk.write(last, 9, 9);
            disk.write(last / 2, 10, 100);
            assert_eq!(disk.site().ask(&Sent::range(11, last / 3, 500, 0)).status, OK);
            let discarded = last as usize / 3 * SECTOR;
            disk.model[discarded..][..500 * SECTOR].fill(0);
        }
        disk.check();
        // In service again.
        disk.resize(24 * MIB);
        disk.check();
    }
}

#[test]
fn what_a_longer_backing_file_has_does_not_appear() {
    for keys in ["-o cluster_size=512", ""] {
        let folder = tempfile::tempdir().unwrap();
        let base = vec![3; 4 * MIB as usize];
        std::fs::write(folder.path().join("base"), &base).unwrap();
        let bytes = MIB + 3 * SECTOR as u64;
        qemu_img(folder.path(), &format!("create -q -f qcow2 {keys} -b base -F raw disk {bytes}"));
        let mut disk = Tested::new(folder, base[..bytes as usize].to_vec());
        disk.resize(2 * MIB + SECTOR as u64);
        disk.resize(6 * MIB);
        disk.write(5 * MIB / SECTOR as u64, 1, 9);
        disk.check();
        assert!(std::fs::read(disk.folder.path().join("base")).unwrap() == base);
    }
}

#[test]
fn lengths_that_an_image_cannot_have_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("base"), vec![3; 2 * MIB as usize]).unwrap();
    qemu_img(folder.path(), "create -q -f qcow2 -o compat=0.10 -b base -F raw disk 1M");
    let mut disk = Tested::new(folder, vec![3; MIB as usize]);
    let refused = |image: &Image, bytes| image.resize(Some(bytes)).unwrap_err();
    let image = disk.image();
    for bytes in [MIB - 512, MIB + 100, 1 << 62] {
        let error = refused(&image, bytes);
        assert!(matches!(error, ImageError::Size(_)), "{error}");
    }
    // Version 2 has no word for zeros over a backing file.
    assert!(refused(&image, 2 * MIB).to_string().contains("not supported"));
    assert_eq!((image.bytes(), image.resize(None).unwrap()), (MIB, MIB));
    drop(image);
    disk.write(0, 1, 9);
    disk.check();
}

/// 512-byte clusters leave no room for an L1 table of many clusters between blocks of refcounts.
#[test]
fn a_disk_that_cannot_grow_so_far_stays_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    qemu_img(folder.path(), "create -q -f qcow2 -o cluster_size=512 disk 1M");
    let mut disk = Tested::new(folder, vec![0; MIB as usize]);
    let error = disk.image().resize(Some(1 << 36)).unwrap_err();
    assert!(matches!(error, ImageError::System { .. }), "{error}");
    disk.write(100, 1, 9);
    disk.resize(2 * MIB);
    assert_eq!(disk.site().ask(&Sent::flush()).status, OK);
    disk.check();
}
