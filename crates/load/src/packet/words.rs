//! Places of payload words in a frame.

/// Places and lengths of payload words, in ascending order.
#[derive(Clone, Debug)]
pub struct Words {
    pub at: usize,
    /// The place of the last word, unless the end has been reached.
    pub last: usize,
    pub end: usize,
    pub step: usize,
}

impl Iterator for Words {
    type Item = (usize, usize);

    #[inline]
    fn next(&mut self) -> Option<(usize, usize)> {
        let at = self.at;
        if at < self.last {
            self.at = (at + self.step).min(self.last);
            return Some((at, 8));
        }
        self.at = self.end;
        (at < self.end).then_some((at, self.end - at))
    }
}
