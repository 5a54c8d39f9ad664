//! The data of requests, where it is written and compared.

use super::pattern::fill;
use super::{Operation, Workload};

/// The data of the requests of a workload. Without a generation, buffers hold whatever they hold.
pub(super) struct Content {
    pub(super) operation: Operation,
    pub(super) bytes: u32,
    generation: Option<u32>,
    scratch: [Vec<u8>; 2],
}

impl Content {
    pub(super) fn new(workload: &Workload) -> Content {
        let buffer = || vec![0; workload.bytes as usize];
        Content {
            operation: workload.operation,
            bytes: workload.bytes,
            generation: workload.generation,
            scratch: [buffer(), buffer()],
        }
    }

    /// The data to put into the buffer of a request for `block`, if any.
    pub(super) fn outgoing(&mut self, block: u64) -> Option<&[u8]> {
        let generation = self.generation.filter(|_| self.operation == Operation::Write)?;
        fill(&mut self.scratch[0], block, generation);
        Some(&self.scratch[0])
    }

    /// Whether the buffer of a request for `block` that has completed holds what it must. `read`
    /// copies the buffer.
    pub(super) fn is_right(&mut self, block: u64, read: impl FnOnce(&mut [u8])) -> bool {
        let Some(generation) = self.generation.filter(|_| self.operation == Operation::Read) else {
            return true;
        };
        let [wanted, found] = &mut self.scratch;
        fill(wanted, block, generation);
        read(found);
        wanted == found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk_load::Order;

    #[test]
    fn reads_are_compared_with_writes_of_their_generation() {
        let workload = |operation, generation| Workload {
            generation,
            ..Workload::new(operation, Order::Random, 512, 1)
        };
        let mut writes = Content::new(&workload(Operation::Write, Some(3)));
        let data = writes.outgoing(7).unwrap().to_vec();
        assert!(writes.is_right(7, |_| panic!("a write is not compared")));
        let mut reads = Content::new(&workload(Operation::Read, Some(3)));
        assert_eq!(reads.outgoing(7), None);
        assert!(reads.is_right(7, |found| found.copy_from_slice(&data)));
        assert!(!reads.is_right(8, |found| found.copy_from_slice(&data)));
        let mut any = Content::new(&workload(Operation::Read, None));
        assert!(any.is_right(7, |_| panic!("nothing to compare with")));
    }
}
