//! Which action each frame takes: out of the flow cache, or else by asking the switch.

use std::sync::Arc;

use frame::Headers;
use parking_lot::Mutex;
use switch::{PortId, Switch, Verdict};

use crate::burst::Frame;
use crate::flowcache::{Action, FlowCache, FlowKey};

/// One worker's flow cache, over the switch that all workers share.
pub struct Classifier {
    cache: FlowCache,
    switch: Arc<Mutex<Switch>>,
}

impl Classifier {
    /// An empty cache over `switch`.
    pub fn new(switch: Arc<Mutex<Switch>>) -> Self {
        let generations = Arc::clone(switch.lock().generations());
        Classifier { cache: FlowCache::new(generations), switch }
    }

    /// Decides what happens to each frame from `port` for which that is not decided yet. Returns
    /// how many the cache knew, and for how many the switch was asked.
    #[inline]
    pub fn classify(&mut self, port: PortId, frames: &mut [Frame], now: u32) -> (u64, u64) {
        let (mut hits, mut misses) = (0, 0);
        // Most frames go where the one before them went.
        let (mut last_key, mut last) = (FlowKey::NONE, Action::Unclassified);
        for frame in frames {
            if !matches!(frame.action, Action::Unclassified) {
                continue;
            }
            let key = FlowKey::new(port, &frame.headers);
            if key == last_key {
                frame.classify(last.clone());
                hits += 1;
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
        (hits, misses)
    }

    #[cold]
    fn ask(&self, now: u32, ingress: PortId, headers: &Headers) -> Verdict {
        self.switch.lock().decide(now, ingress, headers)
    }
}
