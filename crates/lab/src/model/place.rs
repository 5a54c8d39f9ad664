//! Placement: of queues on workers, as the fabric does it, and of flows on queues, by hash.

/// The workers of all queues, by port: a port's queues go round all workers, from the one on that
/// has fewest.
pub fn workers(ports: usize, queues: usize, workers: usize) -> Vec<Vec<usize>> {
    let mut load = vec![0usize; workers];
    let mut place = |_| {
        let first = (0..workers).min_by_key(|&worker| load[worker]).unwrap_or(0);
        let own: Vec<usize> = (0..queues).map(|queue| (first + queue) % workers.max(1)).collect();
        own.iter().for_each(|&worker| load[worker] += 1);
        own
    };
    (0..ports).map(&mut place).collect()
}

/// How flows come to queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flows {
    /// By hash, as real backends do.
    Hashed,
    /// In turn.
    Even,
}

/// Which of `count` a flow goes to. `salt` separates several choices for the same flow.
pub fn choose(flows: Flows, flow: usize, count: usize, seed: u64, salt: u64) -> usize {
    match flows {
        Flows::Even => flow % count.max(1),
        Flows::Hashed => {
            let hash = mixed(mixed(seed ^ salt).wrapping_add(flow as u64)) >> 32;
            ((hash * count as u64) >> 32) as usize
        }
    }
}

/// Steele, Lea and Flood's SplitMix64: every bit of the input reaches every bit of the output.
fn mixed(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_with_as_many_queues_as_workers_has_one_on_each() {
        assert_eq!(workers(3, 2, 2), [[0, 1]; 3]);
        assert_eq!(workers(4, 1, 3), [[0], [1], [2], [0]]);
        assert_eq!(workers(2, 3, 2), [[0, 1, 0], [1, 0, 1]]);
    }

    #[test]
    fn flows_reach_all_queues_and_keep_their_queue() {
        let mut seen = [0u32; 5];
        for flow in 0..5000 {
            let queue = choose(Flows::Hashed, flow, 5, 1, 2);
            assert_eq!(queue, choose(Flows::Hashed, flow, 5, 1, 2));
            seen[queue] += 1;
        }
        assert!(seen.iter().all(|count| (800..1200).contains(count)), "{seen:?}");
        assert_eq!(choose(Flows::Even, 7, 5, 1, 2), 2);
    }
}
