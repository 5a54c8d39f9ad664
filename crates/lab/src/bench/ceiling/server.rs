//! The server of the bare copy: two sockets, one thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use load::cpu;
use ring::copy::measure::choose;
use ring::wire::Wire;
use rustix::event::{PollFd, PollFlags, poll};
use unix_socket::{Listener, Permissions};
use vhost_user::net::feature::bit;
use vhost_user::transport::server::listener;

use super::guest::{End, Guest};
use super::{Args, sockets};

/// Frames that are carried at a time.
const BURST: u16 = 64;

/// Passes of the polling loop from one look at the sockets to the next.
const GLANCE: u32 = 1 << 14;

/// Rounds of the measurement of methods of copying.
const ROUNDS: u32 = 5;

/// The features that are offered: just what the generator's points ask for.
const FEATURES: u64 = bit::VERSION_1
    | bit::PROTOCOL_FEATURES
    | bit::MRG_RXBUF
    | bit::MQ
    | bit::CSUM
    | bit::GUEST_CSUM
    | bit::HOST_TSO4
    | bit::GUEST_TSO4;

/// Serves pairs of front-ends for ever.
///
/// # Errors
/// When the sockets cannot be made.
pub(super) fn run(args: &Args) -> io::Result<()> {
    // Long copies are made as those of the daemon.
    choose(ROUNDS);
    let [a, b] = sockets(&args.folder).map(|path| {
        Listener::bind(&path, listener(Permissions::default())).map_err(io::Error::other)
    });
    let doors = [a?, b?];
    // The generator reports a CPU that it cannot be pinned to, and also fails.
    let _ = cpu::pin(args.cpu);
    loop {
        // The generator reports the end of a connection.
        let _ = serve(&doors, args.sleep);
    }
}

/// Serves two front-ends, which come one after the other, until one of them leaves.
fn serve(doors: &[Listener; 2], sleep: bool) -> Result<(), End> {
    let mut guests = [None, None];
    let mut links = Vec::new();
    loop {
        let mut changed = false;
        for (guest, door) in guests.iter_mut().zip(doors) {
            changed |= match guest {
                Some(guest) => Guest::listen(guest)?,
                None => {
                    *guest = door.accept()?.map(|socket| Guest::new(socket, FEATURES));
                    false
                }
            };
        }
        if let ([Some(a), Some(b)], true) = (&guests, changed) {
            links = between(a, b)?;
        }
        match links.is_empty() {
            true => _ = wait(doors, &guests, &[]),
            false if sleep => carry_and_sleep(&mut links, doors, &guests)?,
            false => carry(&mut links)?,
        }
    }
}

/// Carries frames, until it is time to look at the sockets again.
fn carry(links: &mut [Link]) -> Result<(), End> {
    for _ in 0..GLANCE {
        for link in &mut *links {
            link.wire.carry(BURST)?;
        }
    }
    Ok(())
}

/// Carries frames, and sleeps while there are none, until it is time to look at the sockets again.
fn carry_and_sleep(
    links: &mut [Link],
    doors: &[Listener; 2],
    guests: &[Option<Guest>; 2],
) -> Result<(), End> {
    loop {
        let mut carried = 0;
        for link in &mut *links {
            carried += link.carry_and_interrupt()?;
        }
        if carried > 0 {
            continue;
        }
        let ready = links.iter().filter(|link| link.wire.want_notifications(true)).count();
        let is_time = ready == 0 && wait(doors, guests, links);
        for link in &*links {
            link.wire.want_notifications(false);
        }
        if is_time {
            return Ok(());
        }
    }
}

/// Waits for a notification of a link, or for a front-end. True: one has come, or says something.
fn wait(doors: &[Listener; 2], guests: &[Option<Guest>; 2], links: &[Link]) -> bool {
    let sockets: [BorrowedFd<'_>; 2] = std::array::from_fn(|at| match &guests[at] {
        Some(guest) => guest.as_fd(),
        None => doors[at].as_fd(),
    });
    let kicks = links.iter().flat_map(|link| &link.kicks);
    let fds = sockets.into_iter().chain(kicks.clone().map(|kick| kick.as_fd()));
    let mut fds: Vec<_> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    // A wait that a signal ended is begun anew.
    let _ = poll(&mut fds, None);
    let (sockets, events) = fds.split_at(sockets.len());
    for (event, kick) in events.iter().zip(kicks) {
        if !event.revents().is_empty() {
            // A count that somebody else has read means the same.
            let _ = rustix::io::read(kick, &mut [0u8; 8]);
        }
    }
    sockets.iter().any(|socket| !socket.revents().is_empty())
}

/// A wire, and what its ends are told by.
struct Link {
    wire: Wire,
    kicks: [Arc<OwnedFd>; 2],
    calls: [Arc<OwnedFd>; 2],
}

impl Link {
    /// Carries frames, and interrupts the guests that want that; returns how many it carried.
    fn carry_and_interrupt(&mut self) -> Result<u16, End> {
        let carried = self.wire.carry(BURST)?;
        if carried > 0 {
            for (call, wanted) in self.calls.iter().zip(self.wire.interrupts()) {
                if wanted {
                    rustix::io::write(call, &1u64.to_ne_bytes()).map_err(io::Error::from)?;
                }
            }
        }
        Ok(carried)
    }
}

/// Links between all rings that exist, in both directions.
fn between(a: &Guest, b: &Guest) -> Result<Vec<Link>, End> {
    let mut links = Vec::new();
    for (from, to) in [(a, b), (b, a)] {
        for pair in 0..from.rings() / 2 {
            let (sent, received) = (2 * pair + 1, 2 * pair);
            let (Some(tx), Some(rx)) = (from.ring(sent)?, to.ring(received)?) else { continue };
            let (tx_events, rx_events) = (from.events(sent), to.events(received));
            let (Some(tx_events), Some(rx_events)) = (tx_events, rx_events) else { continue };
            links.push(Link {
                wire: Wire::new((tx.0, &tx.1), (rx.0, &rx.1))?,
                kicks: [tx_events.0, rx_events.0],
                calls: [tx_events.1, rx_events.1],
            });
        }
    }
    Ok(links)
}
