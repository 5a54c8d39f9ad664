//! Our frontend against our backend, on every inner design of the embedded hypervisor.

use crate::front::station::{offload, spread, station, talk};
use crate::front::{Host, frame, wait};
use hypervisor::PAGE;
use hypervisor::embedded::{Copying, Flush, Locking, Maptrack};
use hypervisor::test::Design;
use xen::netif::frontend::{Frame, FrameSource, FrontError, FrontendConfig};
use xen::netif::slots::Meta;

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
        let config = FrontendConfig::default();
        let (mut a, mut b) = (
            station(&host, 1, &config),
            station(&host, 2, &FrontendConfig { split: false, ..config.clone() }),
        );
        talk(&mut a, &mut b);
        assert_eq!(host.machine.refusals(), []);
    }
}

#[test]
fn a_frame_that_fits_a_page_is_one_piece() {
    let host = Host::new();
    let config = FrontendConfig::default();
    let (mut a, mut b) = (station(&host, 1, &config), station(&host, 2, &config));
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
    let config = FrontendConfig { queues: 4, ..FrontendConfig::default() };
    let (mut a, mut b) = (station(&host, 1, &config), station(&host, 2, &config));
    assert_eq!(a.queues.len(), 4);
    talk(&mut a, &mut b);
    let mut last = [None; 4];
    let mut count = 0;
    let mut note = |all: Vec<(usize, Vec<u8>, Frame)>| {
        for (_, bytes, _) in all {
            let what = crate::front::what(&bytes);
            let (flow, number) = ((what >> 16) as usize, what & 0xffff);
            assert_eq!(number, last[flow].map_or(0, |last: u32| last + 1), "flow {flow}");
            last[flow] = Some(number);
            count += 1;
        }
        count
    };
    for n in 0..1000 {
        for flow in 0..4 {
            a.send_on(
                flow,
                &frame(1, 2, (n * 41) % 6000, (flow as u32) << 16 | n as u32),
                Meta::default(),
            );
        }
        note(b.received());
    }
    wait(|| note(b.received()) == 4000);
}

#[test]
fn offloads_are_kept() {
    let host = Host::new();
    let config = FrontendConfig::default();
    let (mut a, mut b) = (station(&host, 1, &config), station(&host, 2, &config));
    talk(&mut a, &mut b);
    offload((&mut a, 1), (&mut b, 2));
}

#[test]
fn a_hash_key_spreads_frames_over_queues() {
    let host = Host::new();
    let config = FrontendConfig { queues: 2, ..FrontendConfig::default() };
    let (mut a, mut b) =
        (station(&host, 1, &FrontendConfig::default()), station(&host, 2, &config));
    talk(&mut a, &mut b);
    spread(&mut a, &mut b);
}

#[test]
fn a_closed_frontend_connects_again() {
    let host = Host::new();
    let config = FrontendConfig::default();
    let (mut a, mut b) = (station(&host, 1, &config), station(&host, 2, &config));
    for _ in 0..3 {
        talk(&mut a, &mut b);
        a.close();
        a.begin_anew(1);
    }
}

#[test]
fn the_frontend_detects_protocol_violations() {
    let host = Host::new();
    let mut a = station(&host, 1, &FrontendConfig::default());
    let ring = a.queues[0].rx.ring().page().addr(0);
    a.queues[0].rx.ring().memory().write(ring + 8, &1000u32.to_le_bytes()).unwrap();
    assert!(matches!(a.queues[0].rx.next(&mut Frame::default()), Err(FrontError::Ring(_))));
    let ring = a.queues[0].tx.ring().page().addr(0);
    a.queues[0].tx.ring().memory().write(ring + 8, &1u32.to_le_bytes()).unwrap();
    assert!(matches!(a.queues[0].tx.collect(), Err(FrontError::Ring(_))));
}

#[test]
fn frames_that_are_too_long_are_refused() {
    let host = Host::new();
    let mut a = station(&host, 1, &FrontendConfig::default());
    let tx = &mut a.queues[0].tx;
    assert!(!tx.send(0, Meta::default()).unwrap());
    assert!(!tx.send(65_536, Meta::default()).unwrap());
    assert!(tx.is_idle());
}
