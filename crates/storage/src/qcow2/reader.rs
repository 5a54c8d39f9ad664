//! Loading tables, and reading data that only the image's thread can read.

use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use super::Shared;
use super::compressed;
use super::layer::{Source, source, words};
use super::table::Entry;

pub(super) fn damaged() -> io::Error {
    io::Error::from_raw_os_error(libc::EUCLEAN)
}

/// Fills the slots for L2 tables, and reads clusters.
pub(super) struct Reader {
    pub shared: Arc<Shared>,
    /// For each layer, which L2 table is in which slot, and the slot that is used next.
    slots: Vec<(Vec<Option<usize>>, usize)>,
    /// A cluster that was decompressed.
    inflated: Vec<u8>,
}

impl Reader {
    /// A reader that has read nothing.
    pub fn new(shared: Arc<Shared>) -> Reader {
        let layers = shared.layers.iter();
        let slots = layers.map(|layer| {
            let slots = layer.tables.as_ref().map_or(0, |tables| tables.slots());
            (vec![None; slots], 0)
        });
        Reader { slots: slots.collect(), shared, inflated: Vec::new() }
    }

    /// Keeps an L2 table. If there is no room, the table that was loaded first is replaced.
    pub fn keep(&mut self, layer: usize, index: usize, table: &[u8]) {
        let tables = self.shared.layers.get(layer).and_then(|layer| layer.tables.as_ref());
        let Some((tables, (slots, next))) = tables.zip(self.slots.get_mut(layer)) else { return };
        let slot = *next;
        *next = (slot + 1) % slots.len().max(1);
        let Some(owner) = slots.get_mut(slot) else { return };
        if let Some(evicted) = owner.replace(index) {
            tables.forget(evicted);
            self.shared.gate.wait();
        }
        tables.keep(slot, index, words(table));
    }

    /// Loads the L2 table for a byte of the disk, unless it is loaded, or there is none.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn load(&mut self, layer: usize, offset: u64) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let found =
            shared.layers.get(layer).and_then(|layer| Some((layer, layer.tables.as_ref()?)));
        let (file, tables) = found.ok_or_else(damaged)?;
        let (index, _) = tables.indices(offset);
        let Some(place) = tables.l2_place(index).filter(|_| tables.l2(index).is_none()) else {
            return Ok(());
        };
        let mut table = vec![0; tables.cluster() as usize];
        file.file().read_exact_at(&mut table, place)?;
        self.keep(layer, index, &table);
        Ok(())
    }

    /// Resolves a failed look-up: loads the table, or decompresses the cluster. Returns the bytes
    /// of a compressed cluster from `offset` on; `None`: the caller must look up again.
    ///
    /// # Errors
    /// When the file cannot be read, or is damaged.
    pub fn resolve(&mut self, layer: usize, offset: u64) -> io::Result<Option<&[u8]>> {
        let shared = Arc::clone(&self.shared);
        let found =
            shared.layers.get(layer).and_then(|layer| Some((layer, layer.tables.as_ref()?)));
        let (file, tables) = found.ok_or_else(damaged)?;
        match tables.entry(offset) {
            None => self.load(layer, offset).map(|()| None),
            Some(Entry::Compressed(place, most)) => {
                self.inflated.resize(tables.cluster() as usize, 0);
                compressed::read(file.file(), (place, most), &mut self.inflated)?;
                let within = (offset & (tables.cluster() - 1)) as usize;
                Ok(self.inflated.get(within..))
            }
            Some(Entry::Damaged) => Err(damaged()),
            Some(_) => Ok(None),
        }
    }

    /// Reads from `offset` on, from layer `first` and those below it. False: all bytes are zeros
    /// that need not be copied.
    ///
    /// # Errors
    /// As for [`resolve`](Self::resolve).
    pub fn read(&mut self, first: usize, offset: u64, buffer: &mut [u8]) -> io::Result<bool> {
        let shared = Arc::clone(&self.shared);
        let (mut at, mut has_data) = (0, false);
        while let Some(rest) = buffer.get_mut(at..).filter(|rest| !rest.is_empty()) {
            let offset = offset + at as u64;
            let (source, len) = source(&shared.layers, first, offset, rest.len() as u64);
            let rest = rest.get_mut(..len as usize).ok_or_else(damaged)?;
            match source {
                Source::File(layer, place) => {
                    let layer = shared.layers.get(layer).ok_or_else(damaged)?;
                    layer.file().read_exact_at(rest, place)?;
                    has_data = true;
                }
                Source::Zeros => rest.fill(0),
                Source::Elsewhere(layer, offset) => match self.resolve(layer, offset)? {
                    Some(bytes) => {
                        rest.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
                        has_data = true;
                    }
                    None => continue,
                },
            }
            at += len as usize;
        }
        Ok(has_data)
    }
}
