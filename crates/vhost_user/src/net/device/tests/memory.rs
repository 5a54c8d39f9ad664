//! Memory regions, and rings that lie in them.

use super::*;

#[test]
fn memory_regions_that_lie_are_refused() {
    let mut bench = Bench::new();
    for (regions, why) in [
        (vec![[0, 2 * SIZE, USER, 0]], "needs a file of"),
        (vec![[0, SIZE, USER, 4096]], "needs a file of"),
        (vec![[0, SIZE, USER, u64::MAX - 100]], "wraps around"),
        (vec![[u64::MAX - 5, SIZE, USER, 0]], "wraps around"),
        (vec![[0, SIZE, u64::MAX - 5, 0]], "wraps around"),
        (vec![[0, 0, USER, 0]], "is empty"),
        (vec![[0, SIZE, USER, 0], [SIZE - 1, 4096, 2 * USER, 0]], "overlap"),
        (vec![[0, SIZE, USER, 0], [SIZE, 4096, USER, 0]], "overlap"),
    ] {
        let table = [state(regions.len() as u32, 0), words(&regions.concat())].concat();
        let fds = regions.iter().map(|_| bench.file()).collect();
        let refusal = bench.refusal(5, &table, fds);
        assert!(refusal.starts_with("memory table: ") && refusal.contains(why), "{refusal}");
    }
}

#[test]
fn rings_that_are_not_in_memory_are_refused() {
    for (mut payload, why) in [
        (
            address(1, SIZE),
            "ring 1: its descriptors at user address 0x700000100000 is in no memory region",
        ),
        (
            address(1, SIZE - 0x1000),
            "ring 1: its available ring at user address 0x700000100000 is in no memory region",
        ),
        (address(1, 0x1008), "ring 1: ring area at 0x1008 is not aligned to 16 bytes"),
        (
            address(1, SIZE - 0x2000 - 0x80),
            "ring 1: its used ring at user address 0x7000000fff80 is in no memory region",
        ),
    ] {
        let mut bench = Bench::new();
        bench.share();
        bench.features(MODERN);
        bench.do_it(8, &state(1, 16), vec![]);
        if why.contains("used ring") {
            // Its first byte is inside, its last one is not.
            payload[16..24].copy_from_slice(&(USER + SIZE - 8).to_le_bytes());
        }
        bench.do_it(9, &payload, vec![]);
        let refusal = bench.refusal(12, &words(&[1]), vec![eventfd()]);
        match why.contains("used ring") {
            true => assert!(refusal.contains("outside the peer's memory"), "{refusal}"),
            false => assert_eq!(refusal, why),
        }
        assert!(bench.host.pairs().is_empty());
    }
}

#[test]
fn memory_changes_under_running_rings() {
    let mut bench = Bench::new();
    let mut driver: SplitDriver = bench.transmitter(MODERN);
    transmit(&mut driver, 2);
    bench.share();
    assert_eq!(bench.fetch().len(), 2);
    transmit(&mut driver, 2);
    let half = [state(1, 0), words(&[0, SIZE / 2, USER, 0])].concat();
    let file = bench.file();
    bench.do_it(5, &half, vec![file]);
    assert_eq!(bench.fetch().len(), 2);
    let elsewhere = [state(1, 0), words(&[SIZE, SIZE, USER, 0])].concat();
    let file = bench.file();
    let refusal = bench.refusal(5, &elsewhere, vec![file]);
    assert!(refusal.starts_with("ring 1: ") && refusal.contains("outside"), "{refusal}");
}

#[test]
fn rings_rest_while_their_region_is_gone() {
    let mut bench = Bench::new();
    let mut driver: SplitDriver = bench.transmitter(MODERN);
    transmit(&mut driver, 2);
    assert_eq!(bench.fetch().len(), 2);
    transmit(&mut driver, 1);
    let whole = [words(&[0]), words(&[0, SIZE, USER, 0])].concat();
    bench.do_it(38, &whole, vec![]);
    assert!(bench.host.pairs().is_empty());
    for part in [[SIZE / 2, SIZE / 2, USER + SIZE / 2, SIZE / 2], [0, SIZE / 2, USER, 0]] {
        assert!(bench.host.pairs().is_empty());
        let file = bench.file();
        bench.do_it(37, &[words(&[0]), words(&part)].concat(), vec![file]);
    }
    assert_eq!(bench.fetch().len(), 1);
    assert_eq!(driver.collect(&mut [Used::default(); 8]), Ok(3));
}

#[test]
fn regions_come_and_go_within_bounds() {
    let mut bench = Bench::new();
    let region =
        |i: u64| [words(&[0]), words(&[i * 4096, 4096, USER + i * 4096, i * 4096])].concat();
    for i in 0..MAX_REGIONS as u64 {
        let file = bench.file();
        bench.do_it(37, &region(i), vec![file]);
    }
    let file = bench.file();
    assert_eq!(bench.refusal(37, &region(40), vec![file]), "ADD_MEM_REG beyond 32 regions");
    bench.do_it(38, &region(7), vec![]);
    let file = bench.file();
    bench.do_it(37, &region(7), vec![file]);
    let file = bench.file();
    let twice = [words(&[0]), words(&[0, 4096, 2 * USER, 0])].concat();
    bench.do_it(38, &region(9), vec![]);
    assert!(bench.refusal(37, &twice, vec![file]).contains("overlap"));
}

#[test]
fn a_front_end_may_tell_of_its_memory_once_for_each_queue_pair() {
    let mut bench = Bench::new();
    let part = |at, len| [words(&[0]), words(&[at, len, USER + at, at])].concat();
    let (low, high, whole) = (part(0, SIZE / 2), part(SIZE / 2, SIZE / 2), part(0, SIZE));
    for _pair in 0..2 {
        let (one, other) = (bench.file(), bench.file());
        bench.do_it(37, &low, vec![one]);
        bench.do_it(37, &high, vec![other]);
    }
    for _pair in 0..2 {
        bench.do_it(38, &high, vec![]);
        bench.do_it(38, &low, vec![]);
        let file = bench.file();
        bench.do_it(37, &whole, vec![file]);
    }
    assert_eq!(bench.session.region_count(), 1);
    // The same place in another file is something else.
    let (_, file) = Memory::shared(SIZE as usize).unwrap();
    assert!(bench.refusal(37, &whole, vec![file]).contains("overlap"));
}
