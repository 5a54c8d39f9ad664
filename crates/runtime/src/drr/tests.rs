use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// Frames as the frame pipeline counts them: the most in a burst, and the longest one.
const BURST: usize = 64;
const MAX_FRAME: u32 = 65_557;
/// Cost of a frame besides its bytes.
const CHARGE: u64 = 2048;
const QUANTUM: u64 = BURST as u64 * (CHARGE + 1514);
const LEAST: u64 = QUANTUM / 2;

/// Cost of `frames` frames of `bytes` bytes together.
fn cost(frames: usize, bytes: u64) -> u64 {
    CHARGE * frames as u64 + bytes
}

/// A queue of frames of one length: how many are left.
#[derive(Clone, Copy)]
struct Queue {
    class: u32,
    len: u64,
    left: u64,
}

/// Serves queues as a worker does, and notes what each turn cost.
struct World {
    drr: DrrScheduler,
    queues: Vec<Queue>,
    /// Slot and cost of every turn.
    turns: Vec<(usize, u64)>,
}

impl World {
    fn new(queues: &[Queue]) -> Self {
        let mut drr = DrrScheduler::new(QUANTUM);
        for (at, queue) in queues.iter().enumerate() {
            drr.push(ClassId(queue.class), at);
        }
        World { drr, queues: queues.to_vec(), turns: Vec::new() }
    }

    fn round(&mut self) {
        let mut round = self.drr.round();
        while let Some((at, allowance)) = self.drr.next(&mut round) {
            let queue = &mut self.queues[at];
            let fits = (allowance / cost(1, queue.len)).clamp(1, BURST as u64);
            let frames = queue.left.min(fits);
            queue.left -= frames;
            let cost = cost(frames as usize, frames * queue.len);
            self.turns.push((at, cost));
            let turn = Served { cost, more: frames == fits, ..Served::default() };
            let stays = queue.left > 0;
            self.drr.served(&mut round, turn, stays);
        }
    }

    /// Cost of each port's turns.
    fn shares(&self) -> BTreeMap<u32, u64> {
        let mut shares = BTreeMap::new();
        for &(at, cost) in &self.turns {
            *shares.entry(self.queues[at].class).or_default() += cost;
        }
        shares
    }
}

const ENDLESS: u64 = u64::MAX / 2;

fn endless(class: u32, len: u64) -> Queue {
    Queue { class, len, left: ENDLESS }
}

#[test]
fn ports_share_equally_whatever_their_frames_and_however_many_their_queues() {
    let mut queues = vec![endless(0, 65_000), endless(1, 64), endless(2, 1514)];
    queues.extend([endless(3, 64); 8]);
    let mut world = World::new(&queues);
    (0..1000).for_each(|_| world.round());
    for (port, share) in world.shares() {
        let fair = 1000 * QUANTUM;
        assert!(share.abs_diff(fair) <= QUANTUM, "port {port}: {share} of {fair}");
    }
}

#[test]
fn queues_of_a_port_share_its_share_roughly() {
    let mut world =
        World::new(&[endless(0, 64), endless(1, 64), endless(1, 1514), endless(1, 30_000)]);
    (0..3000).for_each(|_| world.round());
    for at in 1..4 {
        let share: u64 =
            world.turns.iter().filter(|(turn, _)| *turn == at).map(|(_, cost)| cost).sum();
        assert!(share.abs_diff(1000 * QUANTUM) <= 350 * QUANTUM, "queue {at}: {}", share / QUANTUM);
    }
}

/// A queue that has a frame now and then stays among those that are looked at.
#[test]
fn a_queue_that_has_nothing_takes_nothing_from_its_port() {
    let mut drr = DrrScheduler::new(QUANTUM);
    drr.push(ClassId(0), 0);
    drr.push(ClassId(0), 1);
    drr.push(ClassId(1), 2);
    let (full, mut shares) = (cost(BURST, 64 * BURST as u64), [0; 3]);
    for _ in 0..1000 {
        let mut round = drr.round();
        while let Some((at, allowance)) = drr.next(&mut round) {
            let busy = at != 1;
            let cost = if busy { full.min(allowance) } else { 0 };
            shares[at] += cost;
            drr.served(&mut round, Served { cost, more: busy, ..Served::default() }, true);
        }
    }
    assert!(shares[0].abs_diff(shares[2]) <= 2 * QUANTUM, "{shares:?}");
}

/// The share that is kept bounds the wait of others.
#[test]
fn less_than_a_quantum_is_kept_for_the_next_round() {
    let mut world = World::new(&[endless(0, 927), endless(1, 344)]);
    for _ in 0..100 {
        let before = world.turns.len();
        world.round();
        let all: u64 = world.turns[before..].iter().map(|(_, cost)| cost).sum();
        assert!(all <= 2 * 2 * QUANTUM, "{all}");
    }
}

#[test]
fn a_queue_that_turns_out_to_have_no_more_leaves_nothing_for_the_next_round() {
    let mut drr = DrrScheduler::new(QUANTUM);
    drr.push(ClassId(0), 0);
    drr.push(ClassId(1), 1);
    let full = cost(BURST, 64 * BURST as u64);
    for _ in 0..100 {
        let (mut round, mut left) = (drr.round(), [1, 1]);
        while let Some((at, allowance)) = drr.next(&mut round) {
            assert!(allowance <= 2 * QUANTUM, "{allowance}");
            // One full burst is all that it has.
            let more = std::mem::take(&mut left[at]) > 0;
            let cost = if more { full } else { 0 };
            drr.served(&mut round, Served { cost, more, ..Served::default() }, true);
        }
        assert_eq!(left, [0, 0], "a round is enough for a burst");
    }
}

#[test]
fn full_bursts_of_small_frames_stay_full() {
    let mut world = World::new(&[endless(0, 64), endless(1, 64)]);
    (0..100).for_each(|_| world.round());
    let full =
        world.turns.iter().filter(|(_, turn)| *turn == cost(BURST, 64 * BURST as u64)).count();
    assert!(full * 10 >= world.turns.len() * 7, "{full} of {}", world.turns.len());
}

#[test]
fn a_port_alone_has_one_turn_for_each_queue() {
    let mut world = World::new(&[endless(7, 64), endless(7, 65_000)]);
    world.round();
    world.round();
    assert_eq!(world.turns.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [0, 1, 0, 1]);
    assert!(world.turns.iter().all(|(_, cost)| *cost <= ALONE * QUANTUM));
}

#[test]
fn whoever_owes_sits_out_and_nothing_else_is_forgotten() {
    let mut drr = DrrScheduler::new(QUANTUM);
    drr.push(ClassId(0), 0);
    drr.push(ClassId(1), 1);
    let mut first = drr.round();
    assert_eq!(drr.next(&mut first), Some((0, QUANTUM)));
    // Copies for many receivers.
    drr.served(&mut first, Served { cost: 3 * QUANTUM, more: true, ..Served::default() }, true);
    assert_eq!(drr.next(&mut first).map(|(at, _)| at), Some(1));
    drr.served(&mut first, Served::default(), true);
    assert_eq!(drr.next(&mut first), None);
    for _ in 0..2 {
        let mut round = drr.round();
        assert_eq!(drr.next(&mut round).map(|(at, _)| at), Some(1), "slot 0 has nothing left");
        assert!(round.in_debt);
        drr.served(&mut round, Served::default(), true);
    }
    let mut round = drr.round();
    assert_eq!(drr.next(&mut round).map(|(at, _)| at), Some(0));
}

#[test]
fn queues_come_and_go() {
    let mut drr = DrrScheduler::new(QUANTUM);
    assert!(drr.is_empty());
    drr.push(ClassId(0), 4);
    drr.push(ClassId(0), 5);
    drr.push(ClassId(1), 6);
    assert_eq!(drr.iter().collect::<Vec<_>>(), [4, 5, 6]);
    drr.remove(4);
    drr.remove(6);
    assert_eq!(drr.iter().collect::<Vec<_>>(), [5]);
    let mut round = drr.round();
    assert!(drr.next(&mut round).is_some());
    drr.served(&mut round, Served::default(), false);
    assert_eq!(drr.next(&mut round), None);
    assert!(drr.is_empty());
}

proptest! {
    /// For ports of any composition, the shares of two backlogged ports never differ by more than a
    /// quantum and a half. No port waits for longer than one such turn of every other port.
    #[test]
    fn no_port_gets_ahead(
        ports in prop::collection::vec((1..=4usize, 60..=u64::from(MAX_FRAME)), 2..8),
        rounds in 1..60usize,
    ) {
        let queues: Vec<Queue> = (0u32..)
            .zip(&ports)
            .flat_map(|(class, &(queues, len))| vec![endless(class, len); queues])
            .collect();
        let mut world = World::new(&queues);
        for _ in 0..rounds {
            let before = world.turns.len();
            world.round();
            let all: u64 = world.turns[before..].iter().map(|(_, cost)| cost).sum();
            prop_assert!(all <= ports.len() as u64 * 2 * QUANTUM);
        }
        let shares = world.shares();
        prop_assert_eq!(shares.len(), ports.len());
        let (least, most) = (shares.values().min().unwrap(), shares.values().max().unwrap());
        prop_assert!(most - least <= QUANTUM + LEAST, "{:?}", shares);
    }
}
