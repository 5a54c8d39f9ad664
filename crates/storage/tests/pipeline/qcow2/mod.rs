//! qcow2 images that `qemu-img` has made, against a model, and checked by `qemu-img` afterwards.

mod refusals;

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::guest::{SECTOR, Sent, Site, options};
use fastrand::Rng;
use storage::Image;
use storage::engine::{self, ThreadEngine};
use storage::image::{Direct, Format, ImageError, ImageOptions};

const OK: u8 = 0;

/// Length of the disks: not a whole number of clusters.
const BYTES: u64 = (6 << 20) + 3 * SECTOR as u64;

/// Runs `qemu-img` in a folder.
#[track_caller]
fn qemu_img(folder: &Path, arguments: &str) -> String {
    let mut command = Command::new("qemu-img");
    command.current_dir(folder).args(arguments.split(' '));
    let output = command.output().expect("qemu-img runs (package qemu-utils)");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "qemu-img {arguments}: {said}{errors}");
    said
}

fn qcow2(path: &Path) -> ImageOptions {
    ImageOptions { format: Format::Qcow2, ..options(path) }
}

fn open(options: &ImageOptions) -> Result<Image, ImageError> {
    let image = Image::open(options)?;
    image.lock()?;
    Ok(image)
}

#[track_caller]
fn refused(options: &ImageOptions) -> String {
    open(options).map(drop).unwrap_err().to_string()
}

/// A disk, and what has to be on it.
struct Tested {
    options: ImageOptions,
    model: Vec<u8>,
    site: Option<Site>,
    random: Rng,
}

impl Tested {
    fn new(options: ImageOptions, model: Vec<u8>, seed: u64) -> Tested {
        Tested { options, model, site: None, random: Rng::with_seed(seed) }
    }

    fn site(&mut self) -> &mut Site {
        let options = &self.options;
        self.site
            .get_or_insert_with(|| Site::new(open(options).unwrap(), 2, engine::best().unwrap()))
    }

    /// A range of the disk: sector, sectors.
    fn range(&mut self, longest: u64) -> (u64, u64) {
        let all = self.model.len() as u64 / SECTOR as u64;
        let sector = self.random.u64(..all);
        (sector, 1 + self.random.u64(..longest.min(all - sector)))
    }

    fn bytes(&mut self, (sector, sectors): (u64, u64)) -> &mut [u8] {
        &mut self.model[sector as usize * SECTOR..(sector + sectors) as usize * SECTOR]
    }

    #[track_caller]
    fn one(&mut self, sent: &Sent) -> Vec<u8> {
        let (queue, piece) = (self.random.usize(..2), [512, 1000, 4096, 1 << 20]);
        let piece = piece[self.random.usize(..4)];
        let site = self.site();
        site.send(queue, sent, piece).unwrap();
        let answer = site.answers(1).remove(0).1;
        assert_eq!(answer.status, OK, "{sent:?}");
        answer.data
    }

    /// Carries out requests at random. Several writes that touch each other's clusters are under
    /// way at a time.
    fn play(&mut self, steps: usize) {
        for _ in 0..steps {
            match self.random.u32(..12) {
                0..4 => self.write_several(),
                4..8 => {
                    let range = self.range(128);
                    let data = self.one(&Sent::read(range.0, range.1));
                    assert!(
                        data == self.bytes(range),
                        "{range:?} of {}",
                        self.options.path.display()
                    );
                }
                8 => {
                    let range = self.range(1000);
                    self.one(&Sent::range(11, range.0, range.1 as u32, 0));
                    self.bytes(range).fill(0);
                }
                9 | 10 => {
                    let (range, unmap) = (self.range(1000), self.random.u32(..2));
                    self.one(&Sent::range(13, range.0, range.1 as u32, unmap));
                    self.bytes(range).fill(0);
                }
                _ => _ = self.one(&Sent::flush()),
            }
        }
    }

    fn write_several(&mut self) {
        let (sector, sectors) = self.range(512);
        let mut at = sector;
        let mut sent = 0;
        while at < sector + sectors && sent < 8 {
            let now = (1 + self.random.u64(..128)).min(sector + sectors - at);
            let fill = self.random.u8(1..);
            self.bytes((at, now)).fill(fill);
            let write = Sent::write(at, vec![fill; now as usize * SECTOR]);
            let queue = self.random.usize(..2);
            self.site().send(queue, &write, 1 << 20).unwrap();
            (at, sent) = (at + now, sent + 1);
        }
        let answers = self.site().answers(sent);
        assert!(answers.iter().all(|(_, answer)| answer.status == OK));
    }

    /// Closes the disk. QEMU finds what the model has, and nothing wrong, not even a leak.
    #[track_caller]
    fn check(&mut self) {
        self.site = None;
        // The kernel may let go of the last request a little later.
        drop(open(&self.options).unwrap());
        let path = self.options.path.clone();
        let (folder, name) = (path.parent().unwrap(), path.file_name().unwrap().to_str().unwrap());
        qemu_img(folder, &format!("check -q -f qcow2 {name}"));
        std::fs::write(folder.join("model"), &self.model).unwrap();
        qemu_img(folder, &format!("compare -q -f qcow2 -F raw {name} model"));
    }
}

/// Bytes of a backing file that differ from sector to sector, with holes.
fn pattern(bytes: u64) -> Vec<u8> {
    let sector = |sector: u64| {
        let fill = if (sector / 300).is_multiple_of(2) { sector as u8 | 1 } else { 0 };
        vec![fill; SECTOR]
    };
    (0..bytes / SECTOR as u64).flat_map(sector).collect()
}

fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("disk.qcow2");
    (folder, image)
}

/// A new disk, on which all is zero.
fn empty_disk(seed: u64) -> (tempfile::TempDir, Tested) {
    let (folder, image) = folder();
    qemu_img(folder.path(), &format!("create -q -f qcow2 disk.qcow2 {BYTES}"));
    (folder, Tested::new(qcow2(&image), vec![0; BYTES as usize], seed))
}

#[test]
fn an_image_has_what_a_model_has() {
    for (number, keys) in [
        "",
        "-o cluster_size=512",
        "-o cluster_size=4k",
        "-o compat=0.10",
        "-o cluster_size=2M",
        "-o preallocation=metadata",
    ]
    .into_iter()
    .enumerate()
    {
        let (folder, image) = folder();
        let create = format!("create -q -f qcow2 {keys} disk.qcow2 {BYTES}");
        qemu_img(folder.path(), &create.replace("  ", " "));
        let small = keys.contains("size=512");
        let direct = if small { Direct::Auto } else { [Direct::Always, Direct::Never][number % 2] };
        let options = ImageOptions { direct, ..qcow2(&image) };
        let mut disk = Tested::new(options, vec![0; BYTES as usize], number as u64);
        for _ in 0..3 {
            disk.play(60);
            disk.check();
        }
    }
}

#[test]
fn an_image_keeps_what_its_backing_files_have() {
    for (number, (base, keys)) in [
        ("raw", ""),
        ("raw", "-o cluster_size=4k"),
        ("qcow2", ""),
        ("qcow2", "-o cluster_size=512"),
        ("qcow2 -c", ""),
    ]
    .into_iter()
    .enumerate()
    {
        let (folder, image) = folder();
        // Shorter than the disk.
        let data = pattern(5 << 20);
        std::fs::write(folder.path().join("data"), &data).unwrap();
        let sub = folder.path().join("bases");
        std::fs::create_dir(&sub).unwrap();
        qemu_img(folder.path(), &format!("convert -f raw -O {base} data bases/base"));
        let format = base.split(' ').next().unwrap();
        // Names are relative to the folder of the file that has them.
        qemu_img(&sub, &format!("create -q -f qcow2 -b base -F {format} middle {BYTES}"));
        let create = format!("create -q -f qcow2 {keys} -b bases/middle -F qcow2 disk.qcow2");
        qemu_img(folder.path(), &create.replace("  ", " "));
        let mut model = data;
        model.resize(BYTES as usize, 0);
        let direct = if number == 0 { Direct::Always } else { Direct::Auto };
        let mut disk = Tested::new(ImageOptions { direct, ..qcow2(&image) }, model, number as u64);
        for _ in 0..3 {
            disk.play(60);
            disk.check();
        }
        let base = std::fs::read(sub.join("base")).unwrap();
        disk.play(20);
        assert!(base == std::fs::read(sub.join("base")).unwrap(), "a backing file was written");
    }
}

#[test]
fn compressed_clusters_are_read_and_replaced() {
    let (folder, image) = folder();
    let mut model = pattern(BYTES);
    std::fs::write(folder.path().join("data"), &model).unwrap();
    qemu_img(folder.path(), "convert -c -f raw -O qcow2 data disk.qcow2");
    model.resize(BYTES as usize, 0);
    let mut disk = Tested::new(qcow2(&image), model, 7);
    disk.play(100);
    let site = disk.site();
    let charged = site.disks.counters(site.id);
    assert!(charged.iter().any(|(queue, _)| queue.image_thread_ns.get() > 0), "nobody pays");
    disk.check();
}

#[test]
fn engines_without_io_uring_serve_images_too() {
    let (_folder, mut disk) = empty_disk(9);
    let engine = Box::new(ThreadEngine::new().unwrap());
    disk.site = Some(Site::new(open(&disk.options).unwrap(), 2, engine));
    disk.play(100);
    disk.check();
}

#[test]
fn without_a_write_cache_each_write_is_stable() {
    let (_folder, mut disk) = empty_disk(11);
    disk.site().disk.set_write_through(true).unwrap();
    disk.play(60);
    disk.check();
}

/// KiB that a file takes.
fn allocated(path: &Path) -> u64 {
    path.metadata().unwrap().blocks() / 2
}

#[test]
fn an_image_takes_space_for_what_is_written_and_gives_it_back() {
    let (folder, image) = folder();
    qemu_img(folder.path(), "create -q -f qcow2 disk.qcow2 64M");
    let mut disk = Tested::new(qcow2(&image), vec![0; 64 << 20], 1);
    let write = |sector: u64| Sent::write(sector, vec![1; crate::guest::LONGEST as usize]);
    let whole = crate::guest::LONGEST / SECTOR as u64;
    for _ in 0..3 {
        (0..256).for_each(|number| _ = disk.one(&write(number * whole)));
        assert!(allocated(&image) >= 16 << 10);
        disk.one(&Sent::range(11, 0, 256 * whole as u32, 0));
        assert_eq!(disk.one(&Sent::read(0, 8)), [0; 8 * SECTOR]);
    }
    disk.check();
    assert!(allocated(&image) < 2 << 10, "{} KiB", allocated(&image));
    // What was given back was used again.
    assert!(image.metadata().unwrap().len() < 40 << 20);
}

#[test]
fn the_refcount_table_becomes_longer() {
    let (folder, image) = folder();
    // A table of one cluster counts 64 blocks of 256 clusters: 8 MiB.
    qemu_img(folder.path(), "create -q -f qcow2 -o cluster_size=512 disk.qcow2 20M");
    let mut disk = Tested::new(qcow2(&image), vec![0; 20 << 20], 1);
    for number in 0..(20 << 20) / crate::guest::LONGEST {
        let at = number * crate::guest::LONGEST;
        let data = vec![number as u8 | 1; crate::guest::LONGEST as usize];
        disk.model[at as usize..][..data.len()].copy_from_slice(&data);
        disk.one(&Sent::write(at / SECTOR as u64, data));
    }
    disk.check();
    disk.play(20);
    disk.check();
}
