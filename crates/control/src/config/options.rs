//! The keys of a port that choose among several ways of serving it.

use std::time::Duration;

use network::coalescing::CoalescingLimits;
use serde_json::{Value as Json, json};
use xen::netif::options::PortOptions;

use super::document::{ConfigError, Fields};
use super::port::PortKind;
use super::{extensions, polling};

/// Frames that an interrupt can wait for.
const MAX_FRAMES: u16 = 1024;
/// Microseconds that it can wait.
const MAX_MICROSECONDS: u16 = CoalescingLimits::MAX_TIME.as_micros() as u16;

const FRAMES: &str = "interrupt-frames";
const MICROSECONDS: &str = "interrupt-microseconds";
const CACHE: &str = "cache";
const ALIGN: &str = "align";

/// Pages of a guest that may stay mapped: those of 16 queues of our own frontend, and some more.
const MAX_CACHE: u16 = 16384;

/// Reads what is switched on for a port. Each key is taken, so that one that does not belong there
/// is refused for that.
pub(super) fn read(fields: &mut Fields, kind: &PortKind) -> Result<PortOptions, ConfigError> {
    if matches!(kind, PortKind::Tap { .. }) {
        // The host's kernel looks after its own interrupts.
        refuse(fields, &[FRAMES, MICROSECONDS], "interrupts", kind)?;
    }
    if !has_grants(kind) {
        refuse(fields, &[CACHE, ALIGN], "grants", kind)?;
    }
    let coalescing = coalescing(fields)?;
    let cache = fields.number(CACHE, 0..=MAX_CACHE)?.map_or(0, |(cache, _)| cache);
    let align = fields.switch(ALIGN)?.unwrap_or(false);
    let policy = polling::read(fields)?;
    Ok(PortOptions { coalescing, policy, cache, align })
}

/// Whether frames are copied by grants there.
fn has_grants(kind: &PortKind) -> bool {
    match kind {
        PortKind::Xen | PortKind::Embedded { .. } => true,
        PortKind::VhostUser { .. } | PortKind::Tap { .. } => false,
    }
}

/// Refuses keys that a port of that kind has no use for.
fn refuse(
    fields: &mut Fields,
    keys: &[&'static str],
    what: &str,
    kind: &PortKind,
) -> Result<(), ConfigError> {
    for key in keys {
        if let Some(value) = fields.take(key) {
            let problem = format!("a port of kind {:?} has no {what}; leave it out", kind.name());
            return Err(fields.wrong(key, &value, problem));
        }
    }
    Ok(())
}

fn coalescing(fields: &mut Fields) -> Result<Option<CoalescingLimits>, ConfigError> {
    let frames = fields.number(FRAMES, 1..=MAX_FRAMES)?;
    let time = fields.number(MICROSECONDS, 1..=MAX_MICROSECONDS)?;
    match (frames, time) {
        (Some((_, value)), None) => {
            let problem = format!("the last frames would wait for ever; give {MICROSECONDS}, too");
            Err(fields.wrong(FRAMES, &value, problem))
        }
        (frames, time) => {
            let frames = frames.map(|(frames, _)| frames.into());
            Ok(time.and_then(|(time, _)| {
                CoalescingLimits::new(frames, Duration::from_micros(time.into()))
            }))
        }
    }
}

/// All that can be chosen for a port of this kind, by key; nothing for what is off.
pub fn keys(kind: &PortKind, options: &PortOptions) -> Vec<(&'static str, Option<Json>)> {
    let coalescing = options.coalescing;
    let interrupts = [
        (FRAMES, coalescing.and_then(CoalescingLimits::frames).map(Json::from)),
        (MICROSECONDS, coalescing.map(|coalescing| json!(coalescing.time().as_micros() as u64))),
    ];
    let vifs = [
        (CACHE, (options.cache > 0).then(|| json!(options.cache))),
        (ALIGN, options.align.then_some(Json::Bool(true))),
    ];
    let policy = [(polling::KEY, options.policy.map(|policy| json!(policy.to_string())))];
    let all = policy.into_iter();
    match kind {
        PortKind::Tap { .. } => all.collect(),
        PortKind::VhostUser { .. } => all.chain(interrupts).collect(),
        PortKind::Xen => all.chain(interrupts).chain(vifs).collect(),
        PortKind::Embedded { extensions, .. } => {
            let names = extensions::words(*extensions).into_iter();
            let names = names.map(|(key, name)| (key, Some(json!(name))));
            all.chain(interrupts).chain(vifs).chain(names).collect()
        }
    }
}
