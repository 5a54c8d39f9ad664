//! Where the time of received frames goes, for people and for programs.

use std::collections::BTreeMap;

use control::api::{GuestTimes, PortProfile, Profile, WorkerProfile};
use serde::Serialize;

use crate::table::Table;

/// What a category is, where it can't be seen, and why not.
const PROGRAM: &str = "not seen: the program's own system calls, inside the guest";
const INSIDE: &str = "not seen: inside the guest, which says nothing";
const HOST: &str = "not seen: the host's own network stack";
const MAPPED: &str = "none: the receiver's memory is mapped, and frames are copied as they are delivered";

/// A category of a received frame's time.
#[derive(Debug, PartialEq, Serialize)]
pub struct Category {
    /// What it is called.
    pub name: &'static str,
    /// Time for all frames; nothing where it can't be seen.
    pub nanoseconds: Option<u64>,
    /// Frames for which it was.
    pub frames: u64,
    /// What was done, or why it can't be seen.
    pub what: String,
}

/// A port, with its time by category.
#[derive(Debug, Serialize)]
pub struct Split<'a> {
    #[serde(flatten)]
    port: &'a PortProfile,
    categories: [Category; 6],
}

/// A profile, with time by category.
#[derive(Debug, Serialize)]
pub struct Whole<'a> {
    /// Its length.
    pub nanoseconds: u64,
    workers: &'a [WorkerProfile],
    ports: Vec<Split<'a>>,
}

/// Splits up all ports.
pub fn split(profile: &Profile) -> Whole<'_> {
    let ports = profile.ports.iter().map(|port| Split { port, categories: categories(port) });
    Whole { nanoseconds: profile.nanoseconds, workers: &profile.workers, ports: ports.collect() }
}

/// The categories, from the program that a frame is for to those who bring it.
fn categories(port: &PortProfile) -> [Category; 6] {
    let guest = port.guest.as_ref();
    let inside = if port.kind == "tap" { HOST } else { INSIDE };
    let of_guest = |name, time: fn(&GuestTimes) -> u64, what: &str| Category {
        name,
        nanoseconds: guest.map(time),
        frames: guest.map_or(0, |guest| guest.frames),
        what: if guest.is_some() { what.to_owned() } else { inside.to_owned() },
    };
    let of_workers = |name, steps: &[&str]| {
        let part = |step: &&str| format!("{step} {}", per_frame(time(&port.spent, step), port.frames));
        let nanoseconds = Some(steps.iter().map(|step| time(&port.spent, step)).sum());
        Category { name, nanoseconds, frames: port.frames, what: steps.iter().map(part).collect::<Vec<_>>().join(", ") }
    };
    let copied = match port.kind.as_str() {
        "xen" | "embedded" => {
            Category { what: "pages that guests granted".into(), ..of_workers("grant copy", &["copy"]) }
        }
        // Frames of guests with grants are copied out of those, wherever they go.
        _ if time(&port.spent, "copy") > 0 => {
            Category { what: "pages that senders granted".into(), ..of_workers("grant copy", &["copy"]) }
        }
        _ => Category { name: "grant copy", nanoseconds: None, frames: 0, what: MAPPED.into() },
    };
    [
        Category { name: "copy to user", nanoseconds: None, frames: 0, what: PROGRAM.into() },
        of_guest("guest kernel", |guest| guest.ring + guest.kernel, "rings, and the kernel behind the TAP device"),
        of_guest("hypervisor for the guest", |guest| guest.signal, "buffers posted, signals sent and asked for"),
        copied,
        of_workers("backend kernel", &["fetch", "classify", "deliver"]),
        Category {
            what: "rings published, interrupts sent".into(),
            ..of_workers("hypervisor for the backend", &["publish"])
        },
    ]
}

fn time(spent: &BTreeMap<String, u64>, step: &str) -> u64 {
    spent.get(step).copied().unwrap_or(0)
}

fn per_frame(time: u64, frames: u64) -> String {
    if frames == 0 { String::new() } else { format!("{:.1}", time as f64 / frames as f64) }
}

/// For people.
pub fn text(profile: &Profile) -> String {
    let mut text = String::new();
    for port in profile.ports.iter().filter(|port| port.frames > 0) {
        text.push_str(&of_port(port, profile.nanoseconds));
        text.push('\n');
    }
    if text.is_empty() {
        text.push_str("no port received frames\n\n");
    }
    text + &of_workers(profile)
}

fn of_port(port: &PortProfile, length: u64) -> String {
    let categories = categories(port);
    let each = |category: &Category| category.nanoseconds.map(|time| time as f64 / category.frames.max(1) as f64);
    let sum: f64 = categories.iter().filter_map(each).sum();
    let mut table = Table::new(&["CATEGORY", ">NS/FRAME", ">%", "WHAT"]);
    for category in &categories {
        let number = |of: f64| each(category).map(|each| format!("{:.1}", each * of)).unwrap_or_default();
        let part = if sum > 0.0 { number(100.0 / sum) } else { String::new() };
        table.row([category.name.to_owned(), number(1.0), part, category.what.clone()]);
    }
    table.row(["all that is seen".to_owned(), format!("{sum:.1}"), "100.0".to_owned(), String::new()]);
    format!(
        "port {}: {} frames and {} bytes received in {:.1} s, {:.1} frames a burst\n\n{}",
        port.name,
        port.frames,
        port.bytes,
        length as f64 * 1e-9,
        port.frames as f64 / port.bursts.max(1) as f64,
        table.render()
    )
}

/// All that workers did, in percent.
fn of_workers(profile: &Profile) -> String {
    let steps = ["fetch", "classify", "deliver", "copy", "publish", "look", "sleep"];
    let headings = steps.map(|step| format!(">{} %", step.to_uppercase()));
    let headings: Vec<&str> = std::iter::once("WORKER").chain(headings.iter().map(String::as_str)).collect();
    let mut table = Table::new(&headings);
    for worker in &profile.workers {
        let whole = worker.spent.values().sum::<u64>().max(1) as f64;
        let part = |step: &str| format!("{:.1}", time(&worker.spent, step) as f64 * 100.0 / whole);
        table.row(std::iter::once(worker.index.to_string()).chain(steps.map(part)));
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(kind: &str, guest: Option<GuestTimes>) -> PortProfile {
        let spent = [("fetch", 200), ("classify", 100), ("deliver", 300), ("copy", 1000), ("publish", 400)];
        let spent = spent.map(|(name, time)| (name.to_owned(), time)).into();
        PortProfile { name: "a".into(), kind: kind.into(), frames: 10, bytes: 600, bursts: 4, spent, guest }
    }

    fn worker() -> WorkerProfile {
        let spent = [("fetch", 250), ("look", 250), ("sleep", 500)].map(|(name, time)| (name.to_owned(), time));
        WorkerProfile { index: 0, spent: spent.into() }
    }

    #[test]
    fn a_guest_that_tells() {
        let guest = GuestTimes { frames: 5, ring: 100, kernel: 400, signal: 200, ..GuestTimes::default() };
        let ports = vec![port("embedded", Some(guest)), PortProfile { name: "idle".into(), ..PortProfile::default() }];
        let profile = Profile { nanoseconds: 1_500_000_000, workers: vec![worker()], ports };
        let want = "\
port a: 10 frames and 600 bytes received in 1.5 s, 2.5 frames a burst

CATEGORY                    NS/FRAME      %  WHAT
copy to user                       -      -  not seen: the program's own system calls, inside the guest
guest kernel                   100.0   29.4  rings, and the kernel behind the TAP device
hypervisor for the guest        40.0   11.8  buffers posted, signals sent and asked for
grant copy                     100.0   29.4  pages that guests granted
backend kernel                  60.0   17.6  fetch 20.0, classify 10.0, deliver 30.0
hypervisor for the backend      40.0   11.8  rings published, interrupts sent
all that is seen               340.0  100.0  -

WORKER  FETCH %  CLASSIFY %  DELIVER %  COPY %  PUBLISH %  LOOK %  SLEEP %
0          25.0         0.0        0.0     0.0        0.0    25.0     50.0
";
        assert_eq!(text(&profile), want);
    }

    #[test]
    fn what_is_not_seen_is_not_invented() {
        let unseen = |port: &PortProfile| {
            let unseen = categories(port).into_iter().filter(|category| category.nanoseconds.is_none());
            unseen.map(|category| category.name).collect::<Vec<_>>()
        };
        assert_eq!(unseen(&port("xen", None)), ["copy to user", "guest kernel", "hypervisor for the guest"]);
        let mut mapped = port("vhost-user", None);
        mapped.spent.insert("copy".into(), 0);
        let all = ["copy to user", "guest kernel", "hypervisor for the guest", "grant copy"];
        assert_eq!(unseen(&mapped), all);
        mapped.kind = "tap".into();
        assert_eq!(categories(&mapped)[1].what, HOST);
        assert!(text(&Profile::default()).starts_with("no port received frames\n"));
    }
}
