//! qcow2 images: look-ups by workers, and changes by the image's thread.
//!
//! A worker looks up the place of a step's bytes in the file, in tables that are kept in memory
//! ([`table`]), and submits the step to the kernel. So requests to allocated data take the same
//! path as those of raw images, with one more look-up. All other work is done by the one thread of
//! the image ([`thread`]), which owns the tables: reading a table, allocating clusters, copying
//! from a backing file, decompressing, discarding. The thread hands the request back to its worker,
//! to be submitted or answered ([`Job`]).
//!
//! Durability, in addition to the rules for all images:
//!
//! - Tables are written to the file before a request that depends on them is completed, so no
//!   completed request is lost when the daemon is killed. A flush is one `fdatasync` of the file,
//!   which makes data and tables stable.
//! - On stable storage, the tables never refer to clusters that are not counted, or to which data
//!   of a backing file was not copied yet ([`refcounts`], [`writer`]).
//! - A cluster is reused only after the steps that may use it have ended ([`gate`]).

mod compressed;
mod eraser;
pub(crate) mod gate;
mod growing;
mod header;
pub(crate) mod job;
mod layer;
pub(crate) mod place;
mod reader;
mod refcounts;
mod resizer;
mod table;
mod thread;
mod unbilled;
mod writer;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use crate::image::handles::Handles;
use crate::image::options::{ImageError, ImageOptions};
use crate::operation::STEP;
use gate::{Entered, Gate};
use header::{AUTOCLEAR_AT, Header, most_bytes};
use job::Job;
use layer::{Layer, Source, refuse, source};
use place::Place;
use refcounts::Refcounts;
use table::{Found, Tables};
use thread::Thread;

/// The files of an image, and what its thread shares with workers.
#[derive(Debug)]
struct Shared {
    /// The image, its backing file, and so on.
    layers: Vec<Layer>,
    gate: Arc<Gate>,
    /// A file of zeros, as long as a step.
    zeros: File,
}

/// A qcow2 image.
#[derive(Debug)]
pub(crate) struct Qcow2 {
    shared: Arc<Shared>,
    version: u32,
    /// Runs from the time when the image is locked.
    thread: Mutex<Option<Thread>>,
}

impl Shared {
    /// The image itself.
    fn top(&self) -> Option<(&Layer, &Tables)> {
        let layer = self.layers.first()?;
        Some((layer, layer.tables.as_ref()?))
    }

    /// The place of the next bytes of a read; `Err`: the thread must handle them, in this layer.
    fn find_read(&self, offset: u64, most: u64) -> Result<Place, (usize, u64)> {
        let (source, len) = source(&self.layers, 0, offset, most.min(STEP as u64));
        match source {
            Source::File(layer, offset) => Ok(Place { layer: Some(layer), offset, len }),
            Source::Zeros => Ok(Place { layer: None, offset: 0, len }),
            Source::Elsewhere(layer, _) => Err((layer, len)),
        }
    }

    /// The place of the next bytes of a write, if they can be written in place.
    fn find_write(&self, offset: u64, most: u64) -> Option<Place> {
        let (_, tables) = self.top()?;
        match tables.find(offset, most.min(STEP as u64)) {
            (Found::Data(offset, true), len) => Some(Place { layer: Some(0), offset, len }),
            _ => None,
        }
    }
}

impl Qcow2 {
    /// Opens an image and its backing files.
    ///
    /// # Errors
    /// The reason why one of them cannot be used.
    pub fn open(options: &ImageOptions) -> Result<Qcow2, ImageError> {
        let (layers, header) = layer::open(options)?;
        let system = |error: io::Error| ImageError::System { path: options.path.clone(), error };
        let zeros = zeros().map_err(system)?;
        let gate = Arc::new(Gate::default());
        Ok(Qcow2 {
            shared: Arc::new(Shared { layers, gate, zeros }),
            version: header.version,
            thread: Mutex::new(None),
        })
    }

    /// The file of the image itself.
    pub fn top(&self) -> &Handles {
        let [top, ..] = self.shared.layers.as_slice() else { unreachable!("an image has a file") };
        &top.handles
    }

    /// Length of the disk in bytes.
    pub fn bytes(&self) -> u64 {
        self.shared.layers.first().map_or(0, |top| top.bytes.load(Ordering::Acquire))
    }

    /// Most bytes that the disk can have.
    pub fn most_bytes(&self) -> u64 {
        self.shared.top().map_or(0, |(_, tables)| most_bytes(tables.cluster()))
    }

    /// Makes the disk `bytes` long, and waits until that is stable. The image must be locked.
    ///
    /// # Errors
    /// The reason why the disk keeps its length.
    pub fn resize(&self, bytes: u64) -> io::Result<()> {
        // The lock is released at once, so that workers that hand requests to the thread do not
        // wait.
        let resized = self.thread.lock().as_ref().map(|thread| thread.resize(bytes));
        let resized = resized.and_then(|resized| resized.recv().ok());
        resized.unwrap_or_else(|| Err(io::Error::from_raw_os_error(libc::EBADF)))
    }

    /// Length of the file in bytes.
    pub fn end(&self) -> u64 {
        self.shared.layers.first().map_or(0, |top| top.end.load(Ordering::Relaxed))
    }

    /// Whether ranges can read as zeros without being written. Version 2 cannot express that over
    /// data of a backing file.
    pub fn can_unmap(&self) -> bool {
        self.version >= 3 || self.shared.layers.len() == 1
    }

    /// Begins to serve the image, which must be locked: reads tables that may have changed since it
    /// was opened, and starts its thread. Does nothing when the image is served already.
    ///
    /// # Errors
    /// The reason why it cannot be served.
    pub fn start(&self, read_only: bool) -> Result<(), ImageError> {
        let mut thread = self.thread.lock();
        if thread.is_some() {
            return Ok(());
        }
        let shared = &self.shared;
        let Some((top, tables)) = shared.top() else { return Ok(()) };
        let path = &top.path;
        let system = |error: io::Error| ImageError::System { path: path.clone(), error };
        shared.layers.iter().skip(1).try_for_each(Layer::lock_backing)?;
        let header = Header::read(top.file()).map_err(|reason| refuse(path, reason))?;
        if header.bytes != self.bytes() || header.cluster_bits != tables.cluster_bits {
            return Err(refuse(path, "it was changed by another program; start the disk again"));
        }
        top.load_l1(&header)?;
        for layer in shared.layers.iter().skip(1).filter(|layer| layer.tables.is_some()) {
            let backing = Header::read(layer.file()).map_err(|it| refuse(&layer.path, it))?;
            if backing.bytes != layer.bytes.load(Ordering::Acquire) {
                return Err(refuse(&layer.path, "it was changed by another program"));
            }
            layer.load_l1(&backing)?;
        }
        let refcounts = match read_only {
            true => None,
            false => {
                if let Some(reason) = header.refusal_to_write() {
                    return Err(refuse(path, reason));
                }
                let end = top.file().metadata().map_err(system)?.len();
                let mut refcounts = Refcounts::load(top.file(), &header, end).map_err(system)?;
                check_refcounts(top.file(), tables, &header, &mut refcounts)
                    .map_err(|reason| refuse(path, reason))?;
                if header.autoclear != 0 {
                    // Clears the feature of dirty bitmaps, which are not maintained here.
                    top.file().write_all_at(&[0; 8], AUTOCLEAR_AT).map_err(system)?;
                }
                top.end.store(end, Ordering::Relaxed);
                Some(refcounts)
            }
        };
        *thread = Some(Thread::start(Arc::clone(shared), header, refcounts).map_err(system)?);
        Ok(())
    }

    /// Looks up the place of a step from `offset` on, of at most `left` bytes. `None`: the thread
    /// has to be [asked](Self::ask).
    pub fn place(&self, offset: u64, left: u64, writes: bool) -> Option<(Place, Entered)> {
        let entered = self.shared.gate.enter();
        let place = match writes {
            true => self.shared.find_write(offset, left),
            false => self.shared.find_read(offset, left).ok(),
        };
        Some((place?, entered))
    }

    /// Hands a request to the thread.
    pub fn ask(&self, job: Box<dyn Job>) {
        match &*self.thread.lock() {
            Some(thread) => thread.ask(job),
            None => job.done(Err(libc::EBADF)),
        }
    }

    /// The file for a step of `pieces` at a place.
    pub fn file(&self, place: Place, pieces: &[libc::iovec]) -> BorrowedFd<'_> {
        let layer = place.layer.and_then(|layer| self.shared.layers.get(layer));
        match layer {
            Some(layer) => layer.handles.file(place.offset, pieces).0,
            None => self.shared.zeros.as_fd(),
        }
    }
}

/// A file of zeros that takes no memory.
fn zeros() -> io::Result<File> {
    let file = File::from(memfd_create("ringmain-zeros", MemfdFlags::CLOEXEC)?);
    ftruncate(&file, STEP as u64)?;
    Ok(file)
}

/// Checks that all clusters to which the header and the tables refer are counted. Otherwise other
/// data would be written over them.
fn check_refcounts(
    file: &File,
    tables: &Tables,
    header: &Header,
    refcounts: &mut Refcounts,
) -> Result<(), String> {
    let bits = header.cluster_bits;
    let (l1, entries) = (header.l1.0 >> bits, (header.l1.1 * 8).div_ceil(header.cluster()));
    let (table, clusters) = header.refcount_table;
    let fixed = [0..1, l1..l1 + entries, (table >> bits)..(table >> bits) + clusters];
    let l2 = (0..header.l1.1 as usize).filter_map(|index| tables.l2_place(index));
    let l2 = l2.map(|place| place >> bits);
    let blocks: Vec<u64> = refcounts.block_places().map(|place| place >> bits).collect();
    for cluster in fixed.into_iter().flatten().chain(l2).chain(blocks) {
        let count = refcounts.count(file, cluster).map_err(|error| error.to_string())?;
        if count != 1 {
            return Err(format!(
                "cluster {cluster} of its tables has refcount {count}; run qemu-img check -r all"
            ));
        }
    }
    Ok(())
}
