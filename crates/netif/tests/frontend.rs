//! Our frontend against our backend, on every inner design of the embedded hypervisor.

mod front;

use front::station::{LONG, connect, station, talk};
use front::{Host, frame, mac, wait};
use hypervisor::PAGE;
use hypervisor::embedded::{Copying, Flush, Locking, Maptrack};
use hypervisor::test::Design;
use netif::frontend::{Frame, FrontError, Wish};
use netif::handshake::State;
use netif::slots::Meta;

#[test]
fn frames_go_both_ways_on_every_design() {
    let designs = [
        Design::OLD,
        Design {
            locking: Locking::Entries,
            maptrack: Maptrack::PerVcpu,
            flush: Flush::Batch,
            copying: Copying::Release,
        },
        Design::default(),
    ];
    for design in designs {
        let host = Host::of(design);
        let wish = Wish::default();
        let (mut a, mut b) = (station(&host, 1, &wish), station(&host, 2, &Wish { split: false, ..wish.clone() }));
        talk(&mut a, &mut b);
        assert_eq!(host.machine.refusals(), []);
    }
}

#[test]
fn a_frame_that_fits_a_page_is_one_piece() {
    let host = Host::new();
    let wish = Wish::default();
    let (mut a, mut b) = (station(&host, 1, &wish), station(&host, 2, &wish));
    talk(&mut a, &mut b);
    for len in [1500, PAGE - 18] {
        a.send(&frame(1, 2, len, 0));
        let (_, _, got) = &b.expect(1)[0];
        assert_eq!(got.pieces.len(), 1);
        assert_eq!(got.pieces[0].0 % PAGE as u64, 0, "at the start of a page");
    }
}

#[test]
fn many_frames_in_order_over_many_queues() {
    let host = Host::new();
    let wish = Wish { queues: 4, ..Wish::default() };
    let (mut a, mut b) = (station(&host, 1, &wish), station(&host, 2, &wish));
    assert_eq!(a.queues.len(), 4);
    talk(&mut a, &mut b);
    let mut last = [None; 4];
    let mut count = 0;
    let mut note = |all: Vec<(usize, Vec<u8>, Frame)>| {
        for (_, bytes, _) in all {
            let what = front::what(&bytes);
            let (flow, number) = ((what >> 16) as usize, what & 0xffff);
            assert_eq!(number, last[flow].map_or(0, |last: u32| last + 1), "flow {flow}");
            last[flow] = Some(number);
            count += 1;
        }
        count
    };
    for n in 0..1000 {
        for flow in 0..4 {
            a.send_on(flow, &frame(1, 2, (n * 41) % 6000, (flow as u32) << 16 | n as u32), Meta::default());
        }
        note(b.received());
    }
    wait(|| note(b.received()) == 4000);
}

/// A frame to be segmented, and its meta information.
fn tcp(payload: usize) -> Vec<u8> {
    let total = (40 + payload) as u16;
    let mut bytes = [mac(2).to_vec(), mac(1).to_vec(), vec![8, 0, 0x45, 0]].concat();
    bytes.extend(total.to_be_bytes());
    bytes.extend([0, 1, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    bytes.extend([0x12, 0x34, 0x56, 0x78, 0, 0, 0, 9, 0, 0, 0, 0, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
    bytes.extend((0..payload).map(|n| ((n * 13) >> 3) as u8));
    bytes
}

#[test]
fn offloads_go_along() {
    let host = Host::new();
    let wish = Wish::default();
    let (mut a, mut b) = (station(&host, 1, &wish), station(&host, 2, &wish));
    talk(&mut a, &mut b);
    let meta = Meta { csum_blank: true, gso: Some((1, 1448)) };
    a.send_on(0, &tcp(60_000), meta);
    let (_, bytes, got) = b.expect(1).remove(0);
    assert_eq!((bytes, got.meta), (tcp(60_000), meta));
    // Extra info has a slot, and the page of that slot holds nothing.
    assert!(got.pieces.len() >= 2, "{:?}", got.pieces);
    a.send_on(0, &tcp(1000), Meta { csum_blank: true, gso: None });
    assert!(b.expect(1)[0].2.meta.csum_blank);
}

#[test]
fn a_control_ring_spreads_what_comes() {
    let host = Host::new();
    let wish = Wish { queues: 2, ..Wish::default() };
    let (mut a, mut b) = (station(&host, 1, &Wish::default()), station(&host, 2, &wish));
    talk(&mut a, &mut b);
    let key: Vec<u8> = (1..41).collect();
    let caller = b.caller.as_mut().unwrap();
    caller.spread(2, &key).unwrap();
    assert_eq!(caller.ask(99, [0; 3]).unwrap(), (1, 0), "not supported");
    let mut queues = [0; 2];
    for last in 0..32 {
        let mut bytes = tcp(100);
        bytes[35] = last;
        a.send_on(0, &bytes, Meta { csum_blank: true, gso: None });
        queues[b.expect(1)[0].0] += 1;
    }
    assert!(queues.iter().all(|count| *count > 4), "{queues:?}");
}

#[test]
fn it_begins_anew() {
    let host = Host::new();
    let wish = Wish::default();
    let (mut a, mut b) = (station(&host, 1, &wish), station(&host, 2, &wish));
    for _ in 0..3 {
        talk(&mut a, &mut b);
        a.frontend.set_state(State::Closed).unwrap();
        assert!(a.frontend.wait(LONG, |state| state == State::Closed).unwrap());
        a.queues.clear();
        a.caller = None;
        a.frontend.set_state(State::Initialising).unwrap();
        (a.queues, a.caller) = connect(&a.frontend, &wish);
    }
}

#[test]
fn a_backend_that_breaks_the_rules_is_found_out() {
    let host = Host::new();
    let mut a = station(&host, 1, &Wish::default());
    let ring = a.queues[0].rx.ring_page().addr(0);
    a.queues[0].rx.memory().write(ring + 8, &1000u32.to_le_bytes()).unwrap();
    assert!(matches!(a.queues[0].rx.next(&mut Frame::default()), Err(FrontError::Ring(_))));
    let ring = a.queues[0].tx.ring_page().addr(0);
    a.queues[0].tx.memory().write(ring + 8, &1u32.to_le_bytes()).unwrap();
    assert!(matches!(a.queues[0].tx.collect(), Err(FrontError::Ring(_))));
}

#[test]
fn what_is_too_long_goes_nowhere() {
    let host = Host::new();
    let mut a = station(&host, 1, &Wish::default());
    let tx = &mut a.queues[0].tx;
    assert!(!tx.send(0, Meta::default()).unwrap());
    assert!(!tx.send(65_536, Meta::default()).unwrap());
    assert!(tx.is_idle());
}
