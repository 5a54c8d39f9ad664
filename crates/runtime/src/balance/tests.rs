use proptest::prelude::*;

use super::*;

/// Workers, and pairs that each demand a part of a worker's time.
struct World {
    balancer: Balancer,
    now: Instant,
    workers: usize,
    /// Worker, and wanted load.
    pairs: Vec<(usize, f64)>,
    busy: Vec<f64>,
    cost: Vec<f64>,
    moves: Vec<(usize, usize)>,
}

impl World {
    fn new(workers: usize, pairs: &[(usize, f64)]) -> Self {
        World {
            balancer: Balancer::default(),
            now: Instant::now(),
            workers,
            pairs: pairs.to_vec(),
            busy: vec![0.0; workers],
            cost: vec![0.0; pairs.len()],
            moves: vec![],
        }
    }

    fn wanted(&self, worker: usize) -> f64 {
        self.pairs.iter().filter(|pair| pair.0 == worker).map(|pair| pair.1).sum()
    }

    fn step(&mut self) {
        self.now += INTERVAL;
        for worker in 0..self.workers {
            let wanted = self.wanted(worker);
            // A worker that is overloaded gives each pair what it can.
            let given = wanted.min(1.0) / wanted.max(1e-9);
            self.busy[worker] += wanted.min(1.0) * INTERVAL.as_secs_f64();
            for (pair, cost) in
                self.pairs.iter().zip(&mut self.cost).filter(|(pair, _)| pair.0 == worker)
            {
                *cost += pair.1 * given * 1e9;
            }
        }
        let busy: Vec<Duration> =
            self.busy.iter().map(|busy| Duration::from_secs_f64(*busy)).collect();
        let pair = |(at, pair): (usize, &(usize, f64))| QueueLoad {
            queue: QueueId(at as u64),
            worker: pair.0,
            cost: self.cost[at] as u64,
        };
        let pairs: Vec<QueueLoad> = self.pairs.iter().enumerate().map(pair).collect();
        if let Some(Move { queue, to }) = self.balancer.advise(self.now, &busy, &pairs) {
            let at = queue.0 as usize;
            assert_ne!(self.pairs[at].0, to, "a move to where it is");
            self.pairs[at].0 = to;
            self.moves.push((at, to));
        }
    }

    fn run(&mut self, intervals: usize) {
        (0..intervals).for_each(|_| self.step());
    }
}

#[test]
fn one_of_two_leaves_a_loaded_worker_for_an_idle_one() {
    let mut world = World::new(2, &[(0, 0.6), (0, 0.7)]);
    world.run(100);
    assert_eq!(world.moves.len(), 1, "{:?}", world.moves);
    assert!(world.wanted(0) < 1.0 && world.wanted(1) < 1.0);
}

#[test]
fn a_single_pair_is_as_well_where_it_is() {
    let mut world = World::new(2, &[(0, 1.5), (1, 0.0)]);
    world.run(100);
    assert_eq!(world.moves, []);
}

#[test]
fn workers_that_are_not_loaded_keep_what_they_have() {
    let mut world = World::new(2, &[(0, 0.4), (0, 0.4)]);
    world.run(100);
    assert_eq!(world.moves, []);
}

#[test]
fn nothing_moves_to_where_it_is() {
    // Equal loads are as even as can be, and no move makes that worse.
    for workers in 1..4 {
        let pairs: Vec<_> = (0..workers).map(|worker| (worker, 2.0)).collect();
        let mut world = World::new(workers, &pairs);
        world.run(10);
        assert_eq!(world.moves, []);
        assert!(world.balancer.queues.values().all(|pair| pair.stays.is_none()));
    }
}

#[test]
fn a_short_burst_moves_nothing() {
    let mut world = World::new(2, &[(0, 0.1), (0, 0.1)]);
    for _ in 0..20 {
        world.pairs[0].1 = 2.0;
        world.step();
        world.pairs[0].1 = 0.1;
        world.run(3);
    }
    assert_eq!(world.moves, []);
}

#[test]
fn three_equal_pairs_on_two_workers_do_not_take_turns() {
    let mut world = World::new(2, &[(0, 0.9), (0, 0.9), (1, 0.9)]);
    world.run(10_000);
    assert_eq!(world.moves, []);
}

#[test]
fn what_changes_all_the_time_is_followed_less_and_less() {
    let mut world = World::new(2, &[(0, 1.0), (0, 1.0)]);
    for round in 0..2000 {
        // The second pair always follows the first one to its worker, as a guest might arrange.
        world.pairs[1].0 = world.pairs[0].0;
        world.pairs[1].1 = if round % 2 == 0 { 1.0 } else { 0.9 };
        world.run(3);
    }
    // 50 minutes.
    assert!(world.moves.len() < 40, "{} moves", world.moves.len());
}

#[test]
fn a_new_pair_owes_nothing_for_the_time_before() {
    let mut balancer = Balancer::default();
    let start = Instant::now();
    let busy = |n: u32| [INTERVAL * n, Duration::ZERO];
    let old = QueueLoad { queue: QueueId(1), worker: 0, cost: 0 };
    assert_eq!(balancer.advise(start, &busy(0), &[old]), None);
    for n in 1..20 {
        let new = QueueLoad { queue: QueueId(100 + u64::from(n)), worker: 0, cost: u64::MAX / 2 };
        let old = QueueLoad { cost: u64::from(n) * 1000, ..old };
        assert_eq!(
            balancer.advise(start + INTERVAL * n, &busy(n), &[old, new]),
            None,
            "only one pair did anything"
        );
    }
}

proptest! {
    /// For all pairs, moves come to an end, and no less work gets done because of them.
    #[test]
    fn steady_loads_come_to_rest(
        workers in 2..6usize,
        pairs in prop::collection::vec((0..6usize, 0.01..1.2f64), 1..20),
    ) {
        let pairs: Vec<_> = pairs.into_iter().map(|(worker, load)| (worker % workers, load)).collect();
        let mut world = World::new(workers, &pairs);
        let done = |world: &World| (0..workers).map(|worker| world.wanted(worker).min(1.0)).sum::<f64>();
        let before = done(&world);
        world.run(2000);
        prop_assert!(world.moves.len() <= 8 * pairs.len(), "{} moves of {} pairs", world.moves.len(), pairs.len());
        prop_assert!(done(&world) >= before - 1e-9, "{} after {before}", done(&world));
    }
}
