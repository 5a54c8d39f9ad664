//! Tests against rates that follow from times alone.

use super::*;
use crate::event::ns;
use crate::place::Flows;
use crate::scene::{BURST, Duties, Flushing, Guest, Scheduling, Work};

/// One link with a queue for each worker, and evenly spread streams; nothing but workers costs
/// anything.
fn scene(workers: usize, work: Work) -> Scene {
    Scene {
        duties: Duties { worker: work, ..Duties::default() },
        flows: Flows::Even,
        frames: 40_000 * workers as u64,
        ..Scene::pairs(1, workers, workers, workers * 4)
    }
}

fn work(parts: Vec<Part>) -> Work {
    Work { parts, ..Work::default() }
}

fn near(is: f64, wanted: f64, part: f64) {
    assert!((is / wanted - 1.0).abs() < part, "{is} is not {wanted}");
}

#[test]
fn a_worker_does_as_much_as_fits_its_time() {
    let burst = ns(640.0);
    let outcome =
        run(&scene(1, Work { burst, head: ns(60.0), ..work(vec![Part::Work(ns(30.0))]) }));
    // 64 frames to a burst, 10 ns of it for each.
    near(outcome.rate(), 1e9 / 100.0, 0.01);
    near(outcome.busy[0], 1.0, 0.01);
    assert!(outcome.whole);
}

#[test]
fn the_slowest_part_limits_the_rate() {
    let slow = Guest { burst: 0, frame: ns(200.0) };
    let of_worker = scene(1, work(vec![Part::Work(ns(100.0))]));
    let rate = |sender, receiver| {
        let duties = Duties { sender, receiver, ..of_worker.duties.clone() };
        run(&Scene { duties, ..of_worker.clone() }).rate()
    };
    near(rate(Guest::default(), slow), 5e6, 0.01);
    near(rate(slow, Guest::default()), 5e6, 0.01);
}

#[test]
fn workers_without_locks_scale() {
    for workers in [2, 3, 8, 16] {
        let outcome = run(&scene(workers, work(vec![Part::Work(ns(100.0))])));
        near(outcome.rate(), workers as f64 * 1e7, 0.02);
        assert_eq!((outcome.held, outcome.crossed), (0.0, 0));
    }
}

#[test]
fn one_lock_for_all_is_held_once_at_a_time() {
    // 100 ns for each frame, 25 of them under the lock: four workers are as many as it feeds.
    let parts = vec![Part::Work(ns(75.0)), Part::Locked(Which::Target, ns(25.0))];
    for workers in [1, 2, 4, 5, 8, 16] {
        let outcome = run(&scene(workers, work(parts.clone())));
        near(outcome.rate(), 1e7 * workers.min(4) as f64, 0.02);
        near(outcome.held, workers.min(4) as f64 / 4.0, 0.02);
    }
}

#[test]
fn a_lock_that_goes_from_cpu_to_cpu_is_slower_than_with_one() {
    let parts = vec![Part::Locked(Which::Target, ns(100.0))];
    let slow = |workers| {
        run(&scene(workers, Work { handover: ns(100.0), fetch: ns(100.0), ..work(parts.clone()) }))
            .rate()
    };
    near(slow(1), 1e7, 0.02);
    near(slow(2), 5e6, 0.02);
}

#[test]
fn a_table_for_each_guest_is_a_lock_for_each_guest() {
    let work = work(vec![Part::Locked(Which::Source, ns(100.0))]);
    let duties = Duties { worker: work, ..Duties::default() };
    let scene = Scene { duties, flows: Flows::Even, frames: 40_000, ..Scene::pairs(4, 4, 1, 4) };
    // Ports come to workers one by one: each link's two are on different ones, and so are the
    // senders'.
    let outcome = run(&scene);
    assert!(outcome.rate() > 1.9e7 && outcome.contended < 0.01, "{outcome:?}");
}

#[test]
fn flushing_tlbs_of_all_cpus_limits_scaling() {
    let flushing = Flushing { wait: ns(100.0), stolen: ns(300.0) };
    let rate = |workers| {
        // Each worker has a sender of its own, and waits for nobody.
        let parts = vec![Part::Work(ns(400.0)), Part::Flush(Which::Source, 0)];
        let links = (0..workers).map(|pair| (pair, pair + workers)).collect();
        let frames = 40_000 * workers as u64;
        let duties = Duties { worker: Work { flushing, ..work(parts) }, ..Duties::default() };
        let pairs = Scene::pairs(workers, workers, 1, 4);
        run(&Scene { links, frames, duties, ..pairs }).rate()
    };
    // Each frame costs 400 ns, and with others 100 + 300 more for each of them.
    for workers in [1, 2, 4, 8] {
        near(rate(workers), workers as f64 * 1e9 / (400.0 * workers as f64), 0.03);
    }
}

#[test]
fn a_lock_is_held_until_the_others_have_flushed() {
    let flushing = Flushing { wait: ns(100.0), stolen: 0 };
    let parts = vec![Part::Flush(Which::AddressSpace, ns(50.0))];
    for workers in [1, 2, 4] {
        let outcome = run(&scene(workers, Work { flushing, ..work(parts.clone()) }));
        near(outcome.rate(), 1e9 / (50.0 + 100.0 * (workers - 1) as f64), 0.03);
    }
}

#[test]
fn rings_hold_frames_until_they_are_delivered_or_taken() {
    let rings = |tx, rx, sender, receiver| {
        let guest = |frame| Guest { burst: 0, frame: ns(frame) };
        let duties = Duties {
            sender: guest(sender),
            receiver: guest(receiver),
            ..scene(1, work(vec![Part::Work(ns(100.0))])).duties
        };
        run(&Scene {
            limit: Limit::Rings { tx, rx },
            burst: 8,
            duties,
            ..scene(1, Work::default())
        })
    };
    // The slowest of three limits the rate, and nobody makes more than the rings hold.
    for (sender, receiver, slowest) in
        [(10.0, 10.0, 100.0), (300.0, 10.0, 300.0), (10.0, 300.0, 300.0)]
    {
        let outcome = rings(32, 16, sender, receiver);
        near(outcome.rate(), 1e9 / slowest, 0.02);
        assert_eq!(outcome.made, outcome.arrived + outcome.under_way);
        // The frames of the receiver's burst have left its ring.
        assert!(outcome.under_way <= 32 + 16 + 16, "{outcome:?}");
    }
    // With a slow receiver, frames wait in both rings.
    assert!(rings(32, 16, 10.0, 300.0).delay > rings(32, 16, 300.0, 10.0).delay);
}

#[test]
fn a_thread_that_wakes_others_pays_for_it() {
    let rate = |notify| {
        let scheduling = Scheduling { notify: ns(notify), ..Scheduling::default() };
        let one = scene(1, work(vec![Part::Work(ns(100.0))]));
        run(&Scene { limit: Limit::Window(1), streams: 1, scheduling, frames: 2000, ..one }).rate()
    };
    // The next frame is there as soon as the worker has woken the receiver.
    near(rate(0.0), 1e9 / 100.0, 0.01);
    near(rate(50.0), 1e9 / 150.0, 0.01);
    near(rate(400.0), 1e9 / 500.0, 0.01);
}

#[test]
fn a_pair_that_is_one_thread_sends_or_receives() {
    let guest = Guest { burst: 0, frame: ns(150.0) };
    let apart = scene(1, work(vec![Part::Work(ns(100.0))]));
    let apart =
        Scene { duties: Duties { sender: guest, receiver: guest, ..apart.duties }, ..apart };
    near(run(&apart).rate(), 1e9 / 150.0, 0.02);
    near(run(&Scene { joint: true, ..apart }).rate(), 1e9 / 300.0, 0.02);
}

#[test]
fn threads_share_cpus_without_loss() {
    let guest = Guest { burst: 0, frame: ns(150.0) };
    let alone = scene(2, work(vec![Part::Work(ns(100.0))]));
    let host = Host::Together;
    let outcome = run(&Scene {
        duties: Duties { sender: guest, receiver: guest, ..alone.duties },
        host,
        scheduling: Scheduling { slice: ns(1e5), ..alone.scheduling },
        frames: 400_000,
        ..alone
    });
    near(outcome.rate(), 2.0 * 1e9 / 400.0, 0.02);
}

#[test]
fn frames_are_handed_off_where_a_receiver_has_no_queue() {
    let handoff = Work { head: ns(60.0), handoff: ns(20.0), ..work(vec![Part::Work(ns(120.0))]) };
    let duties = Duties { worker: handoff, ..Duties::default() };
    let outcome = run(&Scene { duties, frames: 40_000, ..Scene::pairs(1, 2, 1, 4) });
    // One worker looks, the other copies; the second is the slower one.
    near(outcome.rate(), 1e9 / 140.0, 0.02);
    near(outcome.busy[0], 80.0 / 140.0, 0.03);
    assert!(outcome.crossed.abs_diff(outcome.frames) <= BURST as u64, "{outcome:?}");
}

#[test]
fn a_polling_worker_needs_no_wake_up() {
    let echo = |spin| {
        let work = work(vec![Part::Work(ns(100.0))]);
        run(&Scene {
            limit: Limit::Window(1),
            streams: 1,
            scheduling: Scheduling { wake: ns(900.0), spin, ..Scheduling::default() },
            frames: 2000,
            ..scene(1, work)
        })
    };
    // The guest's two threads also sleep in between.
    near(echo(0).rate(), 1e9 / 2800.0, 0.01);
    near(echo(ns(5000.0)).rate(), 1e9 / 1900.0, 0.01);
}

#[test]
fn a_stream_with_a_rate_sends_at_that_rate_and_leaves_the_rest_of_the_time() {
    // A worker carries ten million frames a second; four streams send.
    let at = |rate: f64| {
        let interval = Some(ns(4e9 / rate));
        run(&Scene { interval, ..scene(1, work(vec![Part::Work(ns(100.0))])) })
    };
    for rate in [1e5, 3e6, 8e6] {
        let outcome = at(rate);
        near(outcome.rate(), rate, 0.03);
        near(outcome.busy[0], rate / 1e7, 0.03);
    }
    assert!(at(8e6).delay > at(1e5).delay, "frames that come at random wait for others");
    let outcome = at(5e7);
    near(outcome.rate(), 1e7, 0.01);
    assert_eq!(outcome.made, outcome.arrived + outcome.under_way);
    assert_eq!(at(3e6), at(3e6));
}

#[test]
fn all_frames_are_accounted_for() {
    for scene in mixed() {
        let outcome = run(&scene);
        assert_eq!(outcome.made, outcome.arrived + outcome.under_way);
        let Limit::Window(window) = scene.limit else { continue };
        assert_eq!(outcome.under_way, (scene.links.len() * scene.streams * window) as u64);
        assert_eq!(outcome.links.iter().sum::<u64>(), outcome.frames);
        // Little: what is under way is how much comes in a second, times how long that takes.
        near(outcome.rate() * outcome.delay, outcome.under_way as f64, 0.05);
    }
}

#[test]
fn one_seed_gives_one_result() {
    for scene in mixed() {
        assert_eq!(run(&scene), run(&scene));
    }
    let of_seed = |seed| run(&Scene { seed, ..mixed().remove(0) });
    assert!((2..10).any(|seed| of_seed(seed) != of_seed(1)), "streams are placed by the seed");
}

#[test]
fn a_prediction_always_ends() {
    let outcome = run(&Scene { frames: u64::MAX, ..scene(1, Work::default()) });
    assert!(!outcome.whole, "nothing costs anything, and no time passes");
    let nothing = run(&Scene { streams: 0, ..scene(1, Work::default()) });
    assert_eq!((nothing.arrived, nothing.rate(), nothing.whole), (0, 0.0, false));
}

/// Scenes that together contain every kind of event.
fn mixed() -> Vec<Scene> {
    let hold = |which| Part::Locked(which, ns(20.0));
    let parts = vec![
        hold(Which::Source),
        hold(Which::Target),
        Part::Work(ns(50.0)),
        hold(Which::Guests),
        hold(Which::Maptrack),
        hold(Which::AddressSpace),
        Part::Flush(Which::AddressSpace, ns(10.0)),
    ];
    let flushing = Flushing { wait: ns(30.0), stolen: ns(10.0) };
    let (handover, shared) = (ns(25.0), ns(40.0));
    let worker = Work {
        burst: ns(200.0),
        head: ns(30.0),
        parts,
        handoff: ns(15.0),
        flushing,
        handover,
        shared,
        address_space: ns(60.0),
        fetch: ns(20.0),
    };
    let guest = Guest { burst: ns(100.0), frame: ns(40.0) };
    let duties = Duties { worker, sender: guest, receiver: guest };
    let scheduling =
        Scheduling { slice: ns(50_000.0), spin: ns(1000.0), wake: ns(2000.0), notify: ns(300.0) };
    let of = |scene: Scene, host| Scene {
        host,
        scheduling,
        limit: Limit::Window(16),
        duties: duties.clone(),
        frames: 60_000,
        ..scene
    };
    vec![
        of(Scene::pairs(3, 2, 2, 5), Host::Together),
        of(Scene::ring(3, 2, 3, 5), Host::Apart { workers: 2, guests: 4 }),
        of(Scene::pairs(2, 3, 1, 2), Host::ENDLESS),
        of(Scene { limit: Limit::Window(BURST * 2), ..Scene::ring(4, 5, 5, 8) }, Host::Together),
    ]
}
