//! Answers to questions about the rules of ports.

use std::net::{IpAddr, SocketAddr};

use switch::filter::{Direction, Key, Protocol, RuleSet, Tuple};

use crate::api::{PacketQuery, RuleReport, RuleVerdict};

/// ICMP for IPv4, and ICMPv6.
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;

/// The rules, in the order in which they are evaluated.
pub fn report(rules: &RuleSet) -> Vec<RuleReport> {
    let report = |(group, rule): (&str, &switch::filter::Rule)| RuleReport {
        group: group.to_owned(),
        rule: rule.to_string(),
    };
    rules.iter().map(report).collect()
}

/// Whether a packet that opens a connection passes. `rules` is `None` for a port without a filter.
///
/// # Errors
/// The problem with the query, in a line for people.
pub fn verdict(rules: Option<&RuleSet>, query: &PacketQuery) -> Result<RuleVerdict, String> {
    let key = key(query)?;
    let Some(rules) = rules else {
        let reason = "the port is in no security group, so everything passes".to_owned();
        return Ok(RuleVerdict { passes: true, rule: None, reason });
    };
    Ok(match rules.find(key) {
        Some((group, rule)) => {
            let (group, rule) = (group.to_owned(), rule.to_string());
            let reason = format!("rule {rule:?} of security group {group:?} allows the connection");
            RuleVerdict { passes: true, rule: Some(RuleReport { group, rule }), reason }
        }
        None => RuleVerdict {
            passes: false,
            rule: None,
            reason: "no rule allows the connection (not_allowed); the packet passes only if it \
                     answers one that is there"
                .to_owned(),
        },
    })
}

fn key(query: &PacketQuery) -> Result<Key, String> {
    let direction: Direction =
        query.direction.parse().map_err(|error: switch::filter::BadRule| error.to_string())?;
    let protocol: Protocol =
        query.protocol.parse().map_err(|error: switch::filter::BadRule| error.to_string())?;
    let (source, destination) = (address(&query.source)?, address(&query.destination)?);
    let protocol = match protocol {
        Protocol::Number(number) => number,
        Protocol::Icmp if source.is_ipv4() => ICMP,
        Protocol::Icmp => ICMPV6,
        Protocol::Any => return Err("a packet has one protocol, not any".to_owned()),
    };
    let tuple = Tuple::new(protocol, source, destination)
        .ok_or("one address is of IPv4, and the other one of IPv6")?;
    Ok(Key { tuple, direction })
}

/// An address with or without a port.
fn address(text: &str) -> Result<SocketAddr, String> {
    let alone = || text.parse().map(|address: IpAddr| SocketAddr::new(address, 0));
    text.parse().or_else(|_| alone()).map_err(|_| {
        format!("{text:?} is no address; write one like 192.0.2.1:80, [2001:db8::1]:80, or without a port")
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use switch::filter::SecurityGroup;

    use super::*;

    fn ask(question: &str) -> Result<RuleVerdict, String> {
        let rules = ["in tcp 80 from 192.0.2.0/24", "in icmp", "out any"];
        let rules = rules.iter().map(|rule| rule.parse().unwrap()).collect();
        let group = SecurityGroup { name: "web".into(), rules };
        let rules = RuleSet::new(&[group], &BTreeMap::new()).unwrap();
        let mut words = question.split(' ').map(str::to_owned);
        let mut next = || words.next().unwrap();
        let (direction, protocol, source, destination) = (next(), next(), next(), next());
        verdict(Some(&rules), &PacketQuery { direction, protocol, source, destination })
    }

    #[test]
    fn the_answer_names_the_rule() {
        let answer = ask("in tcp 192.0.2.1:4000 10.0.0.2:80").unwrap();
        let rule = RuleReport { group: "web".into(), rule: "in tcp 80 from 192.0.2.0/24".into() };
        assert_eq!((answer.passes, answer.rule), (true, Some(rule)));
        let answer = ask("in tcp 192.0.3.1:4000 10.0.0.2:80").unwrap();
        assert_eq!((answer.passes, answer.rule), (false, None));
        assert!(ask("in icmp 2001:db8::1 2001:db8::2").unwrap().passes);
        assert!(ask("out 47 10.0.0.2 192.0.2.1").unwrap().passes);
        let query = PacketQuery {
            direction: "in".into(),
            protocol: "udp".into(),
            source: "::1".into(),
            destination: "::1".into(),
        };
        assert!(verdict(None, &query).unwrap().passes);
    }

    #[test]
    fn questions_without_sense_are_refused() {
        for (question, problem) in [
            ("by tcp 192.0.2.1:1 10.0.0.2:80", "\"by\" is no direction"),
            ("in any 192.0.2.1:1 10.0.0.2:80", "one protocol"),
            ("in ftp 192.0.2.1:1 10.0.0.2:80", "\"ftp\" is no protocol"),
            ("in tcp here 10.0.0.2:80", "\"here\" is no address"),
            ("in tcp [::1]:2 10.0.0.2:80", "and the other one of IPv6"),
        ] {
            let error = ask(question).unwrap_err();
            assert!(error.contains(problem), "{error}");
        }
    }
}
