//! The order in which the frames of a burst are delivered.

use std::ops::Range;

use super::{BURST, Burst};

/// The order of a burst that was not reordered.
pub(super) const IN_ORDER: [u8; BURST] = {
    let (mut order, mut i) = ([0; BURST], 0);
    while i < BURST {
        order[i] = i as u8;
        i += 1;
    }
    order
};

/// Parts that a burst has at most.
pub(crate) const MAX_PARTS: usize = 16;

/// Frames that lie behind each other in the new order.
pub(crate) struct Part {
    pub frames: Range<usize>,
    /// Bytes of these frames.
    pub bytes: u64,
}

/// The order in which the frames of a burst are delivered: that in which they were fetched, or
/// another one.
pub(super) struct DeliveryOrder {
    places: [u8; BURST],
    is_changed: bool,
    /// The parts of the new order.
    parts: Vec<Part>,
}

impl Default for DeliveryOrder {
    fn default() -> Self {
        let parts = Vec::with_capacity(MAX_PARTS);
        DeliveryOrder { places: IN_ORDER, is_changed: false, parts }
    }
}

impl DeliveryOrder {
    /// The places of the frames in the order of fetching.
    #[inline(always)]
    pub fn places(&self) -> &[u8; BURST] {
        &self.places
    }

    /// Whether the order differs from the order of fetching.
    #[inline]
    pub fn is_changed(&self) -> bool {
        self.is_changed
    }

    /// See [`Burst::reorder`].
    #[inline]
    fn change<'a>(&mut self, parts: impl Iterator<Item = (&'a [u8; BURST], Part)>) {
        // Copies of a fixed length need no call of `memcpy`; the excess is overwritten by the next
        // list.
        let mut order = [0; 2 * BURST];
        self.parts.clear();
        for (list, part) in parts {
            if let Some(room) = order[part.frames.start % BURST..].first_chunk_mut() {
                *room = *list;
            }
            self.parts.push(part);
        }
        if let Some(order) = order.first_chunk() {
            self.places = *order;
        }
        self.is_changed = true;
    }

    /// Goes back to the order in which the frames were fetched.
    #[inline]
    pub fn restore(&mut self) {
        if self.is_changed {
            (self.places, self.is_changed) = (IN_ORDER, false);
            self.parts.clear();
        }
    }
}

impl Burst {
    /// Changes the order of delivery. The lists of `parts` name each frame once, by its place in
    /// the order of fetching. The frames themselves are not moved.
    #[inline]
    pub(crate) fn reorder<'a>(&mut self, parts: impl Iterator<Item = (&'a [u8; BURST], Part)>) {
        self.order.change(parts);
        debug_assert_eq!(self.order.parts.last().map_or(0, |part| part.frames.end), self.count);
        self.alike = 0;
    }

    /// Bytes of some frames.
    #[inline]
    pub(crate) fn bytes_of(&self, frames: Range<usize>) -> u64 {
        if !self.order.is_changed {
            return self.frames[frames].iter().map(|frame| u64::from(frame.len)).sum();
        }
        match self.order.parts.iter().find(|part| part.frames == frames) {
            Some(part) => part.bytes,
            None => frames.map(|i| u64::from(self.frame(i).len)).sum(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use frame::{TagEdit, VNET_LEN};
    use ring::region::Memory;
    use ring::violation::Violation;
    use switch::{PortId, Target};

    use super::*;
    use crate::action::Action;

    #[test]
    fn frames_keep_their_heads_payloads_and_ports() {
        let memory = Arc::new(Memory::anonymous(1 << 20).unwrap());
        let len = |i: u64| if i.is_multiple_of(2) { 60 } else { 1000 + i };
        let mut burst = Burst::new();
        let fill = |burst: &mut Burst| {
            burst
                .fill(VNET_LEN, |gather, chains, room| {
                    for i in 0..room as u64 {
                        let at = i * 2048 + VNET_LEN as u64;
                        memory.write(at, &vec![i as u8; len(i) as usize]).unwrap();
                        chains.push(gather.push_range(&memory, i * 2048, (len(i) + 12) as u32)?);
                    }
                    Ok::<_, Violation>(room)
                })
                .unwrap();
        };
        fill(&mut burst);
        for (i, frame) in (0..).zip(burst.frames_mut()) {
            frame.action = Action::Output(Target { port: PortId(i), tag: TagEdit::Keep });
        }
        let order = |place: &dyn Fn(usize) -> usize| std::array::from_fn(|i| place(i) as u8);
        let check = |burst: &Burst, place: &dyn Fn(usize) -> usize| {
            for i in 0..BURST {
                let (packet, number) = (burst.packet(i), place(i));
                assert_eq!(burst.frames()[i].action.receiver(), Some(PortId(number as u16)));
                assert_eq!(packet.head[0], number as u8);
                let mut body = vec![0; packet.body.len() as usize];
                packet.body.read(&mut body);
                assert_eq!((packet.head.len() + body.len()) as u64, len(number as u64));
                assert!(body.iter().all(|byte| *byte == number as u8));
            }
        };
        check(&burst, &|i| i);
        let back = |i| BURST - 1 - i;
        let part = |frames: Range<usize>, place: &dyn Fn(usize) -> usize| {
            let bytes = frames.clone().map(|i| len(place(i) as u64)).sum();
            Part { frames, bytes }
        };
        burst.reorder([(&order(&back), part(0..BURST, &back))].into_iter());
        check(&burst, &back);
        // Odd ones after even ones.
        let split = |i| if i < BURST / 2 { 2 * i } else { 2 * (i - BURST / 2) + 1 };
        let (even, odd) = (order(&|i| 2 * i), order(&|i| 2 * i + 1));
        let half = BURST / 2;
        let parts = [(&even, part(0..half, &split)), (&odd, part(half..BURST, &split))];
        burst.reorder(parts.into_iter());
        check(&burst, &split);
        for frames in [0..half, half..BURST, 3..half + 5] {
            let bytes = frames.clone().map(|i| len(split(i) as u64)).sum::<u64>();
            assert_eq!(burst.bytes_of(frames), bytes);
        }
        let ports = |burst: &Burst| {
            burst.frames().iter().map(|frame| frame.action.receiver()).collect::<Vec<_>>()
        };
        assert_eq!(ports(&burst)[30..34], [60, 62, 1, 3].map(|port| Some(PortId(port))));
        // What is fetched next is in order again.
        burst.reset();
        fill(&mut burst);
        let heads: Vec<u8> = (0..BURST).map(|i| burst.head(i).as_slice()[0]).collect();
        assert_eq!(heads, (0..BURST as u8).collect::<Vec<_>>());
    }
}
