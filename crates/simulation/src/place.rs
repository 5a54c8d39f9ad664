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

/// Makes gaps independent of the choices of queues.
const GAPS: u64 = 3;

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

/// The `n`th gap of a stream between frames that come at random, in gaps of the mean length: one
/// of an exponential distribution.
pub fn gap(stream: usize, n: u64, seed: u64) -> f64 {
    let hash = mixed(mixed(seed ^ GAPS).wrapping_add(stream as u64).wrapping_add(mixed(n)));
    // From above 0 up to 1.
    let even = ((hash >> 11) + 1) as f64 / (1u64 << 53) as f64;
    -even.ln()
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
    fn gaps_have_the_mean_and_the_spread_of_random_arrivals() {
        let gaps: Vec<f64> = (0..20_000).map(|n| gap(n % 8, n as u64 / 8, 5)).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let longer = gaps.iter().filter(|gap| **gap > 1.0).count() as f64 / gaps.len() as f64;
        assert!((mean - 1.0).abs() < 0.03 && (longer - 0.368).abs() < 0.02, "{mean}, {longer}");
        assert!(gaps.iter().all(|gap| gap.is_finite() && *gap >= 0.0));
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
