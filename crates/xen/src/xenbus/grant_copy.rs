//! Grant copies (`GNTTABOP_copy`) for the queues of devices.

use std::sync::Arc;

use ring::Engine;
use ring::copies::{Copies, OwnPages, Status};

/// Grant copies as an [`Engine`].
#[derive(Debug)]
pub struct GrantCopyEngine(pub Arc<dyn hypervisor::Grants>);

impl Engine for GrantCopyEngine {
    fn run(&self, copies: &mut Copies) {
        if self.0.copy(copies).is_err() && copies.is_waiting() {
            copies.run(|mut batch| batch.fail(Status::REFUSED));
        }
    }

    fn own_pages(&self, len: usize) -> Option<OwnPages> {
        self.0.own_pages(len)
    }
}
