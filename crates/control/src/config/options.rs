//! The keys of a port that choose among several ways of serving it, as values.

use network::coalescing::CoalescingLimits;
use serde_json::{Value as Json, json};
use xen::netif::extensions::Extensions;
use xen::netif::options::PortOptions;

use super::port::PortKind;

/// All options that a port of this kind has, by the keys of the configuration; null for an option
/// that is not set.
pub fn options(kind: &PortKind, options: &PortOptions) -> Vec<(&'static str, Json)> {
    let coalescing = options.coalescing;
    let mut all = vec![
        ("polling", json!(options.policy.map(|policy| policy.to_string()))),
        ("interrupt-frames", json!(coalescing.and_then(CoalescingLimits::frames))),
        ("interrupt-microseconds", json!(coalescing.map(|wait| wait.time().as_micros() as u64))),
        ("cache", json!(options.cache)),
        ("align", json!(options.align)),
    ];
    if let PortKind::Embedded { extensions, .. } = kind {
        all.extend(extension_words(*extensions).map(|(key, word)| (key, json!(word))));
    }
    all.retain(|(key, _)| kind.kind().has_key(key));
    all
}

/// The guests' extensions of Xen's protocol, by the keys of the configuration.
pub fn extension_words(extensions: Extensions) -> [(&'static str, &'static str); 2] {
    let Extensions { ranges, guest_copy } = extensions;
    [
        ("copy", if guest_copy { "guest" } else { "backend" }),
        ("grants", if ranges { "range" } else { "page" }),
    ]
}
