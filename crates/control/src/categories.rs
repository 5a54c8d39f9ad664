//! The time of a received frame by the categories of the Netchannel 2 paper.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::api::{GuestTimes, PortProfile};
use crate::kind::Kind;

const PROGRAM: &str = "not measured: the program's own system calls, inside the guest";
const INSIDE: &str = "not measured: inside the guest, which reports nothing";
const HOST: &str = "not measured: the host's own network stack";
const MAPPED: &str =
    "none: the receiver's memory is mapped, and frames are copied as they are delivered";

/// A category of a received frame's time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Category {
    /// The category's name.
    pub name: &'static str,
    /// Time for all frames; `None` where it is not measured.
    pub time_ns: Option<u64>,
    /// The frames that it was spent for.
    pub frames: u64,
    /// The work of the category, or why the category is not measured.
    pub what: String,
}

impl Category {
    /// Nanoseconds for a frame; `None` where they are not measured.
    pub fn per_frame(&self) -> Option<f64> {
        self.time_ns.map(|time| time as f64 / self.frames.max(1) as f64)
    }
}

/// A port's categories, from the receiving program to the backend.
pub fn categories(port: &PortProfile) -> [Category; 6] {
    let guest = port.guest.as_ref();
    let inside = match port.kind {
        Kind::Tap | Kind::Overlay => HOST,
        Kind::VhostUser | Kind::Xen | Kind::Embedded => INSIDE,
    };
    let of_guest = |name, time: fn(&GuestTimes) -> u64, what: &str| Category {
        name,
        time_ns: guest.map(time),
        frames: guest.map_or(0, |guest| guest.frames),
        what: if guest.is_some() { what.to_owned() } else { inside.to_owned() },
    };
    let of_workers = |name, steps: &[&str]| {
        let part =
            |step: &&str| format!("{step} {}", per_frame(time(&port.steps_ns, step), port.frames));
        let time_ns = Some(steps.iter().map(|step| time(&port.steps_ns, step)).sum());
        Category {
            name,
            time_ns,
            frames: port.frames,
            what: steps.iter().map(part).collect::<Vec<_>>().join(", "),
        }
    };
    // The pages that are copied by grants; or why none are. Frames of guests with grants are copied
    // out of the granted pages for any receiver.
    let pages = match port.kind {
        Kind::Xen | Kind::Embedded => Ok("pages that guests granted"),
        Kind::VhostUser | Kind::Tap | Kind::Overlay if time(&port.steps_ns, "copy") > 0 => {
            Ok("pages that senders granted")
        }
        Kind::VhostUser | Kind::Tap | Kind::Overlay => Err(MAPPED),
    };
    let copied = match pages {
        Ok(what) => Category { what: what.into(), ..of_workers("grant copy", &["copy"]) },
        Err(why) => Category { name: "grant copy", time_ns: None, frames: 0, what: why.into() },
    };
    [
        Category { name: "copy to user", time_ns: None, frames: 0, what: PROGRAM.into() },
        of_guest(
            "guest kernel",
            |guest| guest.ring + guest.kernel,
            "rings, and the kernel behind the TAP device",
        ),
        of_guest(
            "hypervisor for the guest",
            |guest| guest.signal,
            "buffers posted, signals sent and asked for",
        ),
        copied,
        of_workers("backend kernel", &["fetch", "classify", "deliver"]),
        Category {
            what: "rings published, interrupts sent".into(),
            ..of_workers("hypervisor for the backend", &["publish"])
        },
    ]
}

/// The time that a step took.
pub fn time(steps_ns: &BTreeMap<String, u64>, step: &str) -> u64 {
    steps_ns.get(step).copied().unwrap_or(0)
}

fn per_frame(time: u64, frames: u64) -> String {
    if frames == 0 { String::new() } else { format!("{:.1}", time as f64 / frames as f64) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(kind: Kind) -> PortProfile {
        let spent =
            [("fetch", 200), ("classify", 100), ("deliver", 300), ("copy", 1000), ("publish", 400)];
        let spent = spent.map(|(name, time)| (name.to_owned(), time)).into();
        PortProfile {
            name: "a".into(),
            kind,
            frames: 10,
            bytes: 600,
            bursts: 4,
            steps_ns: spent,
            ..PortProfile::default()
        }
    }

    fn not_measured(port: &PortProfile) -> Vec<&'static str> {
        let without = categories(port).into_iter().filter(|category| category.time_ns.is_none());
        without.map(|category| category.name).collect()
    }

    #[test]
    fn what_is_not_measured_has_no_number() {
        assert_eq!(
            not_measured(&port(Kind::Xen)),
            ["copy to user", "guest kernel", "hypervisor for the guest"]
        );
        let mut mapped = port(Kind::VhostUser);
        mapped.steps_ns.insert("copy".into(), 0);
        let all = ["copy to user", "guest kernel", "hypervisor for the guest", "grant copy"];
        assert_eq!(not_measured(&mapped), all);
        mapped.kind = Kind::Tap;
        assert_eq!(categories(&mapped)[1].what, HOST);
    }

    #[test]
    fn each_side_is_divided_by_its_own_frames() {
        let mut port = port(Kind::Embedded);
        port.guest = Some(GuestTimes {
            frames: 5,
            ring: 100,
            kernel: 400,
            signal: 200,
            ..GuestTimes::default()
        });
        let each: Vec<_> = categories(&port).iter().map(Category::per_frame).collect();
        assert_eq!(each, [None, Some(100.0), Some(40.0), Some(100.0), Some(60.0), Some(40.0)]);
    }
}
