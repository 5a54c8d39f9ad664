//! Allocating clusters of an image, and linking them.
//!
//! The data of the backing file, or compressed data, is copied to a new cluster. The copy must be
//! stable before the tables refer to it, since the data may have been stable for long: after a
//! power failure, a sector has the old data or the data that a request writes over it, but never
//! zeros. This also holds for clusters that a request writes as a whole, because the request writes
//! after they are linked. Copies of several requests are synchronised together.
//!
//! Tables are written to the file first, and then in memory, so an entry that a worker finds is not
//! lost if the daemon is killed.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Shared;
use super::place::Place;
use super::reader::{Reader, damaged};
use super::refcounts::Refcounts;
use super::table::{COPIED, Entry, Found, Tables};

/// The place of a write.
#[derive(Clone, Copy, Debug)]
pub(super) enum Prepared {
    /// The step can begin.
    Now(Place),
    /// The step can begin when the copy has been [linked](Writer::commit).
    Deferred(Place),
}

/// Changes the tables of an image.
pub(super) struct Writer {
    pub reader: Reader,
    pub refcounts: Refcounts,
    /// The position and the entries of the L1 table.
    pub(super) l1: (u64, u64),
    /// Clusters that are linked once their copies are stable: clusters of the file, by clusters of
    /// the disk.
    links: BTreeMap<u64, u64>,
    /// Room for a cluster.
    copied: Vec<u8>,
    /// The storage has failed, so the state of the tables on it is unknown.
    failed: bool,
}

impl Writer {
    /// A writer of an image with this L1 table.
    pub fn new(reader: Reader, refcounts: Refcounts, l1: (u64, u64)) -> Writer {
        let (links, copied) = (BTreeMap::new(), Vec::new());
        Writer { reader, refcounts, l1, links, copied, failed: false }
    }

    pub(super) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.reader.shared)
    }

    /// Notes an error of the storage.
    pub fn note(&mut self, error: &io::Error) {
        let path = self.reader.shared.layers.first().map(|layer| layer.path.display().to_string());
        let full = matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG));
        if !full && !std::mem::replace(&mut self.failed, true) {
            let image = path.unwrap_or_default();
            tracing::error!(%image, %error, "no more clusters are allocated or freed");
        }
    }

    /// Whether the tables may be changed.
    ///
    /// # Errors
    /// When the storage has failed before.
    pub fn check(&self) -> io::Result<()> {
        if self.failed { Err(io::Error::from_raw_os_error(libc::EIO)) } else { Ok(()) }
    }

    /// Takes consecutive clusters.
    fn take(&mut self, most: u64) -> io::Result<(u64, u64)> {
        let shared = self.shared();
        let (top, _) = shared.top().ok_or_else(damaged)?;
        let taken = self.refcounts.take(top.file(), &shared.gate, most);
        top.end.fetch_max(self.refcounts.end(), Ordering::Relaxed);
        taken
    }

    /// Ensures that the L2 table for a byte of the disk exists and is loaded.
    ///
    /// # Errors
    /// When it can be neither read nor created.
    pub fn ensure_l2(&mut self, tables: &Tables, offset: u64) -> io::Result<()> {
        let (index, _) = tables.indices(offset);
        if tables.l2_place(index).is_some() {
            return self.reader.load(0, offset);
        }
        // A cluster that was taken is zeros: a table without entries.
        let (cluster, _) = self.take(1)?;
        let place = cluster << tables.cluster_bits;
        let shared = self.shared();
        let (top, _) = shared.top().ok_or_else(damaged)?;
        let at = self.l1.0 + 8 * index as u64;
        let written = top.file().write_all_at(&(place | COPIED).to_be_bytes(), at);
        written.inspect_err(|_| self.refcounts.put_back((cluster, 1)))?;
        self.reader.keep(0, index, &vec![0; tables.cluster() as usize]);
        tables.set_l2_place(index, place);
        Ok(())
    }

    /// Prepares room for a write of `most` bytes from `offset` on, or for the first of them.
    ///
    /// # Errors
    /// When there is no room, or a file cannot be read or written.
    pub fn prepare(&mut self, offset: u64, most: u64) -> io::Result<Prepared> {
        self.check()?;
        let shared = self.shared();
        let (top, tables) = shared.top().ok_or_else(damaged)?;
        let bits = tables.cluster_bits;
        let first = offset >> bits;
        self.ensure_l2(tables, offset)?;
        if let (Found::Data(place, true), len) = tables.find(offset, most) {
            return Ok(Prepared::Now(Place { layer: Some(0), offset: place, len }));
        }
        let end = offset + most.min(tables.left_in_table(offset));
        let unallocated = |cluster: &u64| {
            let entry = tables.entry(cluster << bits);
            !matches!(entry, Some(Entry::Data(_, true))) && !self.links.contains_key(cluster)
        };
        let wanted = (first..end.div_ceil(1 << bits)).take_while(unallocated).count() as u64;
        let (to, count) = self.take(wanted.max(1))?;
        let mut copied = false;
        for number in 0..count {
            let from = (first + number) << bits;
            self.copied.resize(1 << bits, 0);
            let mut buffer = std::mem::take(&mut self.copied);
            let read = self.reader.read(0, from, &mut buffer);
            let place = (to + number) << bits;
            let written = read.and_then(|has_data| match has_data {
                true => top.file().write_all_at(&buffer, place).map(|()| true),
                false => Ok(false),
            });
            self.copied = buffer;
            copied |= written.inspect_err(|_| self.refcounts.put_back((to, count)))?;
        }
        let within = offset & (tables.cluster() - 1);
        let place = Place {
            layer: Some(0),
            offset: (to << bits) + within,
            len: (end - offset).min((count << bits) - within),
        };
        if copied {
            self.links.extend((0..count).map(|number| (first + number, to + number)));
            return Ok(Prepared::Deferred(place));
        }
        self.link(tables, first, to, count)?;
        Ok(Prepared::Now(place))
    }

    /// Makes all copies stable, and links them.
    ///
    /// # Errors
    /// When the file cannot be synchronised or written.
    pub fn commit(&mut self) -> io::Result<()> {
        if self.links.is_empty() {
            return Ok(());
        }
        let shared = self.shared();
        let (top, tables) = shared.top().ok_or_else(damaged)?;
        let links = std::mem::take(&mut self.links);
        top.file().sync_data()?;
        for (cluster, to) in links {
            self.reader.load(0, cluster << tables.cluster_bits)?;
            self.link(tables, cluster, to, 1)?;
        }
        Ok(())
    }

    /// Whether the cluster with this byte of the disk waits to be linked. It must be linked before
    /// any other operation on it.
    pub fn is_linking(&self, offset: u64) -> bool {
        let bits = self.reader.shared.top().map_or(0, |(_, tables)| tables.cluster_bits);
        self.links.contains_key(&(offset >> bits))
    }

    /// Links `count` clusters of the disk from `first` on to those of the file from `to` on. All
    /// have entries in the same table, which is loaded.
    fn link(&mut self, tables: &Tables, first: u64, to: u64, count: u64) -> io::Result<()> {
        let bits = tables.cluster_bits;
        let entries = (to..to + count).map(|cluster| (cluster << bits) | COPIED).collect();
        let linked = self.replace(tables, first << bits, entries);
        linked.inspect_err(|_| self.refcounts.put_back((to, count)))
    }

    /// Replaces entries of an L2 table, which is loaded, from the one for byte `offset` of the disk
    /// on. The clusters that they referred to are freed.
    ///
    /// # Errors
    /// When the file cannot be written. Nothing has changed in memory then.
    pub fn replace(&mut self, tables: &Tables, offset: u64, new: Vec<u64>) -> io::Result<()> {
        let shared = self.shared();
        let (top, _) = shared.top().ok_or_else(damaged)?;
        let (index, entry) = tables.indices(offset);
        let (place, table) = tables.l2_place(index).zip(tables.l2(index)).ok_or_else(damaged)?;
        let words = table.get(entry..entry + new.len()).ok_or_else(damaged)?;
        let bytes: Vec<u8> = new.iter().flat_map(|entry| entry.to_be_bytes()).collect();
        top.file().write_all_at(&bytes, place + 8 * entry as u64)?;
        for (word, new) in words.iter().zip(new) {
            let old = word.swap(new, Ordering::AcqRel);
            if old != new {
                self.free(tables, old, new);
            }
        }
        Ok(())
    }

    /// Frees the clusters of a replaced entry that nothing refers to any more.
    fn free(&mut self, tables: &Tables, old: u64, new: u64) {
        let bits = tables.cluster_bits;
        let place_of = |entry| match Entry::parse(entry, bits, tables.version) {
            Entry::Data(place, _) | Entry::Zero(place) => place,
            _ => 0,
        };
        match Entry::parse(old, bits, tables.version) {
            Entry::Data(place, _) | Entry::Zero(place) if place != 0 && place != place_of(new) => {
                self.refcounts.free(place >> bits, 1);
            }
            Entry::Compressed(place, most) => {
                let (first, last) = (place >> bits, (place + most - 1) >> bits);
                self.refcounts.free(first, last - first + 1);
            }
            _ => {}
        }
    }
}
