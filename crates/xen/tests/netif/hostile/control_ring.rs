//! Control messages that are invalid, or too many.

use super::*;

#[test]
fn a_flood_of_control_messages() {
    let spec = FrontSpec { control: true, ..FrontSpec::default() };
    let (_, reason) = stopped(spec, |bad, _| {
        let control_ring = bad.control_ring.as_ref().unwrap();
        let mut posted = 0;
        while bad.back_state() == Some(4) {
            if posted - control_ring.answered() < 100 {
                control_ring.post(4, [0; 3]);
                posted += 1;
            }
        }
    });
    assert_eq!(reason, "control ring: a flood of control messages");
}

#[test]
fn a_control_ring_whose_index_jumps() {
    let spec = FrontSpec { control: true, ..FrontSpec::default() };
    let (_, reason) = stopped(spec, |bad, _| {
        let control_ring = bad.control_ring.as_ref().unwrap();
        bad.queues[0].set(control_ring.ring, REQ_PROD, 129);
        control_ring.port.notify();
    });
    assert_eq!(reason, "control ring: request index jumped to 129, 129 ahead in a ring of 128");
}

#[test]
fn a_flood_of_signals_without_messages() {
    let spec = FrontSpec { control: true, ..FrontSpec::default() };
    let (_, reason) = stopped(spec, |bad, _| {
        while bad.back_state() == Some(4) {
            bad.control_ring.as_ref().unwrap().port.notify();
        }
    });
    assert_eq!(reason, "control ring: a flood of control messages");
}

/// Messages of unknown types, keys and tables of any length, pages that are not granted: each
/// message is answered.
#[test]
fn invalid_control_messages_are_answered() {
    let host = Host::new();
    let bad =
        Front::connected(&host, 3, FrontSpec { control: true, queues: 2, ..FrontSpec::default() });
    let control_ring = bad.control_ring.as_ref().unwrap();
    let page = control_ring.page.1.0;
    let foreign = bad.page();
    let foreign = bad.guest.grant(hypervisor::DomId(7), foreign, true).0;
    let revoked = bad.page();
    let revoked = bad.guest.grant(hypervisor::DomId(0), revoked, true);
    bad.guest.revoke(revoked);
    control_ring.write(&[0xff; 4096]);
    for (kind, data, status) in [
        (0, [0; 3], 1),
        (8, [0; 3], 1),
        (9, [0, page, 1], 1),
        (10, [0, page, 1], 1),
        (u16::MAX, [u32::MAX; 3], 1),
        (2, [1, 0, 0], 1),
        (7, [2, 0, 0], 2),
        (7, [1, 0, 0], 0),
        (2, [16, 0, 0], 2),
        (3, [page, 41, 0], 3),
        (3, [page, u32::MAX, 0], 3),
        (3, [foreign, 40, 0], 2),
        (3, [revoked.0, 40, 0], 2),
        (3, [u32::MAX, 40, 0], 2),
        (5, [129, 0, 0], 2),
        (5, [u32::MAX, 0, 0], 2),
        (5, [128, 0, 0], 0),
        // No such queues, whatever stood there when it was looked at.
        (6, [page, 128, 0], 2),
        (6, [page, 129, 0], 3),
        (6, [page, 1, u32::MAX], 2),
        (6, [page, u32::MAX, 1], 2),
        (6, [foreign, 1, 0], 2),
    ] {
        assert_eq!(control_ring.ask(kind, data).0, status, "message {kind} with {data:?}");
    }
    assert!(host.connected(&bad));
}

/// A table changes while it is read. The values that were checked are used.
#[test]
fn a_mapping_that_changes_while_it_is_read() {
    let host = Host::new();
    let a = Netfront::connected(&host, 1, FrontSpec::default());
    let bad =
        Front::connected(&host, 3, FrontSpec { control: true, queues: 2, ..FrontSpec::default() });
    introduce((&a, 1), (&bad, 3));
    let control_ring = bad.control_ring.as_ref().unwrap();
    assert_eq!(
        [
            control_ring.ask(7, [1, 0, 0]),
            control_ring.ask(2, [15, 0, 0]),
            control_ring.ask(5, [128, 0, 0])
        ],
        [(0, 0); 3]
    );
    let (memory, at) =
        (std::sync::Arc::clone(bad.guest.memory()), u64::from(control_ring.page.0) * 4096);
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let scribbler = std::thread::spawn(move || {
        let tables =
            [[1u32, 1_000_000], [0, 1]].map(|pair| pair.map(u32::to_le_bytes).concat().repeat(64));
        let running = || matches!(stopped.try_recv(), Err(std::sync::mpsc::TryRecvError::Empty));
        while running() {
            tables.iter().for_each(|table| memory.write(at, table).unwrap());
        }
    });
    for n in 0..100 {
        assert!(matches!(control_ring.ask(6, [control_ring.page.1.0, 128, 0]).0, 0 | 2));
        let mut frame = crate::front::tcp::tcp(1, 3, 100);
        frame[35] = n;
        a.queues[0].send(&frame, CSUM_BLANK, None);
        assert_eq!(bad.expect(1)[0].frame, frame);
    }
    drop(stop);
    scribbler.join().unwrap();
    assert!(host.connected(&bad));
}
