//! Interrupts and kicks come when the other side asked for them.

use super::*;

/// The device asks for interrupts exactly as the driver wants them, whatever the positions.
fn interrupts_as_wanted<M: Model>(size: u16, event_idx: bool, rounds: &[(u16, u16)]) {
    let mem = memory();
    let mut model = M::new(mem.clone(), size, M::origin());
    model.negotiate(event_idx, true);
    let mut device = model.device(&mem);
    let (mut gather, mut chains) = (Gather::new(0), Vec::new());
    let mut first = true;
    for &(n, after) in rounds {
        let n = n % (size + 1);
        let wanted = match after % 4 {
            0 if event_idx => Interrupts::After(after % size),
            1 if event_idx => Interrupts::After(n.saturating_sub(1)),
            2 => Interrupts::Never,
            _ => Interrupts::Always,
        };
        for _ in 0..n {
            model.add(&[Piece { addr: BUFFERS, len: 60, write: false }], Layout::Direct).unwrap();
        }
        model.publish();
        gather.clear();
        chains.clear();
        assert_eq!(device.fetch(&mut gather, &mut chains, size.into()).unwrap(), usize::from(n));
        model.interrupts(wanted);
        device.complete(usize::from(n));
        let asked = device.publish();
        let expected = n > 0
            && match wanted {
                Interrupts::Always => true,
                Interrupts::Never => false,
                Interrupts::After(after) => after < n,
            };
        // The very first may come unasked: the split layout cannot know yet what the driver has
        // seen.
        if !first {
            assert_eq!(asked, expected, "{n} used, {wanted:?}");
        }
        first &= n == 0;
        assert_eq!(model.used().len(), usize::from(n));
    }
}

/// The driver kicks when the device has armed, and finds out about what it did before.
fn kicks_when_armed<M: Model>(size: u16, event_idx: bool) {
    let mem = memory();
    let mut model = M::new(mem.clone(), size, M::origin());
    model.negotiate(event_idx, true);
    let mut device = model.device(&mem);
    let (mut gather, mut chains) = (Gather::new(0), Vec::new());
    let add = |model: &mut M| {
        model.add(&[Piece { addr: BUFFERS, len: 60, write: false }], Layout::Direct).unwrap()
    };
    for _ in 0..3 * size {
        assert!(!device.arm().unwrap());
        add(&mut model);
        assert!(model.publish(), "asked for");
        device.disarm();
        assert!(device.available().unwrap());
        assert_eq!(device.fetch(&mut gather, &mut chains, 9).unwrap(), 1);
        add(&mut model);
        assert!(!model.publish(), "not asked for");
        assert!(device.arm().unwrap(), "something is there already");
        assert_eq!(device.fetch(&mut gather, &mut chains, 9).unwrap(), 1);
        device.complete(2);
        device.publish();
        model.used();
        gather.clear();
        chains.clear();
    }
}

#[test]
fn kicks_come_when_armed() {
    for event_idx in [false, true] {
        for size in [2, 8, 64] {
            kicks_when_armed::<Split>(size, event_idx);
        }
        for size in [2, 7, 64] {
            kicks_when_armed::<Packed>(size, event_idx);
        }
    }
}

/// The device sees that a driver has taken all once the driver has filled its ring again, wherever
/// the ring stands.
fn shows_what_was_taken<M: Model>(size: u16, event_idx: bool) {
    let mem = memory();
    let mut model = M::new(mem.clone(), size, M::origin());
    model.negotiate(event_idx, false);
    let mut device = model.device(&mem);
    let (mut gather, mut chains) = (Gather::new(0), Vec::new());
    let fill = |model: &mut M| {
        while model.add(&[Piece { addr: BUFFERS, len: 60, write: false }], Layout::Direct).is_some()
        {
        }
        model.publish();
    };
    fill(&mut model);
    model.interrupts(Interrupts::Never);
    for round in 0..100 {
        let n = 1 + round % usize::from(size);
        gather.clear();
        chains.clear();
        assert_eq!(device.fetch(&mut gather, &mut chains, n).unwrap(), n);
        device.complete(n);
        let mark = device.mark();
        assert!(!device.has_consumed(mark), "round {round}: nobody knows of it");
        device.publish();
        assert!(!device.has_consumed(mark), "round {round}: it lies there");
        assert_eq!(model.used().len(), n);
        assert!(!device.has_consumed(mark), "round {round}: nobody shows it");
        fill(&mut model);
        assert!(device.has_consumed(mark), "round {round}");
    }
}

#[test]
fn what_was_taken_is_seen_by_what_is_posted() {
    for event_idx in [false, true] {
        shows_what_was_taken::<Split>(8, event_idx);
        shows_what_was_taken::<Packed>(8, event_idx);
        shows_what_was_taken::<Packed>(7, event_idx);
    }
}

#[test]
fn a_driver_that_goes_to_sleep_shows_what_it_has_taken() {
    let mem = memory();
    let mut model = Split::new(mem.clone(), 8, Split::origin());
    model.negotiate(true, false);
    let mut device = model.device(&mem);
    let (mut gather, mut chains) = (Gather::new(0), Vec::new());
    for _ in 0..8 {
        model.add(&[Piece { addr: BUFFERS, len: 60, write: false }], Layout::Direct).unwrap();
    }
    model.publish();
    let mut carry = |device: &mut <Split as Model>::Device, n| {
        gather.clear();
        chains.clear();
        device.fetch(&mut gather, &mut chains, n).unwrap();
        device.complete(n);
        device.publish();
        device.mark()
    };
    let before = carry(&mut device, 3);
    let mark = carry(&mut device, 2);
    assert!(!device.has_consumed(before) && !device.has_consumed(mark));
    model.used();
    model.interrupts(Interrupts::After(0));
    assert!(device.has_consumed(before) && device.has_consumed(mark));
    let asleep = device.mark();
    assert!(device.has_consumed(asleep), "nothing has come since it went to sleep");
    let next = carry(&mut device, 1);
    assert!(!device.has_consumed(next));
}

#[test]
fn a_driver_that_only_wants_no_interrupts_does_not_say_what_it_has_taken() {
    // Just before positions pass zero, which is what Linux writes then.
    for (origin, more) in [(0xfffe, 3), (0xffff, 1)] {
        let mem = memory();
        let mut model = Split::new(mem.clone(), 8, origin);
        model.negotiate(true, false);
        let mut device = model.device(&mem);
        let (mut gather, mut chains) = (Gather::new(0), Vec::new());
        while model.add(&[Piece { addr: BUFFERS, len: 60, write: false }], Layout::Direct).is_some()
        {
        }
        model.publish();
        model.interrupts(Interrupts::After(0x4000));
        let mut carry = |n| {
            device.fetch(&mut gather, &mut chains, n).unwrap();
            device.complete(n);
            device.publish();
            device.mark()
        };
        let mark = carry(1);
        carry(more);
        let config = model.config();
        let event = config.driver + 4 + 2 * u64::from(config.size);
        mem.write(event, &[0; 2]).unwrap();
        assert!(!device.has_consumed(mark), "from {origin:#x}");
        model.used();
        while model.add(&[Piece { addr: BUFFERS, len: 60, write: false }], Layout::Direct).is_some()
        {
        }
        model.publish();
        assert!(device.has_consumed(mark), "from {origin:#x}: by what it posts");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn interrupts_come_as_wanted(
        size in 1u32..7,
        event_idx in any::<bool>(),
        rounds in prop::collection::vec((0u16..100, any::<u16>()), 1..40),
    ) {
        interrupts_as_wanted::<Split>(1 << size, event_idx, &rounds);
        interrupts_as_wanted::<Packed>((1 << size) - 1, event_idx, &rounds);
    }
}
