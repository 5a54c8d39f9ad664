//! Which action each frame takes: out of the flow cache, or else by asking the switch.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use frame::{Headers, may_answer, requested};
use parking_lot::Mutex;
use switch::{PortId, Switch, Verdict};

use crate::action::Action;
use crate::burst::{Burst, Frame};
use crate::flowcache::{FlowCache, FlowKey};

/// What was found out about the frames of a burst.
pub struct Classified {
    /// How many the flow cache knew.
    pub hits: u64,
    /// For how many the switch was asked.
    pub misses: u64,
    /// How many, from the first on, have the same action.
    pub alike: usize,
}

/// One worker's flow cache, over the switch that all workers share.
pub struct Classifier {
    cache: FlowCache,
    switch: Arc<Mutex<Switch>>,
    /// Whether the switch knows addresses of stations on other hosts.
    has_neighbours: Arc<AtomicBool>,
}

impl Classifier {
    /// An empty cache over `switch`.
    pub fn new(switch: Arc<Mutex<Switch>>) -> Self {
        let (generations, has_neighbours) = {
            let switch = switch.lock();
            (Arc::clone(switch.generations()), switch.has_neighbours())
        };
        Classifier { cache: FlowCache::new(generations), switch, has_neighbours }
    }

    /// Decides what happens to each frame from `port` for which that is not decided yet.
    #[inline]
    pub fn classify(&mut self, port: PortId, frames: &mut [Frame], now: u32) -> Classified {
        let (mut hits, mut misses, mut alike) = (0, 0, frames.len());
        // Most frames go where the one before them went.
        let (mut last_key, mut last) = (FlowKey::NONE, Action::Unclassified);
        for (i, frame) in frames.iter_mut().enumerate() {
            let key = FlowKey::new(port, &frame.headers);
            if matches!(frame.action, Action::Unclassified) && key == last_key {
                match last {
                    Action::Output(target) => frame.classify(Action::Output(target)),
                    _ => frame.classify(last.clone()),
                }
                hits += 1;
                continue;
            }
            // The first one is like itself.
            alike = if i == 0 { alike } else { alike.min(i) };
            if !matches!(frame.action, Action::Unclassified) {
                continue;
            }
            match self.cache.get(key, now) {
                Some(hit) if !hit.touch => {
                    frame.classify(hit.action.clone());
                    hits += 1;
                }
                _ => {
                    let verdict = self.ask(now, port, &frame.headers);
                    let stamp = verdict.stamp;
                    frame.classify(Action::of(verdict));
                    self.cache.insert(key, stamp, frame.action.clone(), now);
                    misses += 1;
                }
            }
            (last_key, last) = (key, frame.action.clone());
        }
        Classified { hits, misses, alike }
    }

    /// Has requests for the addresses of stations on other hosts answered, or sent to those hosts
    /// alone. Returns for how many frames the switch was asked.
    #[inline]
    pub fn direct_requests(&self, port: PortId, burst: &mut Burst) -> u64 {
        match self.has_neighbours.load(Ordering::Relaxed) {
            true => (0..burst.frames().len()).map(|i| self.direct_request(port, burst, i)).sum(),
            false => 0,
        }
    }

    fn direct_request(&self, port: PortId, burst: &mut Burst, i: usize) -> u64 {
        let frame = &burst.frames()[i];
        if !frame.headers.dst.is_multicast() || !frame.action.is_flood() {
            return 0;
        }
        let head = burst.head(i).as_slice();
        let Some(address) = requested(head, &frame.headers) else { return 0 };
        let directed = self.switch.lock().direct(port, &frame.headers, address);
        if let Some((owner, verdict)) = directed {
            // What mirrors copy is what the guests sent.
            let is_answered = verdict.mirrors.is_none() && may_answer(head, &frame.headers);
            let action = if is_answered { Action::Answer(owner) } else { Action::of(verdict) };
            burst.frames_mut()[i].action = action;
        }
        1
    }

    #[cold]
    fn ask(&self, now: u32, ingress: PortId, headers: &Headers) -> Verdict {
        self.switch.lock().decide(now, ingress, headers)
    }
}
