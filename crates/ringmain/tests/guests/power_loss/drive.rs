//! A drive in memory with a volatile cache, as the engine of a daemon. It writes down when each
//! write and each flush began and ended, so that the power can be cut at any of these moments.

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use fastrand::Rng;
use parking_lot::{Mutex, MutexGuard};
use rustix::event::{EventfdFlags, eventfd};
use storage::engine::{Engine, Finished};
use storage::request::{Operation, Request};

/// What the drive tears no further.
const SECTOR: usize = 512;

/// Something that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The write with this number began.
    Begun(usize),
    /// It ended.
    Ended(usize),
    /// A flush ended that had begun when so many events had happened.
    Flushed(usize),
    /// The guest relies on something with this number.
    Relied(usize),
}

/// A write: its first byte, and its data.
struct Write {
    offset: usize,
    data: Vec<u8>,
}

#[derive(Default)]
struct State {
    /// What reads find.
    bytes: Vec<u8>,
    writes: Vec<Write>,
    events: Vec<Event>,
}

/// The drive, which the engines of all workers share.
#[derive(Default)]
pub struct Drive(Mutex<State>);

impl Drive {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    /// An empty drive of so many bytes.
    pub fn reset(&self, bytes: usize) {
        *self.state() = State { bytes: vec![0; bytes], ..State::default() };
    }

    /// From now on the guest relies on something.
    pub fn rely(&self, number: usize) {
        self.state().events.push(Event::Relied(number));
    }

    /// All that has happened.
    pub fn events(&self) -> Vec<Event> {
        self.state().events.clone()
    }

    /// What the drive holds when the power is cut after `cut` events: all that a flush has covered,
    /// and of the other writes that had begun any subset of their sectors. The first `heeded`
    /// events are those among which a flush covers anything.
    pub fn after_cut(&self, cut: usize, heeded: usize, random: &mut Rng) -> Vec<u8> {
        let State { bytes, writes, events } = &*self.state();
        let flushed = events[..cut.min(heeded)].iter().filter_map(|event| match event {
            Event::Flushed(began) => Some(*began),
            _ => None,
        });
        let covered = flushed.max().unwrap_or(0);
        let mut stable = vec![false; writes.len()];
        for event in &events[..covered] {
            if let Event::Ended(number) = event {
                stable[*number] = true;
            }
        }
        let mut disk = vec![0; bytes.len()];
        for event in &events[..cut] {
            let Event::Begun(number) = event else { continue };
            let Write { offset, data } = &writes[*number];
            // Of most writes all or nothing is there, and a few are torn.
            let kept = random.bool();
            let is_torn = random.u8(..8) == 0;
            for (sector, piece) in data.chunks(SECTOR).enumerate() {
                if stable[*number] || if is_torn { random.bool() } else { kept } {
                    let at = offset + sector * SECTOR;
                    disk[at..at + piece.len()].copy_from_slice(piece);
                }
            }
        }
        disk
    }
}

/// A step that has begun.
enum Begun {
    Write(usize),
    Flush(usize),
    Done(u32),
}

/// One worker's engine. Steps end in any order.
pub struct RecordingEngine {
    drive: Arc<Drive>,
    random: Rng,
    begun: Vec<(Box<Request>, Begun)>,
    event: Arc<OwnedFd>,
}

impl RecordingEngine {
    pub fn new(drive: &Arc<Drive>) -> io::Result<RecordingEngine> {
        let event = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        Ok(RecordingEngine {
            drive: Arc::clone(drive),
            random: Rng::new(),
            begun: Vec::new(),
            event,
        })
    }
}

impl State {
    fn begin(&mut self, offset: usize, data: Vec<u8>) -> Begun {
        let number = self.writes.len();
        self.writes.push(Write { offset, data });
        self.events.push(Event::Begun(number));
        Begun::Write(number)
    }

    /// How many bytes the step has moved.
    fn end(&mut self, begun: Begun) -> u32 {
        match begun {
            Begun::Done(moved) => moved,
            Begun::Flush(began) => {
                self.events.push(Event::Flushed(began));
                0
            }
            Begun::Write(number) => {
                let Write { offset, data } = &self.writes[number];
                let range: Range<usize> = *offset..offset + data.len();
                self.bytes[range].copy_from_slice(data);
                self.events.push(Event::Ended(number));
                data.len() as u32
            }
        }
    }
}

impl Engine for RecordingEngine {
    fn takes_copies(&self) -> bool {
        true
    }

    fn submit(&mut self, mut request: Box<Request>) {
        let step = request.step().map(|step| (step.operation, step.offset, step.len)).unwrap();
        let (operation, offset, len) = (step.0, step.1 as usize, step.2 as usize);
        let mut state = self.drive.state();
        let begun = match operation {
            Operation::Read => {
                let len = request.chain.writable_len() as usize;
                Begun::Done(request.chain.write(&state.bytes[offset..offset + len]))
            }
            Operation::Write { .. } => {
                let mut data = vec![0; request.chain.readable_len() as usize];
                assert!(request.chain.read(&mut data));
                state.begin(offset, data)
            }
            Operation::Sync => Begun::Flush(state.events.len()),
            _ => state.begin(offset, vec![0; len]),
        };
        drop(state);
        self.begun.push((request, begun));
    }

    fn flush(&mut self) {}

    fn has_unsubmitted(&self) -> bool {
        !self.begun.is_empty()
    }

    fn reap(&mut self, finished: &mut Vec<Finished>) {
        while !self.begun.is_empty() && self.random.u8(..4) > 0 {
            let which = self.random.usize(..self.begun.len());
            let (request, begun) = self.begun.swap_remove(which);
            let moved = self.drive.state().end(begun);
            finished.push((request, Ok(moved)));
        }
    }

    fn event(&self) -> &Arc<OwnedFd> {
        &self.event
    }
}
