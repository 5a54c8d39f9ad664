use hypervisor::DomId;
use network::fabric::Workers;
use switch::PortRule;
use xen::netif::settings::Settings;
use xen::netif::status::VifStatus;
use xen::xenbus::{DeviceId, DeviceStatus};

use super::*;
use crate::kind::Kind;

#[test]
fn a_vif_is_reported_like_other_ports() {
    let fabric = Fabric::start(&Workers { count: 1, ..Workers::default() }).unwrap();
    let id = DeviceId { class: "vif", domain: DomId(5), handle: 1 };
    let status = VifStatus::new(&DeviceStatus::new(id), false);
    let mut one = Vif {
        name: status.id.to_string(),
        kind: Kind::Xen,
        peer: None,
        copy_usage: None,
        store_usage: None,
        status,
    };
    let host = PortReport {
        queue_pairs: 4,
        options: [("align".into(), true.into())].into(),
        ..PortReport::default()
    };
    let report = vif(&fabric, &one, &host);
    assert_eq!(report.options, host.options);
    assert_eq!(
        (report.name.as_str(), report.kind, report.state),
        ("vif5.1", Kind::Xen, PortState::Listening)
    );
    assert_eq!((report.device.as_deref(), report.queue_pairs), (Some("domain 5"), 4));
    let mac = "00:16:3e:00:00:01";
    let rule = PortRule { vlan: Vlan::Access(10), mac: Some(mac.parse().unwrap()) };
    one.status.settings = Some(Settings {
        rule,
        mtu: Some(9000),
        queues: Some(2),
        rate: None,
        addresses: Vec::new(),
        budget: None,
    });
    one.status.features.sg = true;
    let states = [
        (Condition::Connected, PortState::Connected),
        (Condition::Stalled, PortState::Stalled),
        (Condition::Stopped, PortState::Stopped),
    ];
    for (condition, state) in states {
        one.status.condition = condition;
        one.status.reason = (condition == Condition::Stopped).then(|| "why".into());
        let report = vif(&fabric, &one, &host);
        assert_eq!((report.state, report.reason.as_deref()), (state, one.status.reason.as_deref()));
        assert_eq!(
            (report.vlan, report.mtu, report.mac.as_deref()),
            (Some(10), Some(9000), Some(mac))
        );
        assert_eq!((report.features, report.queue_pairs), (vec!["sg".to_owned()], 2));
    }
}
