//! Event channels.

use std::os::fd::AsFd;
use std::time::Duration;

use hypervisor::{Channel, EventError, Hypervisor, RemotePort};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::vif::{Ends, Vif};
use super::{TIMEOUT, wait_for};

pub fn all(host: &Hypervisor, vif: &Vif, ends: &Ends) {
    refuses_what_is_bound_or_not_there(host, vif);
    a_signal_waits_from_the_start(&*ends.channel);
    assert!(!ends.channel.take(), "and only one");
    the_frontend_signals(host, vif, ends);
    println!("suite: events passed for domain {}", vif.domain);
}

/// Whether it gets readable.
fn wakes(channel: &dyn Channel, within: Duration) -> bool {
    let timeout =
        Timespec { tv_sec: within.as_secs() as i64, tv_nsec: within.subsec_nanos().into() };
    poll(&mut [PollFd::from_borrowed_fd(channel.waker().as_fd(), PollFlags::IN)], Some(&timeout))
        .unwrap()
        == 1
}

fn refuses_what_is_bound_or_not_there(host: &Hypervisor, vif: &Vif) {
    for port in [vif.tx_port, RemotePort(3000)] {
        match host.events.bind(vif.domain, port) {
            Err(EventError::Refused { domain, port: named }) => {
                assert_eq!((domain, named), (vif.domain, port))
            }
            outcome => panic!("{port:?}: {outcome:?}"),
        }
    }
    assert!(host.events.bind(hypervisor::DomId(20_000), RemotePort(1)).is_err(), "no such domain");
}

/// As by a daemon that is started anew: to the other end, its port never changed.
pub fn can_be_bound_again(host: &Hypervisor, vif: &Vif) {
    for _ in 0..20 {
        let channel = host.events.bind(vif.domain, vif.tx_port).unwrap();
        assert!(wakes(&*channel, TIMEOUT));
        channel.notify();
        assert!(channel.take());
    }
}

fn a_signal_waits_from_the_start(channel: &dyn Channel) {
    assert!(wakes(channel, TIMEOUT));
    assert!(channel.take());
}

/// A guest that brings its interface up, or is told that its backend is connected, sends frames,
/// and signals.
fn the_frontend_signals(host: &Hypervisor, vif: &Vif, ends: &Ends) {
    while ends.channel.take() {}
    let before = ends.tx_posted();
    // Ask for a signal with the next request: `req_event` is the index of the one after it.
    ends.tx.write(4, &(before + 1).to_le_bytes()).unwrap();
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    ends.channel.notify();
    host.store.nodes().put(&format!("{}/state", vif.back), 4).unwrap();
    if ends.tx_posted() == before {
        assert!(wakes(&*ends.channel, TIMEOUT), "a frame is sent");
        assert!(ends.channel.take());
    }
    wait_for("the request", || (ends.tx_posted() != before).then_some(()));
}
