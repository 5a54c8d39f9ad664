//! How many frames of a queue the next burst may have.

use crate::burst::BURST;

/// How many frames of a queue are fetched at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BurstLimit {
    /// The usual limit: a full burst, unless a receiver was found full lately. Frames for which a
    /// receiver has no room would be fetched in vain, so the limit then starts again from one
    /// frame, and grows with each burst that found room.
    pub usual: usize,
    /// For the next burst only: as many as the receiver that was waited for has room for.
    pub room: Option<usize>,
    /// The number of frames like the last ones that fit in a quantum.
    pub estimate: usize,
}

impl Default for BurstLimit {
    fn default() -> Self {
        BurstLimit { usual: BURST, room: None, estimate: BURST }
    }
}

impl BurstLimit {
    /// How many frames the next burst may have.
    #[inline]
    pub fn next(&self) -> usize {
        self.room.unwrap_or(self.usual).min(self.estimate)
    }

    /// Notes that a burst was carried. `whole`: all of its frames were.
    #[inline]
    pub fn carried(&mut self, whole: bool) {
        match (self.room.take(), whole) {
            (_, false) => self.usual = 1,
            // A burst of this limit does not show that there is more room.
            (Some(_), true) => {}
            (None, true) => self.usual = (2 * self.usual).min(BURST),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_shrinks_at_once_and_grows_again() {
        let limit = |usual, room| BurstLimit { usual, room, estimate: BURST };
        let mut tested = BurstLimit::default();
        tested.carried(true);
        assert_eq!(tested, limit(BURST, None));
        tested.carried(false);
        assert_eq!(tested, limit(1, None));
        tested.room = Some(7);
        tested.carried(true);
        assert_eq!(tested, limit(1, None), "what was known to be there says nothing of more");
        for usual in [2, 4, 8, 16, 32, 64, 64] {
            tested.carried(true);
            assert_eq!(tested, limit(usual, None));
        }
    }
}
