//! The other half: what `xen-netfront` does in a guest, over any [`hypervisor::Domain`].
//!
//! Pages are granted once and for all, not frame by frame: the backend copies, so a grant that
//! stays gives it nothing that it would not have anyway. A frame lies at the start of a page, on
//! both sides, so that it is copied page by page.

mod device;
mod kept;
mod landing;
mod mailbox;
mod receiver;
mod sender;
mod times;

pub use crate::xenbus::{FrontError, GrantedPages, PageAllocator};
pub use device::{Frontend, Queue, Wish};
pub use kept::Kept;
pub use landing::Landing;
pub use mailbox::Caller;
pub use receiver::{Frame, Receiver};
pub use sender::Sender;
