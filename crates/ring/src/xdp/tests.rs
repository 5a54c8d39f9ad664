use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

fn ends(size: u32) -> (Fill, Frames, Feeder) {
    let (fill, frames) = rings(size).unwrap();
    (Fill::new(fill.clone()), Frames::new(frames.clone()), Feeder::new(fill, frames))
}

#[test]
fn pages_go_and_frames_come() {
    let (mut fill, mut frames, mut feeder) = ends(4);
    for round in 0..100u64 {
        for n in 0..4 {
            assert!(fill.push((round * 4 + n) * PAGE).unwrap());
        }
        assert!(!fill.push(7).unwrap(), "full");
        assert_eq!(feeder.page().unwrap(), None, "not published");
        fill.publish().unwrap();
        for n in 0..4 {
            let addr = feeder.page().unwrap().unwrap();
            assert_eq!(addr, (round * 4 + n) * PAGE);
            assert!(feeder.publish(Descriptor { addr: addr + HEADROOM, len: n as u32 }).unwrap());
        }
        assert_eq!(
            (feeder.page().unwrap(), feeder.publish(Descriptor { addr: 0, len: 0 }).unwrap()),
            (None, false)
        );
        assert_eq!(frames.ready().unwrap(), 4);
        for n in 0..4 {
            let want = Descriptor { addr: (round * 4 + n) * PAGE + HEADROOM, len: n as u32 };
            assert_eq!(frames.take().unwrap(), Some(want));
        }
        assert_eq!(frames.take().unwrap(), None);
        assert!(
            !feeder.publish(Descriptor { addr: 0, len: 0 }).unwrap(),
            "places are not given back"
        );
        frames.release().unwrap();
    }
}

/// Both sides of a Tx ring, and of a completion ring, are ours here.
#[test]
fn frames_go_and_addresses_come_back() {
    let (addresses, frames) = rings(4).unwrap();
    let (mut transmit, mut kernel) = (Transmit::new(frames.clone()), Frames::new(frames));
    let (mut sent, mut completed) = (Fill::new(addresses.clone()), Completed::new(addresses));
    for round in 0..50u64 {
        for n in 0..4 {
            let frame = Descriptor { addr: (round * 4 + n) * PAGE, len: 60 + n as u32 };
            assert!(transmit.push(frame).unwrap() && transmit.has_unpublished());
        }
        assert!(!transmit.push(Descriptor { addr: 0, len: 0 }).unwrap(), "full");
        assert_eq!(kernel.take().unwrap(), None, "not published");
        transmit.publish().unwrap();
        assert!(!transmit.has_unpublished());
        while let Some(frame) = kernel.take().unwrap() {
            assert_eq!(u64::from(frame.len), 60 + frame.addr / PAGE % 4);
            assert!(sent.push(frame.addr).unwrap());
        }
        kernel.release().unwrap();
        sent.publish().unwrap();
        let back: Vec<u64> = std::iter::from_fn(|| completed.take().unwrap()).collect();
        assert_eq!(back, (0..4).map(|n| (round * 4 + n) * PAGE).collect::<Vec<_>>());
        completed.release().unwrap();
    }
}

#[test]
fn a_wish_to_be_woken_is_seen() {
    let (mut fill, _, feeder) = ends(2);
    assert!(!fill.publish().unwrap());
    feeder.want_wakeup(true).unwrap();
    assert!(fill.publish().unwrap());
    feeder.want_wakeup(false).unwrap();
    assert!(!fill.publish().unwrap());
}

#[test]
fn an_index_that_cant_be() {
    for index in [5, 1000, u32::MAX] {
        let (_, mut frames, feeder) = ends(4);
        feeder.frames.producer().unwrap().store(index, Ordering::Relaxed);
        assert_eq!(frames.ready(), Err(Violation::ResponseJump { index, ahead: index, size: 4 }));
        let (mut fill, _, feeder) = ends(4);
        (0..4).for_each(|n| assert!(fill.push(n).unwrap()));
        fill.publish().unwrap();
        feeder.fill.consumer().unwrap().store(index, Ordering::Relaxed);
        assert_eq!(fill.push(4), Err(Violation::ResponseJump { index, ahead: index, size: 4 }));
    }
}

/// One step of either side.
#[derive(Clone, Copy, Debug)]
enum Step {
    Push,
    Publish,
    Deliver,
    Take,
    Release,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        Just(Step::Push),
        Just(Step::Publish),
        Just(Step::Deliver),
        Just(Step::Take),
        Just(Step::Release)
    ]
}

proptest! {
    /// In any order of steps, each page arrives at the kernel, and each frame here, once and in
    /// order.
    #[test]
    fn rings_are_queues(steps in prop::collection::vec(step(), 0..400), log in 0..4u32) {
        let size = 1 << log;
        let (mut fill, mut frames, mut feeder) = ends(size);
        let (mut hidden, mut empty, mut published) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
        let (mut next, mut held) = (0, 0);
        for step in steps {
            match step {
                Step::Push => {
                    let room = hidden.len() + empty.len() < size as usize;
                    prop_assert_eq!(fill.push(next), Ok(room));
                    if room {
                        hidden.push_back(next);
                        next += PAGE;
                    }
                }
                Step::Publish => {
                    prop_assert_eq!(fill.publish(), Ok(false));
                    empty.append(&mut hidden);
                }
                Step::Deliver if published.len() + held < size as usize => {
                    let page = feeder.page().unwrap();
                    prop_assert_eq!(page, empty.pop_front());
                    if let Some(addr) = page {
                        let frame = Descriptor { addr, len: 60 };
                        prop_assert_eq!(feeder.publish(frame), Ok(true));
                        published.push_back(addr);
                    }
                }
                Step::Deliver => prop_assert_eq!(feeder.publish(Descriptor { addr: 0, len: 0 }), Ok(false)),
                Step::Take => {
                    let want = published.pop_front();
                    held += usize::from(want.is_some());
                    prop_assert_eq!(frames.take().unwrap().map(|frame| frame.addr), want);
                }
                Step::Release => {
                    frames.release().unwrap();
                    held = 0;
                }
            }
        }
    }
}
