//! Queues of a network card, by AF_XDP, for the datagrams of a VTEP with an address of the card's
//! interface.
//!
//! A small XDP program directs the datagrams to a socket for each receive queue. Everything else
//! passes to the kernel: ARP, routing protocols, the host's other traffic. Frames are sent from
//! pages of their own, without the kernel's network stack, so the next hop's address must be known.

pub(super) mod egress;
pub(super) mod receiver;
pub(super) mod sender;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use frame::Mac;
use parking_lot::Mutex;
use ring::region::Memory;
use ring::xdp::PAGE;

use super::UnderlayError;
use crate::next_hop;
use crate::tun;
use crate::xdp::bpf::{self, Map};
use crate::xdp::{BUSY, program, queues};

use receiver::CardReceiver;
use sender::CardSender;

/// Pages to receive into, of a queue.
const RECEIVE: u32 = CardReceiver::BUFFERS as u32;
/// Pages to send from.
const SEND: u32 = 512;
/// Most queues of a card: each has pages of its own, 4 MiB.
const MAX_QUEUES: u32 = 64;
/// Attempts to find the next hop of a new peer, and the time between them.
const ATTEMPTS: u32 = 3;
const INTERVAL: Duration = Duration::from_millis(1);

/// A card whose program directs datagrams here.
pub(super) struct Card {
    /// Keeps the program attached. It is detached before the sockets are closed.
    _link: OwnedFd,
    _sockets: Map<u32, u32>,
    index: u32,
    /// Its address.
    pub mac: Mac,
}

/// Both ends of a queue.
pub(super) type Queue = (CardReceiver, Arc<Mutex<CardSender>>);

/// Opens all queues of the card: datagrams may come by any of them.
pub(super) fn open(device: &str, local: SocketAddr) -> Result<(Card, Vec<Queue>), UnderlayError> {
    let failed =
        |what| move |error| UnderlayError::Device { device: device.to_owned(), what, error };
    let name = tun::if_name(device).ok_or_else(|| io::ErrorKind::InvalidInput.into());
    let name = name.map_err(failed("use"))?;
    let index = tun::index(name).map_err(failed("find"))?;
    let mac = tun::mac(name).map_err(failed("ask for the address of"))?;
    let count = queues(name);
    if count > MAX_QUEUES {
        let error = io::Error::other(format!(
            "it has {count} queues, and {MAX_QUEUES} are the most: `ethtool -L {device} combined \
             {MAX_QUEUES}`"
        ));
        return Err(failed("use")(error));
    }
    let sockets = Map::sockets(count).map_err(failed("make a map for"))?;
    let mut opened = Vec::new();
    for queue in 0..count {
        let bytes = u64::from(RECEIVE + SEND) * PAGE;
        let pages = Arc::new(Memory::anonymous(bytes as usize)?);
        let until = Instant::now() + BUSY;
        let sizes = [RECEIVE, SEND];
        let ends = ring::xdp::Sender::open(index, queue, Arc::clone(&pages), sizes, until);
        let (receiver, sender) =
            ends.map_err(|error| failed("open a queue of")(io::Error::other(error)))?;
        let socket = receiver.socket().upgrade();
        let directed = socket.map_or(Ok(()), |socket| sockets.set_fd(queue, socket.fd()));
        directed.map_err(failed("direct datagrams from"))?;
        let sender = CardSender::new(sender, Arc::clone(&pages), RECEIVE..RECEIVE + SEND);
        opened.push((CardReceiver::new(receiver, pages, local), Arc::new(Mutex::new(sender))));
    }
    let loaded = bpf::load(&program::datagrams(local, sockets.fd()));
    let loaded = loaded.map_err(failed("load a program for"))?;
    let attached = bpf::attach(&loaded, index).map_err(failed("attach a program to"));
    let (link, _) = attached?;
    Ok((Card { _link: link, _sockets: sockets, index, mac }, opened))
}

/// The link-layer address of a next hop, which may change while frames are sent. Zero: not known.
#[derive(Debug, Default)]
pub(super) struct SharedMac(AtomicU64);

impl SharedMac {
    /// The address, if it is known.
    #[inline]
    pub fn get(&self) -> Option<Mac> {
        let [bytes @ .., _, _] = self.0.load(Ordering::Relaxed).to_ne_bytes();
        (bytes != [0; 6]).then_some(Mac(bytes))
    }

    fn set(&self, Mac([a, b, c, d, e, f]): Mac) {
        self.0.store(u64::from_ne_bytes([a, b, c, d, e, f, 0, 0]), Ordering::Relaxed);
    }
}

impl AsRef<SharedMac> for SharedMac {
    fn as_ref(&self) -> &SharedMac {
        self
    }
}

impl Card {
    /// Looks up the next hop to a new peer. One that the kernel does not know yet may take longer
    /// than this waits.
    pub fn find(&self, local: IpAddr, peer: IpAddr, mac: &SharedMac) {
        for _ in 0..ATTEMPTS {
            self.refresh(local, peer, &[mac]);
            if mac.get().is_some() {
                return;
            }
            std::thread::sleep(INTERVAL);
        }
    }

    /// Looks up the next hop to a peer again, for all its networks. The kernel does not see the
    /// datagrams to the peer, so it is asked to confirm an address that it has not used for long.
    pub fn refresh(&self, local: IpAddr, peer: IpAddr, macs: &[impl AsRef<SharedMac>]) {
        // Without a route, frames still go the way that they went before.
        let Ok(found) = next_hop::find(peer, self.index) else { return };
        if let Some(hop) = found {
            macs.iter().for_each(|mac| mac.as_ref().set(hop.mac));
        }
        if !found.is_some_and(|hop| hop.is_confirmed) {
            // Another attempt follows.
            let _ = next_hop::ask(local, peer);
        }
    }
}
