//! Frames of a burst in another order than that in which they were fetched.

use frame::Head;

use super::{BURST, Burst, Frame};
use crate::action::Action;

/// Room in which frames of a burst are brought into another order.
pub(crate) struct Reordering {
    frames: Box<[Frame; BURST]>,
    heads: Box<[Head; BURST]>,
}

impl Default for Reordering {
    fn default() -> Self {
        let frames = Box::new(std::array::from_fn(|_| Frame::default()));
        Reordering { frames, heads: Box::new([Head::new(); BURST]) }
    }
}

impl Burst {
    /// Brings the frames, which all go to one port each, into another order: each from its place to
    /// that which `to` says, for the first frame first. `to` names each of the places once.
    #[inline]
    pub(crate) fn reorder(&mut self, room: &mut Reordering, mut to: impl FnMut(usize) -> usize) {
        for from in 0..self.count {
            let to = to(from) % BURST;
            room.frames[to].copy_from(&self.frames[from]);
            room.heads[to].copy_from(&self.heads[from]);
        }
        std::mem::swap(&mut self.frames, &mut room.frames);
        std::mem::swap(&mut self.heads, &mut room.heads);
    }
}

impl Frame {
    /// Becomes a copy of another frame, which goes to one port.
    #[inline(always)]
    fn copy_from(&mut self, other: &Frame) {
        let Frame { len, headers, offload, ref action, sharing, chain, skip } = *other;
        (self.len, self.headers, self.offload) = (len, headers, offload);
        (self.sharing, self.chain, self.skip) = (sharing, chain, skip);
        if let Action::Output(target) = action {
            self.action = Action::Output(*target);
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

    #[test]
    fn frames_keep_their_heads_payloads_and_ports() {
        let memory = Arc::new(Memory::anonymous(1 << 20).unwrap());
        let len = |i: u64| if i.is_multiple_of(2) { 60 } else { 1000 + i };
        let mut burst = Burst::new();
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
        for (i, frame) in (0..).zip(burst.frames_mut()) {
            frame.action = Action::Output(Target { port: PortId(i), tag: TagEdit::Keep });
        }
        let mut room = Reordering::default();
        for _ in 0..2 {
            burst.reorder(&mut room, |i| BURST - 1 - i);
            burst.reorder(&mut room, |i| (i + 1) % BURST);
        }
        // Turned round and moved up by one, twice: where it was.
        for i in 0..BURST {
            let packet = burst.packet(i);
            assert_eq!(burst.frames()[i].action.receiver(), Some(PortId(i as u16)));
            assert_eq!(packet.head[0], i as u8);
            let mut body = vec![0; packet.body.len() as usize];
            packet.body.read(&mut body);
            assert_eq!((packet.head.len() + body.len()) as u64, len(i as u64));
            assert!(body.iter().all(|byte| *byte == i as u8));
        }
        burst.reorder(&mut room, |i| (i + 3) % BURST);
        assert_eq!(burst.packet(3).head[0], 0);
        assert_eq!(burst.packet(2).head[0], BURST as u8 - 1);
    }
}
