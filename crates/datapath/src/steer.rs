//! Which of a receiver's queues a frame goes to.
//!
//! A flow stays on the worker that fetched it: among the receiver's enabled queues, the worker chooses by flow hash one
//! that it owns itself. Only when it owns none does the frame cross to another worker.

use std::collections::HashMap;

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

/// One port, seen from one worker.
#[derive(Clone, Debug, Default)]
pub struct Route {
    local: Vec<usize>,
    remote: Vec<Seat>,
    /// Longest IP packet that the port takes, in bytes.
    pub mtu: Option<u16>,
}

impl Route {
    /// The queue for a flow; `hash` is only asked for when there is a choice.
    #[inline]
    pub fn choose(&self, hash: impl FnOnce() -> u32) -> Way {
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
            for &seat in &port.receivers {
                if seat.worker != own {
                    route.remote.push(seat);
                } else if let Some(&slot) = slots.get(&seat.queue) {
                    route.local.push(slot);
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
        Seat { queue: QueueId(queue), worker }
    }

    fn routes(seats: &[Seat], slots: &[(u64, usize)]) -> Routes {
        let port = PortView { receivers: seats.to_vec(), mtu: None };
        let slots = slots.iter().map(|&(q, s)| (QueueId(q), s)).collect();
        Routes::new(&Topology { ports: vec![port] }, 0, &slots)
    }

    #[test]
    fn own_queues_come_first() {
        let routes = routes(&[seat(1, 1), seat(2, 0), seat(3, 1)], &[(2, 7)]);
        let route = routes.to(PortId(0)).unwrap();
        for hash in [0, 1 << 31, u32::MAX] {
            assert_eq!(route.choose(|| hash), Way::Local(7));
        }
    }

    #[test]
    fn without_an_own_queue_all_others_are_used() {
        let routes = routes(&[seat(1, 1), seat(3, 2)], &[]);
        let route = routes.to(PortId(0)).unwrap();
        assert_eq!(route.choose(|| 0), Way::Remote(seat(1, 1)));
        assert_eq!(route.choose(|| u32::MAX), Way::Remote(seat(3, 2)));
    }

    #[test]
    fn a_queue_that_has_left_is_not_chosen() {
        let routes = routes(&[seat(1, 0)], &[]);
        assert_eq!(routes.to(PortId(0)).unwrap().choose(|| 0), Way::Nowhere);
        assert!(routes.to(PortId(1)).is_none());
    }
}
