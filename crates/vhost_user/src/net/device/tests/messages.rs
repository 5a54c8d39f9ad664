//! Messages in any order.

use super::*;

/// Requests that are sound, if not always sensible, on two pairs and little memory.
fn request() -> impl Strategy<Value = (u32, Vec<u8>, usize)> {
    let ring = || 0u32..5;
    let at =
        prop_oneof![Just(0x1000u64), Just(0x4000), Just(0x8001), Just(SIZE - 64), any::<u64>()];
    let len = prop_oneof![Just(SIZE), Just(SIZE / 2), Just(4096), any::<u64>()];
    let region = (prop_oneof![Just(0), Just(SIZE / 2), any::<u64>()], len)
        .prop_map(|(guest, len)| [guest, len, USER.wrapping_add(guest), guest]);
    prop_oneof![
        Just((1, vec![], 0)),
        Just((34, vec![], 0)),
        prop_oneof![Just(8u64), Just(4096), any::<u64>()].prop_map(|len| (6, words(&[len, 0]), 1)),
        any::<u64>().prop_map(|mac| (19, words(&[mac]), 0)),
        any::<u64>().prop_map(|bits| (2, words(&[bits & feature::all_offered().0]), 0)),
        prop::collection::vec(region.clone(), 1..4).prop_map(|regions| {
            (5, [state(regions.len() as u32, 0), words(&regions.concat())].concat(), regions.len())
        }),
        (region.clone(), any::<bool>()).prop_map(|(region, add)| {
            (if add { 37 } else { 38 }, [words(&[0]), words(&region)].concat(), usize::from(add))
        }),
        (ring(), prop_oneof![Just(16u32), Just(256), 0u32..70000]).prop_map(|(ring, size)| (
            8,
            state(ring, size),
            0
        )),
        (ring(), at, 0u32..2, any::<u64>()).prop_map(|(ring, at, flags, log)| {
            let [desc, used, avail] = [at, at.wrapping_add(0x2000), at.wrapping_add(0x1000)]
                .map(|part| part.wrapping_add(USER));
            (9, [state(ring, flags), words(&[desc, used, avail, log])].concat(), 0)
        }),
        (ring(), any::<u32>()).prop_map(|(ring, base)| (10, state(ring, base & 0x8fff), 0)),
        ring().prop_map(|ring| (11, state(ring, 0), 0)),
        (12u32..15, ring(), any::<bool>()).prop_map(|(code, ring, fd)| {
            (code, words(&[u64::from(ring) | if fd { 0 } else { 0x100 }]), usize::from(fd))
        }),
        (ring(), 0u32..2).prop_map(|(ring, on)| (18, state(ring, on), 0)),
    ]
}

proptest! {
    /// Whatever the order of requests: no panic, and what the session believes to run is what is
    /// attached.
    #[test]
    fn any_order_of_requests_is_survived(requests in prop::collection::vec(request(), 0..60)) {
        let mut bench = Bench::new();
        // A start that makes it likely that rings run.
        bench.do_it(16, &words(&[protocol::LOG_SHMFD]), vec![]);
        bench.share();
        bench.describe(0, 0x1000);
        bench.describe(1, 0x8000);
        for (code, payload, fds) in requests {
            let events = (12..15).contains(&code);
            let fds = (0..fds).map(|_| if events { eventfd() } else { bench.file() }).collect();
            bench.send(code, NEED_REPLY, &payload, fds);
            let running: Vec<bool> = bench.session.running();
            let expected: Vec<u16> = (0..2).filter(|i| running[2 * i] || running[2 * i + 1]).map(|i| i as u16).collect();
            let mut attached: Vec<u16> = bench.host.pairs().iter().map(|(index, _)| *index).collect();
            attached.sort_unstable();
            prop_assert_eq!(attached, expected);
            for index in 0..2u16 {
                if running[2 * index as usize] || running[2 * index as usize + 1] {
                    bench.host.with(index, |pair| {
                        let mut burst = Burst::new();
                        burst.reset();
                        // Rings in this memory hold nothing, or nonsense; both are fine.
                        if pair.fetch(&mut burst).is_ok() {
                            pair.rewind(burst.frames().len());
                        }
                    });
                }
            }
        }
        let file = bench.file.as_fd();
        prop_assert!(rustix::fs::fstat(file).is_ok());
    }
}
