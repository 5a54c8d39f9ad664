//! Mapping granted pages.

use hypervisor::{GrantError, GrantRef, Hypervisor};

use super::vif::{Ends, Vif};

pub fn all(host: &Hypervisor, vif: &Vif) {
    maps_both_ways_and_unmaps(host, vif);
    several_pages_lie_side_by_side(host, vif);
    single_pages_for_reading_and_for_writing(host, vif);
    refuses_by_name(host, vif);
    println!("suite: map passed for domain {}", vif.domain);
}

fn maps_both_ways_and_unmaps(host: &Hypervisor, vif: &Vif) {
    for _ in 0..50 {
        let ends = Ends::open(host, vif);
        assert!(ends.rx_posted() > 0, "the frontend has posted receive buffers");
        // The padding after the indices is nobody's: two mappings of one page are one page.
        let again = host.grants.map(vif.domain, &[vif.rx_ring]).unwrap();
        again.write(60, b"ring").unwrap();
        let mut read = [0; 4];
        ends.rx.read(60, &mut read).unwrap();
        assert_eq!(&read, b"ring");
        again.write(60, &[0; 4]).unwrap();
    }
}

fn several_pages_lie_side_by_side(host: &Hypervisor, vif: &Vif) {
    let both = host.grants.map(vif.domain, &[vif.tx_ring, vif.rx_ring]).unwrap();
    let single = host.grants.map(vif.domain, &[vif.rx_ring]).unwrap();
    let (mut one, mut other) = ([0; 256], [0; 256]);
    both.read(4096 + 64, &mut one).unwrap();
    single.read(64, &mut other).unwrap();
    assert_eq!(one, other);
    assert!(both.read(8192 - 1, &mut [0; 2]).is_err(), "two pages are mapped");
}

fn single_pages_for_reading_and_for_writing(host: &Hypervisor, vif: &Vif) {
    let writable = host.grants.map_page(vif.domain, vif.rx_ring, true).unwrap();
    let readable = host.grants.map_page(vif.domain, vif.rx_ring, false).unwrap();
    // The padding after the indices is nobody's.
    assert!(writable.write(56, b"page") && !readable.write(56, b"none"));
    let mut read = [0; 4];
    assert!(readable.read(56, &mut read) && read == *b"page");
    assert!(writable.write(56, &[0; 4]));
    for (reference, write) in [(GrantRef(16_000), false), (GrantRef(1_000_000_000), true)] {
        let refused = host.grants.map_page(vif.domain, reference, write);
        assert!(matches!(refused, Err(GrantError::Page { .. })), "{refused:?}");
    }
}

fn refuses_by_name(host: &Hypervisor, vif: &Vif) {
    let refused = |references: &[GrantRef]| match host.grants.map(vif.domain, references) {
        Err(GrantError::Refused { domain, references: named }) => {
            domain == vif.domain && named == references
        }
        outcome => panic!("{outcome:?}"),
    };
    assert!(refused(&[GrantRef(1_000_000_000)]));
    assert!(refused(&[GrantRef(16_000)]), "granted by nobody");
    assert!(refused(&[vif.tx_ring, GrantRef(16_000)]), "all or none");
    assert!(matches!(host.grants.map(vif.domain, &[]), Err(GrantError::Count(0))));
    assert!(matches!(
        host.grants.map(vif.domain, &[vif.tx_ring; 257]),
        Err(GrantError::Count(257))
    ));
    let nobody = hypervisor::DomId(20_000);
    assert!(matches!(host.grants.map(nobody, &[vif.tx_ring]), Err(GrantError::Refused { .. })));
    host.grants.map(vif.domain, &[vif.tx_ring]).expect("it goes on after a refusal");
}
