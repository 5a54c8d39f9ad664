//! The file of an image, in memory, and a log of all that happened to it.

use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::one_file::Content;

/// Bytes that a drive writes as a whole, or not at all.
const SECTOR: u64 = 512;
/// The name of the thread that changes the tables.
const IMAGE_THREAD: &str = "rm-qcow2";

/// Something that happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// A change of the file began.
    Begun(u64, Change),
    /// The change ended.
    Ended(u64),
    /// Everything that had ended before is stable. Whether the thread of the image asked for it.
    Synced(bool),
    /// The guest has sent a request that changes these sectors, to a stamp.
    Sent(usize, Range<u64>, u64),
    /// The guest relies on these requests.
    Relied(Vec<usize>),
    /// The disk has so many sectors, and the guest relies on that.
    Grown(u64),
}

/// A change of the file.
#[derive(Clone, Debug)]
pub enum Change {
    Data(u64, Vec<u8>),
    Zeros(Range<u64>),
}

impl Change {
    /// The parts of which a drive may write some, and not others.
    pub fn parts(&self) -> Vec<Change> {
        let Change::Data(offset, data) = self else { return vec![self.clone()] };
        let (mut parts, mut at) = (Vec::new(), 0);
        while at < data.len() {
            let place = offset + at as u64;
            let now = ((SECTOR - place % SECTOR) as usize).min(data.len() - at);
            parts.push(Change::Data(place, data[at..at + now].to_vec()));
            at += now;
        }
        parts
    }

    /// Makes the change. Returns the bytes that it replaced, and where they were.
    pub fn apply(&self, file: &mut Vec<u8>) -> (u64, Vec<u8>) {
        let len = file.len() as u64;
        let range = match self {
            Change::Data(offset, data) => *offset..offset + data.len() as u64,
            // The file becomes no longer.
            Change::Zeros(range) => range.start.min(len)..range.end.min(len),
        };
        if range.end > len {
            file.resize(range.end as usize, 0);
        }
        let part = &mut file[range.start as usize..range.end as usize];
        let before = part.to_vec();
        match self {
            Change::Data(_, data) => part.copy_from_slice(data),
            Change::Zeros(_) => part.fill(0),
        }
        (range.start, before)
    }
}

#[derive(Default)]
struct Recorded {
    file: Vec<u8>,
    log: Vec<Event>,
    changes: u64,
}

/// The file and its log.
#[derive(Clone, Default)]
pub struct Recorder(Arc<Mutex<Recorded>>);

impl Recorder {
    pub fn new(file: Vec<u8>) -> Recorder {
        Recorder(Arc::new(Mutex::new(Recorded { file, ..Recorded::default() })))
    }

    /// The guest does something, or is told something.
    pub fn note(&self, event: Event) {
        self.0.lock().log.push(event);
    }

    /// Everything that happened.
    pub fn log(&self) -> Vec<Event> {
        std::mem::take(&mut self.0.lock().log)
    }
}

impl Recorded {
    fn begin(&mut self, change: Change) -> u64 {
        change.apply(&mut self.file);
        self.changes += 1;
        self.log.push(Event::Begun(self.changes, change));
        self.changes
    }
}

impl Content for Recorder {
    fn len(&self) -> u64 {
        self.0.lock().file.len() as u64
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, i32> {
        let recorded = self.0.lock();
        let rest = recorded.file.get(offset as usize..).unwrap_or_default();
        let len = rest.len().min(buffer.len());
        buffer[..len].copy_from_slice(&rest[..len]);
        Ok(len)
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<u64, i32> {
        Ok(self.0.lock().begin(Change::Data(offset, data.to_vec())))
    }

    fn written(&self, number: u64) {
        self.0.lock().log.push(Event::Ended(number));
    }

    fn punch(&self, offset: u64, len: u64) -> Result<(), i32> {
        let mut recorded = self.0.lock();
        let number = recorded.begin(Change::Zeros(offset..offset + len));
        recorded.log.push(Event::Ended(number));
        Ok(())
    }

    fn sync(&self, thread: u32) -> Result<(), i32> {
        let name = std::fs::read_to_string(format!("/proc/self/task/{thread}/comm"));
        let is_image_thread = name.is_ok_and(|name| name.trim() == IMAGE_THREAD);
        self.0.lock().log.push(Event::Synced(is_image_thread));
        Ok(())
    }

    fn set_len(&self, _: u64) -> Result<(), i32> {
        Err(libc::EOPNOTSUPP)
    }
}
