//! What sends the datagrams of an underlay.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use frame::vxlan::outer::{Ends, Template};
use network::port::QueuePair;
use parking_lot::Mutex;
use ring::datagrams::{LANES, Peer};

use super::card::egress::{CardEgress, Destination};
use super::card::sender::CardSender;
use super::card::{self, Card, SharedMac};
use super::counters::UnderlayCounters;
use super::egress::EgressPair;
use super::receiver::Receiver;
use super::tap::receiver::TapReceiver;
use super::tap::sender::TapSender;
use super::{HOPS, PeerSpec, Transport, UnderlayError, socket, tap};

/// The sending ends of all workers, or of all queues of a card.
pub(super) enum Senders {
    /// The kernel sends.
    Kernel {
        /// The sockets of each worker.
        sockets: Vec<Arc<[OwnedFd; LANES]>>,
        /// The queue of each worker, if there is a TAP device.
        taps: Vec<Arc<OwnedFd>>,
    },
    /// A card sends.
    Card {
        /// The card.
        card: Card,
        /// Its queues.
        queues: Vec<Arc<Mutex<CardSender>>>,
    },
}

impl Senders {
    /// Opens both ends of a transport, on `local`, for so many workers.
    pub fn open(
        transport: &Transport,
        local: SocketAddr,
        workers: usize,
    ) -> Result<(Senders, Vec<Receiver>), UnderlayError> {
        let failed = |error| UnderlayError::Socket { address: local, error };
        let sending = |_| socket::sending(local.ip(), transport).map(Arc::new).map_err(failed);
        match transport {
            Transport::Sockets => {
                let receiving = |_| {
                    let socket = socket::receiving(local).map_err(failed)?;
                    Ok(Receiver::of_socket(socket)?)
                };
                let receivers: Result<_, UnderlayError> = (0..workers).map(receiving).collect();
                let sockets = (0..workers).map(sending).collect::<Result<_, _>>()?;
                Ok((Senders::Kernel { sockets, taps: Vec::new() }, receivers?))
            }
            Transport::Tap(device) => {
                let taps = tap::open(device, local, workers)?;
                let receiver = |queue: &Arc<OwnedFd>| {
                    Ok(Receiver::Tap(TapReceiver::new(Arc::clone(queue), local)?))
                };
                let receivers: Result<_, UnderlayError> = taps.iter().map(receiver).collect();
                let sockets = (0..workers).map(sending).collect::<Result<_, _>>()?;
                Ok((Senders::Kernel { sockets, taps }, receivers?))
            }
            Transport::Card(device) => {
                let (card, ends) = card::open(device, local)?;
                let (receivers, queues): (Vec<_>, Vec<_>) = ends.into_iter().unzip();
                let receivers = receivers.into_iter().map(Receiver::Card).collect();
                Ok((Senders::Card { card, queues }, receivers))
            }
        }
    }

    /// The card, if one sends.
    pub fn card(&self) -> Option<&Card> {
        match self {
            Senders::Kernel { .. } => None,
            Senders::Card { card, .. } => Some(card),
        }
    }

    /// The pairs that send from `local` to a peer. A card needs its `next_hop`.
    pub fn pairs(
        &self,
        local: SocketAddr,
        peer: &PeerSpec,
        next_hop: &Arc<SharedMac>,
        counters: &Arc<UnderlayCounters>,
    ) -> Vec<Box<dyn QueuePair>> {
        let PeerSpec { vni, vtep, .. } = *peer;
        match self {
            Senders::Kernel { sockets, taps } => {
                let address = Peer::new(SocketAddr::new(vtep, local.port()));
                let pair = |(index, sockets): (usize, &Arc<_>)| -> Box<dyn QueuePair> {
                    let queue = taps.get(index).map(Arc::clone);
                    let tap = queue.and_then(|queue| TapSender::new(queue, local, vtep, vni));
                    let (sockets, counters) = (Arc::clone(sockets), Arc::clone(counters));
                    Box::new(EgressPair::new(vni, address, sockets, tap, counters))
                };
                sockets.iter().enumerate().map(pair).collect()
            }
            Senders::Card { card, queues } => {
                let Some(ends) = Ends::new(local.ip(), vtep) else { return Vec::new() };
                let link = (card.mac, card.mac);
                let template = Template { link, ends, port: local.port(), ttl: HOPS, vni };
                let pair = |sender: &Arc<_>| -> Box<dyn QueuePair> {
                    let destination = Destination { template, next_hop: Arc::clone(next_hop) };
                    let (sender, counters) = (Arc::clone(sender), Arc::clone(counters));
                    Box::new(CardEgress::new(destination, sender, counters))
                };
                queues.iter().map(pair).collect()
            }
        }
    }
}
