//! Positions in a split virtqueue.

/// A position of 16 bits, in a machine word of its own. Compilers load a 16-bit field together with
/// its neighbours; when one of them has just been stored, that load waits until the store has left
/// the processor's store buffer, behind all stores to cache lines that the driver has at the time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Position(usize);

impl Position {
    pub(super) fn of(position: u16) -> Self {
        Position(position.into())
    }

    #[inline(always)]
    pub(super) fn get(self) -> u16 {
        self.0 as u16
    }

    #[inline(always)]
    pub(super) fn advance(&mut self, n: usize) {
        self.0 = self.0.wrapping_add(n);
    }

    pub(super) fn retreat(&mut self, n: usize) {
        self.0 = self.0.wrapping_sub(n);
    }
}
