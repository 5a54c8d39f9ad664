//! The receiving end of the underlay: buffers, and what the kernel puts into them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use network::port::QueueError;
use overlay::Refusal;
use ring::datagrams::ReceiveBatch;
use ring::region::{MapError, Memory};

use super::arrival::Arrival;
use super::card::receiver::CardReceiver;
use super::tap::receiver::TapReceiver;

/// Buffers of a worker's socket.
const BUFFERS: u16 = 32;
/// Bytes of each of those: the most that the kernel coalesces of one flow.
const BUFFER: u32 = 65_536;

/// Where datagrams come from.
pub(super) enum Receiver {
    /// A socket.
    Socket(OwnedFd, ReceiveBatch),
    /// A queue of a TAP device to which the host routes datagrams.
    Tap(TapReceiver),
    /// A receive queue of a card.
    Card(CardReceiver),
}

impl Receiver {
    /// The receiver of a socket.
    ///
    /// # Errors
    /// When the kernel gives no memory.
    pub fn of_socket(socket: OwnedFd) -> Result<Receiver, MapError> {
        // The last buffer is never filled.
        Ok(Receiver::Socket(socket, ReceiveBatch::new(BUFFERS + 1, BUFFER)?))
    }

    /// How many buffers can be filled. One more is never filled.
    pub fn buffers(&self) -> u16 {
        match self {
            Receiver::Socket(..) => BUFFERS,
            Receiver::Tap(_) => TapReceiver::BUFFERS,
            Receiver::Card(_) => CardReceiver::BUFFERS,
        }
    }

    /// The memory that the buffers are in.
    pub fn memory(&self) -> &Arc<Memory> {
        match self {
            Receiver::Socket(_, batch) => batch.memory(),
            Receiver::Tap(tap) => tap.memory(),
            Receiver::Card(card) => card.memory(),
        }
    }

    /// Where a buffer begins in it.
    pub fn place(&self, buffer: u16) -> u64 {
        match self {
            Receiver::Socket(_, batch) => batch.place(buffer),
            Receiver::Tap(_) => TapReceiver::place(buffer),
            Receiver::Card(_) => CardReceiver::place(buffer),
        }
    }

    /// The descriptor that signals datagrams.
    pub fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Receiver::Socket(socket, _) => socket.as_fd(),
            Receiver::Tap(tap) => tap.fd(),
            Receiver::Card(card) => card.fd(),
        }
    }

    /// How many system calls filled so many buffers.
    pub fn calls(&self, buffers: usize) -> u64 {
        match self {
            Receiver::Socket(..) => 1,
            Receiver::Tap(_) => buffers as u64,
            // Without any: the kernel fills pages by itself.
            Receiver::Card(_) => 0,
        }
    }

    /// How many frames all buffers together may have.
    pub fn frames(&self) -> usize {
        // The kernel coalesces at most 128 datagrams in a buffer.
        let each = if matches!(self, Receiver::Card(_)) { 1 } else { 128 };
        usize::from(self.buffers()) * each
    }

    /// Fills buffers of `free`, the last ones first, as far as there are datagrams. What was filled
    /// is appended to `arrivals`. Buffers may also leave `free` to be filled later.
    ///
    /// # Errors
    /// When the device is gone.
    pub fn receive(
        &mut self,
        free: &mut Vec<u16>,
        arrivals: &mut Vec<Arrival>,
    ) -> Result<(), QueueError> {
        match self {
            Receiver::Socket(socket, batch) => {
                let arrived = |one: ring::datagrams::Received| {
                    let source = one.source.ok_or(Refusal::UnknownVtep);
                    let cut = one.truncated || one.len == 0;
                    arrivals.push(Arrival {
                        buffer: one.buffer,
                        at: 0,
                        len: one.len,
                        segment: one.segment,
                        source: if cut { Err(Refusal::Malformed) } else { source },
                        header: None,
                        offload: None,
                    });
                };
                // There is no datagram, or the kernel's error belongs to one that was sent.
                let _ = batch.receive(socket.as_fd(), free, arrived);
                Ok(())
            }
            Receiver::Tap(tap) => tap.receive(free, arrivals),
            Receiver::Card(card) => card.receive(free, arrivals),
        }
    }
}
