//! Pages that a frontend asks its backend to keep mapped (netif.h, "Static Grants"): all pages that
//! its queues send from and receive into, since these never change.

use hypervisor::GrantRef;

use super::FrontError;
use super::control_ring::ControlRing;
use super::interface::Queue;
use crate::netif::hash_control::{CtrlError, ctrl_type};
use crate::netif::static_grants::{GrefEntry, MAX_LIST, READ_ONLY};

/// Lists of pages that the backend keeps mapped.
#[derive(Debug, Default)]
pub struct StaticGrants {
    lists: Vec<(u32, Vec<GrefEntry>)>,
}

impl StaticGrants {
    /// Makes the backend map the pages of all queues, as many as it accepts, beginning with the
    /// receive pages of each queue.
    ///
    /// # Errors
    /// As for [`ControlRing::request`]. A backend that accepts no pages, or no more, is
    /// not an error.
    pub fn add_all(
        control_ring: &mut ControlRing,
        queues: &[Queue],
    ) -> Result<StaticGrants, FrontError> {
        let mut added = StaticGrants::default();
        for (n, queue) in (0..).zip(queues) {
            let (status, most) =
                control_ring.request(ctrl_type::GET_GREF_MAPPING_SIZE, [n, 0, 0])?;
            if status != 0 {
                break;
            }
            let pages: Vec<GrefEntry> = entries(queue).take(most as usize).collect();
            for list in pages.chunks(MAX_LIST as usize) {
                control_ring.write_list(&GrefEntry::encode_all(list))?;
                let at = control_ring.list_page().0;
                match control_ring
                    .request(ctrl_type::ADD_GREF_MAPPING, [n, at, list.len() as u32])?
                {
                    (0, _) => added.lists.push((n, list.to_vec())),
                    // Pages of other vifs have used up the budget.
                    (status, _) if status == CtrlError::BufferOverflow as u32 => return Ok(added),
                    _ => return Err(FrontError::Backend("refuses pages that are granted")),
                }
            }
        }
        Ok(added)
    }

    /// How many pages they are.
    pub fn len(&self) -> usize {
        self.lists.iter().map(|(_, list)| list.len()).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.lists.is_empty()
    }

    /// Makes the backend unmap all pages, so that the grants can be revoked. Returns how many were
    /// mapped: a backend that took over from another may know of none.
    ///
    /// # Errors
    /// As for [`ControlRing::request`], and when it reports to have unmapped other pages.
    pub fn remove_all(self, control_ring: &mut ControlRing) -> Result<u32, FrontError> {
        let mut total = 0;
        for (queue, list) in &self.lists {
            control_ring.write_list(&GrefEntry::encode_all(list))?;
            let at = control_ring.list_page().0;
            let (status, count) = control_ring
                .request(ctrl_type::DEL_GREF_MAPPING, [*queue, at, list.len() as u32])?;
            let unmapped = GrefEntry::decode_all(&control_ring.read_list(list.len())?)
                .iter()
                .filter(|entry| entry.status == 0)
                .count();
            if status != 0 || unmapped != count as usize {
                return Err(FrontError::Backend("unmaps other pages than it was to"));
            }
            total += count;
        }
        Ok(total)
    }
}

/// All pages of a queue that stay granted.
fn entries(queue: &Queue) -> impl Iterator<Item = GrefEntry> {
    let entry =
        |flags| move |reference: &GrantRef| GrefEntry { reference: *reference, flags, status: 0 };
    let rx = queue.rx.pages().references();
    let tx = if queue.tx.grants_ranges() { &[] } else { queue.tx.pages().references() };
    rx.iter().map(entry(0)).chain(tx.iter().map(entry(READ_ONLY)))
}
