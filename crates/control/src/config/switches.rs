//! The keys of a port that choose among several ways of serving it.

use std::time::Duration;

use datapath::throttle::Throttle;
use hypervisor::embedded::{Design, Named};
use netif::switches::Switches;
use serde_json::{Value as Json, json};

use super::document::{ConfigError, Fields};
use super::port::PortKind;

/// Frames that an interrupt can wait for.
const MAX_FRAMES: u16 = 1024;
/// Microseconds that it can wait.
const MAX_MICROSECONDS: u16 = Throttle::LONGEST.as_micros() as u16;

const FRAMES: &str = "interrupt-frames";
const MICROSECONDS: &str = "interrupt-microseconds";
const CACHE: &str = "cache";

/// Pages of a guest that may stay mapped: those of 16 queues of our own frontend, and some more.
const MAX_CACHE: u16 = 16384;

/// Reads what is switched on for a port of one of the kinds that have interrupts.
pub(super) fn read(fields: &mut Fields, kind: &PortKind) -> Result<Switches, ConfigError> {
    let throttle = throttle(fields)?;
    let cache = fields.number(CACHE, 0..=MAX_CACHE)?;
    match cache {
        Some((_, value)) if !has_grants(kind) => {
            let problem = format!("a port of kind {:?} has no grants; leave it out", kind.name());
            Err(fields.wrong(CACHE, &value, problem))
        }
        cache => Ok(Switches { throttle, cache: cache.map_or(0, |(cache, _)| cache) }),
    }
}

/// Whether frames are copied by grants there.
fn has_grants(kind: &PortKind) -> bool {
    match kind {
        PortKind::Xen | PortKind::Embedded { .. } => true,
        PortKind::VhostUser { .. } | PortKind::Tap { .. } => false,
    }
}

/// A TAP has none of them: the host's kernel looks after its own interrupts, and grants nothing.
pub(super) fn refuse(fields: &mut Fields) -> Result<(), ConfigError> {
    for (key, what) in [(FRAMES, "interrupts"), (MICROSECONDS, "interrupts"), (CACHE, "grants")] {
        if let Some(value) = fields.take(key) {
            let problem = format!("a port of kind \"tap\" has no {what}; leave it out");
            return Err(fields.wrong(key, &value, problem));
        }
    }
    Ok(())
}

fn throttle(fields: &mut Fields) -> Result<Option<Throttle>, ConfigError> {
    let frames = fields.number(FRAMES, 1..=MAX_FRAMES)?;
    let time = fields.number(MICROSECONDS, 1..=MAX_MICROSECONDS)?;
    match (frames, time) {
        (Some((_, value)), None) => {
            let problem = format!("the last frames would wait for ever; give {MICROSECONDS}, too");
            Err(fields.wrong(FRAMES, &value, problem))
        }
        (frames, time) => {
            let frames = frames.map(|(frames, _)| frames.into());
            Ok(time.and_then(|(time, _)| Throttle::new(frames, Duration::from_micros(time.into()))))
        }
    }
}

/// The keys of a hypervisor's inner design, and what is chosen.
pub fn design_keys(design: &Design) -> [(&'static str, &'static str); 4] {
    [
        ("locking", design.locking.name()),
        ("maptrack", design.maptrack.name()),
        ("flush", design.flush.name()),
        ("copying", design.copying.name()),
    ]
}

/// The keys of these switches, as far as a port of that kind has them, and their values; nothing for what is off.
pub fn keys(switches: &Switches, kind: &PortKind) -> Vec<(&'static str, Option<Json>)> {
    let throttle = switches.throttle;
    let mut keys = vec![
        (FRAMES, throttle.and_then(Throttle::frames).map(Json::from)),
        (MICROSECONDS, throttle.map(|throttle| json!(throttle.time().as_micros() as u64))),
    ];
    if has_grants(kind) {
        keys.push((CACHE, (switches.cache > 0).then(|| json!(switches.cache))));
    }
    keys
}
