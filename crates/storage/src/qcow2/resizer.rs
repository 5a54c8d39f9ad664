//! Making a disk longer in service.
//!
//! At each moment the file is a consistent image with the old length or with the new one:
//!
//! 1. An L1 table with more entries is written to clusters that were counted before. When it is on
//!    the disk, one write of a part of one sector makes the header refer to it. Its old clusters are
//!    given back afterwards.
//! 2. Where a backing file is longer than the disk was, the new range gets entries that say zeros.
//! 3. When those are on the disk, the header gets the new length.

use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;

use super::header::{BYTES_AT, L1_AT};
use super::reader::damaged;
use super::table::{COPIED, Tables};
use super::writer::Writer;

impl Writer {
    /// Makes the disk `bytes` long. What is new reads as zeros.
    ///
    /// # Errors
    /// When the image has no word for zeros (`EOPNOTSUPP`), no room for the table (`EFBIG`), or the
    /// file cannot be written. Then the disk has its old length.
    pub fn resize(&mut self, bytes: u64) -> io::Result<()> {
        self.check()?;
        let shared = self.shared();
        let (top, tables) = shared.top().ok_or_else(damaged)?;
        let old = top.bytes.load(Ordering::Acquire);
        if bytes <= old {
            return Ok(());
        }
        let entries = bytes.div_ceil(tables.cluster() * tables.entries());
        if entries > self.l1.1 {
            self.grow_l1(tables, entries)?;
        }
        // Nobody asks for what is behind the old end before this returns.
        top.bytes.store(bytes, Ordering::Release);
        let below = shared.layers.get(1).map_or(0, |layer| layer.bytes.load(Ordering::Acquire));
        let erased = match below.min(bytes).checked_sub(old) {
            Some(len) if len > 0 => self.erase(old, len, true),
            _ => Ok(()),
        };
        let written = erased.and_then(|()| {
            top.file().sync_data()?;
            top.file().write_all_at(&bytes.to_be_bytes(), BYTES_AT)?;
            top.file().sync_data()
        });
        written.inspect_err(|_| top.bytes.store(old, Ordering::Release))
    }

    /// Moves the L1 table to where it has so many entries.
    fn grow_l1(&mut self, tables: &Tables, entries: u64) -> io::Result<()> {
        let shared = self.shared();
        let (top, _) = shared.top().ok_or_else(damaged)?;
        let bits = tables.cluster_bits;
        let clusters_of = |entries: u64| (entries * 8).div_ceil(tables.cluster());
        let (old, had) = self.l1;
        // The new table has what the old one had, and zeros.
        let words = (0..had as usize).map(|index| match tables.l2_place(index) {
            Some(place) => (place | COPIED).to_be_bytes(),
            None => [0; 8],
        });
        let table = words.collect::<Vec<_>>().concat();
        let clusters = clusters_of(entries);
        let first = self.refcounts.take_whole(top.file(), &shared.gate, clusters)?;
        top.end.fetch_max(self.refcounts.end(), Ordering::Relaxed);
        let place = first << bits;
        let mut new = (entries as u32).to_be_bytes().to_vec();
        new.extend(place.to_be_bytes());
        let written = top.file().write_all_at(&table, place).and_then(|()| top.file().sync_data());
        if let Err(error) = written {
            self.refcounts.put_back((first, clusters));
            return Err(error);
        }
        top.file().write_all_at(&new, L1_AT)?;
        tables.grow(entries as usize);
        self.l1 = (place, entries);
        // Given back when the header on the disk refers to the new table.
        self.refcounts.free(old >> bits, clusters_of(had));
        Ok(())
    }
}
