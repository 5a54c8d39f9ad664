//! Requests on their way out of the ring: slots, lists of segments, and the data of writes. Each of
//! the three is copied once.

use hypervisor::PAGE;
use ring::{Memory, Violation};
use storage::command::{Refusal, SECTOR};

use super::entry::Entry;
use super::{BATCH, BlkQueue};
use crate::blkif::request::{self, MAX_INDIRECT_SEGMENTS, SEGMENT, What};

impl<const WORDS: usize> BlkQueue<WORDS> {
    /// Takes requests out of the ring, and fetches the data of writes.
    pub(super) fn ingest(&mut self) -> Result<(), Violation> {
        let first = self.ring.upcoming();
        let taken = self.take_slots(first);
        if self.transfer.run_incoming(&mut self.entries) {
            self.read_lists(first);
        }
        self.fetch_data(first);
        self.transfer.run_incoming(&mut self.entries);
        taken
    }

    /// Takes a batch of requests, as far as there is room for their data, and requests copies of
    /// lists of segments.
    fn take_slots(&mut self, first: u32) -> Result<(), Violation> {
        self.full = false;
        while self.ring.upcoming().wrapping_sub(first) < BATCH {
            match self.ring.ready(1) {
                Ok(0) => break,
                Ok(_) => {}
                // Valid requests come first: the next call begins with the violation.
                Err(_) if self.ring.upcoming() != first => break,
                Err(violation) => return Err(violation),
            }
            let words = self.ring.request(0);
            let request = request::parse(self.layout, &words);
            let room = request.what.pages() * PAGE as u32;
            let Some(span) = self.buffers.allocate(room) else {
                self.full = true;
                break;
            };
            let at = self.slot(self.ring.upcoming());
            self.entries[at].begin(request, span);
            self.read_slot(at, &words);
            self.ring.take(1);
        }
        Ok(())
    }

    /// Reads the rest of a request, or requests a copy of its list of segments.
    fn read_slot(&mut self, at: usize, words: &[u32; WORDS]) {
        let entry = &mut self.entries[at];
        match entry.what {
            What::Data { list, segments, .. } => {
                let len = usize::from(segments) * SEGMENT;
                let persistent = self.persistent.as_mut();
                match (list, list.and_then(|page| persistent?.find_list(page))) {
                    (None, _) => {
                        let bytes = request::slot_segments(self.layout, words);
                        entry.read_segments(bytes.get(..len));
                    }
                    (Some(_), Some((memory, addr))) => read_list(entry, memory, addr, len),
                    (Some(page), None) => {
                        self.transfer.fetch(at, page, 0, entry.span.at, len as u16, entry);
                        return;
                    }
                }
                self.find_pages(at);
            }
            What::Discard(sectors) => {
                let end = entry.sector.checked_add(sectors);
                let disk = self.disk.image().bytes() / SECTOR;
                if end.is_none_or(|end| end > disk) {
                    entry.refusal = Some(Refusal::OutOfRange);
                }
            }
            What::Flush | What::Refused(_) => {}
        }
    }

    /// Finds the mapped pages of a request's data, if all of them are mapped.
    fn find_pages(&mut self, at: usize) {
        let (entry, Some(persistent)) = (&mut self.entries[at], &mut self.persistent) else {
            return;
        };
        if entry.refusal.is_some() || !persistent.find(&entry.segments, &mut entry.pages) {
            entry.pages.clear();
        }
    }

    /// Reads the lists of segments, which were copied to the place of the data.
    fn read_lists(&mut self, first: u32) {
        let mut number = first;
        while number != self.ring.upcoming() {
            let at = self.slot(number);
            let entry = &mut self.entries[at];
            if let What::Data { list: Some(_), segments, .. } = entry.what
                && entry.refusal.is_none()
                && entry.segments.is_empty()
            {
                // The list is copied into private memory, which is not shared with anything else.
                let (addr, len) = (entry.span.at.into(), usize::from(segments) * SEGMENT);
                read_list(entry, &self.transfer.memory, addr, len);
                self.find_pages(at);
            }
            number = number.wrapping_add(1);
        }
    }

    /// Copies the data of writes from mapped pages, and requests the other copies.
    fn fetch_data(&mut self, first: u32) {
        let mut number = first;
        while number != self.ring.upcoming() {
            let at = self.slot(number);
            let entry = &mut self.entries[at];
            if entry.writes() && entry.is_mapped() {
                self.transfer.copy_mapped(entry, self.persistent.as_ref());
            } else if entry.writes() {
                let (mut to, segments) = (entry.span.at, std::mem::take(&mut entry.segments));
                for segment in &segments {
                    self.transfer.fetch(at, segment.page, segment.offset, to, segment.len, entry);
                    to += u32::from(segment.len);
                }
                entry.segments = segments;
            }
            number = number.wrapping_add(1);
        }
    }
}

/// Reads the list of segments of a request, which lies at `addr` in `memory` and has `len` bytes.
/// The list is copied once, and only the copy is used.
fn read_list(entry: &mut Entry, memory: &Memory, addr: u64, len: usize) {
    let mut bytes = [0; MAX_INDIRECT_SEGMENTS as usize * SEGMENT];
    let list = &mut bytes[..len];
    let read = memory.read(addr, list).is_ok();
    entry.read_segments(read.then_some(&*list));
}
