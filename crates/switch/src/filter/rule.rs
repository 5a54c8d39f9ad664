//! One rule of a security group, and its text form.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use frame::{BadPrefix, Prefix};

use super::tuple::{ICMP, ICMPV6, SCTP, TCP, UDP};

/// Most ranges of ports in a rule.
pub const MAX_RANGES: usize = 16;

/// The direction in which a connection is opened, as the guest sees it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Direction {
    /// Towards the guest.
    In,
    /// From the guest.
    Out,
}

impl Direction {
    /// The other direction.
    #[must_use]
    pub fn reversed(self) -> Direction {
        match self {
            Direction::In => Direction::Out,
            Direction::Out => Direction::In,
        }
    }

    /// The word that precedes the remote station.
    fn preposition(self) -> &'static str {
        match self {
            Direction::In => "from",
            Direction::Out => "to",
        }
    }
}

/// The protocols that a rule is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    /// All of IP.
    Any,
    /// ICMP for IPv4, and ICMPv6.
    Icmp,
    /// The protocol with this number.
    Number(u8),
}

/// The stations that a rule is for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Remote {
    /// All.
    Any,
    /// Those with an address in this prefix.
    Prefix(Prefix),
    /// Those in the address group of this name.
    Group(String),
}

/// A rule: connections that a guest may open or accept. `in tcp 22,8000-8080 from 10.0.0.0/8`,
/// `in udp 53 from group resolvers`, `out any`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule {
    /// Who opens the connection.
    pub direction: Direction,
    /// Its protocol.
    pub protocol: Protocol,
    /// The destination ports; empty: all.
    pub ports: Vec<RangeInclusive<u16>>,
    /// The station at the other end.
    pub remote: Remote,
}

/// Why a text is no rule.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadRule {
    /// The text ends before the rule does.
    #[error("a word is missing behind it")]
    Short,
    /// The rule ends before the text does.
    #[error("{0:?} is one word too many")]
    Long(String),
    /// The first word.
    #[error("{0:?} is no direction; write in or out")]
    Direction(String),
    /// The second word.
    #[error("{0:?} is no protocol; write any, tcp, udp, sctp, icmp, or a number of 0 to 255")]
    Protocol(String),
    /// Ports.
    #[error("{0:?} is no list of ports; write numbers and ranges, like 22,8000-8080")]
    Ports(String),
    /// Too many ranges of ports.
    #[error("there are more than {MAX_RANGES} ranges of ports")]
    TooManyRanges,
    /// Ports of a protocol that has none.
    #[error("only tcp, udp and sctp have ports")]
    NoPorts,
    /// The word between protocol and remote station.
    #[error("{0:?} should be {1:?}")]
    Preposition(String, &'static str),
    /// The remote station.
    #[error("{0:?}: {1}; write any, an address, a network, or group NAME")]
    Remote(String, BadPrefix),
}

impl FromStr for Rule {
    type Err = BadRule;

    fn from_str(text: &str) -> Result<Rule, BadRule> {
        let mut words = text.split_ascii_whitespace().peekable();
        let direction = match words.next().ok_or(BadRule::Short)? {
            "in" => Direction::In,
            "out" => Direction::Out,
            other => return Err(BadRule::Direction(other.to_owned())),
        };
        let protocol: Protocol = words.next().ok_or(BadRule::Short)?.parse()?;
        let ports = match words.next_if(|word| word.starts_with(|c: char| c.is_ascii_digit())) {
            Some(_) if !protocol.has_ports() => return Err(BadRule::NoPorts),
            Some(word) => ports(word)?,
            None => Vec::new(),
        };
        let remote = match words.next() {
            None => Remote::Any,
            Some(word) if word == direction.preposition() => remote(&mut words)?,
            Some(word) => {
                return Err(BadRule::Preposition(word.to_owned(), direction.preposition()));
            }
        };
        match words.next() {
            None => Ok(Rule { direction, protocol, ports, remote }),
            Some(word) => Err(BadRule::Long(word.to_owned())),
        }
    }
}

impl Protocol {
    /// Whether packets have ports.
    fn has_ports(self) -> bool {
        matches!(self, Protocol::Number(TCP | UDP | SCTP))
    }

    /// Whether a packet of the protocol with this number is meant.
    pub fn includes(self, number: u8) -> bool {
        match self {
            Protocol::Any => true,
            Protocol::Icmp => matches!(number, ICMP | ICMPV6),
            Protocol::Number(protocol) => protocol == number,
        }
    }
}

impl FromStr for Protocol {
    type Err = BadRule;

    fn from_str(text: &str) -> Result<Protocol, BadRule> {
        Ok(match text {
            "any" => Protocol::Any,
            "icmp" => Protocol::Icmp,
            "tcp" => Protocol::Number(TCP),
            "udp" => Protocol::Number(UDP),
            "sctp" => Protocol::Number(SCTP),
            number => match number.parse() {
                Ok(ICMP | ICMPV6) => Protocol::Icmp,
                Ok(number) => Protocol::Number(number),
                Err(_) => return Err(BadRule::Protocol(text.to_owned())),
            },
        })
    }
}

fn ports(text: &str) -> Result<Vec<RangeInclusive<u16>>, BadRule> {
    let bad = || BadRule::Ports(text.to_owned());
    let range = |word: &str| {
        let (first, last) = word.split_once('-').unwrap_or((word, word));
        let number = |text: &str| text.parse::<u16>().map_err(|_| bad());
        let (first, last) = (number(first)?, number(last)?);
        if first <= last { Ok(first..=last) } else { Err(bad()) }
    };
    let ranges: Vec<_> = text.split(',').map(range).collect::<Result<_, _>>()?;
    if ranges.len() > MAX_RANGES { Err(BadRule::TooManyRanges) } else { Ok(ranges) }
}

fn remote<'a>(words: &mut impl Iterator<Item = &'a str>) -> Result<Remote, BadRule> {
    Ok(match words.next().ok_or(BadRule::Short)? {
        "any" => Remote::Any,
        "group" => Remote::Group(words.next().ok_or(BadRule::Short)?.to_owned()),
        prefix => Remote::Prefix(
            prefix.parse().map_err(|error| BadRule::Remote(prefix.to_owned(), error))?,
        ),
    })
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Direction::In => "in",
            Direction::Out => "out",
        })
    }
}

impl FromStr for Direction {
    type Err = BadRule;

    fn from_str(text: &str) -> Result<Direction, BadRule> {
        match text {
            "in" => Ok(Direction::In),
            "out" => Ok(Direction::Out),
            _ => Err(BadRule::Direction(text.to_owned())),
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Protocol::Any => f.write_str("any"),
            Protocol::Icmp => f.write_str("icmp"),
            Protocol::Number(TCP) => f.write_str("tcp"),
            Protocol::Number(UDP) => f.write_str("udp"),
            Protocol::Number(SCTP) => f.write_str("sctp"),
            Protocol::Number(number) => number.fmt(f),
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.direction, self.protocol)?;
        for (at, range) in self.ports.iter().enumerate() {
            f.write_str(if at == 0 { " " } else { "," })?;
            match (range.start(), range.end()) {
                (first, last) if first == last => write!(f, "{first}")?,
                (first, last) => write!(f, "{first}-{last}")?,
            }
        }
        let preposition = self.direction.preposition();
        match &self.remote {
            Remote::Any => Ok(()),
            Remote::Prefix(prefix) => write!(f, " {preposition} {prefix}"),
            Remote::Group(name) => write!(f, " {preposition} group {name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_and_written() {
        for text in [
            "in tcp 22,8000-8080 from 10.0.0.0/8",
            "in udp 53 from group resolvers",
            "out any",
            "in icmp from 2001:db8::/32",
            "out 47 to 192.0.2.7",
            "in sctp",
        ] {
            assert_eq!(text.parse::<Rule>().unwrap().to_string(), text);
        }
        let same = [
            ("in  tcp 80 from any", "in tcp 80"),
            ("in 6 1-1", "in tcp 1"),
            ("out 58", "out icmp"),
        ];
        for (text, written) in same {
            assert_eq!(text.parse::<Rule>().unwrap().to_string(), written);
        }
    }

    #[test]
    fn what_is_no_rule_is_refused_with_the_word_that_is_wrong() {
        let many = (0..17).map(|port| port.to_string()).collect::<Vec<_>>().join(",");
        let many = format!("in tcp {many}");
        for (text, problem) in [
            ("", "a word is missing behind it"),
            ("in", "a word is missing behind it"),
            ("both tcp", "\"both\" is no direction; write in or out"),
            ("in tpc", "\"tpc\" is no protocol"),
            ("in 256", "\"256\" is no protocol"),
            ("in tcp 80-", "\"80-\" is no list of ports"),
            ("in tcp 90-80", "\"90-80\" is no list of ports"),
            ("in tcp 65536", "\"65536\" is no list of ports"),
            ("in icmp 8", "only tcp, udp and sctp have ports"),
            ("in any 8", "only tcp, udp and sctp have ports"),
            ("in tcp 80 to any", "\"to\" should be \"from\""),
            ("in tcp 80 from", "a word is missing behind it"),
            ("in tcp 80 from group", "a word is missing behind it"),
            ("in tcp 80 from 10.0.0.1/8", "either an address or a network"),
            ("in tcp 80 from here", "\"here\": not an IP address or prefix"),
            ("in tcp 80 from any port", "\"port\" is one word too many"),
            (&many, "there are more than 16 ranges of ports"),
        ] {
            let error = text.parse::<Rule>().unwrap_err().to_string();
            assert!(error.contains(problem), "{text:?}: {error}");
        }
    }
}
