//! A reader of qcow2 images, independent of the one that is tested. Each cluster has to be counted
//! as often as it is used. The reader supports what the images of these tests have.

use std::collections::{HashMap, HashSet};

const COPIED: u64 = 1 << 63;
const COMPRESSED: u64 = 1 << 62;
const ZERO: u64 = 1;
const PLACE: u64 = 0x00ff_ffff_ffff_fe00;
const SECTOR: u64 = 512;

/// Where a cluster of the disk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    File(u64),
    Compressed,
    Zeros,
    Backing,
}

/// An image whose tables were read.
pub struct Disk<'a> {
    file: &'a [u8],
    cluster: u64,
    clusters: Vec<Found>,
}

fn word(file: &[u8], at: u64) -> u64 {
    let bytes = file.get(at as usize..).and_then(|rest| rest.first_chunk());
    bytes.copied().map_or(0, u64::from_be_bytes)
}

fn half(file: &[u8], at: u64) -> u64 {
    word(file, at) >> 32
}

/// Counts the uses of clusters.
struct Uses {
    cluster: u64,
    uses: HashMap<u64, u64>,
    /// Clusters with compressed data: they may be counted more often than they are used.
    compressed: HashSet<u64>,
}

impl Uses {
    fn add(&mut self, place: u64, clusters: u64) {
        for cluster in place / self.cluster..place / self.cluster + clusters {
            *self.uses.entry(cluster).or_default() += 1;
        }
    }

    fn add_compressed(&mut self, entry: u64) {
        let bits = 62 - (self.cluster.trailing_zeros() - 8);
        let place = entry & ((1 << bits) - 1);
        let sectors = (entry & (COMPRESSED - 1)) >> bits;
        let last = (place & !511) + sectors * 512 + 511;
        let (first, last) = (place / self.cluster, last / self.cluster);
        self.compressed.extend(first..=last);
        self.add(place, last - first + 1);
    }

    /// Whether every cluster is counted as often as it is used.
    fn check(&self, counted: impl Fn(u64) -> u64) -> Result<(), String> {
        for (&cluster, &uses) in &self.uses {
            let count = counted(cluster);
            let leaks = count > uses && self.compressed.contains(&cluster);
            if uses != count && !leaks {
                return Err(format!("cluster {cluster} is used {uses} times, counted {count}"));
            }
        }
        Ok(())
    }
}

impl<'a> Disk<'a> {
    /// Reads the tables, and checks them.
    ///
    /// # Errors
    /// What is damaged.
    pub fn open(file: &'a [u8]) -> Result<Disk<'a>, String> {
        let cluster = 1 << half(file, 20);
        let (bytes, l1_len, l1) = (word(file, 24), half(file, 36), word(file, 40));
        let (counts, counts_len) = (word(file, 48), half(file, 56));
        let mut uses = Uses { cluster, uses: HashMap::new(), compressed: HashSet::new() };
        uses.add(0, 1);
        uses.add(l1, (l1_len * 8).div_ceil(cluster));
        uses.add(counts, counts_len);
        let block = |at| word(file, counts + 8 * at) & PLACE;
        (0..counts_len * cluster / 8)
            .map(block)
            .filter(|place| *place != 0)
            .for_each(|place| uses.add(place, 1));
        let backed = word(file, 8) != 0;
        let unallocated = if backed { Found::Backing } else { Found::Zeros };
        let (entries, mut clusters) = (cluster / 8, Vec::new());
        for number in 0..bytes.div_ceil(cluster) {
            let (index, at) = (number / entries, number % entries);
            if index >= l1_len {
                return Err(format!("the L1 table has {l1_len} entries"));
            }
            let table = word(file, l1 + 8 * index) & PLACE;
            if table == 0 {
                clusters.push(unallocated);
                continue;
            }
            if at == 0 {
                uses.add(table, 1);
            }
            let entry = word(file, table + 8 * at);
            let place = entry & PLACE;
            clusters.push(match entry {
                _ if entry & COMPRESSED != 0 => {
                    uses.add_compressed(entry);
                    Found::Compressed
                }
                _ if entry & ZERO != 0 => Found::Zeros,
                0 => unallocated,
                _ if entry & COPIED == 0 || !place.is_multiple_of(cluster) => {
                    return Err(format!("cluster {number} of the disk has entry {entry:#x}"));
                }
                _ => {
                    uses.add(place, 1);
                    Found::File(place)
                }
            });
        }
        let counted = |number: u64| {
            let (index, at) = (number / (cluster / 2), number % (cluster / 2));
            let outside = index >= counts_len * cluster / 8;
            let block = if outside { 0 } else { block(index) };
            if block == 0 { 0 } else { word(file, block + 2 * at) >> 48 }
        };
        uses.check(counted)?;
        Ok(Disk { file, cluster, clusters })
    }

    /// The stamp of a sector, which is `first` where nothing was written. `None`: nobody has
    /// written what is there.
    pub fn sector(&self, sector: u64, first: u64) -> Option<u64> {
        let (number, within) = (sector * SECTOR / self.cluster, sector * SECTOR % self.cluster);
        match self.clusters.get(number as usize)? {
            Found::File(place) => {
                let rest = self.file.get((place + within) as usize..).unwrap_or_default();
                stamp(&rest[..rest.len().min(SECTOR as usize)])
            }
            Found::Backing | Found::Compressed => Some(first),
            Found::Zeros => Some(0),
        }
    }
}

/// The stamp of a sector: the number that it begins with, if all else is zero.
pub fn stamp(bytes: &[u8]) -> Option<u64> {
    let Some((number, rest)) = bytes.split_first_chunk::<8>() else { return Some(0) };
    // Compared as a whole: the test spends most of its time here.
    (rest == &[0; SECTOR as usize][..rest.len()]).then(|| u64::from_le_bytes(*number))
}
