//! Data that shows where on the disk it belongs, and random numbers.

/// One step of SplitMix64: the state, and a number made of it.
pub(super) fn step(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut value = *state;
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// Fills a buffer with the content of block `number` in `generation`. Another block, another
/// generation and another place within the block each give other bytes.
pub fn fill(buffer: &mut [u8], number: u64, generation: u32) {
    let mut state = (u64::from(generation) << 40) ^ number.rotate_left(8);
    for word in buffer.chunks_mut(8) {
        let bytes = step(&mut state).to_le_bytes();
        word.copy_from_slice(&bytes[..word.len()]);
    }
}

/// All numbers below `count` in random order.
pub(super) fn shuffled(count: u64, seed: u64) -> Vec<u64> {
    let mut numbers: Vec<u64> = (0..count).collect();
    let mut state = seed;
    for last in (1..numbers.len()).rev() {
        let other = (step(&mut state) % (last as u64 + 1)) as usize;
        numbers.swap(last, other);
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_and_generations_differ() {
        let content = |number, generation| {
            let mut buffer = [0; 20];
            fill(&mut buffer, number, generation);
            buffer
        };
        assert_eq!(content(3, 7), content(3, 7));
        assert_ne!(content(3, 7), content(4, 7));
        assert_ne!(content(3, 7), content(3, 8));
        assert_ne!(content(3, 7)[..8], content(3, 7)[8..16]);
    }

    #[test]
    fn every_number_comes_once_and_not_in_order() {
        let mut numbers = shuffled(1000, 5);
        assert_ne!(numbers, shuffled(1000, 6));
        assert!(!numbers.is_sorted());
        numbers.sort_unstable();
        assert_eq!(numbers, (0..1000).collect::<Vec<_>>());
    }
}
