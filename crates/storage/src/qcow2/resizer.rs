//! Making a disk longer in service.
//!
//! At each moment the file is a consistent image with the old length or with the new one:
//!
//! 1. An L1 table with more entries is written to clusters that were counted before. When the table
//!    is stable, one write of a part of one sector makes the header refer to it. The old clusters
//!    are freed afterwards.
//! 2. If a backing file is longer than the disk was, the new range gets entries for zeros.
//! 3. When those are stable, the header gets the new length.

use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;

use super::header::{BYTES_AT, L1_AT};
use super::reader::damaged;
use super::table::{COPIED, Tables};
use super::writer::Writer;

impl Writer {
    /// Makes the disk `bytes` long. The new range reads as zeros.
    ///
    /// # Errors
    /// When the image cannot express zeros (`EOPNOTSUPP`), there is no room for the table
    /// (`EFBIG`), or the file cannot be written. The disk keeps its old length then.
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
        // No request reaches behind the old end before this returns.
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

    /// Moves the L1 table, to give it room for `entries` entries.
    fn grow_l1(&mut self, tables: &Tables, entries: u64) -> io::Result<()> {
        let shared = self.shared();
        let (top, _) = shared.top().ok_or_else(damaged)?;
        let bits = tables.cluster_bits;
        let clusters_of = |entries: u64| (entries * 8).div_ceil(tables.cluster());
        let (old, had) = self.l1;
        // The new table has the old entries, followed by zeros.
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
        // The old table is freed, since the header on stable storage refers to the new one.
        self.refcounts.free(old >> bits, clusters_of(had));
        Ok(())
    }
}
