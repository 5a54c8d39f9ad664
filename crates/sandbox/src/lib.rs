//! Layers of protection between a compromised daemon and its host: an ordinary user without
//! capabilities, namespaces, Landlock, and seccomp filters by kind of thread.
//!
//! [`Plan::enter`] puts the calling process into the sandbox. The process must have one thread
//! then: users, capabilities and filters belong to threads, and threads that are started later
//! inherit them. Threads that need less than the others call [`enter_thread`] when they have
//! started.
//!
//! A layer that the kernel does not offer, or that this process may not use, is reported with its
//! reason, and the others are entered all the same.

mod capabilities;
mod folders;
mod identity;
mod layer;
mod namespaces;
mod paths;
mod plan;
mod root;
mod seccomp;
mod violation;

pub use identity::{Group, Owner, UnknownName, User};
pub use layer::{Layer, LayerReport, LayerState};
pub use paths::{Access, Path};
pub use plan::{Capability, Entered, MissingFolder, Plan};
pub use rustix::thread::CapabilitySet;
pub use seccomp::{Extras, Role, enter_thread};
