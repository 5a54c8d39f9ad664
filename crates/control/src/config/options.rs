//! The keys of a port that choose among several ways of serving it, as values.

use network::coalescing::CoalescingLimits;
use serde_json::{Value as Json, json};
use xen::netif::extensions::Extensions;
use xen::netif::options::PortOptions;

use super::port::PortKind;

/// All options that a port of this kind has, by the keys of the configuration; null for what is not
/// set.
pub fn options(kind: &PortKind, options: &PortOptions) -> Vec<(&'static str, Json)> {
    let coalescing = options.coalescing;
    let policy = [("polling", json!(options.policy.map(|policy| policy.to_string())))];
    let interrupts = [
        ("interrupt-frames", json!(coalescing.and_then(CoalescingLimits::frames))),
        ("interrupt-microseconds", json!(coalescing.map(|wait| wait.time().as_micros() as u64))),
    ];
    let grants = [("cache", json!(options.cache)), ("align", json!(options.align))];
    let all = policy.into_iter();
    match kind {
        PortKind::Tap { .. } => all.collect(),
        PortKind::VhostUser { .. } => all.chain(interrupts).collect(),
        PortKind::Xen => all.chain(interrupts).chain(grants).collect(),
        PortKind::Embedded { extensions, .. } => {
            let words = extension_words(*extensions).map(|(key, word)| (key, json!(word)));
            all.chain(interrupts).chain(grants).chain(words).collect()
        }
    }
}

/// What guests do beyond Xen's protocol, by the keys of the configuration.
pub fn extension_words(extensions: Extensions) -> [(&'static str, &'static str); 2] {
    let Extensions { ranges, guest_copy } = extensions;
    [
        ("copy", if guest_copy { "guest" } else { "backend" }),
        ("grants", if ranges { "range" } else { "page" }),
    ]
}
