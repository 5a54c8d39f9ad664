//! A set of IP addresses, in which a lookup takes the logarithm of its size.

use std::net::IpAddr;

use frame::Prefix;

use super::tuple::bits;

/// A set of addresses: sorted ranges that neither overlap nor touch.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct AddressSet(Vec<(u128, u128)>);

impl AddressSet {
    /// All addresses of these prefixes.
    pub fn new(prefixes: &[Prefix]) -> AddressSet {
        let mut ranges: Vec<(u128, u128)> = prefixes.iter().map(range).collect();
        ranges.sort_unstable();
        ranges.dedup_by(|next, before| {
            let joins = before.1.checked_add(1).is_none_or(|end| next.0 <= end);
            if joins {
                before.1 = before.1.max(next.1);
            }
            joins
        });
        AddressSet(ranges)
    }

    /// Whether the address with this number is in the set.
    pub fn contains(&self, address: u128) -> bool {
        let after = self.0.partition_point(|(first, _)| *first <= address);
        after.checked_sub(1).and_then(|at| self.0.get(at)).is_some_and(|(_, last)| address <= *last)
    }
}

/// The first and the last address of a prefix. IPv4 addresses are mapped into the IPv6 numbers.
fn range(prefix: &Prefix) -> (u128, u128) {
    let first = bits(prefix.address());
    let host_bits = match prefix.address() {
        IpAddr::V4(_) => 32 - u32::from(prefix.len()),
        IpAddr::V6(_) => 128 - u32::from(prefix.len()),
    };
    (first, first | 1u128.checked_shl(host_bits).map_or(u128::MAX, |size| size - 1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_set_has_the_addresses_of_its_prefixes() {
        let prefixes = ["10.0.0.0/8", "10.1.0.0/16", "11.0.0.0/8", "2001:db8::/64", "192.168.1.7"];
        let set = AddressSet::new(&prefixes.map(|text| text.parse().unwrap()));
        let has = |text: &str| set.contains(bits(text.parse().unwrap()));
        for inside in ["10.0.0.0", "10.1.2.3", "11.255.255.255", "192.168.1.7", "2001:db8::1"] {
            assert!(has(inside), "{inside}");
        }
        for outside in
            ["9.255.255.255", "12.0.0.0", "192.168.1.8", "2001:db8:0:1::", "::", "::a00:1"]
        {
            assert!(!has(outside), "{outside}");
        }
        assert_eq!(set.0.len(), 3, "ranges that touch are one");
        assert!(!AddressSet::default().contains(0));
        let all = AddressSet::new(&["::/0".parse().unwrap()]);
        assert!(all.contains(0) && all.contains(u128::MAX));
    }

    proptest! {
        #[test]
        fn a_set_of_random_prefixes_is_their_union(
            networks in prop::collection::vec((any::<u32>(), 20u8..=32), 0..40),
            probes in prop::collection::vec(any::<u32>(), 0..40),
        ) {
            let masked = |(address, len): &(u32, u8)| address & (u32::MAX << (32 - u32::from(*len)));
            let prefixes: Vec<Prefix> = networks
                .iter()
                .filter_map(|it| Prefix::new(IpAddr::V4(masked(it).into()), it.1).ok())
                .collect();
            let set = AddressSet::new(&prefixes);
            let near = networks.iter().flat_map(|it| [it.0, masked(it).wrapping_sub(1)]);
            for probe in probes.iter().copied().chain(near) {
                let inside = prefixes.iter().any(|prefix| {
                    let IpAddr::V4(first) = prefix.address() else { return false };
                    masked(&(probe, prefix.len())) == first.to_bits()
                });
                prop_assert_eq!(set.contains(bits(IpAddr::V4(probe.into()))), inside);
            }
        }
    }
}
