//! Frames of a burst in another order than that in which they were fetched.

use std::ops::Range;

use super::frames::IN_ORDER;
use super::{BURST, Burst};

/// Parts that a burst has at most.
pub(crate) const MAX_PARTS: usize = 16;

/// Frames that lie behind each other in the new order.
pub(crate) struct Part {
    pub frames: Range<usize>,
    /// Their bytes.
    pub bytes: u64,
}

impl Burst {
    /// Brings the frames into another order: that in which the lists of `parts` name them, each of
    /// them once, by their places in the order of fetching. Only the order changes: the frames stay
    /// where they are.
    #[inline]
    pub(crate) fn reorder<'a>(&mut self, parts: impl Iterator<Item = (&'a [u8; BURST], Part)>) {
        // Whole lists are copied, which takes no call: what is too much is overwritten by the next.
        let mut order = [0; 2 * BURST];
        self.parts.clear();
        for (list, part) in parts {
            if let Some(room) = order[part.frames.start % BURST..].first_chunk_mut() {
                *room = *list;
            }
            self.parts.push(part);
        }
        debug_assert_eq!(self.parts.last().map_or(0, |part| part.frames.end), self.count);
        if let Some(order) = order.first_chunk() {
            self.order = *order;
        }
        (self.is_reordered, self.alike) = (true, 0);
    }

    /// Bytes of some frames.
    #[inline]
    pub(crate) fn bytes_of(&self, frames: Range<usize>) -> u64 {
        if !self.is_reordered {
            return self.frames[frames].iter().map(|frame| u64::from(frame.len)).sum();
        }
        match self.parts.iter().find(|part| part.frames == frames) {
            Some(part) => part.bytes,
            None => frames.map(|i| u64::from(self.frame(i).len)).sum(),
        }
    }

    /// Goes back to the order in which the frames were fetched.
    #[inline]
    pub(super) fn restore_order(&mut self) {
        if self.is_reordered {
            (self.order, self.is_reordered) = (IN_ORDER, false);
            self.parts.clear();
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
