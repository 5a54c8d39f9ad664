use super::*;

/// Of the old queue's ring: all is taken, or nothing.
const TAKEN: (u32, fn(u32) -> bool) = (0, |_| true);
const LEFT: (u32, fn(u32) -> bool) = (0, |_| false);

fn choice(queue: u64) -> Choice {
    Choice { queue: QueueId(queue), way: Way::Local(queue as usize) }
}

fn spread(queues: u64) -> Spread {
    Spread::new((0..queues).map(choice).collect(), queues as usize, None)
}

/// A hash that falls into this bucket.
fn hash(bucket: u32) -> u32 {
    bucket << 24 | 0x1234
}

/// Streams in these buckets, all as busy, over an interval; those that wait come to rest.
fn interval(spread: &mut Spread, streams: &[u32], now: &mut Instant) {
    for _ in 0..20 {
        *now += Duration::from_millis(5);
        for &bucket in streams {
            if spread.way(hash(bucket), 1 << 20) == Way::Turning {
                spread.turn(*now, true, TAKEN);
            }
        }
    }
    spread.look();
}

/// How many of the streams each queue has.
fn streams_of(spread: &Spread, streams: &[u32], queues: usize) -> Vec<usize> {
    let mut counts = vec![0; queues];
    for &bucket in streams {
        match spread.way(hash(bucket), 0) {
            Way::Local(at) => counts[at] += 1,
            way => panic!("stream {bucket} goes {way:?}"),
        }
    }
    counts
}

#[test]
fn all_queues_have_as_many_buckets() {
    for queues in 1..=16 {
        let spread = spread(queues);
        let buckets: Vec<u32> = (0..BUCKETS as u32).collect();
        let counts = streams_of(&spread, &buckets, queues as usize);
        assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1, "{counts:?}");
    }
}

#[test]
fn eight_streams_over_five_queues_end_up_even() {
    // Six of eight on one queue, none on two.
    let streams = [0, 1, 2, 3, 4, 5, 60, 120];
    let (mut spread, mut now) = (spread(5), Instant::now());
    assert_eq!(streams_of(&spread, &streams, 5), [6, 1, 1, 0, 0]);
    for _ in 0..20 {
        interval(&mut spread, &streams, &mut now);
    }
    spread.look();
    spread.look();
    let mut counts = streams_of(&spread, &streams, 5);
    counts.sort_unstable();
    assert_eq!(counts, [1, 1, 2, 2, 2]);
}

#[test]
fn even_streams_stay_where_they_are() {
    let streams = [0, 60, 120, 170, 220];
    let (mut spread, mut now) = (spread(5), Instant::now());
    let before = spread.table.clone();
    for _ in 0..100 {
        interval(&mut spread, &streams, &mut now);
    }
    assert_eq!(spread.table, before);
}

#[test]
fn one_great_stream_does_not_wander() {
    let (mut spread, mut now) = (spread(4), Instant::now());
    for _ in 0..100 {
        interval(&mut spread, &[7], &mut now);
    }
    assert_eq!(spread.way(hash(7), 0), Way::Local(0));
}

/// Points the bucket 0 of two queues' streams 0 and 1 to the other queue.
fn turning() -> (Spread, u32) {
    let mut spread = spread(2);
    for bucket in [0, 1] {
        assert_eq!(spread.way(hash(bucket), 100 << 20), Way::Local(0));
    }
    assert!(spread.look());
    let turning = (0..2).find(|&bucket| spread.way(hash(bucket), 60) == Way::Turning);
    (spread, turning.unwrap())
}

#[test]
fn a_bucket_changes_queues_only_at_rest() {
    let (mut spread, bucket) = turning();
    let now = Instant::now();
    assert_eq!(spread.turn(now, true, TAKEN), None, "the guest may still pass on what it has just taken");
    assert_eq!(spread.turn(now + REST / 2, true, TAKEN), None);
    assert_eq!(spread.turn(now + REST, false, TAKEN), None, "frames are under way to another worker");
    assert_eq!(spread.turn(now + REST, true, LEFT), None, "its last frame lies there yet");
    assert_eq!(spread.way(hash(bucket), 60), Way::Turning);
    assert_eq!(spread.old_way(), Way::Local(0));
    assert_eq!(spread.turn(now + REST, true, TAKEN), Some(Way::Local(1)));
    assert_eq!(spread.way(hash(bucket), 60), Way::Local(1));
}

#[test]
fn what_lay_there_first_is_what_has_to_be_taken() {
    let (mut spread, _) = turning();
    let now = Instant::now();
    assert_eq!(spread.turn(now, true, (7, |_| true)), None);
    // Others send to that queue meanwhile.
    assert_eq!(spread.turn(now + REST, true, (9, |mark| mark != 7)), None);
    assert_eq!(spread.turn(now + REST, true, (9, |mark| mark == 7)), Some(Way::Local(1)));
}

#[test]
fn a_guest_that_does_not_show_what_it_takes_is_not_waited_for_for_ever() {
    let (mut spread, _) = turning();
    let now = Instant::now();
    assert_eq!(spread.turn(now, true, LEFT), None);
    assert_eq!(spread.turn(now + LONGEST - Duration::from_nanos(1), true, LEFT), None);
    assert_eq!(spread.turn(now + LONGEST, true, LEFT), Some(Way::Local(1)));
}

#[test]
fn a_bucket_without_frames_is_at_rest() {
    let (mut spread, bucket) = turning();
    spread.look();
    assert_eq!(spread.way(hash(bucket), 60), Way::Local(1));
}

#[test]
fn a_bucket_that_never_comes_to_rest_stays() {
    let (mut spread, bucket) = turning();
    assert_eq!(spread.turn(Instant::now(), false, TAKEN), None);
    spread.buckets.iter().for_each(|bucket| bucket.cost.set(0));
    spread.look();
    assert_eq!(spread.way(hash(bucket), 60), Way::Local(0));
}

#[test]
fn what_is_busy_stays_when_queues_come_and_what_is_idle_does_not() {
    let busy = spread(1);
    assert_eq!(busy.way(hash(200), 60), Way::Local(0));
    let both = Spread::new(vec![choice(0), choice(1)], 2, Some(busy));
    assert_eq!(both.way(hash(200), 60), Way::Local(0));
    assert_eq!(both.way(hash(201), 60), Way::Local(1));
}

#[test]
fn what_is_busy_follows_a_queue_that_has_left_until_it_comes_to_rest() {
    let old = spread(2);
    assert_eq!(old.way(hash(200), 60), Way::Local(1));
    assert!(old.uses(QueueId(1)) && !old.uses(QueueId(0)));
    let left = Choice { queue: QueueId(1), way: Way::Moving };
    let mut new = Spread::new(vec![choice(0), left], 1, Some(old));
    assert_eq!(new.way(hash(200), 60), Way::Moving);
    assert_eq!(new.way(hash(201), 60), Way::Local(0));
    assert!(new.look());
    assert_eq!(new.way(hash(200), 60), Way::Turning);
    let now = Instant::now();
    assert_eq!(new.turn(now, true, TAKEN), None);
    assert_eq!(new.turn(now + REST, true, TAKEN), Some(Way::Local(0)));
}

#[test]
fn flows_of_the_only_queue_stay_until_they_are_known_to_be_idle() {
    let old = Spread::all_to(choice(0));
    let mut both = Spread::new(vec![choice(0), choice(1)], 2, Some(old));
    assert_eq!(streams_of(&both, &[1, 100, 200], 2), [3, 0]);
    both.look();
    both.buckets.iter().for_each(|bucket| bucket.cost.set(0));
    assert_eq!(both.way(hash(200), 60), Way::Local(0), "it was busy a moment ago");
    both.look();
    assert_eq!(both.way(hash(201), 60), Way::Local(1), "idle for an interval");
}
