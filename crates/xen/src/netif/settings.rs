//! The operator's settings of a vif: keys in the backend's directory, from the toolstack and from
//! `vif-ringmain`.

use std::sync::Arc;

use frame::{BadPrefix, Mac, Prefix};
use hypervisor::{Nodes, StoreError};
use network::restrictions::{Restrictions, RestrictionsTemplate};
use network::token_bucket::{Rate, Unit};
use switch::guard::MAX_PREFIXES;
use switch::{PortRule, SourceGuard, Vlan};

use crate::netif::extensions::Extensions;
use crate::netif::rate;
use crate::xenbus::script::is_hotplugged_by;

/// The hotplug script that marks vifs for this daemon.
pub const SCRIPT: &str = "vif-ringmain";

/// The settings of a vif.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// VLANs and source lock.
    pub rule: PortRule,
    /// Longest IP packet for the vif, in bytes.
    pub mtu: Option<u16>,
    /// Queues that are offered, if fewer than usual.
    pub queues: Option<u16>,
    /// The sending rate, as the toolstack writes it.
    pub rate: Option<String>,
    /// The addresses that the vif may claim; empty: any.
    pub addresses: Vec<Prefix>,
    /// The name of the budget that the vif shares with other ports.
    pub budget: Option<String>,
}

/// Whether the vif whose backend directory is `path` is for this daemon.
///
/// # Errors
/// When the store cannot be read.
pub fn is_ours(nodes: &dyn Nodes, path: &str) -> Result<bool, StoreError> {
    is_hotplugged_by(nodes, path, SCRIPT)
}

/// The extensions of netif.h that the operator has set for the vif at `path`, its backend
/// directory. A guest that copies must be granted no more than its frame, so senders have to grant
/// ranges.
///
/// # Errors
/// When a setting is not valid, or the store cannot be read.
pub fn extensions(nodes: &dyn Nodes, path: &str) -> Result<Extensions, StoreError> {
    let one_of = |key: &str, off: &str, on: &str, expected| {
        let path = format!("{path}/ringmain/{key}");
        match nodes.find(&path)? {
            None => Ok(None),
            Some(value) if value == off => Ok(Some(false)),
            Some(value) if value == on => Ok(Some(true)),
            Some(value) => Err(wrong(&path, &value, expected)),
        }
    };
    let guest_copy =
        one_of("copy", "backend", "guest", "\"backend\" or \"guest\"")?.unwrap_or(false);
    let ranges = one_of("grants", "page", "range", "\"page\" or \"range\"")?.unwrap_or(guest_copy);
    Ok(Extensions { ranges, guest_copy })
}

/// Whether the hotplug script has finished with the vif.
///
/// # Errors
/// When the store cannot be read.
pub fn is_plugged(nodes: &dyn Nodes, path: &str) -> Result<bool, StoreError> {
    Ok(nodes.find(&format!("{path}/hotplug-status"))?.as_deref() == Some("connected"))
}

impl Settings {
    /// Reads the settings from the backend's directory `path`.
    ///
    /// # Errors
    /// When a setting is not valid, or the store cannot be read.
    pub fn read(nodes: &dyn Nodes, path: &str) -> Result<Settings, StoreError> {
        let ours = |key: &str| format!("{path}/ringmain/{key}");
        let vlan = match (nodes.number::<u16>(&ours("vlan"))?, nodes.find(&ours("trunk"))?) {
            (Some(vlan), _) => Vlan::Access(valid(&ours("vlan"), vlan)?),
            (None, Some(list)) => Vlan::Trunk(trunk(&ours("trunk"), &list)?),
            (None, None) => Vlan::None,
        };
        let locked = nodes.number::<u8>(&ours("lock-mac"))?.is_some_and(|locked| locked != 0);
        let mac = if locked { Some(station(nodes, &format!("{path}/mac"))?) } else { None };
        let mtu = match nodes.number(&ours("mtu"))? {
            Some(mtu) => Some(mtu),
            None => nodes.number(&format!("{path}/mtu"))?,
        };
        let rate = match nodes.find(&ours("rate"))? {
            Some(rate) => Some(rate),
            None => nodes.find(&format!("{path}/rate"))?,
        };
        let queues = nodes.number::<u16>(&ours("queues"))?.filter(|queues| *queues > 0);
        let addresses = match nodes.find(&ours("addresses"))? {
            Some(list) => prefixes(&ours("addresses"), &list)?,
            None => Vec::new(),
        };
        let budget = nodes.find(&ours("budget"))?;
        Ok(Settings { rule: PortRule { vlan, mac }, mtu, queues, rate, addresses, budget })
    }

    /// The rate, if there is one.
    pub fn rate(&self) -> Option<Rate> {
        self.rate.as_deref().and_then(rate::parse)
    }

    /// Checks that the named budget exists, for the vif whose backend directory is `path`.
    ///
    /// # Errors
    /// When there is none.
    pub fn check_budget(
        &self,
        path: &str,
        template: &RestrictionsTemplate,
    ) -> Result<(), StoreError> {
        match &self.budget {
            Some(budget) if !template.budgets.contains_key(budget) => {
                Err(wrong(&format!("{path}/ringmain/budget"), budget, "a budget"))
            }
            _ => Ok(()),
        }
    }

    /// The restrictions of the vif: those of all vifs, and its own rate in addition. Its own list
    /// of addresses, and its own budget, replace those of all vifs.
    pub fn restrictions(&self, template: &RestrictionsTemplate) -> Restrictions {
        let mut template = template.clone();
        // Both hold, so the stricter one decides.
        template.transmit.extend(self.rate().map(|rate| (Unit::Bytes, rate)));
        if let Some(budget) = self.budget.as_ref().and_then(|name| template.budgets.get(name)) {
            template.shared = budget.clone();
        }
        if !self.addresses.is_empty() {
            template.guard = Some(Arc::new(SourceGuard::new(self.addresses.clone())));
        }
        template.instantiate()
    }
}

/// The address of one station. A lock to another kind of address would exclude nobody.
fn station(nodes: &dyn Nodes, path: &str) -> Result<Mac, StoreError> {
    let text = nodes.text(path)?;
    match text.parse::<Mac>() {
        Ok(mac) if !mac.is_multicast() && !mac.is_zero() => Ok(mac),
        _ => Err(wrong(path, &text, "the address of one station")),
    }
}

fn valid(path: &str, vlan: u16) -> Result<u16, StoreError> {
    match vlan {
        1..=4094 => Ok(vlan),
        _ => Err(wrong(path, &vlan.to_string(), VLAN)),
    }
}

/// A list of VLANs, between colons.
fn trunk(path: &str, text: &str) -> Result<Vec<u16>, StoreError> {
    let number = |part: &str| {
        part.trim().parse().map_err(|_| wrong(path, part, VLAN)).and_then(|vlan| valid(path, vlan))
    };
    let mut list = text.split(':').map(number).collect::<Result<Vec<u16>, _>>()?;
    list.sort_unstable();
    list.dedup();
    Ok(list)
}

/// A list of addresses and prefixes, between blanks.
fn prefixes(path: &str, text: &str) -> Result<Vec<Prefix>, StoreError> {
    let prefix = |part: &str| {
        part.parse().map_err(|error| match error {
            BadPrefix::Ambiguous(..) => wrong(path, part, "either an address or a network"),
            _ => wrong(path, part, ADDRESSES),
        })
    };
    let list = text.split_whitespace().map(prefix).collect::<Result<Vec<Prefix>, _>>()?;
    if list.is_empty() || list.len() > MAX_PREFIXES {
        return Err(wrong(path, text, ADDRESSES));
    }
    Ok(list)
}

const ADDRESSES: &str = "a list of 1 to 64 IP addresses and prefixes of stations";

const VLAN: &str = "a VLAN from 1 to 4094";

fn wrong(path: &str, value: &str, expected: &'static str) -> StoreError {
    let value = value.chars().take(64).collect();
    StoreError::Value { path: path.into(), value, expected }
}

#[cfg(test)]
mod tests {
    use hypervisor::DomId;
    use hypervisor::test::Machine;
    use network::restrictions::{Limits, SharedLimits};
    use network::token_bucket::TokenBucket;

    use super::*;

    fn settings(keys: &[(&str, &str)]) -> Result<Settings, String> {
        let hypervisor = Machine::new().hypervisor(DomId(0));
        let nodes = hypervisor.store.nodes();
        keys.iter().for_each(|(key, value)| {
            nodes.write(&format!("/vif/{key}"), value.as_bytes()).unwrap()
        });
        Settings::read(nodes, "/vif").map_err(|error| error.to_string())
    }

    #[test]
    fn nothing_said_is_nothing_wanted() {
        let rule = PortRule { vlan: Vlan::None, mac: None };
        let nothing = Settings {
            rule,
            mtu: None,
            queues: None,
            rate: None,
            addresses: Vec::new(),
            budget: None,
        };
        assert_eq!(settings(&[("mac", "00:16:3e:00:00:01")]), Ok(nothing));
    }

    #[test]
    fn all_of_it() {
        let keys = [
            ("mac", "00:16:3e:00:00:01"),
            ("rate", "625000,50000"),
            ("mtu", "1500"),
            ("ringmain/mtu", "9000"),
            ("ringmain/vlan", "10"),
            ("ringmain/queues", "2"),
            ("ringmain/lock-mac", "1"),
        ];
        let settings = settings(&keys).unwrap();
        assert_eq!(settings.rule.vlan, Vlan::Access(10));
        assert_eq!(settings.rule.mac, Some("00:16:3e:00:00:01".parse().unwrap()));
        assert_eq!((settings.mtu, settings.queues), (Some(9000), Some(2)));
        assert_eq!(settings.rate().unwrap().per_second, 12_500_000);
    }

    #[test]
    fn a_lock_needs_an_address() {
        let locked = |mac| settings(&[("ringmain/lock-mac", "1"), ("mac", mac)]);
        for bad in ["", "x", "00:16:3e:00:00", "01:00:5e:00:00:01", "00:00:00:00:00:00"] {
            let error = format!("/vif/mac: {bad:?} is not the address of one station");
            assert_eq!(locked(bad).unwrap_err(), error);
        }
        assert_eq!(settings(&[("ringmain/lock-mac", "1")]).unwrap_err(), "/vif/mac: no such node");
        assert!(settings(&[("mac", "x")]).is_ok(), "nobody asks for it");
    }

    #[test]
    fn trunks_are_lists() {
        assert_eq!(
            settings(&[("ringmain/trunk", "20:10:20")]).unwrap().rule.vlan,
            Vlan::Trunk(vec![10, 20])
        );
        let refused = "/vif/ringmain/trunk: \"4095\" is not a VLAN from 1 to 4094";
        assert_eq!(settings(&[("ringmain/trunk", "1:4095")]).unwrap_err(), refused);
        assert_eq!(
            settings(&[("ringmain/vlan", "0")]).unwrap_err(),
            "/vif/ringmain/vlan: \"0\" is not a VLAN from 1 to 4094"
        );
    }

    #[test]
    fn addresses_are_a_list_with_blanks() {
        let read = |list| settings(&[("ringmain/addresses", list)]);
        let addresses = read(" 10.0.0.5  2001:db8::/64 ").unwrap().addresses;
        let addresses: Vec<String> = addresses.iter().map(Prefix::to_string).collect();
        assert_eq!(addresses, ["10.0.0.5", "2001:db8::/64"]);
        assert!(read("").unwrap_err().contains("is not a list of 1 to 64 IP addresses"));
        let error = read("10.0.0.5/8").unwrap_err();
        assert!(error.contains("either an address or a network"), "{error}");
    }

    #[test]
    fn the_stricter_of_two_rates_decides() {
        let template = RestrictionsTemplate {
            transmit: vec![(Unit::Bytes, Rate { per_second: 1000, burst: 500 })],
            ..RestrictionsTemplate::default()
        };
        let now = std::time::Instant::now() + std::time::Duration::from_secs(1);
        let fits = |keys: &[(&str, &str)], bytes| {
            let restrictions = settings(keys).unwrap().restrictions(&template);
            // An empty bucket takes anything.
            restrictions.transmit.0.iter().all(|bucket| bucket.take(now, 1))
                && restrictions.transmit.0.iter().all(|bucket| bucket.take(now, bytes))
        };
        assert!(fits(&[], 499) && !fits(&[], 500));
        let fast = [("rate", "200000,50000")];
        assert!(fits(&fast, 499) && !fits(&fast, 500), "that of all vifs");
        let template = RestrictionsTemplate::default();
        let restrictions = settings(&fast).unwrap().restrictions(&template);
        assert_eq!(restrictions.transmit.0[0].rate().burst, 200_000, "its own");
    }

    #[test]
    fn a_vif_shares_the_budget_that_it_names() {
        let bucket = |per_second| {
            let rate = Rate { per_second, burst: 1000 };
            Arc::new(TokenBucket::new(Unit::Bytes, rate))
        };
        let shared = |per_second| SharedLimits {
            transmit: Limits(vec![bucket(per_second)]),
            ..SharedLimits::default()
        };
        let template = RestrictionsTemplate {
            shared: shared(1),
            budgets: [("web".to_owned(), shared(2))].into(),
            ..RestrictionsTemplate::default()
        };
        let own = settings(&[("ringmain/budget", "web")]).unwrap();
        own.check_budget("/vif", &template).unwrap();
        let rate =
            |settings: &Settings| settings.restrictions(&template).transmit.0[0].rate().per_second;
        assert_eq!((rate(&settings(&[]).unwrap()), rate(&own)), (1, 2));
        let other = settings(&[("ringmain/budget", "db")]).unwrap();
        let error = other.check_budget("/vif", &template).unwrap_err().to_string();
        assert_eq!(error, "/vif/ringmain/budget: \"db\" is not a budget");
    }

    #[test]
    fn extensions_are_off_by_default() {
        let hypervisor = Machine::new().hypervisor(DomId(0));
        let nodes = hypervisor.store.nodes();
        let on = |ranges, guest_copy| Extensions { ranges, guest_copy };
        assert_eq!(extensions(nodes, "/vif").unwrap(), on(false, false));
        nodes.put("/vif/ringmain/copy", "guest").unwrap();
        assert_eq!(extensions(nodes, "/vif").unwrap(), on(true, true));
        nodes.put("/vif/ringmain/grants", "page").unwrap();
        assert_eq!(extensions(nodes, "/vif").unwrap(), on(false, true));
        nodes.put("/vif/ringmain/copy", "backend").unwrap();
        nodes.put("/vif/ringmain/grants", "range").unwrap();
        assert_eq!(extensions(nodes, "/vif").unwrap(), on(true, false));
        nodes.put("/vif/ringmain/copy", "nobody").unwrap();
        let error = extensions(nodes, "/vif").unwrap_err().to_string();
        assert_eq!(error, "/vif/ringmain/copy: \"nobody\" is not \"backend\" or \"guest\"");
    }

    #[test]
    fn ours_are_known_by_their_script() {
        let hypervisor = Machine::new().hypervisor(DomId(0));
        let nodes = hypervisor.store.nodes();
        assert!(!is_ours(nodes, "/vif").unwrap());
        for (script, ours) in
            [("/etc/xen/scripts/vif-bridge", false), ("/etc/xen/scripts/vif-ringmain", true)]
        {
            nodes.put("/vif/script", script).unwrap();
            assert_eq!(is_ours(nodes, "/vif").unwrap(), ours);
        }
        nodes.write("/vif/script", &[0xff, b'/']).unwrap();
        assert!(!is_ours(nodes, "/vif").unwrap());
        assert!(!is_plugged(nodes, "/vif").unwrap());
        nodes.put("/vif/hotplug-status", "connected").unwrap();
        assert!(is_plugged(nodes, "/vif").unwrap());
    }
}
