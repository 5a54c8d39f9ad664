//! A new process takes over from a running daemon: guests, sockets and learned addresses.
//!
//! The new process asks at the control socket. The connection carries the hand-over from then on,
//! as [messages](channel) with descriptors:
//!
//! 1. The running daemon, the *giver*, lists what it serves ([`Manifest`](crate::api::Manifest)),
//!    or refuses by name. The new process, the *taker*, compares the list with its configuration,
//!    and refuses by name. Nothing has changed so far.
//! 2. The taker asks for the state. The giver parks the control threads of all ports, whose rings
//!    continue, and sends the state that their front-ends have set. The taker maps the guests'
//!    memory.
//! 3. The taker is ready. The giver withdraws all queues from its workers, and sends the positions
//!    of the rings.
//! 4. The taker declares the rings its own, starts them, and cuts the connection. The giver ends.
//!
//! A giver that does not receive the message of step 4 cuts the connection, so that no message can
//! be sent any more, and continues from where it stopped. So at most one process uses the rings at
//! any time.

pub(crate) mod channel;
mod giver;
pub(crate) mod message;
pub(crate) mod port;
mod taker;

pub(crate) use giver::{End, Giver, Shared};
pub(crate) use taker::{Adopted, Incoming};
pub use taker::{TakeOver, TakeOverError};
