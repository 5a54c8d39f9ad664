//! Rings that start, stop and go on.

use super::*;

#[test]
fn a_ring_starts_when_everything_is_known_in_whatever_order() {
    let steps: [fn(&mut Bench); 6] = [
        |b| b.share(),
        |b| b.features(MODERN),
        |b| b.do_it(8, &state(0, 16), vec![]),
        |b| b.do_it(9, &address(0, 0x1000), vec![]),
        |b| b.kick(0),
        |b| b.enable(0, true),
    ];
    // Features cannot come after a ring runs, so they keep their place before at least one step
    // that it needs.
    for order in [
        [0, 1, 2, 3, 4, 5],
        [5, 1, 2, 3, 0, 4],
        [4, 3, 2, 1, 5, 0],
        [5, 4, 1, 0, 3, 2],
        [1, 4, 2, 0, 5, 3],
    ] {
        let mut bench = Bench::new();
        for (done, step) in order.into_iter().enumerate() {
            let started = !bench.host.pairs().is_empty();
            assert!(!started || done == 5, "{order:?} after {done}");
            steps[step](&mut bench);
        }
        assert_eq!(bench.host.pairs(), [(0, true)], "{order:?}");
        assert_eq!(bench.active(), ActiveVrings { tx: 0, rx: 1 });
    }
}

#[test]
fn rings_start_enabled_only_without_protocol_features() {
    for (features, enabled) in [(bit::VERSION_1, true), (MODERN, false)] {
        let mut bench = Bench::new();
        bench.share();
        bench.features(features);
        bench.describe(0, 0x1000);
        bench.kick(0);
        assert_eq!(bench.host.pairs(), [(0, enabled)]);
        bench.enable(0, !enabled);
        assert_eq!(bench.host.pairs(), [(0, !enabled)]);
    }
}

#[test]
fn frames_come_out_of_a_started_ring() {
    let mut bench = Bench::new();
    let mut driver: SplitDriver = bench.transmitter(MODERN);
    let call = bench.call(1);
    signals(&call);
    transmit(&mut driver, 3);
    assert!(matches!(
        bench.fetch()[..],
        [Action::Unclassified, Action::Unclassified, Action::Unclassified]
    ));
    assert_eq!(driver.collect(&mut [Used::default(); 8]), Ok(3));
    assert_eq!(signals(&call), 1);
}

#[test]
fn a_disabled_ring_is_drained_and_its_frames_are_discarded() {
    let mut bench = Bench::new();
    let mut driver: SplitDriver = bench.transmitter(MODERN);
    bench.enable(1, false);
    transmit(&mut driver, 2);
    assert!(matches!(
        bench.fetch()[..],
        [Action::Drop(Reason::TxDisabled), Action::Drop(Reason::TxDisabled)]
    ));
    assert_eq!(driver.collect(&mut [Used::default(); 8]), Ok(2));
    bench.enable(1, true);
    transmit(&mut driver, 1);
    assert!(matches!(bench.fetch()[..], [Action::Unclassified]));
}

fn stops_and_goes_on<R: DriverRing>(features: u64, positions: [u32; 2]) {
    let mut bench = Bench::new();
    let mut driver: R = bench.transmitter(features);
    transmit(&mut driver, 5);
    assert_eq!(bench.fetch().len(), 5);
    transmit(&mut driver, 3);
    assert_eq!(bench.ask(11, &state(1, 0), vec![]), Ok(Some(u64::from(positions[0]) << 32 | 1)));
    assert!(bench.host.pairs().is_empty());
    assert_eq!(bench.active(), ActiveVrings::default());
    bench.do_it(10, &state(1, positions[0]), vec![]);
    bench.kick(1);
    assert_eq!(bench.fetch().len(), 3);
    assert_eq!(driver.collect(&mut [Used::default(); 16]), Ok(8));
    assert_eq!(bench.ask(11, &state(1, 0), vec![]), Ok(Some(u64::from(positions[1]) << 32 | 1)));
}

#[test]
fn a_split_ring_stops_where_it_stands_and_goes_on_from_there() {
    stops_and_goes_on::<SplitDriver>(MODERN, [5, 8]);
}

#[test]
fn a_packed_ring_stops_where_it_stands_and_goes_on_from_there() {
    stops_and_goes_on::<PackedDriver>(MODERN | bit::RING_PACKED, [0x8005_8005, 0x8008_8008]);
}

#[test]
fn a_new_call_descriptor_is_used_at_once_and_signalled_once() {
    let mut bench = Bench::new();
    let mut driver: SplitDriver = bench.transmitter(MODERN);
    let first = bench.call(1);
    let second = bench.call(1);
    assert_eq!((signals(&first), signals(&second)), (1, 1));
    transmit(&mut driver, 1);
    bench.fetch();
    assert_eq!((signals(&first), signals(&second)), (0, 1));
    bench.do_it(13, &words(&[0x101]), vec![]);
    transmit(&mut driver, 1);
    bench.fetch();
    assert_eq!((signals(&first), signals(&second)), (0, 0));
}

#[test]
fn a_message_hands_queues_over_at_most_once() {
    let mut bench = Bench::new();
    bench.share();
    bench.features(MODERN);
    for ring in 0..4 {
        bench.describe(ring, 0x1000 * (u64::from(ring) + 1));
        bench.kick(ring.into());
    }
    let puts = |bench: &Bench| bench.host.0.borrow().puts;
    let mut message = |name, send: fn(&mut Bench)| {
        let before = puts(&bench);
        send(&mut bench);
        assert_eq!(puts(&bench), before + 1, "{name}");
    };
    message("memory of all rings", |bench| bench.share());
    message("enable", |bench| _ = bench.ask(18, &state(1, 1), vec![]).unwrap());
    message("call", |bench| _ = bench.call(1));
    message("stop", |bench| _ = bench.ask(11, &state(0, 0), vec![]).unwrap());
    message("reset", |bench| bench.do_it(34, &[], vec![]));
    assert!(bench.host.pairs().is_empty());
}

#[test]
fn a_transmit_ring_without_kick_is_unsignalled() {
    let mut bench = Bench::new();
    bench.share();
    bench.features(MODERN);
    bench.describe(1, 0x1000);
    bench.do_it(12, &words(&[0x101]), vec![]);
    bench.host.with(0, |pair| {
        assert!(pair.wakers().iter().all(Option::is_none));
        assert!(pair.is_unsignalled());
    });
    bench.kick(1);
    bench.host.with(0, |pair| {
        assert!(pair.wakers()[0].is_some());
        assert!(!pair.is_unsignalled());
        assert_eq!(pair.arm(false), Ok(false));
    });
}

#[test]
fn only_eventfds_signal() {
    let mut bench = Bench::new();
    for (code, name) in [(12, "SET_VRING_KICK"), (13, "SET_VRING_CALL"), (14, "SET_VRING_ERR")] {
        let (pipe, _other) = rustix::pipe::pipe().unwrap();
        let expected = format!("{name} for ring 3 brings a descriptor that is no eventfd");
        assert_eq!(bench.refusal(code, &words(&[3]), vec![pipe]), expected);
    }
}
