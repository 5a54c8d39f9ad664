//! A domain that is destroyed while its rings are mapped.

use std::sync::mpsc;

use hypervisor::{DomId, Hypervisor};
use ring::copies::{Copies, Place, Status};

use super::vif::{Ends, Vif};
use super::{TIMEOUT, wait_for};

/// Destroys the domain of `vif`, to which the last of `ends` belong.
pub fn all(host: &Hypervisor, vif: &Vif, mut ends: Vec<Ends>, destroy: &dyn Fn(DomId)) {
    let own = ends.pop().unwrap();
    let place = own.rx(vif.domain, 40);
    let (sender, released) = mpsc::channel();
    let watch =
        host.store.watch("@releaseDomain", Box::new(move |_| sender.send(()).unwrap())).unwrap();
    released.recv_timeout(TIMEOUT).expect("one event from the start");
    destroy(vif.domain);
    released.recv_timeout(TIMEOUT).expect("the domain's release");
    drop(watch);
    assert!(
        host.store
            .nodes()
            .directory(&format!("/local/domain/{}", vif.domain))
            .unwrap_err()
            .is_not_found()
    );

    // What is mapped stays what it is.
    assert!(own.rx_posted() > 40);
    own.tx.write(60, b"ring").unwrap();
    own.channel.notify();
    while own.channel.take() {}
    // It can be named until then, but its pages can't be had.
    assert_eq!(copy_to(host, place), Status::BAD_PAGE);
    drop(own);
    wait_for("the last of the domain", || {
        (copy_to(host, place) == Status::BAD_DOMAIN).then_some(())
    });
    assert!(host.grants.map(vif.domain, &[vif.tx_ring]).is_err());
    assert!(host.events.bind(vif.domain, vif.tx_port).is_err());
    println!("suite: domain {} is gone", vif.domain);
}

fn copy_to(host: &Hypervisor, place: ring::grant::Granted) -> Status {
    let mut copies = Copies::new(1, 16).unwrap();
    let from = copies.stage(b"data").unwrap();
    copies.push(from, Place::Granted(place), 4, 0).unwrap();
    host.grants.copy(&mut copies).unwrap();
    copies.segments()[0].status()
}
