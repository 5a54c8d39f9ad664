//! Where a frame's instructions go: the steps of the datapath, out of a profile by function.

use std::collections::HashMap;

use serde::Serialize;

use super::callgrind::Profile;

/// A step of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// Takes requests from rings, and looks at the frames.
    Fetch,
    /// Finds out where frames go.
    Classify,
    /// Finds room for them; short pieces are copied on the way.
    Deliver,
    /// Copies of more than 128 bytes, and those that a hypervisor makes.
    Copy,
    /// Makes new entries visible, and interrupts.
    Publish,
    /// Everything else: commands, queues that have nothing, the loop itself.
    Look,
}

impl Stage {
    /// All of them, in a frame's order.
    pub const ALL: [Stage; 6] =
        [Stage::Fetch, Stage::Classify, Stage::Deliver, Stage::Copy, Stage::Publish, Stage::Look];

    /// As tables and the budget call it.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Fetch => "fetch",
            Stage::Classify => "classify",
            Stage::Deliver => "deliver",
            Stage::Copy => "copy",
            Stage::Publish => "publish",
            Stage::Look => "look",
        }
    }
}

/// Instructions of each stage, in the order of [`Stage::ALL`], and their sum.
pub fn divide(profile: &Profile) -> Option<([u64; 6], u64)> {
    let whole = |name: &str| -> u64 {
        let step = |full: &str| is_step(full, name);
        profile.find(step).map(|at| profile.functions[at].inclusive()).sum()
    };
    let mut copies = Copies { profile, known: HashMap::new() };
    let total: u64 =
        profile.find(|name| strip(name).ends_with("counted_turn")).map(|at| profile.functions[at].inclusive()).sum();
    let [fetch, classify, deliver, complete, settled] =
        ["fetch", "classify", "deliver", "complete", "settle_later"].map(whole);
    let copied = profile.find(|name| is_step(name, "deliver")).map(|at| copies.within(at)).sum::<f64>().round() as u64;
    // A step that was renamed, or inlined after all.
    if [total, fetch, classify, deliver, complete].contains(&0) {
        return None;
    }
    let look = total.saturating_sub(fetch + classify + deliver + complete);
    let (deliver, publish) = (deliver.saturating_sub(copied), complete.saturating_sub(settled));
    Some(([fetch, classify, deliver, copied + settled, publish, look], total))
}

/// Whether a function is that step of a worker's.
fn is_step(full: &str, step: &str) -> bool {
    let full = strip(full);
    full.contains("datapath::worker::Worker") && full.rsplit("::").next() == Some(step)
}

/// The name without what callgrind, or an older demangler, adds: the number of a cycle, a recursion level, a hash.
fn strip(name: &str) -> &str {
    let name = name.split('\'').next().unwrap_or(name);
    match name.rsplit_once("::") {
        Some((rest, hash)) if hash.len() == 17 && hash.starts_with('h') => rest,
        _ => name,
    }
}

/// How much of functions is copying by the C library.
struct Copies<'a> {
    profile: &'a Profile,
    known: HashMap<usize, f64>,
}

impl Copies<'_> {
    /// Instructions of copies in what this function called, and what that called. A function that is called from several
    /// places is taken to copy as much for each instruction.
    fn within(&mut self, at: usize) -> f64 {
        if let Some(&known) = self.known.get(&at) {
            return known;
        }
        // What calls itself is not counted twice.
        self.known.insert(at, 0.0);
        let Some(function) = self.profile.functions.get(at) else { return 0.0 };
        let mut sum = 0.0;
        for (&callee, &cost) in &function.calls {
            let Some(called) = self.profile.functions.get(callee) else { continue };
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
