//! The distribution of a frame's bytes over pages.

use ring::grant::PAGE;

use super::PAGES;

/// Bytes that a receiver pulls out of a frame's first slot. Linux' frontend does not count a first
/// slot with no more than that against the slots that it can hold.
pub(super) const PULLED: u16 = 256;

/// The number of a frame's bytes in each page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    pub(super) bytes: [u16; PAGES],
    pub(super) count: u8,
}

impl Sizes {
    /// The sizes of a frame of `len` bytes, of which `head` are private. The others lie in
    /// `pieces`, if they are granted.
    ///
    /// Each copy costs the hypervisor about as much as copying half a page, and a piece that is
    /// split over two pages takes two copies. So pieces are kept whole as far as the receiver has
    /// slots; otherwise pages are filled.
    pub fn of<I: Iterator<Item = u32>>(
        head: u32,
        len: u32,
        pieces: impl FnOnce() -> I,
    ) -> Option<Self> {
        if len <= PAGE as u32 {
            return Some(Sizes { bytes: one(len as u16), count: 1 });
        }
        Self::whole(head, len, pieces()).or_else(|| Self::full(len))
    }

    /// The number of bytes in page number `page`, if it has any.
    #[inline]
    pub fn page(&self, page: usize) -> Option<u32> {
        self.bytes[..usize::from(self.count)].get(page).map(|bytes| u32::from(*bytes))
    }

    /// These sizes, if a frame may have so many pages.
    pub(crate) fn given(all: impl Iterator<Item = u16>) -> Option<Self> {
        let (mut bytes, mut count) = (one(0), 0);
        for size in all {
            *bytes.get_mut(count)? = size;
            count += 1;
        }
        Some(Sizes { bytes, count: count as u8 })
    }

    /// Each piece in one page.
    fn whole(head: u32, len: u32, pieces: impl Iterator<Item = u32>) -> Option<Self> {
        let (mut bytes, mut at, mut total) = (one(0), 0, head);
        let mut size = head;
        for piece in pieces {
            total += piece;
            if size + piece > PAGE as u32 {
                *bytes.get_mut(at)? = size as u16;
                (at, size) = (at + 1, 0);
            }
            size += piece;
            if size > PAGE as u32 {
                return None;
            }
        }
        *bytes.get_mut(at)? = size as u16;
        let most = if bytes[0] > PULLED { PAGES - 1 } else { PAGES };
        (total == len && at < most).then_some(Sizes { bytes, count: at as u8 + 1 })
    }

    /// All pages full but the last.
    fn full(len: u32) -> Option<Self> {
        let mut bytes = one(0);
        let mut left = len;
        for (count, size) in (1..).zip(&mut bytes) {
            *size = left.min(PAGE as u32) as u16;
            left -= u32::from(*size);
            if left == 0 {
                return Some(Sizes { bytes, count });
            }
        }
        None
    }
}

fn one(len: u16) -> [u16; PAGES] {
    let mut bytes = [0; PAGES];
    bytes[0] = len;
    bytes
}
