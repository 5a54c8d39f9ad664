//! Prefixes of IP addresses: a network, or a single address.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// The addresses that share their first bits. All other bits of `address` are zero.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Prefix {
    address: IpAddr,
    len: u8,
}

/// Why a text is no prefix.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadPrefix {
    /// The text is no address.
    #[error("not an IP address or prefix")]
    Syntax,
    /// An address has fewer bits than that.
    #[error("a prefix of more than {0} bits")]
    Length(u8),
    /// Bits beyond the prefix are set: the text may mean the address or the network.
    #[error("either an address or a network ({0} or {1})")]
    Ambiguous(IpAddr, Prefix),
    /// No station has such an address.
    #[error("not an address that a station can have")]
    Multicast,
}

impl Prefix {
    /// The first `len` bits of `address`.
    ///
    /// # Errors
    /// When it is longer than the address, or has no address of a station.
    pub fn new(address: IpAddr, len: u8) -> Result<Prefix, BadPrefix> {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        if len > bits {
            return Err(BadPrefix::Length(bits));
        }
        let network = match address {
            IpAddr::V4(address) => {
                let mask = u32::MAX.checked_shl(u32::from(32 - len)).unwrap_or(0);
                IpAddr::from(Ipv4Addr::from_bits(address.to_bits() & mask))
            }
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shl(u32::from(128 - len)).unwrap_or(0);
                IpAddr::from(Ipv6Addr::from_bits(address.to_bits() & mask))
            }
        };
        if network.is_multicast() || address == IpAddr::V4(Ipv4Addr::BROADCAST) {
            return Err(BadPrefix::Multicast);
        }
        let prefix = Prefix { address: network, len };
        if network == address { Ok(prefix) } else { Err(BadPrefix::Ambiguous(address, prefix)) }
    }

    /// The first of its addresses.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// How many bits its addresses share.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u8 {
        self.len
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.address, self.len) {
            (IpAddr::V4(address), 32) => address.fmt(f),
            (IpAddr::V6(address), 128) => address.fmt(f),
            (address, len) => write!(f, "{address}/{len}"),
        }
    }
}

impl FromStr for Prefix {
    type Err = BadPrefix;

    fn from_str(text: &str) -> Result<Prefix, BadPrefix> {
        let (address, len) = match text.split_once('/') {
            Some((address, len)) => (address, Some(len)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| BadPrefix::Syntax)?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let len = match len {
            None => bits,
            Some(len) if is_number(len) => len.parse().map_err(|_| BadPrefix::Length(bits))?,
            Some(_) => return Err(BadPrefix::Syntax),
        };
        Prefix::new(address, len)
    }
}

/// One to three digits, without a sign or a blank.
fn is_number(text: &str) -> bool {
    (1..=3).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_written_as_usual() {
        for text in ["10.0.0.5", "10.0.0.0/24", "0.0.0.0/0", "2001:db8::/64", "::1", "fe80::/10"] {
            assert_eq!(text.parse::<Prefix>().unwrap().to_string(), text);
        }
        assert_eq!("10.0.0.5/32".parse::<Prefix>().unwrap().to_string(), "10.0.0.5");
        assert_eq!("::1/128".parse::<Prefix>().unwrap().to_string(), "::1");
    }

    #[test]
    fn what_is_no_prefix_is_refused_under_a_name() {
        let refused = |text: &str| text.parse::<Prefix>().unwrap_err();
        for text in
            ["", "x", "10.0.0", "10.0.0.0/", "10.0.0.0/+8", "10.0.0.0/ 8", "::/0x8", "1/2/3"]
        {
            assert_eq!(refused(text), BadPrefix::Syntax, "{text}");
        }
        assert_eq!(refused("10.0.0.0/33"), BadPrefix::Length(32));
        assert_eq!(refused("10.0.0.0/999"), BadPrefix::Length(32));
        assert_eq!(refused("::/129"), BadPrefix::Length(128));
        for text in ["224.0.0.1", "ff02::/16", "255.255.255.255"] {
            assert_eq!(refused(text), BadPrefix::Multicast, "{text}");
        }
        assert_eq!(
            refused("10.0.0.5/24").to_string(),
            "either an address or a network (10.0.0.5 or 10.0.0.0/24)"
        );
    }
}
