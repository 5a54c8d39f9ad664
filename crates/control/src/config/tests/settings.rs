//! Limits, budgets and addresses: in files, and as changes of ports in service.

use network::token_bucket::{Rate, Unit};
use serde_json::{Map, Value as Json, json};

use super::{guest, parse, refused};
use crate::config::Known;
use crate::config::{
    BitRate, BudgetSpec, BurstBytes, DirectionLimits, Frames, PortSettings, PortSpec, RateLimits,
    budget_changes, port_changes,
};
use crate::kind::Kind;

const LIMITED: &str = r#"
[[budget]]
name = "web"
tx-rate = "1.5Gbit"
rx-frames = 50000

[[port]]
name = "a"
kind = "vhost-user"
socket = "/a"
tx-rate = "100Mbit"
tx-burst = "64KiB"
rx-frames = "50k"
rx-frames-burst = 200
budget = "web"
addresses = ["10.0.0.2", "10.0.1.0/24", "2001:db8::/64"]
"#;

fn object(json: Json) -> Map<String, Json> {
    json.as_object().unwrap().clone()
}

#[test]
fn only_ports_of_front_ends_have_a_limit_of_memory() {
    let memory = object(json!({ "memory": "64MiB" }));
    let settings = PortSettings::default();
    let changed = settings.changed(Kind::VhostUser, &memory, Known::default()).unwrap();
    assert_eq!(changed.memory.0, 64 << 20);
    for kind in [Kind::Tap, Kind::Xen, Kind::Embedded] {
        let error = settings.changed(kind, &memory, Known::default()).unwrap_err().to_string();
        assert_eq!(error, "memory: only a port of kind \"vhost-user\" has one");
        let rate = object(json!({ "tx_rate": "1Mbit" }));
        settings.changed(kind, &rate, Known::default()).unwrap();
    }
}

#[test]
fn limits_budgets_and_addresses_are_keys_of_the_file() {
    let mut config = parse(LIMITED).unwrap();
    let port = config.ports.remove(0);
    let tx = DirectionLimits {
        rate: Some(BitRate(100_000_000)),
        burst: Some(BurstBytes(65_536)),
        ..DirectionLimits::default()
    };
    let rx = DirectionLimits {
        frames: Some(Frames(50_000)),
        frames_burst: Some(Frames(200)),
        ..DirectionLimits::default()
    };
    assert_eq!(port.settings.limits, RateLimits { tx, rx });
    assert_eq!(port.settings.budget.as_deref(), Some("web"));
    let addresses: Vec<String> = port.settings.addresses.iter().map(ToString::to_string).collect();
    assert_eq!(addresses, ["10.0.0.2", "10.0.1.0/24", "2001:db8::/64"]);
    let again = PortSpec::from_request(
        &port.to_request(),
        std::iter::empty(),
        Known { budgets: Some(&["web".to_owned()]), ..Known::default() },
        "/c".as_ref(),
    );
    assert_eq!(again, Ok(port));
    let [BudgetSpec { name, limits }] = &config.budgets[..] else { panic!("one budget") };
    assert_eq!((name.as_str(), limits.tx.rate), ("web", Some(BitRate(1_500_000_000))));
}

#[test]
fn a_burst_that_nobody_set_lasts_for_10_ms_of_the_rate() {
    let limits = |rate, frames| DirectionLimits {
        rate: Some(BitRate(rate)),
        frames: Some(Frames(frames)),
        ..DirectionLimits::default()
    };
    assert_eq!(
        limits(8_000_000_000, 1_000_000).rates(),
        [
            (Unit::Bytes, Rate { per_second: 1_000_000_000, burst: 10_000_000 }),
            (Unit::Items, Rate { per_second: 1_000_000, burst: 10_000 }),
        ]
    );
    assert_eq!(
        limits(8000, 5).rates(),
        [
            (Unit::Bytes, Rate { per_second: 1000, burst: 131_072 }),
            (Unit::Items, Rate { per_second: 5, burst: 128 }),
        ],
        "no less than two of the longest frames"
    );
}

#[test]
fn impossible_limits_are_refused_with_what_to_write() {
    let cases = [
        (
            "tx-rate = \"100M\"",
            r#"tx-rate: "100M" may be bits or bytes; write "100Mbit", or "800Mbit" for bytes"#,
        ),
        ("rx-rate = 100", r#"rx-rate: 100 has no unit; write "100bit", or "100Mbit""#),
        ("tx-frames = \"50K\"", r#"tx-frames: "50K" has an unknown unit; write "50k""#),
        (
            "tx-frames = true",
            r#"tx-frames: true is not an amount; give a number of frames, 1 to "1000M", like 200 or "50k""#,
        ),
        ("tx-burst = \"64KiB\"", "tx-burst: a burst is of a rate; give tx-rate, too"),
        ("budget = \"web\"", "budget: \"web\" is not a budget; there are none"),
        (
            "addresses = [\"10.0.0.5/24\"]",
            r#"addresses: "10.0.0.5/24" may be the address or the network; write "10.0.0.5" or "10.0.0.0/24""#,
        ),
        (
            "addresses = [\"10.0.0.1\", \"host\"]",
            r#"addresses: "host" is not an IP address or prefix; give an address or a network, like "10.0.0.2" or "2001:db8::/64""#,
        ),
        (
            "addresses = []",
            r#"addresses: the list is empty; give a list of addresses and networks, like ["10.0.0.2", "2001:db8::/64"]"#,
        ),
    ];
    for (extra, want) in cases {
        refused(&guest(extra), &format!("ringmain.toml:5: port[0].{want}"));
    }
    // What is wrong with a rate is not said twice.
    refused(
        &guest("tx-rate = 100\ntx-burst = \"64KiB\""),
        r#"ringmain.toml:5: port[0].tx-rate: 100 has no unit; write "100bit", or "100Mbit""#,
    );
    let many = (0..65).map(|n| format!("\"10.0.0.{n}\"")).collect::<Vec<_>>().join(",");
    let long = parse(&guest(&format!("addresses = [{many}]"))).unwrap_err();
    assert!(long.ends_with("addresses: the list is too long; give at most 64 entries"), "{long}");
}

#[test]
fn impossible_budgets_are_refused() {
    refused(
        "[[budget]]\ntx-rate = \"1Mbit\"",
        r#"ringmain.toml:1: budget[0].name: missing; give 1 to 32 letters, digits, "_", "." or "-""#,
    );
    refused(
        "[[budget]]\nname = \"a\"\n[[budget]]\nname = \"a\"",
        r#"ringmain.toml:4: budget[1].name: there is a budget "a" already; give another name"#,
    );
    refused(
        "[[budget]]\nname = \"a\"\nmtu = 5\n",
        "ringmain.toml:3: budget[0].mtu: unknown key; known here: name, tx-rate, tx-burst, \
         tx-frames, tx-frames-burst, rx-rate, rx-burst, rx-frames, rx-frames-burst",
    );
    refused(
        &format!("[[budget]]\nname = \"a\"\n{}", guest("budget = \"b\"")),
        r#"ringmain.toml:7: port[0].budget: "b" is not a budget; known here: a"#,
    );
}

/// The settings of a port that had those of [`LIMITED`], after words of a command.
fn set(words: &[&str]) -> Result<PortSettings, String> {
    let present = parse(LIMITED).unwrap().ports.remove(0).settings;
    let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    let object = port_changes(&words).map_err(|errors| errors.to_string())?;
    present
        .changed(
            Kind::VhostUser,
            &object,
            Known {
                budgets: Some(&["web".to_owned()]),
                mirrors: Some(&["tap".to_owned()]),
                ..Known::default()
            },
        )
        .map_err(|errors| errors.to_string())
}

#[test]
fn a_change_leaves_what_it_does_not_name() {
    let before = set(&[]).unwrap();
    let after =
        set(&["tx-rate=1Gbit", "rx-frames=none", "addresses=10.0.0.7,2001:db8::7"]).unwrap();
    assert_eq!(after.limits.tx.rate, Some(BitRate(1_000_000_000)));
    assert_eq!(after.limits.tx.burst, before.limits.tx.burst);
    assert_eq!(after.limits.rx, DirectionLimits::default(), "the burst goes with its rate");
    assert_eq!((after.budget, after.addresses.len()), (before.budget, 2));
    let none = set(&["tx-rate=none", "rx-frames=none", "budget=none", "addresses=none"]);
    assert_eq!(none, Ok(PortSettings::default()));
}

#[test]
fn changes_that_make_no_sense_are_refused() {
    let cases: [(&[&str], &str); 11] = [
        (
            &["tx-rate"],
            r#""tx-rate": give a key and a value, like tx-rate=100Mbit or tx-rate=none"#,
        ),
        (&["tx-rate=1Mbit", "tx-rate=none"], r#""tx-rate=none": the key is given twice"#),
        (&["tx-rat=1Mbit"], r#"tx-rat: unknown key; did you mean "tx-rate"?"#),
        (&["tx-rat=none"], r#"tx-rat: unknown key; did you mean "tx-rate"?"#),
        (&["mtu=1500"], "mtu: this cannot change in service; remove the port, and add it anew"),
        (&["vlan=none"], "vlan: this cannot change in service; remove the port, and add it anew"),
        (
            &["tx-rate=100MB"],
            r#"tx-rate: "100MB" is in bytes, and rates are in bits; write "800Mbit""#,
        ),
        (&["rx-burst=64KiB"], "rx_burst: a burst is of a rate; give rx-rate, too"),
        (&["budget=db"], r#"budget: "db" is not a budget; known here: web"#),
        (
            &["mirror=a"],
            r#"mirror: "a" is not another port of kind "vhost-user" or "tap"; known here: tap"#,
        ),
        (
            &["addresses=10.0.0.1,10.0.0.5/24"],
            r#"addresses: "10.0.0.5/24" may be the address or the network; write "10.0.0.5" or "10.0.0.0/24""#,
        ),
    ];
    for (words, want) in cases {
        assert_eq!(set(words).unwrap_err(), want, "{words:?}");
    }
}

#[test]
fn requests_name_keys_in_snake_case() {
    let present = PortSettings::default();
    let refuse = |json| {
        present.changed(Kind::VhostUser, &object(json), Known::default()).unwrap_err().to_string()
    };
    assert_eq!(
        refuse(json!({ "tx_rate": 5 })),
        r#"tx_rate: 5 has no unit; write "5bit", or "5Mbit""#
    );
    assert!(refuse(json!({ "socket_mode": "600" })).starts_with("socket_mode: this cannot change"));
    let after = present
        .changed(
            Kind::VhostUser,
            &object(json!({ "tx_frames": 7, "rx_rate": null })),
            Known::default(),
        )
        .unwrap();
    assert_eq!(after.limits.tx.frames, Some(Frames(7)));
}

#[test]
fn budgets_change_like_ports() {
    let words = |words: &[&str]| {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        budget_changes(&words).map_err(|errors| errors.to_string())
    };
    let present = parse(LIMITED).unwrap().budgets.remove(0).limits;
    let after = present.changed(&words(&["tx-rate=none", "rx-rate=2Gbit"]).unwrap()).unwrap();
    assert_eq!(
        (after.tx, after.rx.rate),
        (DirectionLimits::default(), Some(BitRate(2_000_000_000)))
    );
    assert_eq!(after.rx.frames, present.rx.frames);
    let refused = words(&["addresses=10.0.0.1"]).unwrap_err();
    assert!(refused.starts_with("addresses: unknown key; known here: name, tx-rate"), "{refused}");
    let refused = words(&["name=other"]).unwrap_err();
    assert!(refused.starts_with("name: this cannot change in service"), "{refused}");
}
