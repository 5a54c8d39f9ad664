//! The kernel's routing socket (rtnetlink), for requests without an ioctl: the kind of an
//! interface, who may open its queues, the longest frame that the kernel leaves to others to
//! segment, addresses and routes (linux/rtnetlink.h, linux/if_link.h).

use std::io;
use std::net::IpAddr;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, recv, send, socket};

use crate::tun::{self, IfName};

/// `struct nlmsghdr`, in bytes.
pub(crate) const HEADER: usize = 16;
/// `struct ifinfomsg`, in bytes.
pub(crate) const LINK_HEADER: usize = 16;
/// Longer than the kernel's description of an interface without its virtual functions, in bytes.
const LONGEST_REPLY: usize = 32 << 10;

const IFLA_LINKINFO: u16 = 18;
const IFLA_AF_SPEC: u16 = 26;
const IFLA_GSO_MAX_SIZE: u16 = 41;
const IFLA_INET6_ADDR_GEN_MODE: u16 = 8;
/// The link gets no address of its own.
const NO_ADDRESS: u8 = 1;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_TUN_OWNER: u16 = 1;
const IFLA_TUN_GROUP: u16 = 2;
const IFLA_TUN_TYPE: u16 = 3;
const IFLA_TUN_MULTI_QUEUE: u16 = 7;
/// The flag of attributes that consist of others.
pub(crate) const NESTED: u16 = 0x8000;
/// The type of an attribute without its flags.
const TYPE_MASK: u16 = 0x3fff;

/// The kind of an interface, as far as TAP ports distinguish kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkKind {
    /// A TAP device that can have several queues, and who may open them.
    MultiQueueTap(TapAccess),
    /// Something else.
    Other,
}

/// The users that may open queues of a TAP device without `CAP_NET_ADMIN`: processes that match
/// both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TapAccess {
    /// The number of the user. `None`: any user.
    pub user: Option<u32>,
    /// The number of the group. `None`: any group.
    pub group: Option<u32>,
}

impl TapAccess {
    /// Whether a process of this user and group may open queues.
    pub fn allows(self, user: u32, group: u32) -> bool {
        self.user.is_none_or(|own| own == user) && self.group.is_none_or(|own| own == group)
    }
}

/// The kind of the interface `name` in the network namespace of the calling thread. `None`: there
/// is no such interface.
///
/// # Errors
/// When the kernel refuses to say.
pub fn link_kind(name: &str) -> io::Result<Option<LinkKind>> {
    let Some(name) = tun::if_name(name) else { return Ok(None) };
    let index = match tun::index(name) {
        Ok(index) => index,
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return Ok(None),
        Err(error) => return Err(error),
    };
    let reply = request(libc::RTM_GETLINK, libc::NLM_F_REQUEST, &link_header(index))?;
    Ok(Some(kind(reply.get(LINK_HEADER..).unwrap_or_default())))
}

/// Sets the length of the longest frame that the kernel leaves to others to segment, in bytes.
pub(crate) fn set_longest(name: IfName, bytes: u32) -> io::Result<()> {
    let attribute =
        [&8u16.to_ne_bytes()[..], &IFLA_GSO_MAX_SIZE.to_ne_bytes(), &bytes.to_ne_bytes()].concat();
    let body = [link_header(tun::index(name)?).to_vec(), attribute].concat();
    request(libc::RTM_NEWLINK, libc::NLM_F_REQUEST | libc::NLM_F_ACK, &body).map(drop)
}

/// `struct ifinfomsg`: family and type, index, flags, and which of them to change.
pub(crate) fn link_header(index: u32) -> [u8; LINK_HEADER] {
    let mut header = [0; LINK_HEADER];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header
}

/// One message to the kernel.
pub(crate) fn message(kind: u16, flags: i32, body: &[u8]) -> Vec<u8> {
    let header = [
        &((HEADER + body.len()) as u32).to_ne_bytes()[..],
        &kind.to_ne_bytes(),
        &(flags as u16).to_ne_bytes(),
        // Sequence number and port: one message is under way at a time, on a socket of its own.
        &[0; 8],
    ];
    [&header.concat(), body].concat()
}

/// Sends one message, and returns the body of the kernel's answer, which is empty for an
/// acknowledgement.
pub(crate) fn request(kind: u16, flags: i32, body: &[u8]) -> io::Result<Vec<u8>> {
    let socket = socket(AddressFamily::NETLINK, SocketType::RAW, None)?;
    send(&socket, &message(kind, flags, body), SendFlags::empty())?;
    let mut reply = vec![0; LONGEST_REPLY];
    let (got, _) = recv(&socket, &mut reply[..], RecvFlags::empty())?;
    reply.truncate(got);
    let short = || io::Error::other("the kernel's answer is too short");
    if reply.len() < HEADER {
        return Err(short());
    }
    let body = reply.split_off(HEADER);
    if u16::from_ne_bytes([reply[4], reply[5]]) != libc::NLMSG_ERROR as u16 {
        return Ok(body);
    }
    // `struct nlmsgerr`: 0, or an error below that.
    match body.first_chunk().map(|error| i32::from_ne_bytes(*error)) {
        Some(0) => Ok(Vec::new()),
        Some(error) => Err(io::Error::from_raw_os_error(error.saturating_neg())),
        None => Err(short()),
    }
}

/// The kind of the interface that has these attributes.
fn kind(attributes: &[u8]) -> LinkKind {
    let info = attribute(attributes, IFLA_LINKINFO).unwrap_or_default();
    let driver = attribute(info, IFLA_INFO_KIND).unwrap_or_default();
    let data = attribute(info, IFLA_INFO_DATA).unwrap_or_default();
    let byte = |wanted| attribute(data, wanted).and_then(|value| value.first().copied());
    let tap = driver.strip_suffix(&[0]).unwrap_or(driver) == b"tun"
        && byte(IFLA_TUN_TYPE) == Some(libc::IFF_TAP as u8);
    let number = |wanted| {
        let value = attribute(data, wanted)?;
        value.first_chunk().map(|number| u32::from_ne_bytes(*number))
    };
    match byte(IFLA_TUN_MULTI_QUEUE) {
        Some(1..) if tap => LinkKind::MultiQueueTap(TapAccess {
            user: number(IFLA_TUN_OWNER),
            group: number(IFLA_TUN_GROUP),
        }),
        _ => LinkKind::Other,
    }
}

/// Changes an interface.
pub(crate) fn change(index: u32, attributes: &[u8]) -> io::Result<()> {
    let body = [&link_header(index)[..], attributes].concat();
    request(libc::RTM_NEWLINK, libc::NLM_F_REQUEST | libc::NLM_F_ACK, &body).map(drop)
}

/// Sets the interface up, without ARP: this host answers nothing there.
pub(crate) fn set_up(index: u32) -> io::Result<()> {
    let flags = (libc::IFF_UP | libc::IFF_NOARP) as u32;
    let mut header = link_header(index);
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..16].copy_from_slice(&flags.to_ne_bytes());
    request(libc::RTM_NEWLINK, libc::NLM_F_REQUEST | libc::NLM_F_ACK, &header).map(drop)
}

/// Disables IPv6 addresses, and the frames that the kernel sends because of them. FRR would
/// announce an interface by these frames.
pub(crate) fn without_addresses(index: u32) -> io::Result<()> {
    let mode = encoded(IFLA_INET6_ADDR_GEN_MODE, &[NO_ADDRESS]);
    let family = encoded(libc::AF_INET6 as u16 | NESTED, &mode);
    unless_unsupported(change(index, &encoded(IFLA_AF_SPEC | NESTED, &family)))
}

/// The family of an address, and its bytes in network order.
pub(crate) fn octets(address: IpAddr) -> (u8, Vec<u8>) {
    match address {
        IpAddr::V4(v4) => (libc::AF_INET as u8, v4.octets().to_vec()),
        IpAddr::V6(v6) => (libc::AF_INET6 as u8, v6.octets().to_vec()),
    }
}

/// Routes the packets for `address` to an interface. An existing route to that address is replaced.
pub(crate) fn route(address: IpAddr, index: u32) -> io::Result<()> {
    let (family, bytes) = octets(address);
    // `struct rtmsg`: family, bits of the destination and of the source, type of service, table,
    // who made the route, scope, type, and flags.
    let mut body = vec![
        family,
        (bytes.len() * 8) as u8,
        0,
        0,
        libc::RT_TABLE_MAIN,
        libc::RTPROT_STATIC,
        libc::RT_SCOPE_LINK,
        libc::RTN_UNICAST,
    ];
    body.extend([0; 4]);
    body.extend(encoded(libc::RTA_DST, &bytes));
    body.extend(encoded(libc::RTA_OIF, &index.to_ne_bytes()));
    let flags = libc::NLM_F_REQUEST | libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_REPLACE;
    request(libc::RTM_NEWROUTE, flags, &body).map(drop)
}

/// What belongs to an address family that the kernel lacks, like IPv6, need not be done.
pub(crate) fn unless_unsupported(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(error) if error.raw_os_error() == Some(libc::EAFNOSUPPORT) => Ok(()),
        done => done,
    }
}

/// The value of the first attribute of that type.
pub(crate) fn attribute(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    while let Some(&[a, b, c, d]) = attributes.first_chunk() {
        let len = usize::from(u16::from_ne_bytes([a, b]));
        let value = attributes.get(4..len)?;
        if u16::from_ne_bytes([c, d]) & TYPE_MASK == wanted {
            return Some(value);
        }
        attributes = attributes.get(len.next_multiple_of(4)..)?;
    }
    None
}

/// An attribute with padding behind it.
pub(crate) fn encoded(kind: u16, value: &[u8]) -> Vec<u8> {
    let len = 4 + value.len() as u16;
    let mut bytes = [&len.to_ne_bytes()[..], &kind.to_ne_bytes(), value].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(driver: &[u8], data: &[(u16, u8)]) -> Vec<u8> {
        let data: Vec<u8> =
            data.iter().flat_map(|(kind, value)| encoded(*kind, &[*value])).collect();
        link_with(driver, &data)
    }

    /// The attributes of an interface with `data` from its driver.
    fn link_with(driver: &[u8], data: &[u8]) -> Vec<u8> {
        let info =
            [encoded(IFLA_INFO_KIND, driver), encoded(IFLA_INFO_DATA | 0x8000, data)].concat();
        [encoded(3, b"rm0\0"), encoded(IFLA_LINKINFO, &info)].concat()
    }

    #[test]
    fn a_tap_of_several_queues_is_recognised() {
        let tap = (IFLA_TUN_TYPE, libc::IFF_TAP as u8);
        let tun = (IFLA_TUN_TYPE, libc::IFF_TUN as u8);
        let [one, many] = [0, 1].map(|value| (IFLA_TUN_MULTI_QUEUE, value));
        let to_all = LinkKind::MultiQueueTap(TapAccess::default());
        assert_eq!(kind(&link(b"tun\0", &[tap, many])), to_all);
        assert_eq!(kind(&link(b"tun\0", &[tap, one])), LinkKind::Other);
        assert_eq!(kind(&link(b"tun\0", &[tun, many])), LinkKind::Other);
        assert_eq!(kind(&link(b"veth\0", &[tap, many])), LinkKind::Other);
        assert_eq!(kind(&link(b"tun\0", &[])), LinkKind::Other);
        assert_eq!(kind(&[]), LinkKind::Other);
    }

    #[test]
    fn a_tap_has_a_user_and_a_group() {
        let data = [
            encoded(IFLA_TUN_TYPE, &[libc::IFF_TAP as u8]),
            encoded(IFLA_TUN_OWNER, &1000u32.to_ne_bytes()),
            encoded(IFLA_TUN_GROUP, &2000u32.to_ne_bytes()),
            encoded(IFLA_TUN_MULTI_QUEUE, &[1]),
        ];
        let access = TapAccess { user: Some(1000), group: Some(2000) };
        assert_eq!(kind(&link_with(b"tun\0", &data.concat())), LinkKind::MultiQueueTap(access));
        assert!(access.allows(1000, 2000));
        assert!(!access.allows(1000, 0) && !access.allows(0, 2000));
        assert!(TapAccess { user: None, group: Some(2000) }.allows(0, 2000));
        assert!(TapAccess::default().allows(0, 0));
    }

    #[test]
    fn attributes_that_are_cut_off_are_no_attributes() {
        let whole = link(b"tun\0", &[(IFLA_TUN_TYPE, 2), (IFLA_TUN_MULTI_QUEUE, 1)]);
        for len in 0..whole.len() {
            let _ = kind(&whole[..len]);
        }
        assert_eq!(attribute(&[0, 0, 1, 0, 9], 1), None);
        assert_eq!(attribute(&[3, 0, 1, 0], 1), None);
    }

    #[test]
    fn the_loopback_interface_is_no_tap() {
        assert_eq!(link_kind("lo").unwrap(), Some(LinkKind::Other));
        assert_eq!(link_kind("rm-nowhere").unwrap(), None);
        assert_eq!(link_kind("a name that is too long").unwrap(), None);
    }
}
