//! The private copy of a frame's first bytes, with room in front for a tag.

/// How many bytes of each frame are copied into private memory before anything looks at them.
pub const HEAD_LEN: usize = 128;

/// Free bytes in front of a fresh [`Head`]: room for tags to be pushed without moving what follows
/// the addresses.
pub const HEADROOM: usize = 16;

/// Bytes of the buffer that a fresh head of a minimal Ethernet frame reaches to.
const SHORT: usize = HEADROOM + 64;

/// The first `min(HEAD_LEN, frame length)` bytes of a frame, copied once, plus whatever was pushed
/// in front since.
///
/// Invariant: `start + len <= HEADROOM + HEAD_LEN`.
#[derive(Clone, Copy, Debug)]
#[repr(align(16))]
pub struct Head {
    buf: [u8; HEADROOM + HEAD_LEN],
    start: u8,
    len: u8,
}

impl Default for Head {
    fn default() -> Head {
        Head::new()
    }
}

impl Head {
    /// An empty head.
    pub const fn new() -> Head {
        Head { buf: [0; HEADROOM + HEAD_LEN], start: HEADROOM as u8, len: 0 }
    }

    /// A head holding the first bytes of `frame`, at most [`HEAD_LEN`].
    pub fn from_frame(frame: &[u8]) -> Head {
        let mut head = Head::new();
        head.fill(|room| {
            let n = room.len().min(frame.len());
            if let (Some(to), Some(from)) = (room.get_mut(..n), frame.get(..n)) {
                to.copy_from_slice(from);
            }
            n
        });
        head
    }

    /// Replaces the contents. `read` writes into a slice of [`HEAD_LEN`] bytes and returns how many
    /// it wrote. Bytes that it does not write keep their old contents but lie outside of the head.
    #[inline]
    pub fn fill(&mut self, read: impl FnOnce(&mut [u8]) -> usize) {
        let room = self.buf.get_mut(HEADROOM..).unwrap_or_default();
        let len = read(room).min(HEAD_LEN);
        self.start = HEADROOM as u8;
        self.len = len as u8;
    }

    /// [`fill`](Self::fill) with a `read` that may fail. False: it failed, and the bytes are
    /// unspecified.
    #[inline(always)]
    pub fn try_fill(&mut self, read: impl FnOnce(&mut [u8]) -> Option<usize>) -> bool {
        let room = self.buf.get_mut(HEADROOM..).unwrap_or_default();
        let Some(len) = read(room) else { return false };
        self.start = HEADROOM as u8;
        self.len = len.min(HEAD_LEN) as u8;
        true
    }

    /// Becomes a copy of another head.
    #[inline(always)]
    pub fn copy_from(&mut self, other: &Head) {
        // Most heads are of short frames, or end with their headers. Neither copy is long enough
        // for the compiler to call a function.
        let (low, high) = self.buf.split_at_mut(SHORT);
        let (other_low, other_high) = other.buf.split_at(SHORT);
        low.copy_from_slice(other_low);
        if usize::from(other.start) + usize::from(other.len) > SHORT {
            high.copy_from_slice(other_high);
        }
        (self.start, self.len) = (other.start, other.len);
    }

    /// The bytes, destination address first.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        match self.buf.get(self.start as usize..self.start as usize + self.len as usize) {
            Some(bytes) => bytes,
            // Unreachable by the invariant; a branch is cheaper than a choice between two slices.
            None => no_bytes(),
        }
    }

    /// The bytes at the place where they were filled in, if nothing was pushed or popped since.
    /// Those behind the first [`len`](Self::len) are not of this frame.
    #[inline(always)]
    pub(crate) fn as_filled(&self) -> Option<&[u8; HEAD_LEN]> {
        let is_there = usize::from(self.start) == HEADROOM;
        self.buf.get(HEADROOM..).filter(|_| is_there)?.first_chunk()
    }

    /// The bytes, to be changed in place.
    #[inline]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        self.buf
            .get_mut(self.start as usize..self.start as usize + self.len as usize)
            .unwrap_or_default()
    }

    /// How many bytes there are.
    #[inline]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// True when nothing was filled in.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Takes `n` more bytes from the room in front; their contents are stale. `None`: no room,
    /// nothing changed.
    #[inline]
    pub(crate) fn grow_front(&mut self, n: u8) -> Option<()> {
        self.start = self.start.checked_sub(n)?;
        self.len += n;
        Some(())
    }

    /// Gives the first `n` bytes back to the room in front. `None`: there are fewer, nothing
    /// changed.
    #[inline]
    pub(crate) fn shrink_front(&mut self, n: u8) -> Option<()> {
        self.len = self.len.checked_sub(n)?;
        self.start += n;
        Some(())
    }
}

#[cold]
#[inline(never)]
fn no_bytes() -> &'static [u8] {
    &[]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_at_most_its_length() {
        let frame: Vec<u8> = (0..=255).collect();
        assert_eq!(Head::from_frame(&frame).as_slice(), &frame[..HEAD_LEN]);
        assert_eq!(Head::from_frame(&frame[..60]).as_slice(), &frame[..60]);
        assert!(Head::from_frame(&[]).is_empty());
    }

    #[test]
    fn a_reader_that_overstates_is_clamped() {
        let mut head = Head::new();
        head.fill(|_| usize::MAX);
        assert_eq!(head.len(), HEAD_LEN);
    }

    #[test]
    fn filling_starts_over() {
        let mut head = Head::from_frame(&[1; 100]);
        assert_eq!(head.grow_front(4), Some(()));
        head.fill(|room| {
            room[..14].fill(2);
            14
        });
        assert_eq!(head.as_slice(), [2; 14]);
    }

    #[test]
    fn room_in_front_is_bounded() {
        let mut head = Head::from_frame(&[1; HEAD_LEN]);
        for _ in 0..HEADROOM / 4 {
            assert_eq!(head.grow_front(4), Some(()));
        }
        assert_eq!(head.len(), HEADROOM + HEAD_LEN);
        assert_eq!(head.grow_front(4), None);
        assert_eq!(head.len(), HEADROOM + HEAD_LEN);
        assert_eq!(Head::from_frame(&[1; 3]).shrink_front(4), None);
    }
}
