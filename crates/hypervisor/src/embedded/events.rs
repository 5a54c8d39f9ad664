//! Event channels between the domains of a host: eventfds, and for each end a word that says
//! whether a signal is pending.
//!
//! The words lie in the memory of the domain that opened the channel. A domain that changes them
//! disturbs only its own signals. A domain that is another process also holds both eventfds.
//! Therefore the hypervisor's eventfd is read without blocking, and the domain's is written through
//! [`ring::interrupt`], which detects an eventfd that blocks.

use std::collections::HashMap;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ring::Memory;
use ring::interrupt_thread::{Target, interrupt};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::ReadWriteFlags;

use super::Host;
use super::layout::{CHANNELS, Layout};
use super::signal;
use super::sync::lock;
use super::table::Table;
use crate::DomId;
use crate::events::{Channel, EventError, Events, RemotePort};

/// The two ends of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The domain that opened the channel.
    Opener = 0,
    /// The domain that bound the channel.
    Binder = 1,
}

impl Side {
    fn other(self) -> Side {
        match self {
            Side::Opener => Side::Binder,
            Side::Binder => Side::Opener,
        }
    }
}

/// A channel: the state that both ends share.
#[derive(Debug)]
pub struct ChannelPair {
    /// The eventfds; each wakes the side that it is named after.
    wakers: [Arc<Target>; 2],
    /// Where the words are.
    memory: Arc<Memory>,
    layout: Layout,
    slot: u32,
    /// The channel is dead: a domain is gone, or has made its eventfd block.
    closed: AtomicBool,
}

impl ChannelPair {
    /// A new channel, with words of that number.
    ///
    /// # Errors
    /// When the kernel has no descriptor left.
    pub fn new(memory: &Arc<Memory>, layout: Layout, slot: u32) -> io::Result<ChannelPair> {
        let waker = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        ChannelPair::over([waker()?, waker()?], memory, layout, slot)
    }

    /// The channel that is signalled through `wakers`, as another process made them.
    ///
    /// # Errors
    /// When the memory has no such words.
    pub fn over(
        wakers: [OwnedFd; 2],
        memory: &Arc<Memory>,
        layout: Layout,
        slot: u32,
    ) -> io::Result<ChannelPair> {
        let pair = ChannelPair {
            wakers: wakers.map(Target::new),
            memory: Arc::clone(memory),
            layout,
            slot,
            closed: AtomicBool::new(false),
        };
        match pair.word(Side::Opener).is_some() && pair.word(Side::Binder).is_some() {
            true => Ok(pair),
            false => Err(io::Error::other("no words for this channel")),
        }
    }

    /// The waker of a side.
    pub fn waker(&self, side: Side) -> BorrowedFd<'_> {
        self.wakers[side as usize].as_fd()
    }

    /// Signals a side.
    pub fn raise(&self, side: Side) {
        if self.closed.load(Ordering::Relaxed) {
            return;
        }
        if let Some(word) = self.word(side) {
            signal::raise(word, || self.wake(side));
        }
    }

    /// Signals a side, without regard to its word.
    fn raise_anyway(&self, side: Side) {
        if let Some(word) = self.word(side) {
            word.store(1, Ordering::SeqCst);
        }
        self.wake(side);
    }

    /// Takes the pending signal of a side.
    pub fn take(&self, side: Side) -> bool {
        let empty = || {
            let mut count = [0; 8];
            // Explicitly non-blocking: another process may have changed the flags of the open file.
            let bytes = &mut [IoSliceMut::new(&mut count)];
            let _ = rustix::io::preadv2(self.waker(side), bytes, u64::MAX, ReadWriteFlags::NOWAIT);
        };
        self.word(side).is_some_and(|word| signal::take(word, empty))
    }

    fn wake(&self, side: Side) {
        if interrupt(&self.wakers[side as usize]).is_err() {
            self.closed.store(true, Ordering::Relaxed);
        }
    }

    fn word(&self, side: Side) -> Option<&AtomicU32> {
        self.memory.atomic_u32(self.layout.channel(self.slot, side as u32)).ok()
    }
}

/// All ports of all domains.
#[derive(Debug, Default)]
pub struct EventChannelTable {
    ports: Mutex<Ports>,
}

#[derive(Debug, Default)]
struct Ports {
    /// The number of the newest port. Ports of all domains are numbered together, so that a port of
    /// one domain is never valid in another.
    last: u32,
    open: HashMap<(DomId, u32), PortEntry>,
}

#[derive(Debug)]
struct PortEntry {
    /// The domain that may bind the port.
    with: DomId,
    bound: bool,
    slot: u32,
    pair: Arc<ChannelPair>,
}

impl Ports {
    /// A number for the words of another channel of `owner`.
    fn slot(&self, owner: DomId) -> Option<u32> {
        let taken = |slot| {
            self.open.iter().any(|((domain, _), open)| *domain == owner && open.slot == slot)
        };
        (0..CHANNELS).find(|slot| !taken(*slot))
    }
}

/// A port that was opened: its number, that of its words, and the channel.
pub struct Opened {
    /// The port number that the other end binds.
    pub number: RemotePort,
    /// The number of its words.
    pub slot: u32,
    /// The channel.
    pub pair: Arc<ChannelPair>,
}

impl EventChannelTable {
    /// Opens a port of a domain for domain `with`.
    ///
    /// # Errors
    /// When it has too many, or the kernel has no descriptor left.
    pub fn open(&self, table: &Table, with: DomId) -> io::Result<Opened> {
        let owner = table.id();
        let mut ports = lock(&self.ports);
        let full =
            || io::Error::new(io::ErrorKind::StorageFull, "the domain has too many event channels");
        let slot = ports.slot(owner).ok_or_else(full)?;
        let pair = Arc::new(ChannelPair::new(table.memory(), table.layout(), slot)?);
        for side in [Side::Opener, Side::Binder] {
            if let Some(word) = pair.word(side) {
                word.store(0, Ordering::SeqCst);
            }
        }
        ports.last += 1;
        let number = ports.last;
        ports.open.insert(
            (owner, number),
            PortEntry { with, bound: false, slot, pair: Arc::clone(&pair) },
        );
        Ok(Opened { number: RemotePort(number), slot, pair })
    }

    /// Closes a port that was opened.
    pub fn close(&self, owner: DomId, number: RemotePort) {
        let gone = lock(&self.ports).open.remove(&(owner, number.0));
        if let Some(open) = gone {
            open.pair.closed.store(true, Ordering::Relaxed);
        }
    }

    /// Closes all ports of a domain.
    pub fn close_all(&self, owner: DomId) {
        let mut ports = lock(&self.ports);
        for open in
            ports.open.iter().filter(|((domain, _), _)| *domain == owner).map(|(_, open)| open)
        {
            open.pair.closed.store(true, Ordering::Relaxed);
        }
        ports.open.retain(|(domain, _), _| *domain != owner);
    }

    fn bind(
        &self,
        by: DomId,
        domain: DomId,
        port: RemotePort,
    ) -> Result<Arc<ChannelPair>, EventError> {
        let mut ports = lock(&self.ports);
        match ports.open.get_mut(&(domain, port.0)) {
            Some(open) if open.with == by && !open.bound => {
                open.bound = true;
                Ok(Arc::clone(&open.pair))
            }
            _ => Err(EventError::Refused { domain, port }),
        }
    }

    fn unbind(&self, domain: DomId, port: RemotePort) {
        if let Some(open) = lock(&self.ports).open.get_mut(&(domain, port.0)) {
            open.bound = false;
        }
    }
}

/// One side of a channel.
#[derive(Debug)]
pub struct Port {
    number: RemotePort,
    pair: Arc<ChannelPair>,
    side: Side,
    /// Closes it.
    _end: Box<dyn ChannelEnd>,
}

/// Closes one side of a channel when it is dropped.
pub trait ChannelEnd: std::fmt::Debug + Send + Sync {}

impl Port {
    /// The side of a domain that opened the channel.
    pub fn opened(opened: Opened, end: Box<dyn ChannelEnd>) -> Port {
        Port { number: opened.number, pair: opened.pair, side: Side::Opener, _end: end }
    }

    /// The port number that the other end binds.
    pub fn number(&self) -> RemotePort {
        self.number
    }

    /// Waits for a signal and takes it. False when `timeout` has passed without one.
    pub fn wait(&self, timeout: Duration) -> bool {
        let timeout =
            Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
        let _ = poll(&mut [PollFd::from_borrowed_fd(self.waker(), PollFlags::IN)], Some(&timeout));
        self.take()
    }
}

impl Channel for Port {
    fn notify(&self) {
        self.pair.raise(self.side.other());
    }

    fn waker(&self) -> BorrowedFd<'_> {
        self.pair.waker(self.side)
    }

    fn take(&self) -> bool {
        self.pair.take(self.side)
    }
}

/// An opened port in the list.
#[derive(Debug)]
pub struct OpenPort {
    /// The host.
    pub host: Arc<Host>,
    /// The domain that opened the port.
    pub owner: DomId,
    /// The port's number.
    pub number: RemotePort,
}

impl ChannelEnd for OpenPort {}

impl Drop for OpenPort {
    fn drop(&mut self) {
        self.host.event_channels.close(self.owner, self.number);
    }
}

/// A port that is bound.
#[derive(Debug)]
struct BoundPort {
    host: Arc<Host>,
    domain: DomId,
    port: RemotePort,
}

impl ChannelEnd for BoundPort {}

impl Drop for BoundPort {
    fn drop(&mut self) {
        self.host.event_channels.unbind(self.domain, self.port);
    }
}

/// Event channels as `by` can bind them.
#[derive(Debug)]
pub struct DomainEvents {
    /// The host.
    pub host: Arc<Host>,
    /// The domain that binds the channel.
    pub by: DomId,
}

impl Events for DomainEvents {
    fn bind(&self, domain: DomId, port: RemotePort) -> Result<Box<dyn Channel>, EventError> {
        let pair = self.host.event_channels.bind(self.by, domain, port)?;
        let end = BoundPort { host: Arc::clone(&self.host), domain, port };
        pair.raise_anyway(Side::Binder);
        Ok(Box::new(Port { number: port, pair, side: Side::Binder, _end: Box::new(end) }))
    }
}
