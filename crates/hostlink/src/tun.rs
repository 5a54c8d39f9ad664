//! The kernel's tun driver: the few ioctls that make and tune a TAP queue (linux/if_tun.h,
//! linux/sockios.h).

use std::fs::OpenOptions;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use frame::{Accepts, Mac};
use libc::{c_int, c_ulong, c_void};

const TUNSETIFF: c_ulong = 0x4004_54ca;
const TUNSETOFFLOAD: c_ulong = 0x4004_54d0;
const TUNGETIFF: c_ulong = 0x8004_54d2;
const TUNSETVNETHDRSZ: c_ulong = 0x4004_54d8;
const TUNSETVNETLE: c_ulong = 0x4004_54dc;

const TUN_F_CSUM: u32 = 1;
const TUN_F_TSO4: u32 = 2;
const TUN_F_TSO6: u32 = 4;
const TUN_F_TSO_ECN: u32 = 8;
const TUN_F_USO4: u32 = 0x20;
const TUN_F_USO6: u32 = 0x40;
const TUN_F_UDP_TUNNEL_GSO: u32 = 0x80;
const TUN_F_UDP_TUNNEL_GSO_CSUM: u32 = 0x100;

/// A name that the kernel takes for an interface: 1 to 15 bytes.
pub type IfName = [u8; libc::IFNAMSIZ];

/// `name` in the kernel's form. `None`: the name is empty, too long, or has a byte that is not
/// allowed.
pub fn if_name(name: &str) -> Option<IfName> {
    let odd = |b: u8| b == b'/' || b == b':' || b <= b' ' || b == 0x7f || b == b'%';
    if name.is_empty()
        || name.len() >= libc::IFNAMSIZ
        || name.bytes().any(odd)
        || name == "."
        || name == ".."
    {
        return None;
    }
    let mut bytes = [0; libc::IFNAMSIZ];
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    Some(bytes)
}

/// `struct ifreq`, as far as it is used here.
#[repr(C)]
struct IfReq {
    name: IfName,
    value: IfValue,
}

#[repr(C)]
union IfValue {
    flags: i16,
    mtu: c_int,
    index: c_int,
    channels: *mut [u32; 9],
    all: [u8; 24],
}

/// One ioctl whose argument is a pointer.
fn ioctl<T>(fd: &OwnedFd, request: c_ulong, arg: &mut T) -> io::Result<()> {
    // SAFETY: the descriptor is open. Every request of this module reads and writes at most the
    // type that its caller passes: `IfReq` (40 bytes, as the kernel's) or a c_int. SIOCETHTOOL
    // follows the pointer in its request; the array there is long enough and outlives the call.
    let done =
        unsafe { libc::ioctl(fd.as_raw_fd(), request, std::ptr::from_mut(arg).cast::<c_void>()) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Opens one more queue of the TAP device `name`, which is created if it does not exist. Frames
/// carry a little-endian virtio-net header of 12 bytes. Non-blocking.
pub fn open_queue(name: IfName) -> io::Result<OwnedFd> {
    open_queue_with(name, frame::VNET_LEN)
}

/// The same, with a header of `header_len` bytes.
pub fn open_queue_with(name: IfName, header_len: usize) -> io::Result<OwnedFd> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open("/dev/net/tun");
    let fd = OwnedFd::from(file?);
    let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR | libc::IFF_MULTI_QUEUE;
    let mut request = IfReq { name, value: IfValue { all: [0; 24] } };
    request.value.flags = flags as i16;
    ioctl(&fd, TUNSETIFF, &mut request)?;
    ioctl(&fd, TUNSETVNETHDRSZ, &mut (header_len as c_int))?;
    ioctl(&fd, TUNSETVNETLE, &mut 1)?;
    Ok(fd)
}

/// The device that a queue belongs to.
pub fn device_of(queue: &OwnedFd) -> io::Result<IfName> {
    let mut request = IfReq { name: [0; libc::IFNAMSIZ], value: IfValue { all: [0; 24] } };
    ioctl(queue, TUNGETIFF, &mut request)?;
    Ok(request.name)
}

/// Enables all offloads that the kernel knows: it may send frames with unfinished checksums, and
/// unsegmented ones. Returns the offloads that it may use, and accepts itself.
pub fn set_offloads(fd: &OwnedFd) -> io::Result<Accepts> {
    let tcp = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN;
    let tso = Accepts { csum: true, tso4: true, tso6: true, ecn: true, uso4: false, uso6: false };
    if set_offload(fd, tcp | TUN_F_USO4 | TUN_F_USO6).is_ok() {
        return Ok(Accepts::ALL);
    }
    // Kernels before 6.2 know no segmentation of UDP.
    set_offload(fd, tcp).map(|()| tso)
}

/// Enables unfinished checksums, UDP segmentation, and segmentation of TCP in UDP tunnels. Frames
/// must carry the header of [`frame::vnet::tunnel`]. Kernels before 6.17 refuse this.
pub fn set_tunnel_offloads(fd: &OwnedFd) -> io::Result<()> {
    let tcp = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN;
    let tunnel = TUN_F_UDP_TUNNEL_GSO | TUN_F_UDP_TUNNEL_GSO_CSUM;
    set_offload(fd, tcp | TUN_F_USO4 | TUN_F_USO6 | tunnel)
}

/// Enables the offloads that a Xen ring can express: blank checksums, and segmentation of TCP
/// without ECN.
pub fn set_plain_offloads(fd: &OwnedFd) -> io::Result<()> {
    set_offload(fd, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6)
}

fn set_offload(fd: &OwnedFd, flags: u32) -> io::Result<()> {
    // SAFETY: the request takes its argument by value, and touches no memory of ours.
    let done = unsafe { libc::ioctl(fd.as_raw_fd(), TUNSETOFFLOAD, c_ulong::from(flags)) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Whether the error means that the device was deleted.
pub fn is_gone(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EBADFD)
}

/// Whether an interface of this name exists.
pub fn exists(name: IfName) -> io::Result<bool> {
    match interface(name, libc::SIOCGIFFLAGS, IfValue { all: [0; 24] }) {
        Ok(_) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether the interface is up.
pub fn is_up(name: IfName) -> io::Result<bool> {
    let value = interface(name, libc::SIOCGIFFLAGS, IfValue { all: [0; 24] })?;
    // SAFETY: SIOCGIFFLAGS has just filled in this field of the union; all of it was initialised
    // before.
    let flags = unsafe { value.flags };
    Ok(flags & libc::IFF_UP as i16 != 0)
}

/// Sets the interface up.
pub fn set_up(name: IfName) -> io::Result<()> {
    let mut value = interface(name, libc::SIOCGIFFLAGS, IfValue { all: [0; 24] })?;
    // SAFETY: SIOCGIFFLAGS has just filled in this field of the union; all of it was initialised
    // before.
    let flags = unsafe { value.flags };
    value.flags = flags | libc::IFF_UP as i16;
    interface(name, libc::SIOCSIFFLAGS, value).map(drop)
}

/// Sets the interface's MTU, in bytes.
pub fn set_mtu(name: IfName, mtu: u16) -> io::Result<()> {
    let mut value = IfValue { all: [0; 24] };
    value.mtu = mtu.into();
    interface(name, libc::SIOCSIFMTU, value).map(drop)
}

/// Sets the interface's address.
pub fn set_mac(name: IfName, mac: Mac) -> io::Result<()> {
    let mut all = [0; 24];
    all[..2].copy_from_slice(&libc::ARPHRD_ETHER.to_ne_bytes());
    all[2..8].copy_from_slice(&mac.0);
    interface(name, libc::SIOCSIFHWADDR, IfValue { all }).map(drop)
}

/// Sets the interface's IPv4 address; its network has `bits` bits.
pub fn set_address(name: IfName, address: Ipv4Addr, bits: u8) -> io::Result<()> {
    let mask = u32::MAX.checked_shl(32 - u32::from(bits.min(32))).unwrap_or(0);
    let values = [(libc::SIOCSIFADDR, address), (libc::SIOCSIFNETMASK, Ipv4Addr::from_bits(mask))];
    for (what, value) in values {
        // `struct sockaddr_in`: family, port, address.
        let mut all = [0; 24];
        all[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
        all[4..8].copy_from_slice(&value.octets());
        interface(name, what, IfValue { all })?;
    }
    Ok(())
}

/// The interface's number.
pub fn index(name: IfName) -> io::Result<u32> {
    let value = interface(name, libc::SIOCGIFINDEX, IfValue { all: [0; 24] })?;
    // SAFETY: SIOCGIFINDEX has just filled in this field of the union; all of it was initialised
    // before.
    Ok(unsafe { value.index } as u32)
}

/// The interface's address.
pub fn mac(name: IfName) -> io::Result<Mac> {
    let value = interface(name, libc::SIOCGIFHWADDR, IfValue { all: [0; 24] })?;
    // SAFETY: any bytes make an array of bytes.
    let [_, _, mac @ .., _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _] = unsafe { value.all };
    Ok(Mac(mac))
}

/// How many receive queues the interface has (linux/ethtool.h).
pub fn receive_queues(name: IfName) -> io::Result<u32> {
    const SIOCETHTOOL: c_ulong = 0x8946;
    const ETHTOOL_GCHANNELS: u32 = 0x3c;
    // `struct ethtool_channels`: the command, the most there can be of four kinds, and how many of
    // each there are: for receiving, for sending, for other things, and for both.
    let mut channels = [0u32; 9];
    channels[0] = ETHTOOL_GCHANNELS;
    interface(name, SIOCETHTOOL, IfValue { channels: &raw mut channels })?;
    let [.., receiving, _, _, both] = channels;
    Ok(receiving.saturating_add(both))
}

/// Moves the calling thread into new namespaces.
pub fn unshare(namespaces: c_int) -> io::Result<()> {
    // SAFETY: the call takes a number and touches no memory. All callers name namespaces only, not
    // memory or descriptor tables, which threads share.
    let done = unsafe { libc::unshare(namespaces) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn interface(name: IfName, what: c_ulong, value: IfValue) -> io::Result<IfValue> {
    let socket = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        None,
    )?;
    let mut request = IfReq { name, value };
    ioctl(&socket, what, &mut request)?;
    Ok(request.value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_names_are_checked() {
        for good in ["rm0", "a", "fifteen-letters"] {
            assert!(if_name(good).is_some(), "{good}");
        }
        for bad in ["", "sixteen-letters-", "a/b", "a b", "..", "tap%d", "a:1"] {
            assert!(if_name(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn ifreq_is_as_long_as_the_kernels() {
        assert_eq!(size_of::<IfReq>(), size_of::<libc::ifreq>());
    }
}
