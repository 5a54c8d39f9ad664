//! Which of a receiver's queues a frame goes to.
//!
//! A flow stays on the worker that fetched it: the worker chooses, by flow hash, among those of the
//! receiver's enabled queues that it owns itself ([`crate::indirection_table`]). A frame is handed
//! off to another worker only if the worker owns none of these queues.
//!
//! Headers are private copies, but their values are the sender's: a sender can aim all of its
//! flows at one bucket, and then only its own flows share that bucket's queue.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use frame::{FlowHasher, Headers, L3};
use switch::PortId;

use crate::burst::{Burst, Frame};
use crate::egress::Egress;
use crate::indirection_table::{IndirectionTable, RxQueue};
use crate::queue_selector::QueueSelector;
use crate::topology::{PortView, QueueId, Topology};

/// One port, seen from one worker.
#[derive(Clone, Debug, Default)]
pub struct Route {
    /// The only queue there is to choose.
    only: Option<RxQueue>,
    /// The queues there are to choose.
    table: Option<IndirectionTable>,
    /// The port's own selector, and the egress of each of its queues, by index.
    selector: Option<(Arc<dyn QueueSelector>, Vec<Egress>)>,
    /// Frames of unknown flows have been sent to the port.
    used: Cell<bool>,
    /// Longest IP packet that the port takes, in bytes.
    pub mtu: Option<u16>,
    /// When flows were last dealt anew to its queues, all together.
    dealt: Option<Instant>,
}

impl Route {
    /// Whether all frames go to the same queue, whatever their length.
    #[inline]
    pub fn is_simple(&self) -> bool {
        self.selector.is_none() && self.mtu.is_none() && self.table.is_none()
    }

    /// The indirection table, if the queue depends on nothing else.
    #[inline]
    pub fn indirection(&self) -> Option<&IndirectionTable> {
        let alone = self.selector.is_none() && self.mtu.is_none() && self.only.is_none();
        self.table.as_ref().filter(|_| alone)
    }

    /// Whether the port has a queue that receives.
    #[inline]
    pub fn is_reachable(&self) -> bool {
        self.only.is_some() || self.table.is_some()
    }

    /// The queue for frame `i` of a burst, and the counter of its flow's cost.
    #[inline(always)]
    pub fn egress(&self, burst: &Burst, i: usize) -> (&Egress, Option<&Cell<u64>>) {
        let (headers, head) = (&burst.frame(i).headers, burst.head(i).as_slice());
        self.choose(headers, head, || frame::flow_hash(headers, head))
    }

    /// As [`egress`](Self::egress), with a hasher that has hashed other frames of the burst.
    #[inline(always)]
    pub fn egress_by(
        &self,
        burst: &Burst,
        i: usize,
        hasher: &mut FlowHasher,
    ) -> (&Egress, Option<&Cell<u64>>) {
        let (headers, head) = (&burst.frame(i).headers, burst.head(i));
        self.choose(headers, head.as_slice(), || hasher.hash(headers, head))
    }

    /// The queue for a frame of a flow, and the counter of the flow's cost. The counter and `hash`
    /// are only needed when there are several queues.
    #[inline(always)]
    fn choose(
        &self,
        headers: &Headers,
        head: &[u8],
        hash: impl FnOnce() -> u32,
    ) -> (&Egress, Option<&Cell<u64>>) {
        if let Some((selector, egresses)) = &self.selector {
            match egresses.get(usize::from(selector.queue(headers, head))) {
                None | Some(Egress::Unreachable) => {}
                Some(egress) => return (egress, None),
            }
        }
        match (&self.only, &self.table) {
            (Some(queue), _) => (&queue.egress, None),
            (None, Some(table)) => {
                let (egress, cost) = table.egress(hash());
                (egress, Some(cost))
            }
            (None, None) => (&Egress::Unreachable, None),
        }
    }

    /// The route to a port from a worker. The state of `old`, the former route, is kept as far as
    /// it is still valid.
    fn new(port: &PortView, view: &View, old: Option<Route>) -> Self {
        let dealt = old.as_ref().and_then(|old| old.dealt);
        let old = old.and_then(Route::into_table);
        let mut route = Route { mtu: port.mtu, dealt, ..Route::default() };
        route.selector = port.selector.clone().map(|selector| (selector, Vec::new()));
        let (mut near, mut far) = (Vec::new(), Vec::new());
        for &location in &port.receivers {
            let own = view.own;
            let egress = match view.slots.get(&location.queue) {
                _ if location.moving => Egress::Moving,
                _ if location.worker != own => Egress::Remote(location),
                Some(&slot) => Egress::Local(slot),
                None => continue,
            };
            let side = if location.worker == own { &mut near } else { &mut far };
            side.push(RxQueue { queue: location.queue, egress });
            if let Some((_, egresses)) = &mut route.selector {
                egresses.resize(
                    egresses.len().max(usize::from(location.index) + 1),
                    Egress::Unreachable,
                );
                egresses[usize::from(location.index)] = egress;
            }
        }
        if near.is_empty() {
            std::mem::swap(&mut near, &mut far);
        }
        // Busy flows stay with queues that have just left.
        let best = near.len();
        let strays =
            far.into_iter().filter(|queue| old.as_ref().is_some_and(|old| old.uses(queue.queue)));
        near.extend(strays);
        match near.as_slice() {
            [] => {}
            [one] => {
                // Flows that were busy before are assumed to stay busy while this is the only
                // queue.
                route.used.set(old.is_some());
                route.only = Some(*one);
            }
            _ => route.table = Some(IndirectionTable::new(near, best, old)),
        }
        route
    }

    /// The table of the queues that flows use. If there was only one queue, and frames were sent to
    /// it, all buckets of the table point to it.
    fn into_table(self) -> Option<IndirectionTable> {
        self.table.or_else(|| self.only.filter(|_| self.used.get()).map(IndirectionTable::all_to))
    }

    /// Whether the frame, or a segment that it stands for, is longer than the port's MTU.
    #[inline]
    pub fn over_mtu(&self, frame: &Frame) -> bool {
        let Some(mtu) = self.mtu else { return false };
        let l2 = if frame.headers.l3 == L3::None { 14 } else { u32::from(frame.headers.l3_at) };
        let packet = match frame.offload.gso {
            Some(gso) => u32::from(gso.size) + u32::from(frame.headers.end),
            None => frame.len,
        };
        packet.saturating_sub(l2) > u32::from(mtu)
    }

    /// Lets flows change queues. Returns how many buckets begin to change.
    fn rebalance(&mut self, now: Instant) -> u64 {
        let Some(table) = &mut self.table else { return 0 };
        let since = self.dealt.map(|dealt| now.saturating_duration_since(dealt));
        let moving = table.end_interval(since.is_none_or(|since| since >= DEAL_INTERVAL));
        if moving > 1 {
            self.dealt = Some(now);
        }
        moving as u64
    }

    /// Remembers that frames are sent there.
    #[inline]
    pub fn use_it(&self) {
        self.used.set(true);
    }
}

/// A worker, as far as its routes depend on it.
pub struct View<'a> {
    /// Its number.
    pub own: usize,
    /// Its slots.
    pub slots: &'a HashMap<QueueId, usize>,
}

/// Interval at which unevenly hashed flows are rebalanced. Must be longer than the wait of a flow
/// that changes queues.
const REBALANCE_INTERVAL: Duration = Duration::from_millis(100);

/// The shortest interval at which the flows of a port are dealt anew. The flows wait meanwhile, and
/// so do frames behind them for other ports. The interval bounds that loss to a thousandth of the
/// time, whatever a guest does with its queues.
pub const DEAL_INTERVAL: Duration = Duration::from_secs(10);

/// All ports, seen from one worker.
pub struct Routes {
    /// The worker.
    pub own: usize,
    pub(crate) ports: Vec<Route>,
    /// A queue is on its way from one worker to another.
    pub moving: bool,
    /// When flows are rebalanced next.
    pub rebalance_at: Instant,
}

impl Routes {
    /// No routes yet, for this worker.
    pub fn for_worker(own: usize, now: Instant) -> Self {
        let rebalance_at = now + REBALANCE_INTERVAL;
        Routes { own, ports: Vec::new(), moving: false, rebalance_at }
    }

    /// Computes the worker's routes from a topology, in place of the `old` routes. Queues that the
    /// worker should own but does not own (yet, or any more) are left out.
    pub fn follow(&mut self, topology: &Topology, view: &View, old: Vec<Route>) {
        let mut old = old.into_iter();
        let route = |port: &PortView| Route::new(port, view, old.next());
        self.ports = topology.ports.iter().map(route).collect();
        let mut receivers = topology.ports.iter().flat_map(|port| &port.receivers);
        self.moving = receivers.any(|location| location.moving);
    }

    /// Lets unevenly hashed flows change queues. Returns how many buckets begin to change.
    #[cold]
    pub fn rebalance(&mut self, now: Instant) -> u64 {
        self.rebalance_at = now + REBALANCE_INTERVAL;
        self.ports.iter_mut().map(|route| route.rebalance(now)).sum()
    }

    /// The route to `port`.
    #[inline]
    pub fn to(&self, port: PortId) -> Option<&Route> {
        self.ports.get(usize::from(port.0))
    }

    /// The table of `port`, if it has several queues.
    pub fn table(&mut self, port: PortId) -> Option<&mut IndirectionTable> {
        self.ports.get_mut(usize::from(port.0))?.table.as_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::QueueLocation;

    fn location(queue: u64, worker: usize) -> QueueLocation {
        QueueLocation { queue: QueueId(queue), index: queue as u16, worker, moving: false }
    }

    fn seen(port: PortView, slots: &HashMap<QueueId, usize>) -> Routes {
        let mut routes = Routes::for_worker(0, Instant::now());
        routes.follow(&Topology { ports: vec![port] }, &View { own: 0, slots }, Vec::new());
        routes
    }

    fn routes(locations: &[QueueLocation], slots: &[(u64, usize)]) -> Routes {
        let port = PortView { receivers: locations.to_vec(), ..PortView::default() };
        let slots = slots.iter().map(|&(q, s)| (QueueId(q), s)).collect();
        seen(port, &slots)
    }

    #[test]
    fn own_queues_come_first() {
        let routes = routes(&[location(1, 1), location(2, 0), location(3, 1)], &[(2, 7)]);
        let route = routes.to(PortId(0)).unwrap();
        for hash in [0, 1 << 31, u32::MAX] {
            assert_eq!(choose(route, hash), Egress::Local(7));
        }
    }

    #[test]
    fn without_an_own_queue_all_others_are_used() {
        let routes = routes(&[location(1, 1), location(3, 2)], &[]);
        let route = routes.to(PortId(0)).unwrap();
        assert_eq!(choose(route, 0), Egress::Remote(location(1, 1)));
        assert_eq!(choose(route, u32::MAX), Egress::Remote(location(3, 2)));
    }

    fn choose(route: &Route, hash: u32) -> Egress {
        *route.choose(&Headers::default(), &[], || hash).0
    }

    /// Selects the queue that the first byte names.
    #[derive(Debug)]
    struct First;

    impl QueueSelector for First {
        fn queue(&self, _: &Headers, head: &[u8]) -> u16 {
            head[0].into()
        }
    }

    #[test]
    fn a_selector_is_followed_where_its_queue_receives() {
        let receivers = vec![location(0, 0), location(1, 1), location(2, 0)];
        let port = PortView { receivers, selector: Some(Arc::new(First)), ..PortView::default() };
        let slots =
            [(0, 7), (2, 9)].map(|(queue, slot)| (QueueId(queue), slot)).into_iter().collect();
        let routes = seen(port, &slots);
        let route = routes.to(PortId(0)).unwrap();
        let choose = |selector| *route.choose(&Headers::default(), &[selector], || 0).0;
        assert_eq!(
            [0, 1, 2].map(choose),
            [Egress::Local(7), Egress::Remote(location(1, 1)), Egress::Local(9)]
        );
        assert_eq!(choose(3), Egress::Local(7), "no such queue");
    }

    #[test]
    fn a_queue_that_has_left_is_not_chosen() {
        let routes = routes(&[location(1, 0)], &[]);
        assert_eq!(choose(routes.to(PortId(0)).unwrap(), 0), Egress::Unreachable);
        assert!(routes.to(PortId(1)).is_none());
    }

    /// A port's queues, as worker 0 sees them, whose slots 7 and 8 are queues 1 and 2.
    fn again(locations: &[QueueLocation], mut routes: Routes) -> Routes {
        let slots = [(QueueId(1), 7), (QueueId(2), 8)].into_iter().collect();
        let ports = vec![PortView { receivers: locations.to_vec(), ..PortView::default() }];
        let old = std::mem::take(&mut routes.ports);
        routes.follow(&Topology { ports }, &View { own: 0, slots: &slots }, old);
        routes
    }

    #[test]
    fn flows_of_an_only_queue_stay_there_however_often_routes_change() {
        let away = [location(1, 0), location(2, 1)];
        let mut routes = again(&away, Routes::for_worker(0, Instant::now()));
        // Something is sent there, then nothing more while routes change.
        routes.to(PortId(0)).unwrap().use_it();
        for _ in 0..3 {
            routes = again(&away, routes);
        }
        let routes = again(&[location(1, 0), location(2, 0)], routes);
        for hash in [0, u32::MAX] {
            assert_eq!(choose(routes.to(PortId(0)).unwrap(), hash), Egress::Local(7));
        }
    }

    #[test]
    fn flows_of_an_only_queue_stay_there_though_it_is_another_workers() {
        let (away, nearer) = ([location(3, 1)], [location(3, 1), location(2, 0)]);
        let to = |routes: &Routes| choose(routes.to(PortId(0)).unwrap(), u32::MAX);
        let unused = again(&nearer, again(&away, Routes::for_worker(0, Instant::now())));
        assert_eq!(to(&unused), Egress::Local(8));
        let used = again(&away, Routes::for_worker(0, Instant::now()));
        used.to(PortId(0)).unwrap().use_it();
        assert_eq!(to(&again(&nearer, used)), Egress::Remote(location(3, 1)));
    }
}
