//! Keys that a frontend, or an operator, has written into the store.

use hypervisor::DomId;
use hypervisor::test::Machine;
use network::restrictions::RestrictionsTemplate;
use network::token_bucket::{TokenBucket, Unit};
use xen::blkif;
use xen::netif::extensions::Extensions;
use xen::netif::negotiation::{BackendFeatures, FrontendKeys, wants_groups};
use xen::netif::rate;
use xen::netif::settings::{Settings, is_ours, is_plugged};
use xen::xenbus::State;

use crate::input::Input;

const KEYS: [&str; 40] = [
    "state",
    "request-rx-copy",
    "multi-queue-num-queues",
    "tx-ring-ref",
    "rx-ring-ref",
    "event-channel",
    "event-channel-tx",
    "event-channel-rx",
    "queue-0/tx-ring-ref",
    "queue-0/rx-ring-ref",
    "queue-0/event-channel",
    "queue-1/tx-ring-ref",
    "queue-1/rx-ring-ref",
    "queue-1/event-channel",
    "feature-sg",
    "feature-gso-tcpv4",
    "feature-no-csum-offload",
    "ctrl-ring-ref",
    "event-channel-ctrl",
    "request-multicast-control",
    "mac",
    "mtu",
    "rate",
    "script",
    "hotplug-status",
    "ringmain/vlan",
    "ringmain/trunk",
    "ringmain/lock-mac",
    "ringmain/queues",
    "protocol",
    "ring-page-order",
    "ring-ref",
    "ring-ref0",
    "ring-ref1",
    "queue-0/ring-ref",
    "queue-1/ring-ref",
    "physical-device-path",
    "device-type",
    "discard-enable",
    "removable",
];

/// Reads `data` as keys of one directory, which is that of a frontend and of a backend at once.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let hypervisor = Machine::new().hypervisor(DomId(0));
    let nodes = hypervisor.store.nodes();
    while !input.is_empty() {
        let key = KEYS[input.below(KEYS.len() as u32) as usize];
        let value = match input.u8() {
            0..40 => {
                let len = usize::from(input.u8());
                input.take(len).to_vec()
            }
            40..48 => b"00:16:3e:00:00:01".to_vec(),
            48..52 => b"10:20".to_vec(),
            52..54 => b"x86_64-abi".to_vec(),
            54..56 => b"/images/a.raw".to_vec(),
            56..64 => b"1000,50000".to_vec(),
            number => (number % 12).to_string().into_bytes(),
        };
        // Too long for the store: then it is not there.
        let _ = nodes.write(&format!("/vif/{key}"), &value);
    }
    let queues = 1 + u16::from(data.first().copied().unwrap_or(0) % 4);
    if let Ok(request) = FrontendKeys::read(
        nodes,
        "/vif",
        BackendFeatures { queues, extensions: Extensions::default() },
    ) {
        assert!((1..=usize::from(queues)).contains(&request.queues.len()));
    }
    if let Ok(keys) = blkif::negotiation::FrontendKeys::read(nodes, "/vif", queues) {
        assert!((1..=usize::from(queues)).contains(&keys.queues.len()));
        let pages = keys.queues[0].ring.len();
        assert!(pages <= 16 && keys.queues.iter().all(|queue| queue.ring.len() == pages));
    }
    if let Ok(settings) = blkif::settings::Settings::read(nodes, "/vif") {
        assert!(settings.image.is_absolute() && settings.info() < 8);
    }
    if let Ok(settings) = Settings::read(nodes, "/vif") {
        let restrictions = settings.restrictions(&RestrictionsTemplate::default());
        assert_eq!(restrictions.transmit.is_empty(), settings.rate().is_none());
        assert_eq!(restrictions.guard.is_none(), settings.addresses.is_empty());
    }
    let _ = (
        State::read(nodes, "/vif"),
        wants_groups(nodes, "/vif"),
        is_ours(nodes, "/vif"),
        is_plugged(nodes, "/vif"),
    );
    let text = String::from_utf8_lossy(data);
    if let Some(rate) = rate::parse(&text) {
        assert!(rate.per_second > 0 && rate.burst > 0);
        let (bucket, now) = (TokenBucket::new(Unit::Bytes, rate), std::time::Instant::now());
        assert!(bucket.take(now, u64::MAX) && bucket.reserve(now, u64::MAX) > now);
        bucket.give_back(u64::MAX);
    }
}
