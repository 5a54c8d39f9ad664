//! A frontend that grants only the bytes of its frames.

use crate::front::station::{LONG, Station, reach, station, station_with, talk};
use crate::front::{Host, frame, wait};
use hypervisor::test::{Reason, Refusal};
use hypervisor::{DomId, GrantRef, Granted};
use ring::copies::{Copies, Place, Status};
use xen::netif::frontend::FrontendConfig;
use xen::netif::slots::Meta;
use xen::xenbus::State;

const RANGES: &[(&str, &str)] = &[("ringmain/grants", "range")];

/// Where the first slot of a Tx ring is.
fn slot(station: &Station) -> u64 {
    station.queues[0].tx.ring().page().addr(0) + 64
}

/// The status of a copy by the backend's domain.
fn tried(host: &Host, reference: GrantRef, offset: u16, len: u32) -> Status {
    let mut copies = Copies::new(1, 4096).unwrap();
    let (_, to) = copies.reserve(len as usize).unwrap();
    let at = Granted { domain: DomId(1), reference, offset };
    copies.push(Place::Granted(at), to, len, 0).unwrap();
    host.machine.hypervisor(DomId(0)).grants.copy(&mut copies).unwrap();
    copies.segments()[0].status()
}

/// Why copies were refused since the last time.
fn reasons(host: &Host) -> Vec<Reason> {
    host.machine.refusals().into_iter().map(|Refusal { reason, .. }| reason).collect()
}

#[test]
fn frames_go_both_ways_by_ranges() {
    let host = Host::new();
    let config = FrontendConfig::default();
    let mut a = station_with(&host, 1, &config, RANGES);
    let mut b = station_with(&host, 2, &config, RANGES);
    talk(&mut a, &mut b);
    let mut c = station(&host, 3, &config);
    c.send(&frame(3, 1, 900, 7));
    assert_eq!(a.expect(1)[0].1, frame(3, 1, 900, 7), "from one that grants pages");
    assert_eq!(host.machine.refusals(), []);
    let features = |id| {
        host.service
            .as_ref()
            .unwrap()
            .vifs()
            .into_iter()
            .find(|vif| vif.id.domain == id)
            .unwrap()
            .features
    };
    assert!(features(DomId(1)).names().contains(&"range-grants"));
    assert!(!features(DomId(3)).extensions.ranges);
}

#[test]
fn only_the_bytes_of_a_frame_are_granted_and_only_until_it_is_sent() {
    let host = Host::new();
    let config = FrontendConfig::default();
    let mut a = station_with(&host, 1, &config, RANGES);
    let _b = station_with(&host, 2, &config, RANGES);
    let tx = &mut a.queues[0].tx;
    tx.ring().memory().write(tx.place().unwrap(), &frame(1, 2, 500, 0)).unwrap();
    assert!(tx.send(518, Meta::default()).unwrap());
    // Nobody was told of it yet, but it is granted.
    let mut word = [0; 4];
    tx.ring().memory().read(tx.ring().page().addr(0) + 64, &mut word).unwrap();
    let reference = GrantRef(u32::from_le_bytes(word));
    assert_eq!((tried(&host, reference, 0, 518), reasons(&host)), (Status::DONE, vec![]));
    for (offset, len) in [(0, 519), (518, 1), (517, 2), (0, 4096)] {
        assert_eq!(tried(&host, reference, offset, len), Status(-10), "{len} bytes from {offset}");
        assert_eq!(reasons(&host), [Reason::Beyond]);
    }
    tx.flush().unwrap();
    wait(|| {
        tx.collect().unwrap();
        tx.is_idle()
    });
    assert_eq!(
        (tried(&host, reference, 0, 1), reasons(&host)),
        (Status::REFUSED, vec![Reason::Revoked])
    );
}

/// A sender whose frame is longer than its grant is stopped. The receiver is not.
#[test]
fn a_frame_that_is_longer_than_its_range() {
    let host = Host::new();
    let config = FrontendConfig::default();
    let mut a = station_with(&host, 1, &config, RANGES);
    let mut b = station_with(&host, 2, &config, RANGES);
    let mut c = station_with(&host, 3, &config, RANGES);
    reach(&mut b, &mut c, (2, 3));
    let tx = &mut a.queues[0].tx;
    tx.ring().memory().write(tx.place().unwrap(), &frame(1, 2, 500, 0)).unwrap();
    assert!(tx.send(518, Meta::default()).unwrap());
    let size = slot(&a) + 10;
    a.guest.memory().write(size, &519u16.to_le_bytes()).unwrap();
    a.queues[0].tx.flush().unwrap();
    assert!(a.frontend.bus().wait(LONG, |state| state == State::Closing).unwrap());
    reach(&mut b, &mut c, (2, 3));
    let vifs = host.service.as_ref().unwrap().vifs();
    let stopped: Vec<_> =
        vifs.iter().filter_map(|vif| Some((vif.id.domain, vif.reason.as_deref()?))).collect();
    let why = "queue 0: a page is not granted for what it is used for (beyond the page)";
    assert_eq!(stopped, [(DomId(1), why)]);
}
