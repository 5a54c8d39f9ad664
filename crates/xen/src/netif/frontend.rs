//! The frontend: the work of `xen-netfront` in a guest, on any [`hypervisor::Domain`].
//!
//! Pages are granted once, not frame by frame: the backend copies, so a permanent grant gives it no
//! more access than it has anyway. A frame lies at the start of a page, on both sides, so that it
//! is copied page by page.

mod control_ring;
mod device_queue;
mod guest_times;
mod interface;
mod receiver;
mod ring;
mod sender;
mod static_grants;

use std::sync::Arc;

use ::ring::Memory;

pub use crate::xenbus::{FrontError, GrantedPages, PageAllocator};
pub use control_ring::ControlRing;
pub use device_queue::DeviceQueue;
pub use interface::{Frontend, FrontendConfig, Queue};
pub use receiver::{Frame, Receiver};
pub use ring::GrantedRing;
pub use sender::Sender;
pub use static_grants::StaticGrants;

/// A ring from which frames are taken.
pub trait FrameSource {
    /// Takes the next frame; false when there is none. Its pages are not posted again before
    /// [`post`](Self::post).
    ///
    /// # Errors
    /// When the backend breaks the rules.
    fn next(&mut self, frame: &mut Frame) -> Result<bool, FrontError>;

    /// Posts the pages of all frames that were taken.
    ///
    /// # Errors
    /// When the ring is not mapped any more.
    fn post(&mut self) -> Result<(), FrontError>;

    /// The memory that frames lie in.
    fn memory(&self) -> &Arc<Memory>;
}
