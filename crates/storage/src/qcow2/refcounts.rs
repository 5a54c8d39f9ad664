//! Allocation of clusters: refcounts, and a stock of clusters that are ready to be used.
//!
//! The order of changes keeps the image consistent whenever the daemon is killed or the power
//! fails. At worst, clusters are counted that are not in use (`qemu-img check` calls that a leak):
//!
//! - Clusters are counted before anything refers to them. They are taken from a stock that was
//!   counted, made zeros, and synchronised in advance, all by one `fdatasync`.
//! - Clusters are freed only after nothing on stable storage refers to them any more, and no step
//!   of a request uses them ([`Refcounts::release_freed`]).

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::{FallocateFlags, fallocate};

use super::gate::Gate;
use super::header::{Header, REFCOUNT_TABLE_AT};
use super::layer::words;
use super::table::PLACE;

/// Bytes of clusters that are made ready at a time.
const STOCK: u64 = 4 << 20;
/// Blocks of refcounts that are kept.
const KEPT: usize = 64;
/// Most ranges that wait to be freed before the file is synchronised for them.
const MOST_FREED: usize = 4096;
/// Bytes that are written at a time where a hole cannot be made.
const CHUNK: usize = 64 << 10;

/// The refcounts of an image that is written.
#[derive(Debug)]
pub(super) struct Refcounts {
    cluster_bits: u32,
    /// The position of the refcount table, and its entries: positions of blocks, or 0.
    at: u64,
    table: Vec<u64>,
    /// Blocks of refcounts by their indices.
    blocks: HashMap<u64, Box<[u16]>>,
    /// No cluster before this one is free.
    hint: u64,
    /// Clusters that are counted and contain zeros: the first, and how many.
    stock: VecDeque<(u64, u64)>,
    /// Clusters without references, except perhaps from older tables on stable storage.
    freed: Vec<(u64, u64)>,
    /// Length of the file in bytes.
    end: u64,
}

fn damaged() -> io::Error {
    io::Error::from_raw_os_error(libc::EUCLEAN)
}

impl Refcounts {
    /// Reads the table.
    ///
    /// # Errors
    /// When it cannot be read, or is damaged.
    pub fn load(file: &File, header: &Header, end: u64) -> io::Result<Refcounts> {
        let (at, clusters) = header.refcount_table;
        let mut bytes = vec![0; (clusters << header.cluster_bits) as usize];
        file.read_exact_at(&mut bytes, at)?;
        let table: Vec<u64> = words(&bytes).map(|entry| entry & PLACE).collect();
        if table.iter().any(|place| !place.is_multiple_of(header.cluster())) {
            return Err(damaged());
        }
        Ok(Refcounts {
            cluster_bits: header.cluster_bits,
            at,
            table,
            blocks: HashMap::new(),
            hint: 0,
            stock: VecDeque::new(),
            freed: Vec::new(),
            end,
        })
    }

    fn cluster(&self) -> u64 {
        1 << self.cluster_bits
    }

    /// Refcounts of a block.
    fn entries(&self) -> u64 {
        self.cluster() / 2
    }

    /// Length of the file in bytes.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Positions of blocks of refcounts.
    pub fn block_places(&self) -> impl Iterator<Item = u64> {
        self.table.iter().copied().filter(|place| *place != 0)
    }

    /// A block of refcounts; `None`: there is none, so the clusters are free.
    fn block(&mut self, file: &File, index: u64) -> io::Result<Option<&mut Box<[u16]>>> {
        let place = self.table.get(index as usize).copied().unwrap_or(0);
        if place == 0 {
            return Ok(None);
        }
        if self.blocks.len() >= KEPT && !self.blocks.contains_key(&index) {
            self.blocks.clear();
        }
        if !self.blocks.contains_key(&index) {
            let mut bytes = vec![0; self.cluster() as usize];
            file.read_exact_at(&mut bytes, place)?;
            let counts =
                bytes.chunks_exact(2).map(|it| it.try_into().map_or(0, u16::from_be_bytes));
            self.blocks.insert(index, counts.collect());
        }
        Ok(self.blocks.get_mut(&index))
    }

    /// The refcount of a cluster.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn count(&mut self, file: &File, cluster: u64) -> io::Result<u16> {
        let (index, entry) = (cluster / self.entries(), cluster % self.entries());
        let block = self.block(file, index)?;
        Ok(block.and_then(|block| block.get(entry as usize)).copied().unwrap_or(0))
    }

    /// Changes the refcounts of consecutive clusters, in the file first.
    fn change(
        &mut self,
        file: &File,
        (first, count): (u64, u64),
        to: impl Fn(u16) -> Option<u16>,
    ) -> io::Result<()> {
        let (mut at, end) = (first, first + count);
        while at < end {
            let (index, entry) = (at / self.entries(), (at % self.entries()) as usize);
            let now = ((end - at) as usize).min(self.entries() as usize - entry);
            let place = self.table.get(index as usize).copied().unwrap_or(0);
            let block = self.block(file, index)?.ok_or_else(damaged)?;
            let part = block.get_mut(entry..entry + now).ok_or_else(damaged)?;
            let new: Option<Vec<u16>> = part.iter().map(|count| to(*count)).collect();
            let new = new.ok_or_else(damaged)?;
            let bytes: Vec<u8> = new.iter().flat_map(|count| count.to_be_bytes()).collect();
            file.write_all_at(&bytes, place + 2 * entry as u64)?;
            part.copy_from_slice(&new);
            at += now as u64;
        }
        Ok(())
    }

    /// Takes up to `most` consecutive clusters, which contain zeros. Returns the first, and how
    /// many.
    ///
    /// # Errors
    /// When the file cannot become longer.
    pub fn take(&mut self, file: &File, gate: &Gate, most: u64) -> io::Result<(u64, u64)> {
        if self.stock.is_empty() {
            self.restock(file, gate)?;
        }
        let (first, count) = self.stock.front_mut().ok_or_else(damaged)?;
        let (taken, now) = (*first, most.min(*count));
        (*first, *count) = (*first + now, *count - now);
        if *count == 0 {
            self.stock.pop_front();
        }
        Ok((taken, now))
    }

    /// Takes exactly `wanted` consecutive clusters, which contain zeros. Returns the first.
    ///
    /// # Errors
    /// When the file cannot become longer, or blocks of refcounts leave no room between
    /// them (`EFBIG`).
    pub fn take_whole(&mut self, file: &File, gate: &Gate, wanted: u64) -> io::Result<u64> {
        self.release_freed(file, gate)?;
        let (mut first, mut cluster) = (self.hint, self.hint);
        let last = (self.end >> self.cluster_bits) + 2 * self.entries() + wanted;
        while cluster - first < wanted {
            if cluster > last {
                return Err(io::Error::from_raw_os_error(libc::EFBIG));
            }
            let index = cluster / self.entries();
            if self.block(file, index)?.is_none() {
                self.add_block(file, index)?;
            }
            cluster += 1;
            if self.count(file, cluster - 1)? != 0 {
                first = cluster;
            }
        }
        self.change(file, (first, wanted), |count| (count == 0).then_some(1))?;
        self.clear(file, (first, wanted))?;
        file.sync_data()?;
        Ok(first)
    }

    /// Returns clusters that were taken and not used.
    pub fn put_back(&mut self, (first, count): (u64, u64)) {
        self.freed.push((first, count));
    }

    /// Makes more clusters ready.
    fn restock(&mut self, file: &File, gate: &Gate) -> io::Result<()> {
        self.release_freed(file, gate)?;
        let wanted = (STOCK >> self.cluster_bits).max(1);
        let mut found: Vec<(u64, u64)> = Vec::new();
        let (mut cluster, mut left) = (self.hint, wanted);
        while left > 0 {
            // The limit of positions in a file, with room for the tables.
            if cluster >= 1 << (62 - self.cluster_bits) {
                return Err(io::Error::from_raw_os_error(libc::ENOSPC));
            }
            let index = cluster / self.entries();
            if self.block(file, index)?.is_none() {
                self.add_block(file, index)?;
            }
            if self.count(file, cluster)? == 0 {
                match found.last_mut() {
                    Some((first, count)) if *first + *count == cluster => *count += 1,
                    _ => found.push((cluster, 1)),
                }
                left -= 1;
            }
            cluster += 1;
        }
        for &range in &found {
            self.change(file, range, |count| (count == 0).then_some(1))?;
            self.clear(file, range)?;
        }
        self.hint = cluster;
        file.sync_data()?;
        self.stock.extend(found);
        Ok(())
    }

    /// Makes clusters zeros, and part of the file.
    fn clear(&mut self, file: &File, (first, count): (u64, u64)) -> io::Result<()> {
        let (from, to) = (first << self.cluster_bits, (first + count) << self.cluster_bits);
        if from < self.end {
            zero(file, from, to.min(self.end) - from)?;
        }
        if to > self.end {
            // The bytes in between become a hole.
            file.write_all_at(&[0], to - 1)?;
            self.end = to;
        }
        Ok(())
    }

    /// Adds a block of refcounts, for unused clusters. The first of them holds the block itself.
    fn add_block(&mut self, file: &File, index: u64) -> io::Result<()> {
        if index >= self.table.len() as u64 {
            return self.grow(file, index);
        }
        let first = index * self.entries();
        self.write_block(file, index, first, 1)?;
        file.sync_data()?;
        let place = first << self.cluster_bits;
        file.write_all_at(&place.to_be_bytes(), self.at + 8 * index)?;
        if let Some(entry) = self.table.get_mut(index as usize) {
            *entry = place;
        }
        Ok(())
    }

    /// Writes block `index` to `cluster`, with its first clusters counted.
    fn write_block(&mut self, file: &File, index: u64, cluster: u64, used: u64) -> io::Result<()> {
        let counts: Box<[u16]> = (0..self.entries()).map(|at| u16::from(at < used)).collect();
        let bytes: Vec<u8> = counts.iter().flat_map(|count| count.to_be_bytes()).collect();
        file.write_all_at(&bytes, cluster << self.cluster_bits)?;
        self.end = self.end.max((cluster + 1) << self.cluster_bits);
        self.blocks.insert(index, counts);
        Ok(())
    }

    /// Moves the refcount table, and doubles its length. The new one lies behind all clusters that
    /// the old one counts, after the blocks that count it.
    fn grow(&mut self, file: &File, index: u64) -> io::Result<()> {
        let (entries, old) = (self.entries(), self.table.len() as u64);
        let words = self.cluster() / 8;
        let clusters = (2 * old.max(index + 1)).div_ceil(words);
        // Each block counts itself, and then the table.
        let blocks = (1..).find(|blocks| blocks + clusters <= blocks * entries).unwrap_or(1);
        let first = index * entries;
        let mut table = self.table.clone();
        table.resize((clusters * words) as usize, 0);
        for block in 0..blocks {
            let used = (blocks + clusters).saturating_sub(block * entries).min(entries);
            self.write_block(file, index + block, first + block, used)?;
            let entry = table.get_mut((index + block) as usize).ok_or_else(damaged)?;
            *entry = (first + block) << self.cluster_bits;
        }
        let at = (first + blocks) << self.cluster_bits;
        let bytes: Vec<u8> = table.iter().flat_map(|place| place.to_be_bytes()).collect();
        file.write_all_at(&bytes, at)?;
        self.end = self.end.max(at + bytes.len() as u64);
        file.sync_data()?;
        let mut place = at.to_be_bytes().to_vec();
        place.extend((clusters as u32).to_be_bytes());
        file.write_all_at(&place, REFCOUNT_TABLE_AT)?;
        file.sync_data()?;
        let unused = (self.at >> self.cluster_bits, old.div_ceil(words));
        (self.at, self.table) = (at, table);
        self.freed.push(unused);
        Ok(())
    }

    /// Frees clusters, to which nothing refers once all writes so far are stable.
    pub fn free(&mut self, first: u64, count: u64) {
        match self.freed.last_mut() {
            Some((last, n)) if *last + *n == first => *n += count,
            _ => self.freed.push((first, count)),
        }
    }

    /// Whether freed clusters wait to be released.
    pub fn has_freed(&self) -> bool {
        !self.freed.is_empty()
    }

    /// Whether so many wait that they should be released now.
    pub fn has_much_freed(&self) -> bool {
        self.freed.len() >= MOST_FREED
    }

    /// Releases freed clusters. Waits for the steps of requests that may use them, and synchronises
    /// the file.
    ///
    /// # Errors
    /// When the file cannot be synchronised or written. Clusters may be leaked then.
    pub fn release_freed(&mut self, file: &File, gate: &Gate) -> io::Result<()> {
        if self.freed.is_empty() {
            return Ok(());
        }
        gate.wait();
        file.sync_data()?;
        for range in std::mem::take(&mut self.freed) {
            self.give_back(file, range)?;
        }
        Ok(())
    }

    fn give_back(&mut self, file: &File, (first, count): (u64, u64)) -> io::Result<()> {
        self.change(file, (first, count), |count| count.checked_sub(1))?;
        for cluster in first..first + count {
            if self.count(file, cluster)? == 0 {
                self.hint = self.hint.min(cluster);
                // A range that cannot be made a hole is cleared when it is used again.
                let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                let _ = fallocate(file, mode, cluster << self.cluster_bits, self.cluster());
            }
        }
        Ok(())
    }

    /// Releases all unused clusters, before the image is closed.
    ///
    /// # Errors
    /// As for [`release_freed`](Self::release_freed).
    pub fn close(&mut self, file: &File, gate: &Gate) -> io::Result<()> {
        self.freed.extend(self.stock.drain(..));
        self.release_freed(file, gate)
    }
}

/// Makes a range of a file zeros: a hole, if the file system supports that.
pub(super) fn zero(file: &File, from: u64, len: u64) -> io::Result<()> {
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    if len == 0 || fallocate(file, mode, from, len).is_ok() {
        return Ok(());
    }
    let zeros = [0; CHUNK];
    let mut at = from;
    while at < from + len {
        let now = (from + len - at).min(CHUNK as u64);
        file.write_all_at(zeros.get(..now as usize).unwrap_or(&zeros), at)?;
        at += now;
    }
    Ok(())
}
