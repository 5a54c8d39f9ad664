//! Ethernet addresses.

use std::fmt;
use std::str::FromStr;

/// A 48-bit Ethernet address, in wire order.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// `ff:ff:ff:ff:ff:ff`.
    pub const BROADCAST: Mac = Mac([0xff; 6]);

    /// True for group addresses, broadcast included (IEEE 802-2014, 8.2.2: the I/G bit).
    #[inline]
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// True for the all-ones address only.
    #[inline]
    pub const fn is_broadcast(self) -> bool {
        self.as_u64() == 0xffff_ffff_ffff
    }

    /// True for `01:80:c2:00:00:00` to `0f`, which bridges must not forward (IEEE 802.1Q-2018,
    /// 8.6.3).
    #[inline]
    pub const fn is_link_local(self) -> bool {
        self.as_u64() & !0xf == 0x0180_c200_0000
    }

    /// True for `00:00:00:00:00:00`, which is nobody's address.
    #[inline]
    pub const fn is_zero(self) -> bool {
        self.as_u64() == 0
    }

    /// The address as a number: the first byte on the wire is the most significant of 48 bits.
    #[inline]
    pub const fn as_u64(self) -> u64 {
        let [a, b, c, d, e, f] = self.0;
        u64::from_be_bytes([0, 0, a, b, c, d, e, f])
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Text that is not six two-digit hexadecimal numbers with colons in between.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an Ethernet address such as 52:54:00:00:00:01")]
pub struct ParseMacError(String);

impl FromStr for Mac {
    type Err = ParseMacError;

    fn from_str(text: &str) -> Result<Mac, ParseMacError> {
        parse_octets(text).map(Mac).ok_or_else(|| ParseMacError(text.to_owned()))
    }
}

fn parse_octets(text: &str) -> Option<[u8; 6]> {
    let mut parts = text.split(':');
    let mut octets = [0; 6];
    for octet in &mut octets {
        let part = parts.next()?;
        // from_str_radix alone would take "+1" as well.
        if part.len() != 2 || !part.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        *octet = u8::from_str_radix(part, 16).ok()?;
    }
    parts.next().is_none().then_some(octets)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn mac(text: &str) -> Mac {
        text.parse().unwrap()
    }

    #[test]
    fn kinds_of_addresses() {
        assert!(mac("01:00:5e:00:00:01").is_multicast());
        assert!(!mac("52:54:00:00:00:01").is_multicast());
        assert!(Mac::BROADCAST.is_broadcast() && Mac::BROADCAST.is_multicast());
        assert!(!mac("ff:ff:ff:ff:ff:fe").is_broadcast());
        assert!(mac("01:80:c2:00:00:00").is_link_local());
        assert!(mac("01:80:c2:00:00:0f").is_link_local());
        assert!(!mac("01:80:c2:00:00:10").is_link_local());
        assert!(!mac("01:80:c2:00:01:00").is_link_local());
        assert!(Mac::default().is_zero());
        assert!(!mac("00:00:00:00:00:01").is_zero());
    }

    #[test]
    fn only_plain_addresses_parse() {
        for text in [
            "",
            "52:54:00:00:00",
            "52:54:00:00:00:01:02",
            "52-54-00-00-00-01",
            "5:54:0:0:0:1",
            "+1:54:00:00:00:01",
        ] {
            assert_eq!(text.parse::<Mac>(), Err(ParseMacError(text.into())));
        }
        assert_eq!(mac("AB:cd:00:00:00:0f"), Mac([0xab, 0xcd, 0, 0, 0, 0x0f]));
    }

    proptest! {
        #[test]
        fn text_round_trip(octets: [u8; 6]) {
            prop_assert_eq!(Mac(octets).to_string().parse(), Ok(Mac(octets)));
        }
    }
}
