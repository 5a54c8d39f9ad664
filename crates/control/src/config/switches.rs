//! The keys of a port that choose among several ways of serving it.

use std::time::Duration;

use datapath::throttle::Throttle;
use hypervisor::embedded::{Design, Named};
use netif::switches::Switches;
use serde_json::{Value as Json, json};

use super::document::{ConfigError, Fields};

/// Frames that an interrupt can wait for.
const MAX_FRAMES: u16 = 1024;
/// Microseconds that it can wait.
const MAX_MICROSECONDS: u16 = Throttle::LONGEST.as_micros() as u16;

const FRAMES: &str = "interrupt-frames";
const MICROSECONDS: &str = "interrupt-microseconds";

/// Reads what is switched on for a port of one of the kinds that have interrupts.
pub(super) fn read(fields: &mut Fields) -> Result<Switches, ConfigError> {
    Ok(Switches { throttle: throttle(fields)? })
}

/// A TAP has none of them: the host's kernel looks after its own interrupts.
pub(super) fn refuse(fields: &mut Fields) -> Result<(), ConfigError> {
    for key in [FRAMES, MICROSECONDS] {
        if let Some(value) = fields.take(key) {
            return Err(fields.wrong(key, &value, "a port of kind \"tap\" has no interrupts; leave it out"));
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

/// The keys of these switches, and their values; nothing for what is off.
pub fn keys(switches: &Switches) -> [(&'static str, Option<Json>); 2] {
    let throttle = switches.throttle;
    [
        (FRAMES, throttle.and_then(Throttle::frames).map(Json::from)),
        (MICROSECONDS, throttle.map(|throttle| json!(throttle.time().as_micros() as u64))),
    ]
}
