use super::*;

fn message(kind: u16, body: &[u8]) -> Vec<u8> {
    let mut bytes = super::message(kind, 0, body);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn neighbour(interface: u32, state: u16, attributes: &[Vec<u8>]) -> Vec<u8> {
    let mut body = vec![libc::AF_BRIDGE as u8, 0, 0, 0];
    body.extend(interface.to_ne_bytes());
    body.extend(state.to_ne_bytes());
    body.extend([0, 0]);
    body.extend(attributes.concat());
    body
}

const MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);

fn rows(messages: &[u8]) -> Vec<(Row, bool)> {
    let mut rows = Vec::new();
    read(messages, &mut |row, present| rows.push((row, present))).unwrap();
    rows
}

#[test]
fn rows_of_bridges_and_of_vxlan_devices_are_told_apart() {
    let lladdr = encoded(NDA_LLADDR, &MAC.0);
    let master = encoded(NDA_MASTER, &7u32.to_ne_bytes());
    let zero = encoded(NDA_LLADDR, &[0; 6]);
    let [v4, v6] = ["10.9.0.3", "fd09::3"].map(|text| text.parse::<IpAddr>().unwrap());
    let IpAddr::V6(bytes) = v6 else { unreachable!() };
    let messages = [
        message(28, &neighbour(3, NUD_NOARP, &[lladdr.clone(), master.clone()])),
        message(28, &neighbour(3, NUD_NOARP, &[lladdr.clone(), encoded(NDA_DST, &[10, 9, 0, 3])])),
        message(29, &neighbour(3, NUD_PERMANENT, &[zero, encoded(NDA_DST, &bytes.octets())])),
        // The bridge's own address, and a message that is no row of a bridge.
        message(28, &neighbour(4, NUD_PERMANENT, &[lladdr.clone(), master])),
        message(28, &neighbour(4, NUD_NOARP, &[lladdr])),
        message(16, &[0; 16]),
    ];
    let expected = [
        (Row::Bridge { bridge: 7, port: 3, mac: MAC, sticky: false }, true),
        (Row::Tunnel { device: 3, mac: MAC, vtep: v4 }, true),
        (Row::Tunnel { device: 3, mac: Mac([0; 6]), vtep: v6 }, false),
    ];
    assert_eq!(rows(&messages.concat()), expected);
}

#[test]
fn addresses_of_the_control_plane_and_of_this_host_are_told_apart() {
    let message_of = |kind, family: i32, flags, attributes: &[Vec<u8>]| {
        let mut body = neighbour(3, NUD_NOARP, attributes);
        (body[0], body[10]) = (family as u8, flags);
        message(kind, &body)
    };
    let lladdr = encoded(NDA_LLADDR, &MAC.0);
    let [v4, v6] = ["10.9.0.3", "fd09::3"].map(|text| text.parse::<IpAddr>().unwrap());
    let IpAddr::V6(bytes) = v6 else { unreachable!() };
    let [v4_dst, v6_dst] = [encoded(NDA_DST, &[10, 9, 0, 3]), encoded(NDA_DST, &bytes.octets())];
    let learned = NTF_EXT_LEARNED;
    let messages = [
        message_of(28, libc::AF_INET, learned, &[v4_dst.clone(), lladdr.clone()]),
        message_of(28, libc::AF_INET6, learned | NTF_ROUTER, &[v6_dst, lladdr.clone()]),
        // The station of a removed row may be gone before the row.
        message_of(29, libc::AF_INET, learned, std::slice::from_ref(&v4_dst)),
        message_of(28, libc::AF_INET, 0, &[v4_dst, lladdr.clone()]),
        // A row of a multicast group, and one without an address.
        message_of(28, libc::AF_INET, 0, &[encoded(NDA_DST, &[224, 0, 0, 22]), lladdr.clone()]),
        message_of(28, libc::AF_INET, learned, &[lladdr]),
    ];
    let row = |address, owner, learned| Row::Neighbour { device: 3, address, owner, learned };
    let host = Owner::host(MAC);
    let expected = [
        (row(v4, host, true), true),
        (row(v6, Owner { is_router: true, ..host }, true), true),
        (row(v4, Owner::host(Mac([0; 6])), true), false),
        (row(v4, host, false), true),
    ];
    assert_eq!(rows(&messages.concat()), expected);
}

#[test]
fn messages_that_are_cut_off_are_no_rows() {
    let lladdr = encoded(NDA_LLADDR, &MAC.0);
    let body = neighbour(3, NUD_NOARP, &[lladdr, encoded(NDA_MASTER, &7u32.to_ne_bytes())]);
    let whole = message(28, &body);
    for len in 0..whole.len() {
        assert_eq!(rows(&whole[..len]), []);
    }
    // The length in the header is too short for the header, or for the body.
    for len in 0..whole.len() as u32 {
        let mut wrong = whole.clone();
        wrong[..4].copy_from_slice(&len.to_ne_bytes());
        let _ = read(&wrong, &mut |_, _| ());
    }
}

#[test]
fn errors_and_the_end_of_a_dump_are_seen() {
    assert!(read(&message(3, &[0; 4]), &mut |_, _| ()).unwrap());
    let refused = message(2, &(-libc::EPERM).to_ne_bytes());
    let error = read(&refused, &mut |_, _| ()).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EPERM));
}
