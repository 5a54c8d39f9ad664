//! The claims of a frame, and whether a port may make them.

use std::net::{Ipv4Addr, Ipv6Addr};

use frame::claim::Message;
use frame::{Claim, HEAD_LEN, Head, claim, parse};
use switch::SourceGuard;

use crate::input::Input;

/// Takes `data` for a list of addresses and a frame.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let [a, b] = input.u16().to_be_bytes();
    let [c, d] = input.u16().to_be_bytes();
    let list = format!("{} fd00::{a:x}:{b:x} 10.0.0.0/8", Ipv4Addr::from([a, b, c, d]));
    // Groups are refused.
    let list = list.split(' ').filter_map(|prefix| prefix.parse().ok()).collect();
    let guard = SourceGuard::new(list);
    let head = Head::from_frame(input.take(HEAD_LEN));
    let head = head.as_slice();
    let Some(headers) = parse(head) else { return };
    let claimed = claim(head, &headers);
    let judged = guard.check(head, &headers);
    match claimed {
        Err(_) | Ok(Claim::Other) => assert!(judged.is_err()),
        Ok(Claim::V4 { source, message, .. }) if judged.is_ok() => {
            let own = [Ipv4Addr::from([a, b, c, d]), Ipv4Addr::UNSPECIFIED];
            assert!(own.contains(&source) || source.octets()[0] == 10, "{source}");
            assert!(!matches!(message, Message::Udp { source: 67, .. }));
        }
        Ok(Claim::V6 { source, .. }) if judged.is_ok() => {
            let start = source.segments()[0];
            assert!(matches!(start, 0xfd00 | 0xfe80) || source == Ipv6Addr::UNSPECIFIED);
        }
        Ok(Claim::Arp(arp)) if judged.is_ok() => assert_eq!(arp.sender, headers.src),
        Ok(_) => {}
    }
}
