//! Which of a receiver's queues a frame goes to.
//!
//! A flow stays on the worker that fetched it: among the receiver's enabled queues, the worker chooses by flow hash one
//! that it owns itself. Only when it owns none does the frame cross to another worker.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Arc;

use frame::Headers;
use switch::PortId;

use crate::topology::{QueueId, Seat, Topology};

/// Where a frame goes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// To a slot of this worker.
    Local(usize),
    /// To a queue of another worker.
    Remote(Seat),
    /// No queue of the port is enabled.
    Nowhere,
}

/// A port's own wish where its frames should go.
pub trait Steer: Debug + Send + Sync {
    /// The index of the queue for a frame whose first bytes are `head`. Where there is no such queue that receives, the
    /// worker chooses.
    fn queue(&self, headers: &Headers, head: &[u8]) -> u16;
}

/// One port, seen from one worker.
#[derive(Clone, Debug, Default)]
pub struct Route {
    local: Vec<usize>,
    remote: Vec<Seat>,
    /// What the port wishes, and the way to each of its queues, by index.
    wish: Option<(Arc<dyn Steer>, Vec<Way>)>,
    /// Longest IP packet that the port takes, in bytes.
    pub mtu: Option<u16>,
}

impl Route {
    /// Whether all frames take the same way, and may be as long as they like.
    #[inline]
    pub fn is_simple(&self) -> bool {
        self.wish.is_none() && self.mtu.is_none() && (self.local.len() == 1 || self.local.len() + self.remote.len() < 2)
    }

    /// The queue for a frame of a flow; `hash` is only asked for when there is a choice.
    #[inline]
    pub fn choose(&self, headers: &Headers, head: &[u8], hash: impl FnOnce() -> u32) -> Way {
        if let Some((steer, ways)) = &self.wish {
            match ways.get(usize::from(steer.queue(headers, head))) {
                None | Some(Way::Nowhere) => {}
                Some(way) => return *way,
            }
        }
        match (self.local.as_slice(), self.remote.as_slice()) {
            ([one], _) => Way::Local(*one),
            ([], []) => Way::Nowhere,
            ([], [one]) => Way::Remote(*one),
            ([], many) => Way::Remote(many[reduce(hash(), many.len())]),
            (many, _) => Way::Local(many[reduce(hash(), many.len())]),
        }
    }
}

/// Maps a hash to `0..n`, evenly.
#[inline]
fn reduce(hash: u32, n: usize) -> usize {
    ((u64::from(hash) * n as u64) >> 32) as usize
}

/// All ports, seen from one worker.
#[derive(Default)]
pub struct Routes(Vec<Route>);

impl Routes {
    /// The view of worker `own`, whose slots are `slots`. Queues that it should own and does not (yet, or any more)
    /// are left out.
    pub fn new(topology: &Topology, own: usize, slots: &HashMap<QueueId, usize>) -> Self {
        let route = |port: &crate::topology::PortView| {
            let mut route = Route { mtu: port.mtu, ..Route::default() };
            route.wish = port.steer.clone().map(|steer| (steer, Vec::new()));
            for &seat in &port.receivers {
                let way = match slots.get(&seat.queue) {
                    _ if seat.worker != own => Way::Remote(seat),
                    Some(&slot) => Way::Local(slot),
                    None => continue,
                };
                match way {
                    Way::Local(slot) => route.local.push(slot),
                    _ => route.remote.push(seat),
                }
                if let Some((_, ways)) = &mut route.wish {
                    ways.resize(ways.len().max(usize::from(seat.index) + 1), Way::Nowhere);
                    ways[usize::from(seat.index)] = way;
                }
            }
            route
        };
        Routes(topology.ports.iter().map(route).collect())
    }

    /// The route to `port`.
    #[inline]
    pub fn to(&self, port: PortId) -> Option<&Route> {
        self.0.get(usize::from(port.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::PortView;

    fn seat(queue: u64, worker: usize) -> Seat {
        Seat { queue: QueueId(queue), index: queue as u16, worker }
    }

    fn routes(seats: &[Seat], slots: &[(u64, usize)]) -> Routes {
        let port = PortView { receivers: seats.to_vec(), ..PortView::default() };
        let slots = slots.iter().map(|&(q, s)| (QueueId(q), s)).collect();
        Routes::new(&Topology { ports: vec![port] }, 0, &slots)
    }

    #[test]
    fn own_queues_come_first() {
        let routes = routes(&[seat(1, 1), seat(2, 0), seat(3, 1)], &[(2, 7)]);
        let route = routes.to(PortId(0)).unwrap();
        for hash in [0, 1 << 31, u32::MAX] {
            assert_eq!(choose(route, hash), Way::Local(7));
        }
    }

    #[test]
    fn without_an_own_queue_all_others_are_used() {
        let routes = routes(&[seat(1, 1), seat(3, 2)], &[]);
        let route = routes.to(PortId(0)).unwrap();
        assert_eq!(choose(route, 0), Way::Remote(seat(1, 1)));
        assert_eq!(choose(route, u32::MAX), Way::Remote(seat(3, 2)));
    }

    fn choose(route: &Route, hash: u32) -> Way {
        route.choose(&Headers::default(), &[], || hash)
    }

    /// Wishes for the queue that the first byte says.
    #[derive(Debug)]
    struct First;

    impl Steer for First {
        fn queue(&self, _: &Headers, head: &[u8]) -> u16 {
            head[0].into()
        }
    }

    #[test]
    fn a_port_that_has_a_wish_is_given_it_where_it_can_be() {
        let receivers = vec![seat(0, 0), seat(1, 1), seat(2, 0)];
        let port = PortView { receivers, steer: Some(Arc::new(First)), ..PortView::default() };
        let slots = [(0, 7), (2, 9)].map(|(queue, slot)| (QueueId(queue), slot)).into_iter().collect();
        let routes = Routes::new(&Topology { ports: vec![port] }, 0, &slots);
        let route = routes.to(PortId(0)).unwrap();
        let choose = |wish| route.choose(&Headers::default(), &[wish], || 0);
        assert_eq!([0, 1, 2].map(choose), [Way::Local(7), Way::Remote(seat(1, 1)), Way::Local(9)]);
        assert_eq!(choose(3), Way::Local(7), "no such queue");
    }

    #[test]
    fn a_queue_that_has_left_is_not_chosen() {
        let routes = routes(&[seat(1, 0)], &[]);
        assert_eq!(choose(routes.to(PortId(0)).unwrap(), 0), Way::Nowhere);
        assert!(routes.to(PortId(1)).is_none());
    }
}
