//! Indices, slots and extras that are invalid.

use super::*;

#[test]
fn a_tx_index_that_jumps() {
    let reason = stopped_by(|bad| {
        let queue = &bad.queues[0];
        queue.set(queue.tx_ring, REQ_PROD, 1000);
        queue.tx_port.notify();
    });
    assert_eq!(reason, "queue 0: request index jumped to 1000, 1000 ahead in a ring of 256");
}

#[test]
fn an_rx_index_that_jumps() {
    // The index is read only when no buffer is left.
    let (_, reason) = stopped(FrontSpec { post: 3, ..FrontSpec::default() }, |bad, a| {
        introduce((a, 1), (bad, 3));
        let queue = &bad.queues[0];
        queue.set(queue.rx_ring, REQ_PROD, 5000);
        (0..9).for_each(|n| a.send(&frame(1, 3, 60, n)));
    });
    assert!(reason.starts_with("queue 0: request index jumped to 5000, "), "{reason}");
}

#[test]
fn indices_that_go_back() {
    let reason = stopped_by(|bad| {
        let queue = &bad.queues[0];
        (0..5).for_each(|_| bad.send(&frame(3, 9, 60, 1)));
        wait(|| queue.is_idle());
        queue.set(queue.tx_ring, REQ_PROD, queue.tx_prod.get() - 3);
        queue.tx_port.notify();
    });
    assert!(reason.starts_with("queue 0: request index jumped to "), "{reason}");
}

/// A frontend overwrites the indices that the backend writes. The backend never reads them back.
#[test]
fn overwritten_backend_indices_are_never_read() {
    let host = Host::new();
    let (a, b) = (
        Netfront::connected(&host, 1, FrontSpec::default()),
        Netfront::connected(&host, 2, FrontSpec::default()),
    );
    let bad = Front::connected(&host, 3, FrontSpec::default());
    introduce((&a, 1), (&bad, 3));
    let page = bad.queues[0].take_page();
    for ring in [bad.queues[0].tx_ring, bad.queues[0].rx_ring] {
        for at in [crate::front::RSP_PROD, crate::front::REQ_EVENT, crate::front::RSP_EVENT] {
            bad.queues[0].set(ring, at, 0xdead_beef);
        }
    }
    for n in 0..20 {
        a.send(&frame(1, 3, 100, n));
        bad.queues[0].data(page, 0, 0, 100);
        bad.queues[0].push_tx();
        bad.queues[0].tx_port.notify();
    }
    introduce((&a, 1), (&b, 2));
    assert!(host.connected(&bad));
}

#[test]
fn a_slot_beyond_its_page() {
    let reason = stopped_by(|bad| {
        let queue = &bad.queues[0];
        queue.data(queue.take_page(), 4000, 0, 97);
        queue.push_tx();
    });
    assert_eq!(reason, "queue 0: a slot reaches beyond its page");
}

#[test]
fn too_many_slots() {
    let reason = stopped_by(|bad| {
        let queue = &bad.queues[0];
        queue.data(queue.take_page(), 0, MORE_DATA, 60_000);
        (0..30).for_each(|_| queue.data(queue.take_page(), 0, MORE_DATA, 100));
        queue.push_tx();
    });
    assert_eq!(reason, "queue 0: a packet in too many slots");
}

#[test]
fn a_packet_without_its_end() {
    let reason = stopped_by(|bad| {
        let queue = &bad.queues[0];
        queue.data(queue.take_page(), 0, MORE_DATA, 1000);
        queue.push_tx();
    });
    assert_eq!(reason, "queue 0: a packet's last slots are missing");
}

#[test]
fn extras_that_never_end() {
    let reason = stopped_by(|bad| {
        let queue = &bad.queues[0];
        queue.data(queue.take_page(), 0, EXTRA_INFO, 60);
        (0..200).for_each(|_| queue.tx_slot([4 | 1 << 8, 0, 0], None));
        queue.push_tx();
    });
    assert_eq!(reason, "queue 0: extra info that does not end");
}

#[test]
fn extras_of_no_known_type() {
    let reason = stopped_by(|bad| {
        let queue = &bad.queues[0];
        queue.data(queue.take_page(), 0, EXTRA_INFO, 60);
        queue.tx_slot([9, 0, 0], None);
        queue.push_tx();
    });
    assert_eq!(reason, "queue 0: extra info of an unknown type");
}

#[test]
fn segmentation_of_no_known_kind() {
    for words in [[1 | 1448 << 16, 3, 0], [1 | 1448 << 16, 0, 0], [1, 1, 0]] {
        let reason = stopped_by(|bad| {
            let queue = &bad.queues[0];
            queue.data(queue.take_page(), 0, EXTRA_INFO, 1000);
            queue.tx_slot(words, None);
            queue.push_tx();
        });
        assert_eq!(reason, "queue 0: segmentation extra info makes no sense");
    }
}
