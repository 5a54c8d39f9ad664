//! A frame's instructions by step of the datapath, from a profile by function.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::callgrind::Profile;

/// Instructions per frame of each stage of a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stages {
    /// Takes requests from rings, and parses the frames.
    pub fetch: f64,
    /// Decides on the destinations of frames.
    pub classify: f64,
    /// Finds room for them; short pieces are copied on the way.
    pub deliver: f64,
    /// Copies of more than 128 bytes, and those that a hypervisor makes.
    pub copy: f64,
    /// Makes new entries visible, and interrupts.
    pub publish: f64,
    /// Everything else: commands, queues that have nothing, the loop itself.
    pub poll: f64,
}

impl Stages {
    /// Each with its name, in a frame's order.
    pub fn each(&self) -> [(&'static str, f64); 6] {
        let Stages { fetch, classify, deliver, copy, publish, poll } = *self;
        [
            ("fetch", fetch),
            ("classify", classify),
            ("deliver", deliver),
            ("copy", copy),
            ("publish", publish),
            ("poll", poll),
        ]
    }

    /// All of them.
    pub fn total(&self) -> f64 {
        self.each().iter().map(|(_, cost)| cost).sum()
    }

    /// All but the copies, which are mostly the C library's.
    pub fn own(&self) -> f64 {
        self.total() - self.copy
    }

    /// Rounds to one decimal.
    pub fn rounded(&self) -> Self {
        let round = |cost: f64| (cost * 10.0).round() / 10.0;
        Stages {
            fetch: round(self.fetch),
            classify: round(self.classify),
            deliver: round(self.deliver),
            copy: round(self.copy),
            publish: round(self.publish),
            poll: round(self.poll),
        }
    }

    /// The stages in a profile of rounds that carried `frames`. `None`: the profile lacks a step
    /// that every frame takes, because it was renamed or inlined.
    pub fn of(profile: &Profile, frames: f64) -> Option<Self> {
        let sum =
            |at: usize| profile.functions.get(at).map_or(0, |function| function.inclusive()) as f64;
        let step = |name: &str| -> f64 { profile.find(|full| is_step(full, name)).map(sum).sum() };
        let rounds: f64 = profile.find(|full| last(full) == "counted_round").map(sum).sum();
        let [fetch, classify, deliver, complete] =
            ["fetch", "classify", "deliver", "complete"].map(step);
        if [rounds, fetch, classify, deliver, complete].contains(&0.0) {
            return None;
        }
        // Merged bursts are completed at the end of a round.
        let complete = complete + step("publish_waiting");
        let flushed = step("flush_grant_copies");
        let mut copies = Copies { profile, known: HashMap::new() };
        let copied: f64 =
            profile.find(|full| is_step(full, "deliver")).map(|at| copies.within(at)).sum();
        Some(Stages {
            fetch: fetch / frames,
            classify: classify / frames,
            deliver: (deliver - copied) / frames,
            copy: (copied + flushed) / frames,
            publish: (complete - flushed) / frames,
            poll: (rounds - fetch - classify - deliver - complete) / frames,
        })
    }
}

/// Whether a function is that step of the frame pipeline.
fn is_step(full: &str, step: &str) -> bool {
    full.contains("network::pipeline::FramePipeline") && last(full) == step
}

/// The function's own name: without its path, and without what callgrind, or an older demangler,
/// adds: the number of a cycle or a recursion, a hash.
fn last(full: &str) -> &str {
    let full = full.split('\'').next().unwrap_or(full);
    let (path, name) = full.rsplit_once("::").unwrap_or(("", full));
    let is_hash = name.len() == 17 && name.starts_with('h');
    if is_hash { path.rsplit("::").next().unwrap_or(path) } else { name }
}

/// The share of functions that is copying by the C library.
struct Copies<'a> {
    profile: &'a Profile,
    known: HashMap<usize, f64>,
}

impl Copies<'_> {
    /// Instructions of copies in what this function called, and what that called. A function that
    /// is called from several places is taken to copy as much for each instruction.
    fn within(&mut self, at: usize) -> f64 {
        if let Some(&known) = self.known.get(&at) {
            return known;
        }
        // A function that calls itself is not counted twice.
        self.known.insert(at, 0.0);
        let profile = self.profile;
        let Some(function) = profile.functions.get(at) else { return 0.0 };
        let mut sum = 0.0;
        for (&callee, &cost) in &function.calls {
            let Some(called) = profile.functions.get(callee) else { continue };
            sum += match is_copy(&called.name) {
                true => cost as f64,
                false => self.within(callee) * cost as f64 / called.inclusive().max(1) as f64,
            };
        }
        self.known.insert(at, sum);
        sum
    }
}

fn is_copy(name: &str) -> bool {
    ["memcpy", "memmove"].iter().any(|copy| name.contains(copy))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::callgrind::Function;

    /// A function's name, own cost and calls.
    type Line<'a> = (&'a str, u64, &'a [(usize, u64)]);

    fn profile(functions: &[Line]) -> Profile {
        let function = |(name, own, calls): &Line| Function {
            name: name.to_string(),
            own: *own,
            calls: calls.iter().copied().collect(),
        };
        Profile { functions: functions.iter().map(function).collect(), ..Profile::default() }
    }

    const WORKER: &str = "network::pipeline::FramePipeline";

    #[test]
    fn a_round_is_divided_without_remainder() {
        let step = |name: &str| format!("{WORKER}::{name}");
        let [fetch, classify, deliver, complete, flush] =
            ["fetch", "classify", "deliver", "complete", "flush_grant_copies"].map(step);
        let functions = profile(&[
            (
                "bench_instructions::rounds::counted_round::h0123456789abcdef",
                10,
                &[(1, 100), (2, 50), (3, 400), (4, 60)],
            ),
            (&fetch, 100, &[]),
            (&classify, 50, &[]),
            (&deliver, 100, &[(5, 300)]),
            (&complete, 20, &[(6, 40)]),
            (
                "<vhost_user::net::queue_pair::NetQueuePair<R> as network::port::QueuePair>::put",
                90,
                &[(7, 210)],
            ),
            (&flush, 40, &[]),
            ("__memmove_sse2_unaligned", 210, &[]),
        ]);
        let stages = Stages::of(&functions, 10.0).unwrap();
        let expected = Stages {
            fetch: 10.0,
            classify: 5.0,
            deliver: 19.0,
            copy: 25.0,
            publish: 2.0,
            poll: 1.0,
        };
        assert_eq!(stages, expected);
        assert_eq!((stages.total(), stages.own()), (62.0, 37.0));
    }

    #[test]
    fn a_profile_without_the_steps_is_refused() {
        assert_eq!(Stages::of(&profile(&[("counted_round", 10, &[])]), 1.0), None);
    }
}
