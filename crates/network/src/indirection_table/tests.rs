use super::rebalance::{MAX_QUIET, MIN_QUIET};
use super::*;
use crate::topology::QueueLocation;

/// Progress of the old queue's ring: all is taken, or nothing, or another worker is asked.
const TAKEN: Ring = ring(0, |_| true);
const LEFT: Ring = ring(0, |_| false);
const FOREIGN: Ring = OldRing::Foreign;

type Ring = OldRing<fn(u32) -> bool>;

const fn ring(position: u32, is_past: fn(u32) -> bool) -> Ring {
    OldRing::Own(Progress { position, is_past })
}

fn queue(queue: u64) -> RxQueue {
    RxQueue { queue: QueueId(queue), egress: Egress::Local(queue as usize) }
}

fn table(queues: u64) -> IndirectionTable {
    IndirectionTable::new((0..queues).map(queue).collect(), queues as usize, None)
}

/// The egress of a frame whose hash falls into this bucket.
fn egress_of(table: &IndirectionTable, bucket: u32) -> Egress {
    *table.egress(bucket << 24 | 0x1234).0
}

/// Sends a frame of this cost in this bucket. Returns its egress.
fn send(table: &IndirectionTable, bucket: u32, cost: u64) -> Egress {
    let (egress, charged) = table.egress(bucket << 24 | 0x1234);
    charged.set(charged.get() + cost);
    *egress
}

/// Progress of the frames under way to another worker: none, or some.
const ARRIVED: Progress<u64, fn(u64) -> bool> = Progress { position: 0, is_past: |_| true };
const UNDER_WAY: Progress<u64, fn(u64) -> bool> = Progress { position: 0, is_past: |_| false };

/// The egress of the bucket that changes queues, once it need not wait any more.
fn poll(
    table: &mut IndirectionTable,
    now: Instant,
    handoff: Progress<u64, impl FnOnce(u64) -> bool>,
    ring: Ring,
) -> Option<Egress> {
    let buckets = table.rebalance?.buckets;
    let is_over = table.poll_rebalance(now, handoff, ring);
    match buckets {
        Moving::One(bucket) => is_over.then(|| egress_of(table, bucket as u32)),
        Moving::All => panic!("several change queues"),
    }
}

/// Runs an interval with equally busy streams in these buckets. Waiting buckets come to rest.
fn interval(table: &mut IndirectionTable, streams: &[u32], now: &mut Instant) {
    for _ in 0..20 {
        *now += Duration::from_millis(5);
        for &bucket in streams {
            if egress_of(table, bucket) != Egress::Rebalancing
                || poll(table, *now, ARRIVED, TAKEN).is_some()
            {
                send(table, bucket, 1 << 20);
            }
        }
    }
    table.end_interval(false);
}

/// How many of the streams each queue has.
fn streams_of(table: &IndirectionTable, streams: &[u32], queues: usize) -> Vec<usize> {
    let mut counts = vec![0; queues];
    for &bucket in streams {
        match egress_of(table, bucket) {
            Egress::Local(at) => counts[at] += 1,
            egress => panic!("stream {bucket} goes {egress:?}"),
        }
    }
    counts
}

#[test]
fn all_queues_have_as_many_buckets() {
    for queues in 1..=16 {
        let table = table(queues);
        let buckets: Vec<u32> = (0..BUCKETS as u32).collect();
        let counts = streams_of(&table, &buckets, queues as usize);
        assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1, "{counts:?}");
    }
}

#[test]
fn eight_streams_over_five_queues_end_up_even() {
    // Six of eight on one queue, none on two.
    let streams = [0, 1, 2, 3, 4, 5, 60, 120];
    let (mut table, mut now) = (table(5), Instant::now());
    assert_eq!(streams_of(&table, &streams, 5), [6, 1, 1, 0, 0]);
    for _ in 0..20 {
        interval(&mut table, &streams, &mut now);
    }
    table.end_interval(false);
    table.end_interval(false);
    let mut counts = streams_of(&table, &streams, 5);
    counts.sort_unstable();
    assert_eq!(counts, [1, 1, 2, 2, 2]);
}

#[test]
fn even_streams_stay_where_they_are() {
    let streams = [0, 60, 120, 170, 220];
    let (mut table, mut now) = (table(5), Instant::now());
    let before = table.table.clone();
    for _ in 0..100 {
        interval(&mut table, &streams, &mut now);
    }
    assert_eq!(table.table, before);
}

#[test]
fn one_great_stream_does_not_wander() {
    let (mut table, mut now) = (table(4), Instant::now());
    for _ in 0..100 {
        interval(&mut table, &[7], &mut now);
    }
    assert_eq!(egress_of(&table, 7), Egress::Local(0));
}

/// Points the bucket 0 of two queues' streams 0 and 1 to the other queue.
fn rebalance() -> (IndirectionTable, u32) {
    let mut table = table(2);
    for bucket in [0, 1] {
        assert_eq!(send(&table, bucket, 100 << 20), Egress::Local(0));
    }
    assert_eq!(table.end_interval(false), 1);
    let rebalance = (0..2).find(|&bucket| egress_of(&table, bucket) == Egress::Rebalancing);
    (table, rebalance.unwrap())
}

#[test]
fn a_bucket_changes_queues_only_at_rest() {
    let (mut table, bucket) = rebalance();
    let now = Instant::now();
    assert_eq!(
        poll(&mut table, now, ARRIVED, TAKEN),
        None,
        "the guest may still pass on what it has just taken"
    );
    assert_eq!(poll(&mut table, now + MIN_QUIET / 2, ARRIVED, TAKEN), None);
    assert_eq!(
        poll(&mut table, now + MIN_QUIET, ARRIVED, LEFT),
        None,
        "its last frame lies there yet"
    );
    assert_eq!(egress_of(&table, bucket), Egress::Rebalancing);
    assert_eq!(table.old_egress(), Egress::Local(0));
    assert_eq!(poll(&mut table, now + MIN_QUIET, ARRIVED, TAKEN), Some(Egress::Local(1)));
    assert_eq!(egress_of(&table, bucket), Egress::Local(1));
}

#[test]
fn what_lay_there_first_is_what_has_to_be_taken() {
    let (mut table, _) = rebalance();
    let now = Instant::now();
    assert_eq!(poll(&mut table, now, ARRIVED, ring(7, |_| true)), None);
    // Others send to that queue meanwhile.
    assert_eq!(poll(&mut table, now + MIN_QUIET, ARRIVED, ring(9, |mark| mark != 7)), None);
    assert_eq!(
        poll(&mut table, now + MIN_QUIET, ARRIVED, ring(9, |mark| mark == 7)),
        Some(Egress::Local(1))
    );
}

#[test]
fn a_bucket_whose_last_frames_are_not_taken_stays() {
    let (mut table, bucket) = rebalance();
    let now = Instant::now();
    assert_eq!(poll(&mut table, now, ARRIVED, LEFT), None);
    assert_eq!(poll(&mut table, now + MAX_QUIET - Duration::from_nanos(1), ARRIVED, LEFT), None);
    assert_eq!(poll(&mut table, now + MAX_QUIET, ARRIVED, LEFT), Some(Egress::Local(0)));
    assert_stays(&mut table, bucket);
}

/// What the table asks at `now`, in batch `number`.
fn question(table: &mut IndirectionTable, now: Instant, number: u64) -> Option<Option<u32>> {
    let mut asked = None;
    table.probe(now, |mark| {
        asked = Some(mark);
        Some(number)
    });
    asked
}

#[test]
fn another_workers_ring_is_asked_for_its_position_and_then_about_it() {
    let (mut table, _) = rebalance();
    let start = Instant::now();
    let at = |ms: u32| start + ms * Duration::from_millis(1);
    let answer = |position, is_past| RingAnswer { position, is_past };
    assert_eq!(question(&mut table, start, 1), None, "no frame waits yet");
    assert_eq!(poll(&mut table, start, ARRIVED, FOREIGN), None);
    assert_eq!(question(&mut table, start, 1), Some(None));
    assert_eq!(question(&mut table, at(2), 2), None, "one question at a time");
    assert_eq!(poll(&mut table, at(2), ARRIVED, FOREIGN), None, "its position is unknown");
    table.answered(1, answer(7, false));
    assert_eq!(poll(&mut table, at(2), ARRIVED, FOREIGN), None);
    assert_eq!(question(&mut table, at(2), 2), Some(Some(7)));
    table.answered(2, answer(8, false));
    assert_eq!(question(&mut table, at(2), 3), None, "not again at once");
    assert_eq!(poll(&mut table, at(4), ARRIVED, FOREIGN), None, "nothing is taken yet");
    assert_eq!(question(&mut table, at(4), 3), Some(Some(7)));
    table.answered(2, answer(9, true));
    assert_eq!(poll(&mut table, at(4), ARRIVED, FOREIGN), None, "that was no answer to it");
    table.answered(3, answer(9, true));
    assert_eq!(poll(&mut table, at(4), ARRIVED, FOREIGN), Some(Egress::Local(1)));
}

#[test]
fn a_bucket_stays_if_another_worker_gives_no_answer() {
    for answers in [false, true] {
        let (mut table, bucket) = rebalance();
        let now = Instant::now();
        assert_eq!(poll(&mut table, now, ARRIVED, FOREIGN), None);
        assert_eq!(question(&mut table, now, 1), Some(None));
        if answers {
            table.answered(1, RingAnswer { position: 7, is_past: false });
        }
        let late = now + MAX_QUIET;
        let polled = [late, late + MAX_QUIET].map(|now| poll(&mut table, now, ARRIVED, FOREIGN));
        let stays = Some(Egress::Local(0));
        assert_eq!(polled, if answers { [None, stays] } else { [stays, None] });
        assert_stays(&mut table, bucket);
    }
}

#[test]
fn a_bucket_without_frames_is_at_rest() {
    let (mut table, bucket) = rebalance();
    table.end_interval(false);
    assert_eq!(egress_of(&table, bucket), Egress::Local(1));
}

#[test]
fn what_is_under_way_has_to_arrive_and_rest_counts_from_then_on() {
    let (mut table, _) = rebalance();
    let (now, late) = (Instant::now(), MAX_QUIET - MIN_QUIET);
    let sent = |position, is_past: fn(u64) -> bool| Progress { position, is_past };
    assert_eq!(poll(&mut table, now, sent(7, |_| false), TAKEN), None);
    // Others send meanwhile.
    assert_eq!(poll(&mut table, now + MIN_QUIET, sent(9, |sent| sent != 7), TAKEN), None);
    assert_eq!(poll(&mut table, now + late, sent(9, |sent| sent == 7), TAKEN), None);
    let rested = now + late + MIN_QUIET;
    let before = rested - Duration::from_nanos(1);
    assert_eq!(poll(&mut table, before, sent(9, |_| false), TAKEN), None);
    assert_eq!(poll(&mut table, rested, sent(9, |_| false), TAKEN), Some(Egress::Local(1)));
}

/// Asserts that the bucket of [`rebalance`] keeps its queue, and is not chosen again at once
/// although it would be the best choice.
fn assert_stays(table: &mut IndirectionTable, bucket: u32) {
    let mut look = || {
        for (bucket, cost) in [(bucket, 50), (1 - bucket, 200), (255, 100)] {
            send(table, bucket, cost << 20);
        }
        table.end_interval(false);
        egress_of(table, bucket)
    };
    for _ in 1..STAY {
        assert_eq!(look(), Egress::Local(0));
    }
    assert_eq!(look(), Egress::Rebalancing, "but later");
}

#[test]
fn a_bucket_whose_last_frames_do_not_arrive_stays() {
    let (mut table, bucket) = rebalance();
    let now = Instant::now();
    assert_eq!(poll(&mut table, now, UNDER_WAY, TAKEN), None);
    assert_eq!(poll(&mut table, now + MAX_QUIET, UNDER_WAY, TAKEN), Some(Egress::Local(0)));
    assert_stays(&mut table, bucket);
}

#[test]
fn a_bucket_that_does_not_come_to_rest_stays() {
    let (mut table, bucket) = rebalance();
    assert_eq!(poll(&mut table, Instant::now(), ARRIVED, LEFT), None);
    table.end_interval(false);
    assert_stays(&mut table, bucket);
}

#[test]
fn a_bucket_with_frames_that_cannot_wait_stays() {
    let (mut table, bucket) = rebalance();
    table.cancel();
    assert_stays(&mut table, bucket);
    let (mut table, bucket) = rebalance();
    send(&table, bucket, 1);
    table.end_interval(false);
    assert_eq!(egress_of(&table, bucket), Egress::Local(0), "whoever sent that did not ask");
}

#[test]
fn what_is_busy_stays_when_queues_come_and_what_is_idle_does_not() {
    let busy = table(1);
    assert_eq!(send(&busy, 200, 60), Egress::Local(0));
    let both = IndirectionTable::new(vec![queue(0), queue(1)], 2, Some(busy));
    assert_eq!(egress_of(&both, 200), Egress::Local(0));
    assert_eq!(egress_of(&both, 201), Egress::Local(1));
}

#[test]
fn what_is_busy_follows_a_queue_that_has_left_until_it_comes_to_rest() {
    let old = table(2);
    assert_eq!(send(&old, 200, 60), Egress::Local(1));
    assert!(old.uses(QueueId(1)) && !old.uses(QueueId(0)));
    let left = |egress| vec![queue(0), RxQueue { queue: QueueId(1), egress }];
    let mut new = IndirectionTable::new(left(Egress::Moving), 1, Some(old));
    assert_eq!(egress_of(&new, 200), Egress::Moving);
    assert_eq!(egress_of(&new, 201), Egress::Local(0));
    send(&new, 200, 60);
    assert_eq!(new.end_interval(false), 0, "its frames wait anyway");
    let location = QueueLocation { queue: QueueId(1), index: 1, worker: 1, moving: false };
    let mut new = IndirectionTable::new(left(Egress::Remote(location)), 1, Some(new));
    send(&new, 200, 60);
    assert_eq!(new.end_interval(false), 1);
    assert_eq!(egress_of(&new, 200), Egress::Rebalancing);
    let now = Instant::now();
    assert_eq!(poll(&mut new, now, UNDER_WAY, TAKEN), None);
    assert_eq!(poll(&mut new, now + MAX_QUIET, UNDER_WAY, TAKEN), Some(Egress::Remote(location)));
    for _ in 1..STAY {
        send(&new, 200, 60);
        assert_eq!(new.end_interval(false), 0, "it has just been tried");
    }
    send(&new, 200, 60);
    assert_eq!(new.end_interval(false), 1);
    assert_eq!(poll(&mut new, now, ARRIVED, TAKEN), None);
    assert_eq!(poll(&mut new, now + MIN_QUIET, ARRIVED, TAKEN), Some(Egress::Local(0)));
}

#[test]
fn flows_of_the_only_queue_stay_until_they_are_known_to_be_idle() {
    let old = IndirectionTable::all_to(queue(0));
    let mut both = IndirectionTable::new(vec![queue(0), queue(1)], 2, Some(old));
    assert_eq!(streams_of(&both, &[1, 100, 200], 2), [3, 0]);
    both.end_interval(false);
    both.charged.iter().for_each(|charged| charged.set(0));
    assert_eq!(send(&both, 200, 60), Egress::Local(0), "it was busy a moment ago");
    both.end_interval(false);
    assert_eq!(egress_of(&both, 201), Egress::Local(1), "idle for an interval");
}

/// A table over four queues, whose buckets are all busy on the only queue that there was.
fn one_sided() -> IndirectionTable {
    let old = IndirectionTable::all_to(queue(0));
    let table = IndirectionTable::new((0..4).map(queue).collect(), 4, Some(old));
    (0..BUCKETS as u32).for_each(|bucket| {
        assert_eq!(send(&table, bucket, 1 << 20), Egress::Local(0));
    });
    table
}

#[test]
fn the_load_of_an_only_queue_is_dealt_at_once_when_others_come() {
    let (mut table, now) = (one_sided(), Instant::now());
    assert_eq!(table.end_interval(true), BUCKETS);
    assert_eq!(egress_of(&table, 200), Egress::Rebalancing);
    assert_eq!(table.busy(200), Some(QueueId(0)), "it may have to stay");
    assert!(!table.poll_rebalance(now, ARRIVED, LEFT));
    assert!(!table.poll_rebalance(now + MIN_QUIET, ARRIVED, LEFT), "in order");
    assert!(table.poll_rebalance(now + MIN_QUIET, ARRIVED, TAKEN));
    let buckets: Vec<u32> = (0..BUCKETS as u32).collect();
    assert_eq!(streams_of(&table, &buckets, 4), [64; 4]);
    for &bucket in &buckets {
        send(&table, bucket, 1 << 20);
    }
    assert_eq!(table.end_interval(true), 0);
}

#[test]
fn buckets_that_cannot_be_dealt_stay() {
    let buckets: Vec<u32> = (0..BUCKETS as u32).collect();
    let (mut flooded, mut late, now) = (one_sided(), one_sided(), Instant::now());
    flooded.end_interval(true);
    flooded.cancel();
    assert_eq!(streams_of(&flooded, &buckets, 4), [BUCKETS, 0, 0, 0]);
    late.end_interval(true);
    assert!(!late.poll_rebalance(now, UNDER_WAY, TAKEN));
    assert!(late.poll_rebalance(now + MAX_QUIET, UNDER_WAY, TAKEN));
    assert_eq!(streams_of(&late, &buckets, 4), [BUCKETS, 0, 0, 0]);
    assert_eq!(one_sided().end_interval(false), 0, "not again where it was done lately");
}
