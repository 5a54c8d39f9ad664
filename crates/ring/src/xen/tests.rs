use proptest::prelude::*;

use super::*;

type Ring = BackRing<3>;
const SIZE: u32 = Ring::SIZE;

/// The front half, word by word.
struct Front {
    mem: Arc<Memory>,
}

impl Front {
    fn new() -> (Front, Arc<Memory>) {
        let (mem, _) = Memory::shared(RING_PAGE).unwrap();
        let mem = Arc::new(mem);
        let front = Front { mem: Arc::clone(&mem) };
        front.set(REQ_EVENT, 1);
        front.set(RSP_EVENT, 1);
        (front, mem)
    }

    fn get(&self, at: u64) -> u32 {
        let mut word = [0; 4];
        self.mem.read(at, &mut word).unwrap();
        u32::from_le_bytes(word)
    }

    fn set(&self, at: u64, value: u32) {
        self.mem.write(at, &value.to_le_bytes()).unwrap();
    }

    fn slot(number: u32, word: u64) -> u64 {
        SLOTS + 12 * u64::from(number % SIZE) + 4 * word
    }

    /// Writes a request. Returns whether the back wants to be notified.
    fn push(&self, request: [u32; 3]) -> bool {
        let old = self.get(REQ_PROD);
        for (i, word) in (0..).zip(request) {
            self.set(Self::slot(old, i), word);
        }
        self.set(REQ_PROD, old.wrapping_add(1));
        old.wrapping_add(1).wrapping_sub(self.get(REQ_EVENT)) < 1
    }

    fn response(&self, number: u32) -> [u32; 3] {
        [0, 1, 2].map(|word| self.get(Self::slot(number, word)))
    }
}

#[test]
fn rings_have_the_sizes_that_the_protocol_says() {
    assert_eq!((ring_size(12), ring_size(8), ring_size(16)), (256, 256, 128));
}

#[test]
fn a_response_lies_in_its_requests_slot_and_is_seen_when_published() {
    let (front, mem) = Front::new();
    let mut ring = Ring::attach(mem, 0).unwrap();
    for n in 0..3 {
        front.push([n, 7, 8]);
    }
    assert_eq!(ring.ready(1), Ok(3));
    assert_eq!(ring.request(2), [2, 7, 8]);
    ring.take(3);
    ring.respond([100, 0, 0]);
    ring.respond([101, 0, 0]);
    assert_eq!(front.response(0), [0, 7, 8], "still the request");
    assert_eq!(front.get(RSP_PROD), 0);
    assert_eq!(ring.publish(), Some(true));
    assert_eq!(ring.publish(), None);
    assert_eq!(
        (front.get(RSP_PROD), front.response(0), front.response(1)),
        (2, [100, 0, 0], [101, 0, 0])
    );
    assert_eq!(front.response(2), [2, 7, 8]);
}

#[test]
fn a_response_can_be_noted_before_its_turn_has_come() {
    let (front, mem) = Front::new();
    let mut ring = BackRing::<3>::attach(mem, 0).unwrap();
    for n in 0..4 {
        front.push([n, n, n]);
    }
    assert_eq!(ring.ready(4), Ok(4));
    for n in 0..4 {
        ring.note(n, [70 + n, 0, 0]);
    }
    ring.note(4, [99, 0, 0]);
    ring.take(3);
    ring.put_back(1);
    ring.give(1);
    assert_eq!((ring.position(), ring.taken()), (1, 1));
    ring.give(5);
    assert_eq!((ring.position(), ring.taken()), (2, 0), "no more than are taken");
    // The request comes again, and gets another response.
    ring.note(0, [80, 0, 0]);
    ring.take(1);
    ring.give(1);
    ring.publish();
    assert_eq!([0, 1, 2].map(|n| front.response(n)[0]), [70, 71, 80]);
    assert_eq!(front.response(3), [3, 3, 3], "still a request");
}

#[test]
fn what_is_not_published_is_found_again_by_the_next_one() {
    let (front, mem) = Front::new();
    let mut ring = Ring::attach(Arc::clone(&mem), 0).unwrap();
    for n in 0..10 {
        front.push([n, 0, 0]);
    }
    ring.ready(10).unwrap();
    ring.take(10);
    for n in 0..6 {
        ring.respond([n, 1, 1]);
        if n == 3 {
            ring.publish();
        }
    }
    drop(ring);
    let mut next = Ring::attach(mem, 0).unwrap();
    assert_eq!(next.ready(1), Ok(6));
    assert_eq!(next.request(0), [4, 0, 0]);
    assert_eq!(next.position(), 4);
}

#[test]
fn a_response_can_be_changed_until_it_is_published() {
    let (front, mem) = Front::new();
    let mut ring = Ring::attach(mem, 0).unwrap();
    front.push([1, 2, 3]);
    front.push([4, 5, 6]);
    ring.ready(2).unwrap();
    ring.take(2);
    ring.respond([9, 9, 9]);
    assert!(ring.response_mut(1).is_none());
    *ring.response_mut(0).unwrap() = [8, 8, 8];
    ring.publish();
    assert!(ring.response_mut(0).is_none());
    assert_eq!(front.response(0), [8, 8, 8]);
}

#[test]
fn an_index_that_jumps_has_a_name() {
    for index in [SIZE + 1, 1 << 31, u32::MAX] {
        let (front, mem) = Front::new();
        let mut ring = Ring::attach(Arc::clone(&mem), 0).unwrap();
        front.set(REQ_PROD, index);
        let jump = Violation::RequestJump { index, ahead: index, size: SIZE };
        assert_eq!(ring.ready(1), Err(jump));
        assert_eq!(ring.arm(), Err(jump));
        assert_eq!(Ring::attach(mem, 0).err(), Some(jump));
    }
}

#[test]
fn an_index_that_goes_back_has_a_name() {
    let (front, mem) = Front::new();
    let mut ring = Ring::attach(mem, 0).unwrap();
    front.set(REQ_PROD, 5);
    assert_eq!(ring.ready(1), Ok(5));
    ring.take(5);
    front.set(REQ_PROD, 4);
    assert_eq!(ring.ready(1), Err(Violation::RequestJump { index: 4, ahead: 4, size: SIZE }));
}

#[test]
fn the_response_index_is_not_read_back() {
    let (front, mem) = Front::new();
    let mut ring = Ring::attach(mem, 0).unwrap();
    front.push([1, 1, 1]);
    front.set(RSP_PROD, 77);
    ring.ready(1).unwrap();
    ring.take(1);
    ring.respond([2, 2, 2]);
    ring.publish();
    assert_eq!((front.get(RSP_PROD), front.response(0)), (1, [2, 2, 2]));
}

#[test]
fn both_sides_are_told_when_they_asked() {
    let (front, mem) = Front::new();
    let mut ring = Ring::attach(mem, 0).unwrap();
    assert_eq!(ring.arm(), Ok(0));
    assert!(front.push([0; 3]), "armed");
    assert!(!front.push([0; 3]), "told once");
    assert_eq!(ring.arm(), Ok(2));
    ring.take(2);
    assert_eq!(ring.arm(), Ok(0));
    assert!(front.push([0; 3]));
    ring.respond([0; 3]);
    assert_eq!(ring.publish(), Some(true));
    ring.respond([0; 3]);
    assert_eq!(ring.publish(), Some(false), "the event is in the past");
}

#[test]
fn a_page_that_is_not_there_is_refused() {
    let (_, mem) = Front::new();
    assert!(matches!(Ring::attach(mem, 1 << 20).err(), Some(Violation::RingOutside { .. })));
}

proptest! {
    /// The back stays within its bounds, whatever the front writes into the page.
    #[test]
    fn a_front_that_scribbles_does_no_harm(
        start in any::<u32>(),
        scribbles in prop::collection::vec((0u64..1024, prop_oneof![any::<u32>(), 0u32..600]), 0..60),
        takes in prop::collection::vec((0u32..300, 0u32..300, 0u32..300), 1..10),
    ) {
        let (front, mem) = Front::new();
        front.set(REQ_PROD, start);
        front.set(RSP_PROD, start);
        let mut ring = Ring::attach(mem, 0).unwrap();
        let mut scribbles = scribbles.into_iter();
        for (take, back, respond) in takes {
            for (word, value) in scribbles.by_ref().take(6) {
                front.set(word * 4, value);
            }
            let Ok(ready) = ring.ready(take) else { return Ok(()) };
            prop_assert!(ready + ring.taken() <= SIZE);
            for n in 0..ready {
                ring.request(n);
            }
            ring.take(take);
            ring.put_back(back);
            for _ in 0..respond {
                ring.respond([1, 2, 3]);
            }
            let before = ring.position();
            if ring.publish().is_some() {
                prop_assert_eq!(front.get(RSP_PROD), before);
            }
            prop_assert!(ring.taken() <= SIZE);
        }
    }

    /// A ring that wraps around, with bursts of any size, neither loses nor reorders anything.
    #[test]
    fn everything_arrives_in_order(start in any::<u32>(), lumps in prop::collection::vec((1u32..100, 1u32..100, 0u32..5), 1..60)) {
        let (front, mem) = Front::new();
        front.set(REQ_PROD, start);
        front.set(RSP_PROD, start);
        let mut ring = Ring::attach(mem, 0).unwrap();
        let (mut sent, mut got) = (0u32, 0u32);
        for (send, take, back) in lumps {
            for _ in 0..send {
                if start.wrapping_add(sent).wrapping_sub(front.get(RSP_PROD)) < SIZE {
                    front.push([sent, !sent, 0]);
                    sent += 1;
                }
            }
            let ready = ring.ready(take).unwrap();
            prop_assert_eq!(ready.min(take), (sent - got).min(take));
            ring.take(take);
            ring.put_back(back);
            while ring.taken() > 0 {
                let number = ring.position();
                let mem = Front::slot(number, 0);
                prop_assert_eq!(front.get(mem), got);
                ring.respond([got, 0, 1]);
                got += 1;
            }
            ring.publish();
            prop_assert_eq!(front.get(RSP_PROD), start.wrapping_add(got));
        }
    }
}

#[test]
fn what_the_front_has_taken_is_seen_by_what_it_posts_or_asks_for() {
    // Numbers run over the end of 32 bits on the way.
    let start = u32::MAX - 3 * SIZE;
    let (front, mem) = Front::new();
    [REQ_PROD, RSP_PROD].into_iter().for_each(|at| front.set(at, start));
    front.set(RSP_EVENT, start.wrapping_sub(9));
    let mut ring = Ring::attach(mem, 0).unwrap();
    for round in 0..8 * SIZE {
        while front.get(REQ_PROD).wrapping_sub(front.get(RSP_PROD)) < SIZE {
            front.push([0; 3]);
        }
        let n = 1 + round % SIZE;
        assert_eq!(ring.ready(SIZE), Ok(SIZE));
        ring.take(n);
        (0..n).for_each(|_| ring.respond([0; 3]));
        let mark = ring.position();
        assert!(!ring.has_consumed(mark), "nobody knows of them");
        ring.publish();
        assert!(!ring.has_consumed(mark), "they lie there");
        if round.is_multiple_of(2) {
            for _ in 0..n {
                front.push([0; 3]);
            }
        } else {
            front.set(RSP_EVENT, mark.wrapping_add(1));
        }
        assert!(ring.has_consumed(mark), "round {round}");
    }
}
