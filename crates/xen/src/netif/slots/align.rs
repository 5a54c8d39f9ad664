//! The place in a receiver's pages where bytes begin, so that copies are aligned.
//!
//! A copy takes the fewest steps when both of its ends have the same offset in their cache lines.
//! The offset of a sender's bytes is given. A receiver is told where in its page the bytes begin,
//! so each page is filled from an offset at which the longest copy into it is aligned. Bytes for
//! which the page would then be too short begin at its start instead.

use hypervisor::PAGE;

use super::PAGES;
use super::sizes::Sizes;

/// Bytes of a cache line.
const LINE: u32 = 64;

/// The place where bytes begin in each page of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shifts([u8; PAGES]);

impl Shifts {
    /// The shifts of a frame laid out in `sizes`. Its first `head` bytes are private, and the
    /// others lie in `pieces`: for each, its offset from the start of a cache line, and its length,
    /// both in bytes.
    #[inline]
    pub fn of(sizes: &Sizes, head: u32, pieces: impl IntoIterator<Item = (u32, u32)>) -> Self {
        let (mut shifts, mut longest) = (Shifts::default(), [0; PAGES]);
        // The page that is being filled, and the bytes in it so far.
        let (mut page, mut at) = (0, head);
        for (start, len) in pieces {
            let (mut from, mut left) = (start, len);
            while left > 0 {
                let Some(room) = sizes.page(page).map(|size| size.saturating_sub(at)) else {
                    break;
                };
                let now = left.min(room);
                if now > longest[page] {
                    longest[page] = now;
                    shifts.0[page] = (from.wrapping_sub(at) % LINE) as u8;
                }
                (from, left, at) = (from + now, left - now, at + now);
                if now == room {
                    (page, at) = (page + 1, 0);
                }
            }
        }
        shifts.within(sizes)
    }

    /// Keeps the shifts that leave all bytes in their pages.
    fn within(mut self, sizes: &Sizes) -> Self {
        for (page, shift) in self.0.iter_mut().enumerate() {
            let end = sizes.page(page).map(|size| size + u32::from(*shift));
            if end.is_none_or(|end| end > PAGE as u32) {
                *shift = 0;
            }
        }
        self
    }

    /// The offset at which bytes begin in page number `page`.
    #[inline]
    pub fn page(&self, page: usize) -> u16 {
        self.0.get(page).copied().unwrap_or_default().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shifts(head: u32, pieces: &[(u32, u32)]) -> Vec<(u32, u16)> {
        let len = head + pieces.iter().map(|(_, len)| len).sum::<u32>();
        let sizes = Sizes::of(head, len, || pieces.iter().map(|(_, len)| *len)).unwrap();
        let shifts = Shifts::of(&sizes, head, pieces.iter().copied());
        (0..PAGES).map_while(|page| Some((sizes.page(page)?, shifts.page(page)))).collect()
    }

    #[test]
    fn the_longest_copy_into_a_page_is_aligned() {
        // Linux' frames begin 66 bytes into a page: the bytes after 128 private ones begin at 194.
        assert_eq!(shifts(128, &[(194, 1386)]), [(1514, 2)]);
        assert_eq!(shifts(128, &[(194, 20), (7, 1366)]), [(1514, (7 + 64 - (148 % 64)) as u16)]);
        assert_eq!(shifts(60, &[]), [(60, 0)]);
        // Each page by itself.
        assert_eq!(
            shifts(128, &[(0, 100), (5, 4000), (70, 4000)]),
            [(228, 0), (4000, 5), (4000, 6)]
        );
    }

    #[test]
    fn no_byte_goes_beyond_its_page() {
        assert_eq!(shifts(128, &[(191, 3905)]), [(4033, 63)]);
        assert_eq!(shifts(128, &[(191, 3906)]), [(4034, 0)]);
        assert_eq!(shifts(0, &[(63, 4096)]), [(4096, 0)]);
    }

    /// For any length and any place: a frame that fits a page takes one page, and a longer one no
    /// more pages than without alignment.
    #[test]
    fn alignment_takes_no_page() {
        for len in 0..=PAGE as u32 {
            for start in 0..=LINE {
                let head = len.min(128);
                let pieces = [(start, len - head)];
                let all = shifts(head, &pieces);
                assert_eq!(all.len(), 1, "{len} bytes at {start}");
                let (size, shift) = all[0];
                assert!(
                    size == len && u32::from(shift) + len <= PAGE as u32,
                    "{len} bytes at {start}"
                );
                let aligned = (u32::from(shift) + head) % LINE == start % LINE;
                assert!(
                    aligned || len == head || len > PAGE as u32 - LINE,
                    "{len} bytes at {start}"
                );
            }
        }
    }
}
