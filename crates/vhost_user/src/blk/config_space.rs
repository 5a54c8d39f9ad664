//! The configuration space of a block device (virtio 1.2, 5.2.4).

use storage::Disk;
use storage::command::{MOST_DISCARDED, MOST_ZEROED, SECTOR};

/// Most pieces of a request, without header and status: as many as fit a ring of 128 entries.
pub const SEG_MAX: u32 = 126;

/// Offset of the field that switches the write cache.
pub const WCE_AT: u32 = 32;

/// Bytes of the space, up to the end of the fields of write zeroes.
const LEN: usize = 60;

/// Sectors to which discards should be aligned: a page.
const DISCARD_ALIGNMENT: u32 = (4096 / SECTOR) as u32;

/// The whole space for a disk with `queues` queues.
fn space(disk: &Disk, queues: u16, write_cache: bool) -> [u8; LEN] {
    let mut space = [0; LEN];
    let mut put = |at: usize, bytes: &[u8]| {
        space[at..at + bytes.len()].copy_from_slice(bytes);
    };
    let image = disk.image();
    put(0, &(image.bytes() / SECTOR).to_le_bytes());
    put(12, &SEG_MAX.to_le_bytes());
    put(20, &image.block().to_le_bytes());
    // The alignment offset is zero, and the minimal size of an I/O is one physical block.
    let blocks = (image.physical_block() / image.block()).max(1);
    put(24, &[blocks.ilog2() as u8, 0]);
    put(26, &u16::try_from(blocks).unwrap_or(u16::MAX).to_le_bytes());
    put(WCE_AT as usize, &[u8::from(write_cache)]);
    put(34, &queues.to_le_bytes());
    put(36, &MOST_DISCARDED.to_le_bytes());
    put(40, &1u32.to_le_bytes());
    put(44, &DISCARD_ALIGNMENT.to_le_bytes());
    put(48, &MOST_ZEROED.to_le_bytes());
    put(52, &1u32.to_le_bytes());
    put(56, &[u8::from(image.discards())]);
    space
}

/// Reads any range of the space. Bytes behind the fields read as zeros.
pub fn read(disk: &Disk, queues: u16, write_cache: bool, offset: u32, bytes: &mut [u8]) {
    let space = space(disk, queues, write_cache);
    bytes.fill(0);
    let rest = space.get(offset as usize..).unwrap_or_default();
    bytes.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use storage::Image;
    use storage::image::{Direct, ImageOptions};

    use super::*;

    #[test]
    fn any_range_is_read() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(3 << 30).unwrap();
        let options = ImageOptions {
            direct: Direct::Never,
            sector_size: Some(4096),
            ..ImageOptions::new(file.path().to_owned())
        };
        let disk = Disk::new(Arc::new(Image::open(&options).unwrap()), "x");
        let mut whole = [1; 256];
        read(&disk, 4, true, 0, &mut whole);
        assert_eq!(whole[..8], (6u64 << 20).to_le_bytes());
        assert_eq!(
            (&whole[20..24], whole[32], &whole[34..36]),
            (&[0, 16, 0, 0][..], 1, &[4, 0][..])
        );
        assert_eq!(whole[24..32], [0, 0, 1, 0, 0, 0, 0, 0], "as large as a block");
        assert!(whole[60..].iter().all(|byte| *byte == 0));
        for (offset, len) in [(0, 8), (7, 30), (50, 100), (60, 4), (1000, 8), (u32::MAX, 256)] {
            let mut part = vec![7; len];
            read(&disk, 4, true, offset, &mut part);
            let want: Vec<u8> =
                (0..len).map(|i| whole.get(offset as usize + i).copied().unwrap_or(0)).collect();
            assert_eq!(part, want, "{offset}");
        }
    }
}
