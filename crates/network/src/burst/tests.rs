use std::sync::Arc;

use frame::VNET_LEN;
use ring::region::Memory;
use ring::violation::Violation;

use super::*;

#[test]
fn each_piece_of_a_frame_costs() {
    let memory = Arc::new(Memory::anonymous(4096).unwrap());
    let mut burst = Burst::new();
    let pieces = |count: u64| (0..count).map(|at| (at, 1));
    burst
        .fill(VNET_LEN, |gather, chains, _| {
            chains.push(gather.push_range(&memory, 0, 72)?);
            chains.push(gather.push_ranges(&memory, pieces(1000))?);
            chains.push(gather.push_range(&memory, 0, 72)?);
            Ok::<_, Violation>(3)
        })
        .unwrap();
    let (short, long) = (cost(1, 60), cost(1, 988) + 999 * PIECE);
    assert_eq!(burst.frames().iter().map(Frame::cost).collect::<Vec<_>>(), [short, long, short]);
    for (n, bytes, total) in
        [(0, 0, 0), (1, 60, short), (2, 1048, short + long), (3, 1108, 2 * short + long)]
    {
        assert_eq!(burst.cost(n, bytes), total, "{n} frames");
    }
}
