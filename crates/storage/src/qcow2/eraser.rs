//! Making ranges zeros: discards, and requests to write zeros.
//!
//! Whole clusters get an entry for zeros, and are freed. Parts of other clusters are made zeros in
//! place.

use std::io;
use std::sync::atomic::Ordering;

use rustix::fs::{FallocateFlags, fallocate};

use super::layer::{Source, source};
use super::reader::damaged;
use super::refcounts::zero;
use super::table::{Entry, Tables, ZERO};
use super::writer::{Prepared, Writer};

/// A range of the disk, in bytes.
#[derive(Clone, Copy)]
struct Range {
    from: u64,
    to: u64,
}

impl Writer {
    /// Makes a range zeros. `unmap`: its space is freed.
    ///
    /// # Errors
    /// When the image cannot express zeros (`EOPNOTSUPP`), or the file cannot be read or
    /// written.
    pub fn erase(&mut self, offset: u64, len: u64, unmap: bool) -> io::Result<()> {
        self.check()?;
        let shared = self.shared();
        let (top, tables) = shared.top().ok_or_else(damaged)?;
        if tables.version < 3 && shared.layers.len() > 1 {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        let mut range = Range { from: offset, to: offset + len };
        while range.from < range.to {
            let to = range.to.min(range.from + tables.left_in_table(range.from));
            let (bytes, cluster) = (top.bytes.load(Ordering::Acquire), tables.cluster());
            let now = Range { to, ..range };
            if !self.is_zero(tables, now) {
                let first = now.from.next_multiple_of(cluster);
                // The last cluster has no data behind the end of the disk.
                let last =
                    if to == bytes { to.next_multiple_of(cluster) } else { to - to % cluster };
                if first < last {
                    self.erase_part(tables, Range { to: first, ..now }, unmap)?;
                    self.erase_clusters(tables, Range { from: first, to: last }, unmap)?;
                    self.erase_part(tables, Range { from: last.min(to), to }, unmap)?;
                } else {
                    let middle = first.min(to);
                    self.erase_part(tables, Range { to: middle, ..now }, unmap)?;
                    self.erase_part(tables, Range { from: middle, to }, unmap)?;
                }
            }
            range.from = to;
        }
        Ok(())
    }

    /// Whether a range of one table is known to be zeros, because there is no table and no data in
    /// a backing file.
    fn is_zero(&self, tables: &Tables, range: Range) -> bool {
        let (index, _) = tables.indices(range.from);
        let len = range.to - range.from;
        tables.l2_place(index).is_none()
            && source(&self.reader.shared.layers, 0, range.from, len) == (Source::Zeros, len)
    }

    /// Makes a part of one cluster zeros.
    fn erase_part(&mut self, tables: &Tables, range: Range, unmap: bool) -> io::Result<()> {
        let (offset, len) = (range.from, range.to.saturating_sub(range.from));
        if len == 0 {
            return Ok(());
        }
        self.ensure_l2(tables, offset)?;
        let shared = self.shared();
        let (top, _) = shared.top().ok_or_else(damaged)?;
        let within = offset & (tables.cluster() - 1);
        let entry = tables.entry(offset);
        let place = match entry {
            Some(Entry::Data(place, true)) => place + within,
            Some(Entry::Zero(_)) => return Ok(()),
            _ if source(&shared.layers, 0, offset, len) == (Source::Zeros, len) => return Ok(()),
            // The data around the part is kept, in a cluster of its own.
            _ => match self.prepare(offset, len)? {
                Prepared::Now(place) => place.offset,
                Prepared::Deferred(place) => {
                    self.commit()?;
                    place.offset
                }
            },
        };
        if unmap { zero(top.file(), place, len) } else { self.zero_in_place(place, len) }
    }

    /// Makes whole clusters zeros, which have entries in one table.
    fn erase_clusters(&mut self, tables: &Tables, range: Range, unmap: bool) -> io::Result<()> {
        self.ensure_l2(tables, range.from)?;
        let shared = self.shared();
        let cleared = if shared.layers.len() > 1 { ZERO } else { 0 };
        let (mut new, mut kept): (Vec<u64>, Vec<(u64, u64)>) = (Vec::new(), Vec::new());
        let (index, first) = tables.indices(range.from);
        let count = ((range.to - range.from) >> tables.cluster_bits) as usize;
        let table = tables.l2(index).and_then(|table| table.get(first..first + count));
        for word in table.ok_or_else(damaged)? {
            let word = word.load(Ordering::Acquire);
            new.push(match Entry::parse(word, tables.cluster_bits, tables.version) {
                Entry::Data(place, true) if !unmap => {
                    match kept.last_mut() {
                        Some((from, len)) if *from + *len == place => *len += tables.cluster(),
                        _ => kept.push((place, tables.cluster())),
                    }
                    word
                }
                Entry::Data(..) | Entry::Compressed(..) | Entry::Unallocated => cleared,
                Entry::Zero(_) => word,
                Entry::Damaged => return Err(damaged()),
            });
        }
        self.replace(tables, range.from, new)?;
        kept.into_iter().try_for_each(|(from, len)| self.zero_in_place(from, len))
    }

    /// Makes a range of the file zeros, and keeps its space where the file system can.
    fn zero_in_place(&self, from: u64, len: u64) -> io::Result<()> {
        let shared = self.shared();
        let (top, _) = shared.top().ok_or_else(damaged)?;
        let mode = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
        match fallocate(top.file(), mode, from, len) {
            Ok(()) => Ok(()),
            Err(_) => zero(top.file(), from, len),
        }
    }
}
