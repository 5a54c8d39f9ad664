//! Reports of overlays, for people.

use control::api::{MacRow, OverlayPeer, OverlayReport};

use crate::table::Table;

/// `ringmain overlay show`.
pub fn overlays(overlays: &[OverlayReport]) -> String {
    if overlays.is_empty() {
        return "no overlays; the configuration has none\n".to_owned();
    }
    overlays.iter().map(overlay).collect::<Vec<_>>().join("\n")
}

fn overlay(overlay: &OverlayReport) -> String {
    let networks = overlay.networks.iter().map(|network| match network.vlan {
        Some(vlan) => format!("VNI {} as VLAN {vlan}", network.vni),
        None => format!("VNI {}, untagged", network.vni),
    });
    let mut lines = vec![
        ("overlay", overlay.name.clone()),
        ("state", overlay.state.name().to_owned()),
        ("networks", networks.collect::<Vec<_>>().join(", ")),
        ("local", format!("{}, port {}", overlay.local, overlay.port)),
        ("underlay", underlay(overlay)),
        ("control", overlay.control.clone()),
        ("learning", if overlay.learning { "on" } else { "off" }.to_owned()),
        ("peers", overlay.peers.len().to_string()),
        ("received", datagrams(overlay.datagrams_received, overlay.receive_calls)),
        ("sent", datagrams(overlay.datagrams_sent, overlay.send_calls)),
    ];
    if overlay.control == "evpn" {
        lines.insert(8, ("addresses", addresses(overlay)));
    }
    if let Some(reason) = &overlay.reason {
        lines.insert(2, ("reason", reason.clone()));
    }
    if let Some(mtu) = overlay.mtu {
        lines.insert(lines.len() - 3, ("mtu", mtu.to_string()));
    }
    let lost = overlay.drops.iter().filter(|(_, count)| **count > 0);
    let lost: Vec<String> = lost.map(|(reason, count)| format!("{count} {reason}")).collect();
    lines.push(("lost", if lost.is_empty() { "none".to_owned() } else { lost.join(", ") }));
    lines.into_iter().map(|(what, value)| format!("{what:<10} {value}\n")).collect()
}

fn underlay(overlay: &OverlayReport) -> String {
    let device = overlay.device.iter().map(|device| format!(", device {device}"));
    device.fold(overlay.underlay.clone(), |kind, device| kind + &device)
}

fn addresses(overlay: &OverlayReport) -> String {
    let OverlayReport { neighbours, announced, learned, .. } = overlay;
    let known = format!("{neighbours} of guests on other hosts");
    match (announced, learned) {
        (0, 0) => known,
        _ => format!("{known}, {announced} announced ({learned} learned)"),
    }
}

fn datagrams(count: u64, calls: u64) -> String {
    format!("{count} datagrams by {calls} system calls")
}

/// `ringmain overlay peers`.
pub fn peers(overlays: &[OverlayReport]) -> String {
    let mut table = Table::new(&[
        "OVERLAY", "PEER", ">VNI", "FLOOD", "STATE", ">MACS", ">FRAMES", ">BYTES", ">DROPPED",
    ]);
    for (overlay, peer) in all_peers(overlays) {
        table.row([
            overlay.name.clone(),
            peer.vtep.clone(),
            peer.vni.to_string(),
            if peer.flood { "yes" } else { "no" }.to_owned(),
            if peer.stale { "stale" } else { "" }.to_owned(),
            peer.macs.to_string(),
            peer.frames.to_string(),
            peer.bytes.to_string(),
            peer.dropped.to_string(),
        ]);
    }
    if table.is_empty() { "no peers\n".to_owned() } else { table.render() }
}

/// All peers, with their overlays.
pub fn all_peers(
    overlays: &[OverlayReport],
) -> impl Iterator<Item = (&OverlayReport, &OverlayPeer)> {
    overlays.iter().flat_map(|overlay| overlay.peers.iter().map(move |peer| (overlay, peer)))
}

/// `ringmain overlay macs`: stations, each with the overlay and the peer where it is.
pub fn macs(rows: &[(&MacRow, &OverlayReport, &OverlayPeer)]) -> String {
    let mut table = Table::new(&["OVERLAY", ">VNI", "MAC", "PEER", "ORIGIN", ">IDLE"]);
    for (row, overlay, peer) in rows {
        let (origin, idle) = match row.idle_seconds {
            Some(idle) => ("learned", format!("{idle} s")),
            None if peer.stale => ("stale", String::new()),
            None => (overlay.control.as_str(), String::new()),
        };
        table.row([
            overlay.name.clone(),
            peer.vni.to_string(),
            row.mac.clone(),
            peer.vtep.clone(),
            origin.to_owned(),
            idle,
        ]);
    }
    if table.is_empty() { "no stations\n".to_owned() } else { table.render() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::api::OverlayNetwork;

    fn report() -> OverlayReport {
        OverlayReport {
            name: "net".into(),
            networks: vec![OverlayNetwork { vni: 100, vlan: Some(10) }],
            local: "10.0.0.1".into(),
            port: 4789,
            control: "static".into(),
            learning: true,
            mtu: Some(1450),
            peers: vec![OverlayPeer {
                vtep: "10.0.0.2".into(),
                vni: 100,
                port: "net/100/10.0.0.2".into(),
                flood: true,
                ..OverlayPeer::default()
            }],
            drops: [("unknown_vtep".to_owned(), 3), ("no_vni".to_owned(), 0)].into(),
            ..OverlayReport::default()
        }
    }

    #[test]
    fn an_overlay_says_what_was_lost_and_why() {
        let text = overlays(&[report()]);
        assert!(text.contains("networks   VNI 100 as VLAN 10\n"), "{text}");
        assert!(
            text.contains("mtu        1450\n") && text.ends_with("lost       3 unknown_vtep\n")
        );
        assert!(!text.contains("addresses"), "{text}");
        let evpn = OverlayReport { control: "evpn".into(), neighbours: 7, ..report() };
        let text = overlays(std::slice::from_ref(&evpn));
        assert!(text.contains("\naddresses  7 of guests on other hosts\n"), "{text}");
        let learns = OverlayReport { announced: 3, learned: 2, ..evpn };
        let text = overlays(&[learns]);
        assert!(text.contains(" 7 of guests on other hosts, 3 announced (2 learned)\n"), "{text}");
        assert!(overlays(&[]).starts_with("no overlays"));
    }

    #[test]
    fn stations_are_static_or_learned() {
        let overlay = report();
        let row = |idle_seconds: Option<u32>| MacRow {
            vlan: Some(10),
            mac: "52:54:00:00:00:01".into(),
            port: overlay.peers[0].port.clone(),
            locked: idle_seconds.is_none(),
            idle_seconds,
        };
        let (learned, pinned) = (row(Some(7)), row(None));
        let peer = &overlay.peers[0];
        let text = macs(&[(&learned, &overlay, peer), (&pinned, &overlay, peer)]);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].contains("10.0.0.2") && lines[1].ends_with("7 s"), "{text}");
        assert!(
            lines[2].contains("static") && peers(std::slice::from_ref(&overlay)).contains("yes"),
            "{text}"
        );
    }
}
