//! Queues that migrate, and queues that are given back.

use super::*;

#[test]
fn a_queue_migrates_while_its_peer_publishes() {
    let (group, _) = start(3, PollingPolicy::default());
    let (ring, neighbour) = (Ring::new(0, 1), Ring::new(1, 1));
    group.attach(0, QueueId(0), Arc::clone(&ring));
    group.attach(1, QueueId(1), Arc::clone(&neighbour));
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                [&ring, &neighbour].iter().for_each(|ring| ring.publish(3));
                thread::sleep(Duration::from_micros(50));
            }
        });
        for n in 0..12 {
            let begun = Instant::now();
            let queue = group.migrate(n % 3, QueueId(0)).recv().unwrap();
            assert!(begun.elapsed() >= crate::migration::QUIESCENCE, "it rests before it leaves");
            let taken = ring.taken();
            thread::sleep(Duration::from_micros(300));
            assert_eq!(ring.taken(), taken, "nobody serves it meanwhile");
            group.attach((n + 1) % 3, QueueId(0), queue);
        }
        done.store(true, Ordering::Relaxed);
    });
    [&ring, &neighbour].iter().for_each(|ring| wait(|| ring.left() == 0));
}

#[test]
fn a_queue_is_given_back_and_not_served_any_more() {
    let (group, _) = start(2, PollingPolicy::default());
    let ring = Ring::new(0, 1);
    group.attach(1, QueueId(7), Arc::clone(&ring));
    assert!(group.detach(0, QueueId(7)).recv().is_err(), "another worker has it");
    let queue = group.detach(1, QueueId(7)).recv().unwrap();
    assert!(Arc::ptr_eq(&queue, &ring));
    ring.publish(9);
    thread::sleep(Duration::from_millis(2));
    assert_eq!(ring.taken(), 0);
    group.attach(0, QueueId(8), queue);
    wait(|| ring.left() == 0);
}
