//! Guests whose devices lack what others have, or have what others lack.

use super::lab::Attach;
use super::pool::{FREE_PORT, SharedLab};
use super::traffic::{At, ping_both, tcp_both, udp};

/// Traffic of all kinds between a guest that is attached in some way and an ordinary one.
fn talks(attach: Attach<'_>) {
    let lab = SharedLab::new();
    let [a] = lab.boot([(FREE_PORT, attach)]);
    let (a, b): (At<'_>, At<'_>) = ((&a, FREE_PORT), (lab.guests()[1], 1));
    ping_both(a, b, 4000);
    tcp_both(a, b, 4);
    udp(&[(b.0, a)]);
    lab.check_balance();
}

#[test]
#[ignore = "boots guests"]
fn a_single_queue_beside_four() {
    talks(Attach { queues: 1, ..Attach::default() });
}

#[test]
#[ignore = "boots guests"]
fn packed_rings() {
    talks(Attach { options: &["packed=on"], ..Attach::default() });
}

#[test]
#[ignore = "boots guests"]
fn no_mergeable_buffers() {
    talks(Attach { options: &["mrg_rxbuf=off"], ..Attach::default() });
}

#[test]
#[ignore = "boots guests"]
fn no_event_index() {
    talks(Attach { options: &["event_idx=off"], ..Attach::default() });
}

#[test]
#[ignore = "boots guests"]
fn no_indirect_descriptors() {
    talks(Attach { options: &["indirect_desc=off"], ..Attach::default() });
}

#[test]
#[ignore = "boots guests"]
fn packed_rings_without_anything_else() {
    talks(Attach {
        options: &["packed=on", "mrg_rxbuf=off", "event_idx=off", "indirect_desc=off"],
        ..Attach::default()
    });
}

#[test]
#[ignore = "boots guests"]
fn a_device_from_before_virtio_1() {
    talks(Attach { options: &["disable-modern=on", "disable-legacy=off"], ..Attach::default() });
}
