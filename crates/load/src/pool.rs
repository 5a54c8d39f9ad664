//! Buffers of one ring in guest memory: the free ones, and the description of each.

use ring::driver::Piece;

/// How a buffer is cut into descriptors.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    /// Length of the virtio-net header, if it has a descriptor of its own.
    pub header: Option<u32>,
    /// Most bytes in a descriptor.
    pub piece: u32,
}

impl Cut {
    /// The pieces of a buffer of `len` bytes at `addr`, appended to `pieces`.
    pub fn pieces(self, addr: u64, len: u32, pieces: &mut Vec<Piece>) {
        let mut at = 0;
        if let Some(header) = self.header.filter(|header| *header < len) {
            pieces.push(Piece { addr, len: header });
            at = header;
        }
        while at < len {
            let now = self.piece.min(len - at);
            pieces.push(Piece { addr: addr + u64::from(at), len: now });
            at += now;
        }
    }

    /// The one piece of a buffer that is not cut.
    #[inline]
    pub fn whole(self, addr: u64, len: u32) -> Option<Piece> {
        (self.header.is_none() && len <= self.piece).then_some(Piece { addr, len })
    }

    /// Descriptors of a buffer of `len` bytes.
    pub fn count(self, len: u32) -> usize {
        let header = self.header.filter(|header| *header < len);
        usize::from(header.is_some()) + (len - header.unwrap_or(0)).div_ceil(self.piece) as usize
    }
}

/// Equal buffers, used in turn, so that a pool bigger than its ring is as cold as it is big.
pub struct Pool {
    base: u64,
    stride: u64,
    len: u32,
    /// Numbers of free buffers, used as a queue: `left` of them from `first` on, wrapping.
    free: Box<[u32]>,
    first: usize,
    left: usize,
    /// Buffer of each chain in flight.
    of_chain: Box<[u32]>,
}

impl Pool {
    /// Distance of buffers of `len` bytes: they start on a cache line.
    pub fn stride(len: u32) -> u64 {
        u64::from(len).next_multiple_of(64)
    }

    /// `count` buffers of `len` bytes from guest address `base` on, for a ring of `ring`
    /// descriptors.
    pub fn new(base: u64, len: u32, count: u32, ring: u16) -> Self {
        let of_chain = vec![0; usize::from(ring)].into();
        let free = (0..count).collect();
        Self {
            base,
            stride: Self::stride(len),
            len,
            free,
            first: 0,
            left: count as usize,
            of_chain,
        }
    }

    /// Buffers in all.
    pub fn count(&self) -> u32 {
        self.free.len() as u32
    }

    /// Buffers that are free.
    pub fn free(&self) -> usize {
        self.left
    }

    /// Bytes of a buffer.
    pub fn buffer_len(&self) -> u32 {
        self.len
    }

    /// Guest address of a buffer.
    #[inline]
    pub fn addr(&self, buffer: u32) -> u64 {
        self.base + u64::from(buffer) * self.stride
    }

    /// The next free buffer, which stays free until it is [`taken`](Self::take).
    #[inline]
    pub fn next(&self) -> Option<u32> {
        if self.left == 0 { None } else { self.free.get(self.first).copied() }
    }

    /// The next buffer went into the ring as chain `id`.
    #[inline]
    pub fn take(&mut self, id: u16) {
        if let (Some(buffer), Some(slot)) = (self.next(), self.of_chain.get_mut(usize::from(id))) {
            *slot = buffer;
            self.left -= 1;
            self.first = if self.first + 1 == self.free.len() { 0 } else { self.first + 1 };
        }
    }

    /// The buffer of chain `id`, which came back; it is not free before [`put`](Self::put).
    #[inline]
    pub fn of_chain(&self, id: u16) -> u32 {
        self.of_chain.get(usize::from(id)).copied().unwrap_or(0)
    }

    /// The buffer is free again.
    #[inline]
    pub fn put(&mut self, buffer: u32) {
        let (at, count) = (self.first + self.left, self.free.len());
        if let Some(place) = self.free.get_mut(if at < count { at } else { at - count }) {
            *place = buffer;
            self.left += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_cover_the_buffer() {
        for (header, piece, lens) in [
            (None, 4096, vec![100]),
            (Some(12), 4096, vec![12, 88]),
            (Some(10), 50, vec![10, 50, 40]),
            (None, 50, vec![50, 50]),
            (Some(12), 44, vec![12, 44, 44]),
        ] {
            let cut = Cut { header, piece };
            let mut pieces = vec![];
            cut.pieces(1000, 100, &mut pieces);
            assert_eq!(pieces.iter().map(|p| p.len).collect::<Vec<_>>(), lens);
            assert_eq!(cut.count(100), lens.len());
            let mut at = 1000;
            for piece in pieces {
                assert_eq!(piece.addr, at);
                at += u64::from(piece.len);
            }
        }
    }

    #[test]
    fn buffers_take_turns() {
        let mut pool = Pool::new(4096, 100, 3, 8);
        let mut order = vec![];
        for id in [5, 1, 5, 1] {
            let buffer = pool.next().unwrap();
            pool.take(id);
            order.push(buffer);
            assert_eq!(pool.of_chain(id), buffer);
            pool.put(buffer);
        }
        assert_eq!(order, [0, 1, 2, 0]);
        assert_eq!(pool.addr(2), 4096 + 256);
    }
}
