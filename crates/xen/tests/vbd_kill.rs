//! A back-end of vbds that is killed while it writes, again and again: each request is answered
//! once, and nothing that an old back-end still had under way lands on newer data.
//!
//! The back-end is a process: this program again, with the rings and the requests of vbds on
//! workers of its own. The store is left out, since nothing changes there: a next daemon finds both
//! states `Connected`. Grants are pages of a file that both processes have, and event channels are
//! pipes. The tests that are ignored kill a thousand back-ends each (CONTRIBUTING.md).

#[path = "../../storage/tests/stamps/mod.rs"]
mod stamps;

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use hypervisor::{Channel, DomId, GrantError, GrantRef, Grants, PAGE};
use ring::copies::Copies;
use ring::xen::{REQ_EVENT, REQ_PROD, RSP_EVENT, RSP_PROD, SLOTS, ring_size};
use ring::{Engine, Memory, Page, RegionSpec};
use runtime::{Group, ThreadUsage, group};
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat, open};
use stamps::{KILLS, MANY_KILLS, SECTOR, SECTORS, Stamps, kills};
use storage::disks::DiskSpec;
use storage::image::{Direct, ImageOptions};
use storage::{BlockPipeline, Disk, Disks, Image, engine};
use xen::blkif::layout::{LEN_32, LEN_64, Layout};
use xen::blkif::persistent_grants::PersistentGrants;
use xen::blkif::queue::{self, QueueParts};

/// Requests of a queue that are under way at most.
const MOST: usize = 16;
const QUEUES: usize = 2;
/// Pages of the guest: a ring for each queue, then data.
const PAGES: usize = QUEUES * (1 + MOST);

/// Ends a test that would hang.
const WATCHDOG: Duration = Duration::from_secs(60);

/// The environment of a back-end: its folder, then what `Site` has.
const FOLDER: &str = "RINGMAIN_VBD_FOLDER";

/// What front and back-end have in common.
#[derive(Clone, Debug)]
struct Site {
    folder: PathBuf,
    /// The file with the memory of the guest.
    guest: PathBuf,
    kind: Kind,
}

/// What is killed.
#[derive(Clone, Copy, Debug)]
struct Kind {
    layout: Layout,
    direct: Direct,
    /// The pages of the guest stay mapped.
    persistent: bool,
}

const DEFAULT: Kind = Kind { layout: Layout::Bits64, direct: Direct::Auto, persistent: false };

impl Site {
    fn image(&self) -> PathBuf {
        self.folder.join("disk.raw")
    }

    /// Some pages of the guest, from address 0 on.
    fn pages(&self, first: usize, count: usize) -> Arc<Memory> {
        self.scattered(&[first], count)
    }

    /// Runs of `count` pages of the guest, side by side from address 0 on.
    fn scattered(&self, firsts: &[usize], count: usize) -> Arc<Memory> {
        let len = (count * PAGE) as u64;
        let region = |(n, first): (usize, &usize)| {
            let file = File::options().read(true).write(true).open(&self.guest);
            let (at, offset) = (n as u64 * len, (first * PAGE) as u64);
            let fd = OwnedFd::from(file.unwrap());
            RegionSpec { guest_addr: at, user_addr: at, len, offset, fd }
        };
        Arc::new(Memory::map(firsts.iter().enumerate().map(region).collect()).unwrap())
    }

    /// The pipe by which the frontend signals a queue.
    fn pipe(&self, queue: usize) -> OwnedFd {
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        open(self.folder.join(format!("kick{queue}")), flags, Mode::empty()).unwrap()
    }

    /// Starts a back-end. The first is not told to take up what another left.
    fn start(&self, resumed: bool) -> Child {
        let mut part = Command::new(std::env::current_exe().unwrap());
        part.args(["--exact", "backend", "--nocapture"]).env(FOLDER, &self.folder);
        let Kind { layout, direct, persistent } = self.kind;
        part.env("GUEST", &self.guest).env("LAYOUT", layout.name());
        part.env("DIRECT", format!("{direct:?}")).env("RESUMED", resumed.to_string());
        part.env("PERSISTENT", persistent.to_string());
        part.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap()
    }
}

/// A hypervisor for which grant reference n is page n of the guest.
#[derive(Debug)]
struct PageFile(Arc<Memory>);

impl Engine for PageFile {
    fn run(&self, copies: &mut Copies) {
        copies.emulate(|pin, granted, _, _| {
            pin.hold(&self.0);
            Ok(u64::from(granted.reference.0) * PAGE as u64 + u64::from(granted.offset))
        });
    }
}

/// The same hypervisor, to map pages.
#[derive(Debug)]
struct MappedFile(Site);

impl Grants for MappedFile {
    fn map(&self, _: DomId, references: &[GrantRef]) -> Result<Arc<Memory>, GrantError> {
        let pages: Vec<_> = references.iter().map(|reference| reference.0 as usize).collect();
        Ok(self.0.scattered(&pages, 1))
    }

    fn map_page(
        &self,
        domain: DomId,
        reference: GrantRef,
        write: bool,
    ) -> Result<Page, GrantError> {
        Err(GrantError::Page { domain, reference, write })
    }

    fn copy(&self, _: &mut Copies) -> Result<(), GrantError> {
        panic!("persistent grants need no copies")
    }
}

/// The back-end's end of a pipe. The frontend polls, and is not signalled.
#[derive(Debug)]
struct Pipe(OwnedFd);

impl Channel for Pipe {
    fn notify(&self) {}

    fn waker(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn take(&self) -> bool {
        let mut bytes = [0; 64];
        std::iter::from_fn(|| rustix::io::read(&self.0, &mut bytes).ok()).count() > 0
    }
}

/// The process that is killed, when the environment says so.
#[test]
fn backend() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let given = |name: &str| std::env::var(name).unwrap();
    let layout = Layout::named(Some(&given("LAYOUT"))).unwrap();
    let direct = if given("DIRECT") == "Never" { Direct::Never } else { Direct::Auto };
    let persistent = given("PERSISTENT") == "true";
    let kind = Kind { layout, direct, persistent };
    let site = Site { folder: folder.into(), guest: given("GUEST").into(), kind };
    let resumed = given("RESUMED") == "true";
    let image = Image::open(&ImageOptions { direct, ..ImageOptions::new(site.image()) }).unwrap();
    // Requests of the process before hold it.
    while image.lock().is_err() {}
    let disk = Arc::new(Disk::new(Arc::new(image), "disk"));
    disk.set_write_through(false).unwrap();
    let doorbells = group::doorbells(QUEUES).unwrap();
    let pipelines = (0..QUEUES)
        .map(|_| BlockPipeline::new(engine::best().unwrap(), ThreadUsage::default))
        .collect();
    let workers = Group::start(doorbells, pipelines, &[], Default::default()).unwrap();
    let disks = Disks::new(Arc::new(workers));
    let (shared, name) = (Arc::clone(&disk), "disk".into());
    let on_error = Arc::new(|_, error| panic!("{error}"));
    let id = disks.add(DiskSpec { name, disk: shared, on_error, policy: None });
    let engine = Arc::new(PageFile(site.pages(0, PAGES)));
    let pages = || {
        let grants = Arc::new(MappedFile(site.clone()));
        PersistentGrants::new(DomId(1), grants, Arc::default())
    };
    for index in 0..QUEUES {
        let queue = queue::start(QueueParts {
            ring: site.pages(index, 1),
            pages: 1,
            channel: Box::new(Pipe(site.pipe(index))),
            layout,
            domain: DomId(1),
            engine: Arc::clone(&engine) as Arc<dyn Engine>,
            persistent: persistent.then(pages),
            disk: Arc::clone(&disk),
            resumed,
        });
        disks.attach(id, index as u16, queue.unwrap()).unwrap();
    }
    // Until it is killed, or the test has ended without that.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

/// A queue of the frontend.
struct Queue {
    ring: Arc<Memory>,
    pipe: OwnedFd,
    prod: u32,
    cons: u32,
    /// Pages for data that are free.
    free: Vec<u32>,
    /// By the number of the request: its page, and the number of the write.
    waiting: HashMap<u64, (u32, usize)>,
}

impl Queue {
    fn get(&self, at: u64) -> u32 {
        let mut word = [0; 4];
        self.ring.read(at, &mut word).unwrap();
        u32::from_le_bytes(word)
    }

    fn set(&self, at: u64, value: u32) {
        self.ring.write(at, &value.to_le_bytes()).unwrap();
    }
}

/// A frontend, which outlives its back-ends.
struct Front {
    site: Site,
    memory: Memory,
    _file: OwnedFd,
    queues: Vec<Queue>,
    stamps: Stamps,
}

impl Front {
    fn new(folder: &Path, kind: Kind) -> Front {
        let (memory, file) = Memory::shared(PAGES * PAGE).unwrap();
        // The file has no other path.
        let guest = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()).into();
        let site = Site { folder: folder.to_owned(), guest, kind };
        File::create(site.image()).unwrap().set_len(SECTORS * SECTOR).unwrap();
        let queue = |index: usize| {
            let path = folder.join(format!("kick{index}"));
            mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
            let first = (QUEUES + index * MOST) as u32;
            let queue = Queue {
                ring: site.pages(index, 1),
                pipe: site.pipe(index),
                prod: 0,
                cons: 0,
                free: (first..first + MOST as u32).collect(),
                waiting: HashMap::new(),
            };
            [REQ_EVENT, RSP_EVENT].into_iter().for_each(|event| queue.set(event, 1));
            queue
        };
        let queues = (0..QUEUES).map(queue).collect();
        let stamps = Stamps::new(kind.layout.id() as u64);
        Front { site, memory, _file: file, queues, stamps }
    }

    fn slot(&self, number: u32) -> u64 {
        let len = if self.site.kind.layout == Layout::Bits64 { LEN_64 } else { LEN_32 };
        SLOTS + len as u64 * u64::from(number & (ring_size(len) - 1))
    }

    /// Sends a write, if there is room for it.
    fn send(&mut self, index: usize) {
        let Some(page) = self.queues[index].free.pop() else { return };
        let (sectors, data) = self.stamps.next();
        self.memory.write(u64::from(page) * PAGE as u64, &data).unwrap();
        let (at, layout) = (self.slot(self.queues[index].prod), self.site.kind.layout);
        let last = (sectors.end - sectors.start - 1) as u8;
        let (first, number) = (sectors.start, self.stamps.sent(sectors));
        let queue = &mut self.queues[index];
        let write = |at: u64, bytes: &[u8]| queue.ring.write(at, bytes).unwrap();
        // A write of one segment (xen/include/public/io/blkif.h).
        write(at, &[1, 1, 0, 0]);
        write(at + layout.id() as u64, &(number as u64).to_le_bytes());
        write(at + layout.sector() as u64, &first.to_le_bytes());
        let segment = [&page.to_le_bytes()[..], &[0, last, 0, 0]].concat();
        write(at + layout.body() as u64, &segment);
        queue.waiting.insert(number as u64, (page, number));
        queue.prod = queue.prod.wrapping_add(1);
        fence(Ordering::SeqCst);
        queue.set(REQ_PROD, queue.prod);
        // A pipe that is full signals anyway.
        let _ = rustix::io::write(&queue.pipe, &[0]);
    }

    /// Takes the responses that have come.
    fn collect(&mut self) {
        for index in 0..QUEUES {
            let prod = self.queues[index].get(RSP_PROD);
            fence(Ordering::SeqCst);
            while self.queues[index].cons != prod {
                let at = self.slot(self.queues[index].cons);
                let queue = &mut self.queues[index];
                let mut response = [0; 12];
                queue.ring.read(at, &mut response).unwrap();
                let id = u64::from_le_bytes(*response.first_chunk().unwrap());
                let (page, number) = queue.waiting.remove(&id).expect("answered twice");
                assert_eq!(response[8..], [1, 0, 0, 0], "the operation and status of {number}");
                self.stamps.answered(number);
                queue.free.push(page);
                queue.cons = queue.cons.wrapping_add(1);
            }
        }
    }

    fn waiting(&self) -> usize {
        self.queues.iter().map(|queue| queue.waiting.len()).sum()
    }

    /// Works until a condition holds.
    #[track_caller]
    fn work(&mut self, sends: bool, backend: &mut Child, there: impl Fn(&Front) -> bool) {
        let until = Instant::now() + WATCHDOG;
        while !there(self) {
            if sends {
                let queue = self.stamps.random.usize(..QUEUES);
                self.send(queue);
            }
            if !sends || self.stamps.random.u64(..3) == 0 {
                self.collect();
            }
            let ended = backend.try_wait().unwrap();
            assert!(ended.is_none() && Instant::now() < until, "{ended:?}, {}", self.waiting());
        }
    }
}

fn killed_again_and_again(kind: Kind, kills: u64) {
    let folder = tempfile::tempdir().unwrap();
    let mut front = Front::new(folder.path(), kind);
    let mut backend = front.site.start(false);
    let mut unanswered = 0;
    for kill in 0..kills {
        let enough = front.stamps.events() + 200 + kill % 50;
        front.work(true, &mut backend, |front| front.stamps.events() >= enough);
        (0..front.stamps.random.u64(..5000)).for_each(|_| std::hint::spin_loop());
        backend.kill().unwrap();
        backend.wait().unwrap();
        front.collect();
        unanswered += front.waiting();
        backend = front.site.start(true);
    }
    front.work(false, &mut backend, |front| front.waiting() == 0);
    backend.kill().unwrap();
    backend.wait().unwrap();
    front.stamps.check(&front.site.image());
    assert!(unanswered > 0, "no back-end was killed with requests under way");
}

#[test]
fn slots_of_64_bits_past_the_page_cache() {
    killed_again_and_again(DEFAULT, kills(KILLS));
}

#[test]
fn slots_of_64_bits_through_the_page_cache() {
    killed_again_and_again(Kind { direct: Direct::Never, ..DEFAULT }, kills(KILLS));
}

#[test]
fn slots_of_32_bits_past_the_page_cache() {
    killed_again_and_again(Kind { layout: Layout::Bits32, ..DEFAULT }, kills(KILLS));
}

#[test]
fn mapped_pages_past_the_page_cache() {
    killed_again_and_again(Kind { persistent: true, ..DEFAULT }, kills(KILLS));
}

#[test]
fn mapped_pages_through_the_page_cache() {
    let kind = Kind { persistent: true, direct: Direct::Never, ..DEFAULT };
    killed_again_and_again(kind, kills(KILLS));
}

#[test]
#[ignore = "takes minutes"]
fn a_thousand_kills() {
    killed_again_and_again(DEFAULT, kills(MANY_KILLS));
}

#[test]
#[ignore = "takes minutes"]
fn a_thousand_kills_with_mapped_pages() {
    killed_again_and_again(Kind { persistent: true, ..DEFAULT }, kills(MANY_KILLS));
}
