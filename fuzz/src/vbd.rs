//! A queue of a vbd whose frontend writes anything anywhere in its ring and its lists, and grants
//! and revokes as it likes.

use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use hypervisor::test::{Guest, Machine, Port};
use hypervisor::{DomId, GrantRef, Hypervisor, PAGE};
use ring::IoChain;
use storage::image::{Direct, ImageOptions};
use storage::queue::RequestQueue;
use storage::{Disk, Image};
use xen::blkif::layout::Layout;
use xen::blkif::persistent_grants::PersistentGrants;
use xen::blkif::queue::{QueueParts, start};
use xen::xenbus::GrantCopyEngine;

use crate::input::Input;

/// Most steps of one run.
const STEPS: usize = 200;
/// Pages of the frontend: its ring, and those with data and lists.
const PAGES: u32 = 12;
/// Bytes of the image.
const BYTES: u64 = 1 << 20;

struct Front {
    guest: Guest,
    grants: Vec<GrantRef>,
    port: Port,
    layout: Layout,
    /// Its grants are persistent, or so it says.
    persistent: bool,
}

/// The life of a frontend.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let machine = Machine::new();
    let hypervisor = machine.hypervisor(DomId(0));
    let front = Front::new(&machine, &mut input);
    let mut queue = front.queue(&hypervisor, input.u8() & 1 == 0);
    let (mut chain, mut taken) = (IoChain::default(), Vec::new());
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        match input.below(16) {
            0..2 => front.scribble(&mut input),
            2..6 => front.request(&mut input),
            6..8 => front.publish(&mut input),
            8 => front.regrant(&mut input),
            9 if input.u8() < 16 => {
                taken.clear();
                // The channel is bound once.
                drop(queue.take());
                queue = front.queue(&hypervisor, true);
            }
            10..14 => {
                let took = queue.as_mut().map(|queue| take(&mut **queue, &mut chain));
                match took {
                    Some(Ok(token)) => taken.extend(token),
                    Some(Err(())) => {
                        taken.clear();
                        queue = None;
                    }
                    None => {}
                }
            }
            _ => {
                let Some(queue) = &mut queue else { continue };
                while !taken.is_empty() && input.u8() < 200 {
                    let at = input.below(taken.len() as u32) as usize;
                    queue.complete(taken.swap_remove(at), 1);
                }
                let _ = (queue.flush(), queue.take_lost());
                let _ = queue.arm();
            }
        }
    }
}

/// Takes a request as the pipeline does, and checks that it is one for the pipeline.
fn take(queue: &mut dyn RequestQueue, chain: &mut IoChain) -> Result<Option<u16>, ()> {
    let Some(token) = queue.take(chain).map_err(|_| ())? else { return Ok(None) };
    assert!(token < 512);
    assert!(chain.split_status(), "a byte for the status");
    let mut header = [0; 16];
    assert!(chain.read(&mut header));
    assert!(chain.readable_len() <= 1 << 20 && chain.writable_len() <= 1 << 20);
    if queue.refusal(token).is_none() {
        let whole = |bytes: u64| bytes.is_multiple_of(512);
        let sectors = whole(chain.readable_len()) && whole(chain.writable_len());
        assert!(sectors || (header[0] == 11 && chain.readable_len() == 16));
    }
    chain.set_status(header[8] % 3);
    Ok(Some(token))
}

/// A disk that nothing is done with.
fn disk() -> Arc<Disk> {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    let path = PATH.get_or_init(|| {
        let path = std::env::temp_dir().join(format!("ringmain-fuzz-{}.raw", std::process::id()));
        File::create(&path).and_then(|file| file.set_len(BYTES)).expect("an image");
        path
    });
    let options =
        ImageOptions { read_only: true, direct: Direct::Never, ..ImageOptions::new(path.clone()) };
    Arc::new(Disk::new(Arc::new(Image::open(&options).expect("an image")), "fuzz"))
}

impl Front {
    fn new(machine: &Machine, input: &mut Input<'_>) -> Front {
        let guest = machine.guest(DomId(1), PAGES).expect("memory");
        let grants = (0..PAGES)
            .map(|page| guest.grant(DomId(0), page, page < 1 || input.u8() < 200))
            .collect();
        let port = guest.open(DomId(0)).expect("a channel");
        let layout = if input.u8() & 1 == 0 { Layout::Bits64 } else { Layout::Bits32 };
        let persistent = input.u8() & 1 == 0;
        Front { guest, grants, port, layout, persistent }
    }

    /// The backend's end, or none when the ring is nonsense.
    fn queue(&self, hypervisor: &Hypervisor, resumed: bool) -> Option<Box<dyn RequestQueue>> {
        let grants = Arc::clone(&hypervisor.grants);
        let pages = || PersistentGrants::new(self.guest.id(), grants, Arc::default());
        start(QueueParts {
            ring: hypervisor.grants.map(self.guest.id(), &self.grants[..1]).ok()?,
            pages: 1,
            channel: hypervisor.events.bind(self.guest.id(), self.port.number()).ok()?,
            layout: self.layout,
            domain: self.guest.id(),
            engine: Arc::new(GrantCopyEngine(Arc::clone(&hypervisor.grants))),
            persistent: self.persistent.then(pages),
            disk: disk(),
            resumed,
        })
        .ok()
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        self.guest.memory().write(at, bytes).expect("within its memory");
    }

    /// Any word anywhere in the ring or in a list.
    fn scribble(&self, input: &mut Input<'_>) {
        let page = u64::from(input.below(PAGES)) * PAGE as u64;
        let at = if input.u8() < 64 { input.below(4) } else { 16 + input.below(1008) };
        self.write(page + 4 * u64::from(at), &input.u32().to_le_bytes());
    }

    fn reference(&self, input: &mut Input<'_>) -> [u8; 4] {
        match input.u8() {
            0..8 => input.u32().to_le_bytes(),
            choice => self.grants[usize::from(choice) % self.grants.len()].0.to_le_bytes(),
        }
    }

    /// A segment that makes sense, or almost.
    fn segment(&self, input: &mut Input<'_>) -> [u8; 8] {
        let [a, b, c, d] = self.reference(input);
        let first = input.u8() % 9;
        [a, b, c, d, first, first.wrapping_add(input.u8() % 8), 0, 0]
    }

    /// A request that makes sense, or almost, with its list.
    fn request(&self, input: &mut Input<'_>) {
        let len = if self.layout == Layout::Bits64 { 112 } else { 108 };
        let slot = 64 + len * u64::from(input.u8() % 32);
        let (operation, count) = (input.u8() % 7, input.u8());
        let head = match operation {
            6 => [6, input.u8() % 2, count, input.u8() / 254],
            5 => [5, count / 250, 0, 0],
            _ => [operation, count % 13, 0, 0],
        };
        let sector = if input.u8() < 16 { input.u64() } else { u64::from(input.below(2100)) };
        self.write(slot, &head);
        self.write(slot + self.layout.id() as u64, &input.u64().to_le_bytes());
        self.write(slot + self.layout.sector() as u64, &sector.to_le_bytes());
        let body = slot + self.layout.body() as u64;
        if operation == 6 {
            let page = 1 + input.below(PAGES - 1);
            let reference = self.grants[page as usize].0.to_le_bytes();
            self.write(body + 4, &reference);
            for n in 0..u64::from(input.u8() % 32) {
                let segment = self.segment(input);
                self.write(u64::from(page) * PAGE as u64 + 8 * n, &segment);
            }
        } else {
            for n in 0..u64::from(count % 12) {
                let segment = self.segment(input);
                self.write(body + 8 * n, &segment);
            }
        }
    }

    /// A request index.
    fn publish(&self, input: &mut Input<'_>) {
        let index = if input.u8() < 8 { input.u32() } else { u32::from(input.u8() % 64) };
        self.write(0, &index.to_le_bytes());
    }

    fn regrant(&self, input: &mut Input<'_>) {
        let page = 1 + input.below(PAGES - 1);
        if self.guest.revoke(self.grants[page as usize]) && input.u8() & 1 == 0 {
            self.guest.grant(DomId(u16::from(input.u8() & 1)), page, true);
        }
    }
}
