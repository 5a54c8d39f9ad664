//! The place of a frame within its flow.

/// The relation of a frame's number to those that came before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// The frame follows all that came before, whether or not some are missing in between.
    InOrder,
    /// A frame that was sent later came before.
    Late,
    /// The frame came before.
    Duplicate,
}

/// The numbers of one flow's frames that have come.
#[derive(Clone, Copy, Debug, Default)]
pub struct Order {
    /// One past the highest number so far.
    next: u32,
    /// Bit i: number `next - 1 - i` came.
    seen: u64,
}

impl Order {
    /// Notes number `seq`. A frame that is late by 64 or more counts as late even if it is a
    /// duplicate.
    #[inline]
    pub fn note(&mut self, seq: u32) -> Arrival {
        let ahead = seq.wrapping_sub(self.next);
        if ahead < 1 << 31 {
            self.seen = match ahead {
                0..=62 => self.seen << (ahead + 1) | 1,
                _ => 1,
            };
            self.next = seq.wrapping_add(1);
            return Arrival::InOrder;
        }
        let bit = match self.next.wrapping_sub(1).wrapping_sub(seq) {
            behind @ 0..=63 => 1u64 << behind,
            _ => return Arrival::Late,
        };
        if self.seen & bit != 0 {
            return Arrival::Duplicate;
        }
        self.seen |= bit;
        Arrival::Late
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(numbers: &[u32]) -> Vec<Arrival> {
        let mut order = Order::default();
        numbers.iter().map(|n| order.note(*n)).collect()
    }

    #[test]
    fn missing_numbers_are_no_disorder() {
        use Arrival::*;
        assert_eq!(all(&[0, 1, 5, 6, 500]), [InOrder; 5]);
        assert_eq!(all(&[0, 2, 1, 3]), [InOrder, InOrder, Late, InOrder]);
        assert_eq!(all(&[0, 0]), [InOrder, Duplicate]);
        assert_eq!(all(&[0, 3, 2, 2, 1, 3]), [InOrder, InOrder, Late, Duplicate, Late, Duplicate]);
        assert_eq!(all(&[100, 36, 37, 37]), [InOrder, Late, Late, Duplicate]);
    }

    #[test]
    fn numbers_wrap() {
        let mut order = Order { next: u32::MAX, seen: 1 };
        assert_eq!(order.note(u32::MAX), Arrival::InOrder);
        assert_eq!(order.note(0), Arrival::InOrder);
        assert_eq!(order.note(u32::MAX), Arrival::Duplicate);
    }
}
