//! Classification: the action for each frame, from the flow cache or else from the switch.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use frame::{Headers, may_answer, owned, requested};
use parking_lot::Mutex;
use switch::{PortId, Switch, Verdict};

use crate::action::Action;
use crate::burst::{Burst, Frame};
use crate::flowcache::{FlowCache, FlowKey};

mod recent_flows;

use recent_flows::RecentFlows;

/// The result of classifying the frames of a burst.
pub struct Classified {
    /// How many the flow cache knew.
    pub hits: u64,
    /// For how many the switch was asked.
    pub misses: u64,
    /// How many frames at the front have the same action.
    pub alike: usize,
}

/// One worker's flow cache, over the switch that all workers share.
pub struct Classifier {
    cache: FlowCache,
    switch: Arc<Mutex<Switch>>,
    /// Whether the switch knows addresses of stations on other hosts.
    has_neighbours: Arc<AtomicBool>,
    /// Whether somebody wants to know the addresses of stations of this host.
    learns_addresses: Arc<AtomicBool>,
}

/// The result of resolving the address requests of a burst.
#[derive(Clone, Copy, Debug, Default)]
pub struct Resolved {
    /// Frames for which the switch was asked.
    pub asked: u64,
    /// Frames that say of an address that their sender has it, and are not believed.
    pub refused: u64,
}

impl Classifier {
    /// An empty cache over `switch`.
    pub fn new(switch: Arc<Mutex<Switch>>) -> Self {
        let (generations, has_neighbours, learns_addresses) = {
            let switch = switch.lock();
            let generations = Arc::clone(switch.generations());
            (generations, switch.has_neighbours(), switch.learns_addresses())
        };
        let cache = FlowCache::new(generations);
        Classifier { cache, switch, has_neighbours, learns_addresses }
    }

    /// Decides what happens to each frame from `port` for which that is not decided yet.
    #[inline]
    pub fn classify(&mut self, port: PortId, frames: &mut [Frame], now: u32) -> Classified {
        let (mut hits, mut misses, mut alike) = (0, 0, frames.len());
        // Most frames go where the one before them went, or else one of the burst.
        let (mut last_key, mut last) = (FlowKey::NONE, Action::Unclassified);
        let mut recent = RecentFlows::default();
        for (i, frame) in frames.iter_mut().enumerate() {
            let key = FlowKey::new(port, &frame.headers);
            if matches!(frame.action, Action::Unclassified) && key == last_key {
                // Not by `copy`: that costs eight instructions a frame here.
                match last {
                    Action::Output(target) => frame.classify(Action::Output(target)),
                    _ => frame.classify(last.clone()),
                }
                hits += 1;
                continue;
            }
            // The first frame always matches itself.
            alike = if i == 0 { alike } else { alike.min(i) };
            if !matches!(frame.action, Action::Unclassified) {
                continue;
            }
            if let Some(target) = recent.find(key) {
                frame.classify(Action::Output(target));
                (last_key, last) = (key, Action::Output(target));
                hits += 1;
                continue;
            }
            match self.cache.get(key, now) {
                Some(hit) if !hit.touch => {
                    frame.classify(hit.action.copy());
                    hits += 1;
                }
                _ => {
                    let verdict = self.ask(now, port, &frame.headers);
                    let stamp = verdict.stamp;
                    frame.classify(Action::of(verdict));
                    self.cache.insert(key, stamp, frame.action.clone(), now);
                    misses += 1;
                    // What the switch learns from a frame may change other decisions.
                    recent.clear();
                }
            }
            (last_key, last) = (key, frame.action.copy());
            // A burst whose frames are alike needs nothing but the last one.
            if let (Action::Output(target), 1..) = (&last, i) {
                recent.note(key, *target);
            }
        }
        Classified { hits, misses, alike }
    }

    /// Handles the frames of the burst that ask for the owner of an IP address, or announce one.
    /// Requests for the addresses of stations on other hosts are answered, or go to those hosts
    /// alone, and addresses of stations of this host are learned.
    #[inline]
    pub fn resolve(&self, port: PortId, burst: &mut Burst, now: u32) -> Resolved {
        let mut resolved = Resolved::default();
        let answers = self.has_neighbours.load(Ordering::Relaxed);
        let learns = self.learns_addresses.load(Ordering::Relaxed);
        if answers || learns {
            for i in 0..burst.frames().len() {
                if burst.frames()[i].headers.resolves_addresses() {
                    self.resolve_frame(port, burst, i, now, &mut resolved);
                }
            }
        }
        resolved
    }

    fn resolve_frame(
        &self,
        port: PortId,
        burst: &mut Burst,
        i: usize,
        now: u32,
        resolved: &mut Resolved,
    ) {
        let (frame, head) = (&burst.frames()[i], burst.head(i).as_slice());
        let learns = self.learns_addresses.load(Ordering::Relaxed) && !frame.action.is_refusal();
        let own = if learns { owned(head, &frame.headers) } else { None };
        let asks = frame.headers.dst.is_multicast() && frame.action.is_flood();
        let asked = if asks { requested(head, &frame.headers) } else { None };
        if own.is_none() && asked.is_none() {
            return;
        }
        resolved.asked += 1;
        let mut switch = self.switch.lock();
        if let Some(address) = own
            && !switch.hear_address(now, port, &frame.headers, address)
        {
            resolved.refused += 1;
        }
        let directed = asked.and_then(|address| switch.direct(port, &frame.headers, address));
        drop(switch);
        if let Some((owner, verdict)) = directed {
            // Mirrors must copy what the guests sent, not an answer.
            let is_answered = verdict.mirrors.is_none() && may_answer(head, &frame.headers);
            let action = if is_answered { Action::Answer(owner) } else { Action::of(verdict) };
            burst.frames_mut()[i].action = action;
        }
    }

    #[cold]
    fn ask(&self, now: u32, ingress: PortId, headers: &Headers) -> Verdict {
        self.switch.lock().decide(now, ingress, headers)
    }
}
