//! A power cut at any moment under a qcow2 image: what was flushed is there, and the image is
//! sound.
//!
//! The image lies on a file system that writes down each change of the file, and each time that it
//! is to be made stable: those of workers and those of the thread of the image. At each prefix of
//! that log, a drive holds what was made stable, and of the rest any subset of sectors. Each such
//! file is read by a reader of the test's own; samples are read by QEMU, and served again.

#[path = "../guest/mod.rs"]
mod guest;
mod model;
#[path = "../one_file/mod.rs"]
mod one_file;
mod reader;
mod recorder;
mod writer;

use std::path::Path;
use std::process::Command;

use fastrand::Rng;
use guest::{SECTOR, Sent, Site, options};
use model::Model;
use one_file::OneFile;
use recorder::{Change, Event, Recorder};
use storage::Image;
use storage::engine::{self, ThreadEngine};
use storage::image::{Format, ImageOptions};
use writer::Writer;

/// Most sectors of a write.
const MOST: u64 = guest::LONGEST / SECTOR as u64;
/// Events of a recording after which the power is cut, about.
const MOST_CUTS: usize = 300;
/// The stamps of sectors that had data at first are so much, and the number of the sector.
const FIRST: u64 = 1 << 40;

fn qcow2(path: &Path) -> ImageOptions {
    ImageOptions { format: Format::Qcow2, ..options(path) }
}

/// Runs `qemu-img` in a folder. Its exit status, and what it said.
fn qemu_img(folder: &Path, arguments: &str) -> (i32, String) {
    let mut command = Command::new("qemu-img");
    command.current_dir(folder).args(arguments.split_whitespace());
    let output = command.output().expect("qemu-img runs (package qemu-utils)");
    let said = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&said).into_owned())
}

/// A disk before its guest has it.
#[derive(Clone, Copy, Debug)]
enum First {
    Empty,
    /// A backing file has data.
    Backed,
    /// The data is compressed.
    Compressed,
}

/// Images of one kind.
#[derive(Clone, Copy, Debug)]
struct Case {
    cluster: u64,
    sectors: u64,
    first: First,
    write_through: bool,
    /// The disk becomes longer, in part over data of a backing file.
    grows: bool,
}

impl Case {
    /// The sectors of the file that the disk is made of.
    fn base(self) -> u64 {
        if self.grows { self.sectors * 3 / 2 } else { self.sectors }
    }

    /// The stamp of a sector that nothing was written to.
    fn stamp(self, sector: u64) -> u64 {
        let has_data = !matches!(self.first, First::Empty) && sector < self.base();
        if has_data { FIRST + sector } else { 0 }
    }
}

/// What is left out, to show that the check finds what it is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ignored {
    Nothing,
    /// When the thread of the image makes the file stable.
    OfImageThread,
    /// When a guest's flush does.
    OfGuest,
}

/// A guest's work on an image, as it was recorded.
struct Recording {
    case: Case,
    folder: tempfile::TempDir,
    /// The file before it.
    file: Vec<u8>,
    log: Vec<Event>,
}

impl Recording {
    fn new(case: Case, seed: u64) -> Option<Recording> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("first");
        let run = |arguments: &str| {
            let (status, said) = qemu_img(folder.path(), arguments);
            assert_eq!(status, 0, "qemu-img {arguments}: {said}");
        };
        let (keys, bytes) = (format!("-o cluster_size={}", case.cluster), case.sectors * 512);
        let base = folder.path().join("base");
        let mut data = vec![0; case.base() as usize * SECTOR];
        for (number, sector) in data.chunks_mut(SECTOR).enumerate() {
            sector[..8].copy_from_slice(&(FIRST + number as u64).to_le_bytes());
        }
        std::fs::write(&base, data).unwrap();
        match case.first {
            First::Empty => run(&format!("create -q -f qcow2 {keys} first {bytes}")),
            First::Backed => {
                let base = base.display();
                run(&format!("create -q -f qcow2 {keys} -b {base} -F raw first {bytes}"));
            }
            First::Compressed => run(&format!("convert -c {keys} -f raw -O qcow2 base first")),
        }
        let file = std::fs::read(path).unwrap();
        let recorder = Recorder::new(file.clone());
        let mounted = OneFile::mount(recorder.clone(), true)?;
        let engine = match seed % 2 {
            0 => engine::best().unwrap(),
            _ => Box::new(ThreadEngine::new().unwrap()),
        };
        let mut writer = Writer::new(&mounted.path(), case.cluster, recorder.clone(), engine);
        writer.play(seed, case.write_through, case.grows);
        drop(writer);
        closed(&mounted.path());
        drop(mounted);
        Some(Recording { case, folder, file, log: recorder.log() })
    }

    /// What every sector holds before anything is written.
    fn model(&self) -> Model {
        Model::new((0..self.case.sectors).map(|sector| self.case.stamp(sector)))
    }

    /// Cuts the power after each event, or after some of very many, with some subsets of what is
    /// not stable. Checks one of `every` cuts with other readers, too.
    ///
    /// # Errors
    /// After how many events what is wrong.
    fn replay(&self, seed: u64, ignored: Ignored, every: u64) -> Result<(), String> {
        let (mut model, mut random) = (self.model(), Rng::with_seed(seed));
        let mut drive = Drive { file: self.file.clone(), pending: Vec::new() };
        for (at, event) in self.log.iter().enumerate() {
            match event {
                Event::Begun(number, change) => drive.pending.push(Pending {
                    number: *number,
                    parts: change.parts(),
                    ended: false,
                }),
                Event::Ended(number) => drive.end(*number),
                Event::Synced(true) if ignored == Ignored::OfImageThread => {}
                Event::Synced(false) if ignored == Ignored::OfGuest => {}
                Event::Synced(_) => drive.sync(),
                Event::Sent(request, sectors, stamp) => {
                    model.sent(*request, sectors.clone(), *stamp);
                }
                Event::Grown(sectors) => model.grow(*sectors),
                Event::Relied(requests) => requests.iter().for_each(|it| model.relied(*it)),
            }
            if random.usize(..self.log.len()) > MOST_CUTS {
                continue;
            }
            for kept in [0.0, 0.5, 0.9, 1.0] {
                let checked = drive.cut(&mut random, kept, |file, random| {
                    let disk = reader::Disk::open(file)?;
                    model.check(|sector| disk.sector(sector, self.case.stamp(sector)))?;
                    match every > 0 && random.u64(..every) == 0 {
                        true => self.check_file(file, &model),
                        false => Ok(()),
                    }
                });
                checked
                    .map_err(|reason| format!("event {at}, {event:?}, kept {kept}: {reason}"))?;
            }
        }
        Ok(())
    }

    /// QEMU finds nothing wrong but leaks, and reads what it must; and so does an image that is
    /// served.
    fn check_file(&self, file: &[u8], model: &Model) -> Result<(), String> {
        let (folder, path) = (self.folder.path(), self.folder.path().join("cut"));
        std::fs::write(&path, file).unwrap();
        // 3: nothing but leaks.
        let (status, said) = qemu_img(folder, "check -f qcow2 cut");
        if status != 0 && status != 3 {
            return Err(format!("qemu-img check: {said}"));
        }
        let (status, said) = qemu_img(folder, "convert -f qcow2 -O raw cut read");
        if status != 0 {
            return Err(format!("qemu-img convert: {said}"));
        }
        let check = |read: &[u8]| {
            model.check(|sector| reader::stamp(&read[sector as usize * SECTOR..][..SECTOR]))
        };
        check(&std::fs::read(folder.join("read")).unwrap()).map_err(|it| format!("QEMU: {it}"))?;
        check(&served(&path)?).map_err(|reason| format!("served: {reason}"))?;
        closed(&path);
        let (status, said) = qemu_img(folder, "check -f qcow2 cut");
        if status == 0 || status == 3 { Ok(()) } else { Err(format!("served, check: {said}")) }
    }
}

/// Waits until an image is closed: the kernel may let go of the last request a little later.
#[track_caller]
fn closed(path: &Path) {
    Image::open(&qcow2(path)).and_then(|image| image.lock()).unwrap();
}

/// What an image that is served reads.
fn served(path: &Path) -> Result<Vec<u8>, String> {
    let image = Image::open(&qcow2(path)).map_err(|error| error.to_string())?;
    image.lock().map_err(|error| error.to_string())?;
    let (sectors, mut read) = (image.bytes() / SECTOR as u64, Vec::new());
    let mut site = Site::new(image, 1, Box::new(ThreadEngine::new().unwrap()));
    for at in (0..sectors).step_by(MOST as usize) {
        let answer = site.ask(&Sent::read(at, MOST.min(sectors - at)));
        if answer.status != 0 {
            return Err(format!("sector {at} cannot be read"));
        }
        read.extend(answer.data);
    }
    Ok(read)
}

/// A change that is not stable.
struct Pending {
    number: u64,
    parts: Vec<Change>,
    ended: bool,
}

/// A drive with a volatile cache.
struct Drive {
    /// What is stable.
    file: Vec<u8>,
    pending: Vec<Pending>,
}

impl Drive {
    fn end(&mut self, number: u64) {
        let ended = self.pending.iter_mut().find(|change| change.number == number);
        ended.expect("a change ends once").ended = true;
    }

    /// Makes all that has ended stable.
    fn sync(&mut self) {
        let (ended, rest) = self.pending.drain(..).partition(|change| change.ended);
        self.pending = rest;
        let ended: Vec<Pending> = ended;
        for part in ended.iter().flat_map(|change| &change.parts) {
            part.apply(&mut self.file);
        }
    }

    /// Looks at the file that is left with this share of the sectors that are not stable.
    fn cut<T>(
        &mut self,
        random: &mut Rng,
        kept: f64,
        look: impl FnOnce(&[u8], &mut Rng) -> T,
    ) -> T {
        let mut replaced = Vec::new();
        for part in self.pending.iter().flat_map(|change| &change.parts) {
            if random.f64() < kept {
                replaced.push(part.apply(&mut self.file));
            }
        }
        let found = look(&self.file, random);
        for (at, bytes) in replaced.into_iter().rev() {
            self.file[at as usize..][..bytes.len()].copy_from_slice(&bytes);
        }
        found
    }
}

/// Records and replays guests on images of one kind.
#[track_caller]
fn cut_power(cluster: u64, first: First, write_through: bool) {
    let sectors = if cluster < 65_536 { 1203 } else { 2051 };
    replay_all(Case { cluster, sectors, first, write_through, grows: false });
}

#[track_caller]
fn replay_all(case: Case) {
    for seed in 0..3 {
        let Some(recording) = Recording::new(case, seed) else { return };
        let events = recording.log.len();
        let every = events.min(MOST_CUTS) as u64 / 2;
        let replayed = recording.replay(seed, Ignored::Nothing, every);
        assert_eq!(replayed, Ok(()), "{case:?}, seed {seed}, {events} events");
    }
}

#[test]
fn clusters_of_a_sector() {
    cut_power(512, First::Empty, false);
}

#[test]
fn clusters_of_a_page() {
    cut_power(4096, First::Empty, false);
}

#[test]
fn clusters_of_64_kib() {
    cut_power(65_536, First::Empty, false);
}

#[test]
fn a_backing_file_under_clusters_of_a_sector() {
    cut_power(512, First::Backed, false);
}

#[test]
fn a_backing_file_under_clusters_of_a_page() {
    cut_power(4096, First::Backed, false);
}

#[test]
fn a_backing_file_under_clusters_of_64_kib() {
    cut_power(65_536, First::Backed, false);
}

#[test]
fn compressed_data() {
    cut_power(4096, First::Compressed, false);
    cut_power(65_536, First::Compressed, false);
}

#[test]
fn without_a_write_cache() {
    cut_power(4096, First::Empty, true);
    cut_power(65_536, First::Backed, true);
}

#[test]
fn disks_that_grow() {
    for (cluster, first) in [(512, First::Empty), (512, First::Backed), (4096, First::Backed)] {
        replay_all(Case { cluster, sectors: 1203, first, write_through: false, grows: true });
    }
}

/// The check finds what it is there for.
#[track_caller]
fn found_out(ignored: Ignored) {
    let case = Case {
        cluster: 4096,
        sectors: 1203,
        first: First::Backed,
        write_through: false,
        grows: false,
    };
    for seed in 0..4 {
        let Some(recording) = Recording::new(case, seed) else { return };
        assert!(recording.replay(seed, ignored, 0).is_err(), "seed {seed}");
    }
}

#[test]
fn flushes_that_the_thread_of_the_image_leaves_out_are_found_out() {
    found_out(Ignored::OfImageThread);
}

#[test]
fn flushes_of_the_guest_that_are_ignored_are_found_out() {
    found_out(Ignored::OfGuest);
}
