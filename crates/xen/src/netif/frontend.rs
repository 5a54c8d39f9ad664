//! The other half: what `xen-netfront` does in a guest, over any [`hypervisor::Domain`].
//!
//! Pages are granted once and for all, not frame by frame: the backend copies, so a grant that
//! stays gives it nothing that it would not have anyway. A frame lies at the start of a page, on
//! both sides, so that it is copied page by page.

mod device;
mod kept;
mod landing;
mod mailbox;
mod pages;
mod receiver;
mod sender;
mod times;

use std::io;

use hypervisor::StoreError;
use ring::Violation;
use thiserror::Error;

pub use device::{Frontend, Queue, Wish};
pub use kept::Kept;
pub use landing::Landing;
pub use mailbox::Caller;
pub use pages::{Area, Granted};
pub use receiver::{Frame, Receiver};
pub use sender::Sender;

/// Why a frontend can't go on.
#[derive(Debug, Error)]
pub enum FrontError {
    /// The store can't be asked, or does not have what should be there.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A key of the backend is missing.
    #[error("{0} is missing")]
    Missing(String),
    /// No pages, grants or channels are left.
    #[error("{0}")]
    Os(#[from] io::Error),
    /// The backend breaks the rules of rings.
    #[error(transparent)]
    Ring(#[from] Violation),
    /// The backend breaks other rules.
    #[error("the backend {0}")]
    Backend(&'static str),
}
