//! Bytes without a meaning of their own, taken apart into numbers.

/// The rest of the bytes. Where they have run out, zeros follow.
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// All of them.
    pub fn new(data: &'a [u8]) -> Self {
        Input(data)
    }

    /// Whether none are left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next `n`, or fewer.
    pub fn take(&mut self, n: usize) -> &'a [u8] {
        let (now, grant_copies) = self.0.split_at(n.min(self.0.len()));
        self.0 = grant_copies;
        now
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let now = self.take(N);
        array[..now.len()].copy_from_slice(now);
        array
    }

    /// One byte.
    pub fn u8(&mut self) -> u8 {
        u8::from_le_bytes(self.array())
    }

    /// Two.
    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    /// Four.
    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    /// Eight.
    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// A number below `n`, which is at most 65536.
    pub fn below(&mut self, n: u32) -> u32 {
        if n <= 256 { u32::from(self.u8()) % n } else { u32::from(self.u16()) % n }
    }
}
