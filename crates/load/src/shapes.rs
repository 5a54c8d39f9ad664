//! The shapes of a sender's frames: one for each receiver and length.

use std::sync::Arc;

use super::packet::Shape;

/// The shapes of a sender's frames. A flow has one of them; consecutive flows have different ones.
#[derive(Clone, Debug)]
pub struct Shapes {
    first: Shape,
    /// All of them, if there are several: flow `f` has number `f % all.len()`.
    all: Arc<[Shape]>,
    /// How many receivers there are: flow `f` is for number `f % receivers`.
    receivers: u32,
}

impl Shapes {
    /// The same shape for all flows, which have one receiver.
    pub fn same(shape: Shape) -> Shapes {
        Shapes { first: shape, all: Arc::default(), receivers: 1 }
    }

    /// Shapes of `lengths`, each for `receivers` receivers: `make` makes the shape of frames to a
    /// receiver, by number, with a length.
    pub fn new(lengths: &[u32], receivers: u32, make: impl Fn(u32, u32) -> Shape) -> Shapes {
        let each = |length: &u32| (0..receivers).map(|to| make(to, *length)).collect::<Vec<_>>();
        let all: Vec<Shape> = lengths.iter().flat_map(each).collect();
        match &all[..] {
            [first, _, ..] => Shapes { first: first.clone(), all: all.into(), receivers },
            [] | [_] => {
                let length = lengths.first().copied().unwrap_or_default();
                Shapes::same(make(0, length))
            }
        }
    }

    /// One of them, for what all have in common.
    #[inline]
    pub fn first(&self) -> &Shape {
        &self.first
    }

    /// Whether flows differ.
    #[inline]
    pub fn differ(&self) -> bool {
        !self.all.is_empty()
    }

    /// The shape of a flow's frames.
    #[inline]
    pub fn of(&self, flow: u32) -> &Shape {
        match self.all.len() {
            0 => &self.first,
            count => self.all.get(flow as usize % count).unwrap_or(&self.first),
        }
    }

    /// Whether a flow is for receiver number `receiver`.
    #[inline]
    pub fn is_for(&self, flow: u32, receiver: u32) -> bool {
        !self.differ() || flow % self.receivers == receiver
    }

    /// Mean length of the frames to a receiver, if each of `flows` flows has as many.
    pub fn mean_len(&self, flows: u32, receiver: u32) -> f64 {
        let lengths = (0..flows).filter(|flow| self.is_for(*flow, receiver));
        let (count, sum) = lengths.fold((0u32, 0u64), |(count, sum), flow| {
            (count + 1, sum + u64::from(self.of(flow).len()))
        });
        sum as f64 / f64::from(count.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Verify;
    use crate::lengths::MIX;
    use crate::packet::Ends;

    fn shapes(lengths: &[u32], receivers: u32) -> Shapes {
        let make = |to: u32, len| {
            let ends = Ends { from: 0, to: to as u16 + 1 };
            Shape::new(ends, len, None, Verify::Sampled, 7)
        };
        Shapes::new(lengths, receivers, make)
    }

    #[test]
    fn flows_have_receivers_and_lengths_in_turn() {
        let shapes = shapes(&MIX, 3);
        for flow in 0..72 {
            let shape = shapes.of(flow);
            assert_eq!(shape.len(), MIX[flow as usize / 3 % 12], "flow {flow}");
            assert_eq!(u32::from(shape.headers()[5]), flow % 3 + 1, "the receiver's address");
            let receivers: Vec<u32> = (0..3).filter(|to| shapes.is_for(flow, *to)).collect();
            assert_eq!(receivers, [flow % 3]);
        }
        let mean = (7.0 * 64.0 + 4.0 * 590.0 + 1514.0) / 12.0;
        for receiver in 0..3 {
            assert!((shapes.mean_len(36, receiver) - mean).abs() < 1e-9);
        }
    }

    #[test]
    fn a_single_shape_is_that_of_all_flows() {
        let shapes = shapes(&[300], 1);
        assert!(!shapes.differ() && shapes.is_for(9, 0));
        assert_eq!((shapes.of(9).len(), shapes.mean_len(4, 0)), (300, 300.0));
    }
}
