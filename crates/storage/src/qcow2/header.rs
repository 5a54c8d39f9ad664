//! The header of a qcow2 image, parsed and checked. Nothing here changes a file.
//!
//! All numbers are big-endian (QEMU, `docs/interop/qcow2.txt`). The image's guest cannot write its
//! header, but a header may be damaged or crafted by a hostile author. So sizes are bounded before
//! anything is allocated for them, and unsupported features are refused by name.

use std::fs::File;
use std::os::unix::fs::FileExt;

const MAGIC: u32 = u32::from_be_bytes(*b"QFI\xfb");
/// Bytes of a header of version 2, and of the shortest one of version 3.
const V2_LEN: u64 = 72;
const V3_LEN: u64 = 104;
/// Bytes that are looked at: the header and its extensions lie in the first cluster.
const LOOKED_AT: u64 = 64 << 10;
/// Longest name of a backing file, in bytes.
const LONGEST_NAME: usize = 1023;
/// Most bytes of an L1 table, and of the table of refcount blocks: as QEMU allows.
const MOST_L1: u64 = 32 << 20;
const MOST_REFCOUNT_TABLE: u64 = 8 << 20;
/// The one width of refcounts that is written: 1 << 4 bits.
const REFCOUNT_ORDER: u32 = 4;
/// Offset of the length of the disk.
pub(super) const BYTES_AT: u64 = 24;
/// Offset of the number of entries and of the position of the L1 table, one after the other.
pub(super) const L1_AT: u64 = 36;
/// Offset of the position and of the length of the refcount table.
pub(super) const REFCOUNT_TABLE_AT: u64 = 48;
/// Offset of the autoclear features, which a writer that does not know them must clear.
pub(super) const AUTOCLEAR_AT: u64 = 88;

/// Types of header extensions.
const EXTENSION_END: u32 = 0;
const EXTENSION_BACKING_FORMAT: u32 = 0xe279_2aca;

/// Incompatible features.
const DIRTY: u64 = 1;
const CORRUPT: u64 = 1 << 1;
const DATA_FILE: u64 = 1 << 2;
const COMPRESSION_TYPE: u64 = 1 << 3;
const EXTENDED_L2: u64 = 1 << 4;

/// The backing file that a header names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Backing {
    pub name: String,
    /// The name of its format.
    pub format: Option<String>,
}

/// The contents of a header.
#[derive(Clone, Debug)]
pub(super) struct Header {
    pub version: u32,
    pub cluster_bits: u32,
    /// Length of the disk in bytes.
    pub bytes: u64,
    /// Position and entries of the L1 table.
    pub l1: (u64, u64),
    /// Position and clusters of the refcount table.
    pub refcount_table: (u64, u64),
    pub refcount_order: u32,
    pub snapshots: u32,
    pub incompatible: u64,
    pub autoclear: u64,
    pub backing: Option<Backing>,
}

/// The bytes that a header is parsed from.
struct Bytes(Vec<u8>);

impl Bytes {
    fn part(&self, at: u64, len: usize) -> Option<&[u8]> {
        let at = usize::try_from(at).ok()?;
        self.0.get(at..)?.get(..len)
    }

    fn u32(&self, at: u64) -> Result<u32, String> {
        let bytes = self.part(at, 4).and_then(|part| part.first_chunk());
        bytes.copied().map(u32::from_be_bytes).ok_or_else(short)
    }

    fn u64(&self, at: u64) -> Result<u64, String> {
        let bytes = self.part(at, 8).and_then(|part| part.first_chunk());
        bytes.copied().map(u64::from_be_bytes).ok_or_else(short)
    }

    fn text(&self, at: u64, len: usize) -> Result<String, String> {
        let bytes = self.part(at, len).ok_or_else(short)?;
        let text = std::str::from_utf8(bytes);
        text.map(str::to_owned).map_err(|_| "a name in its header is not UTF-8".to_owned())
    }
}

fn short() -> String {
    "its header is cut off".to_owned()
}

impl Header {
    /// Reads the header of an image.
    ///
    /// # Errors
    /// The reason why the image cannot be read, in a line for people.
    pub fn read(file: &File) -> Result<Header, String> {
        let mut bytes = vec![0; LOOKED_AT as usize];
        let mut len = 0;
        while len < bytes.len() {
            match file.read_at(&mut bytes[len..], len as u64) {
                Ok(0) => break,
                Ok(read) => len += read,
                Err(error) => return Err(error.to_string()),
            }
        }
        bytes.truncate(len);
        Header::parse(&Bytes(bytes))
    }

    fn parse(bytes: &Bytes) -> Result<Header, String> {
        if bytes.u32(0) != Ok(MAGIC) {
            return Err("it is not a qcow2 image".to_owned());
        }
        let version = bytes.u32(4)?;
        let v3 = match version {
            2 => false,
            3 => true,
            other => return Err(format!("qcow2 version {other} is not supported")),
        };
        let header_len = if v3 { bytes.u32(100)?.into() } else { V2_LEN };
        let header = Header {
            version,
            cluster_bits: bytes.u32(20)?,
            bytes: bytes.u64(24)?,
            l1: (bytes.u64(40)?, bytes.u32(36)?.into()),
            refcount_table: (bytes.u64(REFCOUNT_TABLE_AT)?, bytes.u32(56)?.into()),
            refcount_order: if v3 { bytes.u32(96)? } else { REFCOUNT_ORDER },
            snapshots: bytes.u32(60)?,
            incompatible: if v3 { bytes.u64(72)? } else { 0 },
            autoclear: if v3 { bytes.u64(AUTOCLEAR_AT)? } else { 0 },
            backing: backing(bytes, header_len)?,
        };
        if v3 && header_len < V3_LEN {
            return Err(short());
        }
        header.check_features(bytes, header_len)?;
        if bytes.u32(32)? != 0 {
            return Err("it is encrypted, which is not supported".to_owned());
        }
        header.check_places()?;
        Ok(header)
    }

    fn check_features(&self, bytes: &Bytes, header_len: u64) -> Result<(), String> {
        let has = |feature| self.incompatible & feature != 0;
        let refuse = |reason: &str| Err(reason.to_owned());
        if has(CORRUPT) {
            return refuse("it is marked as corrupt; run qemu-img check -r all");
        }
        if has(DATA_FILE) {
            return refuse("it has an external data file, which is not supported");
        }
        if has(EXTENDED_L2) {
            return refuse("it has extended L2 entries (extended_l2=on), which are not supported");
        }
        let compression = bytes.part(104, 1).and_then(|byte| byte.first()).copied();
        if has(COMPRESSION_TYPE) && (header_len <= 104 || compression != Some(0)) {
            return refuse("it is compressed by another method than zlib, which is not supported");
        }
        let unknown = self.incompatible & !(DIRTY | CORRUPT | COMPRESSION_TYPE);
        match unknown {
            0 => Ok(()),
            _ => Err(format!("it has features that are not supported (bits {unknown:#x})")),
        }
    }

    fn check_places(&self) -> Result<(), String> {
        if !(9..=21).contains(&self.cluster_bits) {
            return Err(format!("clusters of 2^{} bytes are not supported", self.cluster_bits));
        }
        let damaged = || Err("its header is damaged".to_owned());
        let cluster = self.cluster();
        // A table of L2 tables: each entry stands for as many clusters as a cluster has entries.
        let covered = u128::from(cluster) * u128::from(cluster / 8);
        let (l1, entries) = self.l1;
        let needed = u128::from(self.bytes).div_ceil(covered);
        if u128::from(entries) < needed || entries * 8 > MOST_L1 || !l1.is_multiple_of(cluster) {
            return damaged();
        }
        let (table, clusters) = self.refcount_table;
        let table_len = clusters.checked_mul(cluster);
        let fits = table_len.is_some_and(|len| len > 0 && len <= MOST_REFCOUNT_TABLE);
        if !fits || !table.is_multiple_of(cluster) || table == 0 || self.refcount_order > 6 {
            return damaged();
        }
        // Positions beyond this limit are not accepted by the kernel.
        let end = |at: u64| at > i64::MAX as u64 / 2;
        if end(l1) || end(table) || end(self.bytes) { damaged() } else { Ok(()) }
    }

    /// The reason why the image cannot be written, if it cannot.
    pub fn refusal_to_write(&self) -> Option<String> {
        if self.incompatible & DIRTY != 0 {
            return Some("it was not closed (dirty); run qemu-img check -r all".to_owned());
        }
        if self.snapshots > 0 {
            let reason = "it has internal snapshots, which are supported for read-only disks only";
            return Some(reason.to_owned());
        }
        (self.refcount_order != REFCOUNT_ORDER).then(|| {
            let bits = 1u32 << self.refcount_order;
            format!("it has refcounts of {bits} bits; only those of 16 bits are written")
        })
    }

    /// Bytes of a cluster.
    pub fn cluster(&self) -> u64 {
        1 << self.cluster_bits
    }
}

/// Most bytes of a disk in an image with clusters of `cluster` bytes.
pub(super) fn most_bytes(cluster: u64) -> u64 {
    let covered = cluster * (cluster / 8);
    covered.saturating_mul(MOST_L1 / 8).min(i64::MAX as u64 / 2)
}

/// The backing file, and its format.
fn backing(bytes: &Bytes, header_len: u64) -> Result<Option<Backing>, String> {
    let (at, len) = (bytes.u64(8)?, bytes.u32(16)? as usize);
    if at == 0 {
        return Ok(None);
    }
    if len > LONGEST_NAME {
        return Err("the name of its backing file is too long".to_owned());
    }
    let mut backing = Backing { name: bytes.text(at, len)?, format: None };
    let mut extension = header_len;
    while extension.saturating_add(8) <= at {
        let (kind, len) = (bytes.u32(extension)?, bytes.u32(extension + 4)?);
        match kind {
            EXTENSION_END => break,
            EXTENSION_BACKING_FORMAT => {
                backing.format = Some(bytes.text(extension + 8, len as usize)?);
            }
            _ => {}
        }
        // Each is padded to a multiple of eight bytes.
        extension += 8 + u64::from(len).next_multiple_of(8);
    }
    Ok(Some(backing))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A header of version 3: 64 KiB clusters, a disk of 1 GiB.
    fn plain() -> Vec<u8> {
        let mut bytes = vec![0; 4096];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0, b"QFI\xfb");
        put(4, &3u32.to_be_bytes());
        put(20, &16u32.to_be_bytes());
        put(24, &(1u64 << 30).to_be_bytes());
        put(36, &2u32.to_be_bytes());
        put(40, &(3u64 << 16).to_be_bytes());
        put(48, &(1u64 << 16).to_be_bytes());
        put(56, &1u32.to_be_bytes());
        put(96, &4u32.to_be_bytes());
        put(100, &104u32.to_be_bytes());
        bytes
    }

    fn with(at: usize, value: &[u8]) -> Result<Header, String> {
        let mut bytes = plain();
        bytes[at..at + value.len()].copy_from_slice(value);
        Header::parse(&Bytes(bytes))
    }

    #[test]
    fn a_plain_header_is_read() {
        let header = Header::parse(&Bytes(plain())).unwrap();
        assert_eq!((header.bytes, header.cluster()), (1 << 30, 1 << 16));
        assert_eq!((header.l1, header.refcount_table), ((3 << 16, 2), (1 << 16, 1)));
        assert_eq!((header.backing, header.refcount_order), (None, 4));
    }

    #[test]
    fn what_is_not_supported_is_refused_by_name() {
        let cases: [(usize, &[u8], &str); 9] = [
            (0, b"RAW!", "not a qcow2 image"),
            (4, &4u32.to_be_bytes(), "version 4"),
            (20, &40u32.to_be_bytes(), "clusters of 2^40"),
            (32, &1u32.to_be_bytes(), "encrypted"),
            (36, &1u32.to_be_bytes(), "damaged"),
            (72, &4u64.to_be_bytes(), "external data file"),
            (72, &16u64.to_be_bytes(), "extended L2"),
            (72, &2u64.to_be_bytes(), "marked as corrupt"),
            (72, &64u64.to_be_bytes(), "bits 0x40"),
        ];
        for (at, value, reason) in cases {
            let error = with(at, value).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn some_images_are_read_and_not_written() {
        let refusal = |at, value: &[u8]| with(at, value).unwrap().refusal_to_write();
        assert_eq!(refusal(60, &0u32.to_be_bytes()), None);
        assert!(refusal(60, &1u32.to_be_bytes()).unwrap().contains("snapshots"));
        assert!(refusal(72, &1u64.to_be_bytes()).unwrap().contains("dirty"));
        assert!(refusal(96, &3u32.to_be_bytes()).unwrap().contains("8 bits"));
    }

    proptest! {
        #[test]
        fn no_header_is_a_surprise(
            changes in proptest::collection::vec((0usize..200, any::<u8>()), 0..40),
            len in 0usize..4096,
        ) {
            let mut bytes = plain();
            changes.iter().for_each(|&(at, byte)| bytes[at] = byte);
            bytes.truncate(len);
            if let Ok(header) = Header::parse(&Bytes(bytes)) {
                prop_assert!(header.l1.1 * 8 <= MOST_L1);
                prop_assert!((9..=21).contains(&header.cluster_bits));
            }
        }
    }
}
