//! What comes from an underlay, taken for a frame of a virtual network.

use frame::vnet::tunnel::{self, Outstanding};
use frame::vxlan::{self, BadVxlan, VXLAN_LEN};

use crate::input::Input;

/// Takes `data` for the first bytes of an outer frame, and for a UDP payload.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let more = usize::from(input.u16());
    let head = input.take(200);
    let len = head.len() + more;
    match vxlan::decapsulate(head, len, vxlan::PORT) {
        Ok(found) => {
            assert!(found.inner_len >= 14 && found.inner_at + found.inner_len <= len, "{found:?}");
            let payload = &head[found.inner_at - VXLAN_LEN..];
            assert_eq!(vxlan::read_header(payload, found.inner_len + VXLAN_LEN), Ok(found.vni));
            let (udp_at, inner_at) = (found.inner_at - 16, found.inner_at);
            let offloads = head
                .first_chunk()
                .map(|header| tunnel::decode(header, udp_at as u16, inner_at as u16));
            assert!(offloads != Some(Some(Outstanding::Datagrams(0))));
        }
        Err(BadVxlan::Short) if head.len() < 14 => {}
        Err(_) => assert!(head.len() >= 14),
    }
    if vxlan::read_header(head, len).is_ok() {
        assert!(head.len() >= VXLAN_LEN && len >= VXLAN_LEN + 14);
    }
}
