//! Our frontend's pages, kept mapped by our backend.

use crate::front::station::{Station, station, talk};
use crate::front::{Host, frame, wait};
use hypervisor::DomId;
use hypervisor::test::Design;
use xen::netif::frontend::{FrontendConfig, StaticGrants};
use xen::netif::options::PortOptions;

/// One that keeps so many pages of a vif.
fn host(design: Design, cache: u16) -> Host {
    Host::designed(design, PortOptions { cache, ..PortOptions::default() })
}

/// The counts of a vif's pages that stay mapped: those, hits, and misses.
fn cached(host: &Host, id: u16) -> (usize, u64, u64) {
    let vifs = host.service.as_ref().unwrap().vifs();
    let cached = vifs.iter().find(|vif| vif.id.domain == DomId(id)).unwrap().cache.unwrap();
    (cached.pages, cached.hits, cached.misses)
}

/// A station all of whose pages the backend keeps, as far as it does that.
fn keeping(host: &Host, id: u16, config: &FrontendConfig) -> (Station, StaticGrants) {
    let mut station = station(host, id, config);
    let kept = StaticGrants::add_all(station.caller.as_mut().unwrap(), &station.queues).unwrap();
    (station, kept)
}

#[test]
fn static_grants_need_no_grant_operation() {
    for design in [Design::OLD, Design::default()] {
        let host = host(design, 1000);
        let config = FrontendConfig::default();
        let ((mut a, kept_a), (mut b, kept_b)) =
            (keeping(&host, 1, &config), keeping(&host, 2, &config));
        assert_eq!((kept_a.len(), kept_b.len()), (768, 768));
        let before = host.machine.counts();
        talk(&mut a, &mut b);
        let after = host.machine.counts();
        assert_eq!(
            (after.copies, after.batches, after.maps),
            (before.copies, before.batches, before.maps)
        );
        wait(|| cached(&host, 1).1 > 60 && cached(&host, 2).1 > 60);
        for id in [1, 2] {
            assert_eq!((cached(&host, id).0, cached(&host, id).2), (768, 0), "none was missed");
        }
        // The rings stay mapped, and nothing else.
        assert_eq!(kept_a.remove_all(a.caller.as_mut().unwrap()).unwrap(), 768);
        assert_eq!(host.machine.mapped(DomId(1)), 3);
        let before = host.machine.counts().copies;
        talk(&mut a, &mut b);
        assert!(host.machine.counts().copies > before);
        assert_eq!(host.machine.refusals(), []);
    }
}

#[test]
fn static_grants_and_other_grants_mix() {
    // Of each queue no more than some of the pages that it receives into.
    let host = host(Design::default(), 100);
    let config = FrontendConfig { queues: 2, ..FrontendConfig::default() };
    let ((mut a, kept_a), mut b) = (keeping(&host, 1, &config), station(&host, 2, &config));
    assert_eq!(kept_a.len(), 100);
    talk(&mut a, &mut b);
    wait(|| cached(&host, 1).1 > 0 && cached(&host, 1).2 > 0);
    let kept_b = StaticGrants::add_all(b.caller.as_mut().unwrap(), &b.queues).unwrap();
    talk(&mut a, &mut b);
    for (station, kept) in [(&mut a, kept_a), (&mut b, kept_b)] {
        assert_eq!(kept.remove_all(station.caller.as_mut().unwrap()).unwrap(), 100);
    }
    assert_eq!(host.machine.refusals(), []);
}

#[test]
fn static_grants_are_added_and_removed_under_traffic() {
    let host = host(Design::default(), 64);
    let config = FrontendConfig { split: false, ..FrontendConfig::default() };
    let (mut a, mut b) = (station(&host, 1, &config), station(&host, 2, &config));
    talk(&mut a, &mut b);
    let (mut sent, mut got) = (0, 0);
    for round in 0..60 {
        let station = if round % 2 == 0 { &mut a } else { &mut b };
        let kept =
            StaticGrants::add_all(station.caller.as_mut().unwrap(), &station.queues).unwrap();
        for _ in 0..20 {
            a.send(&frame(1, 2, 40 + sent as usize * 37 % 9000, sent));
            sent += 1;
        }
        // Some are under way.
        let station = if round % 2 == 0 { &mut a } else { &mut b };
        assert_eq!(kept.remove_all(station.caller.as_mut().unwrap()).unwrap(), 64);
        assert!(
            host.machine.mapped(station.frontend.bus().domain().id()) <= 3,
            "unmapped before it was answered"
        );
        for (_, bytes, _) in b.received() {
            assert_eq!(bytes, frame(1, 2, 40 + got as usize * 37 % 9000, got), "frame {got}");
            got += 1;
        }
    }
    for (_, bytes, _) in b.expect((sent - got) as usize) {
        assert_eq!(bytes, frame(1, 2, 40 + got as usize * 37 % 9000, got));
        got += 1;
    }
    assert_eq!(host.machine.refusals(), []);
}

/// Static grants end with the daemon. The next daemon makes grant copies, and its counters show
/// that.
#[test]
fn a_restarted_daemon_copies_from_unknown_pages() {
    let mut host = host(Design::default(), 1000);
    let ((mut a, kept), mut b) = (
        keeping(&host, 1, &FrontendConfig::default()),
        station(&host, 2, &FrontendConfig::default()),
    );
    talk(&mut a, &mut b);
    host.restart();
    talk(&mut a, &mut b);
    assert_eq!(kept.remove_all(a.caller.as_mut().unwrap()).unwrap(), 0);
    assert_eq!(
        StaticGrants::add_all(a.caller.as_mut().unwrap(), &a.queues).unwrap().len(),
        768,
        "it may keep them again"
    );
    talk(&mut a, &mut b);
    assert_eq!(host.machine.refusals(), []);
}

#[test]
fn a_backend_without_static_grants_works() {
    let host = Host::new();
    let (mut a, kept) = keeping(&host, 1, &FrontendConfig::default());
    assert!(kept.is_empty());
    assert_eq!(kept.remove_all(a.caller.as_mut().unwrap()).unwrap(), 0);
}
