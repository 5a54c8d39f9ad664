//! The time of received frames by category, for people and for programs.

use control::api::{PortProfile, Profile, QueueFlows, WorkerProfile};
use control::categories::{Category, categories, time};
use serde::Serialize;

use crate::table::Table;

/// A port, with its time by category.
#[derive(Debug, Serialize)]
pub struct Split<'a> {
    #[serde(flatten)]
    port: &'a PortProfile,
    categories: [Category; 6],
}

/// A profile, with time by category.
#[derive(Debug, Serialize)]
pub struct SplitProfile<'a> {
    /// Its length.
    pub duration_ns: u64,
    workers: &'a [WorkerProfile],
    ports: Vec<Split<'a>>,
}

/// Splits up all ports.
pub fn split(profile: &Profile) -> SplitProfile<'_> {
    let ports = profile.ports.iter().map(|port| Split { port, categories: categories(port) });
    SplitProfile {
        duration_ns: profile.duration_ns,
        workers: &profile.workers,
        ports: ports.collect(),
    }
}

/// The profile as text for people.
pub fn text(profile: &Profile) -> String {
    let mut text = String::new();
    for port in profile.ports.iter().filter(|port| port.frames > 0) {
        text.push_str(&of_port(port, profile.duration_ns));
        text.push('\n');
    }
    if text.is_empty() {
        text.push_str("no port received frames\n\n");
    }
    text + &of_workers(profile)
}

fn of_port(port: &PortProfile, length: u64) -> String {
    let categories = categories(port);
    let sum: f64 = categories.iter().filter_map(Category::per_frame).sum();
    let mut table = Table::new(&["CATEGORY", ">NS/FRAME", ">%", "WHAT"]);
    for category in &categories {
        let number = |of: f64| {
            category.per_frame().map(|each| format!("{:.1}", each * of)).unwrap_or_default()
        };
        let part = if sum > 0.0 { number(100.0 / sum) } else { String::new() };
        table.row([category.name.to_owned(), number(1.0), part, category.what.clone()]);
    }
    table.row([
        "all that is measured".to_owned(),
        format!("{sum:.1}"),
        "100.0".to_owned(),
        String::new(),
    ]);
    format!(
        "port {}: {} frames and {} bytes received in {:.1} s, {:.1} frames a burst\n{}\n{}",
        port.name,
        port.frames,
        port.bytes,
        length as f64 * 1e-9,
        port.frames as f64 / port.bursts.max(1) as f64,
        flows(port),
        table.render()
    )
}

/// How many flows each queue carries; empty if none does.
fn flows(port: &PortProfile) -> String {
    let of = |of: fn(&QueueFlows) -> usize| {
        let each: Vec<String> = port.flows.iter().map(|queue| of(queue).to_string()).collect();
        each.join(" ")
    };
    if port.flows.iter().all(|queue| *queue == QueueFlows::default()) {
        return String::new();
    }
    format!(
        "flows by queue: {} received, {} sent\n",
        of(|queue| queue.received),
        of(|queue| queue.sent)
    )
}

/// The activities of all workers, in percent.
fn of_workers(profile: &Profile) -> String {
    let steps = ["fetch", "classify", "deliver", "copy", "publish", "poll", "sleep"];
    let headings = steps.map(|step| format!(">{} %", step.to_uppercase()));
    let headings: Vec<&str> =
        std::iter::once("WORKER").chain(headings.iter().map(String::as_str)).collect();
    let mut table = Table::new(&headings);
    for worker in &profile.workers {
        let whole = worker.steps_ns.values().sum::<u64>().max(1) as f64;
        let part =
            |step: &str| format!("{:.1}", time(&worker.steps_ns, step) as f64 * 100.0 / whole);
        table.row(std::iter::once(worker.index.to_string()).chain(steps.map(part)));
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use control::api::GuestTimes;
    use control::kind::Kind;

    use super::*;

    fn port(kind: Kind, guest: Option<GuestTimes>) -> PortProfile {
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
            guest,
            flows: Vec::new(),
        }
    }

    fn worker() -> WorkerProfile {
        let spent = [("fetch", 250), ("poll", 250), ("sleep", 500)]
            .map(|(name, time)| (name.to_owned(), time));
        WorkerProfile { index: 0, steps_ns: spent.into() }
    }

    #[test]
    fn a_guest_that_reports_its_time() {
        let guest =
            GuestTimes { frames: 5, ring: 100, kernel: 400, signal: 200, ..GuestTimes::default() };
        let flows = [(2, 0), (1, 5)].map(|(received, sent)| QueueFlows { received, sent }).into();
        let port = PortProfile { flows, ..port(Kind::Embedded, Some(guest)) };
        let ports = vec![port, PortProfile { name: "idle".into(), ..PortProfile::default() }];
        let profile = Profile { duration_ns: 1_500_000_000, workers: vec![worker()], ports };
        let want = "\
port a: 10 frames and 600 bytes received in 1.5 s, 2.5 frames a burst
flows by queue: 2 1 received, 0 5 sent

CATEGORY                    NS/FRAME      %  WHAT
copy to user                       -      -  not measured: the program's own system calls, inside the guest
guest kernel                   100.0   29.4  rings, and the kernel behind the TAP device
hypervisor for the guest        40.0   11.8  buffers posted, signals sent and asked for
grant copy                     100.0   29.4  pages that guests granted
backend kernel                  60.0   17.6  fetch 20.0, classify 10.0, deliver 30.0
hypervisor for the backend      40.0   11.8  rings published, interrupts sent
all that is measured           340.0  100.0  -

WORKER  FETCH %  CLASSIFY %  DELIVER %  COPY %  PUBLISH %  POLL %  SLEEP %
0          25.0         0.0        0.0     0.0        0.0    25.0     50.0
";
        assert_eq!(text(&profile), want);
    }

    #[test]
    fn ports_that_received_nothing_are_left_out() {
        assert!(text(&Profile::default()).starts_with("no port received frames\n"));
    }
}
