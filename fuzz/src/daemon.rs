//! Sequences of operations against a whole daemon, over its real sockets.
//!
//! The daemon is started once for a process, with two honest guests. After each input the honest
//! guests must still reach each other, and nothing of the input may be left behind.

pub mod control;
pub mod embedded;
mod front_end;
mod guest;
mod honest;
mod site;
mod store_client;
mod stubborn;
pub mod vhost_user;
