//! Pages that a frontend has its backend keep mapped (netif.h, "Static Grants"): all that its
//! queues send from and receive into, since those are always the same.

use hypervisor::GrantRef;

use super::FrontError;
use super::device::Queue;
use super::mailbox::Caller;
use crate::netif::cache::{Entry, LIST, READ_ONLY};
use crate::netif::control::{Refusal, message};

/// Lists of pages that the backend keeps.
#[derive(Debug, Default)]
pub struct Kept {
    lists: Vec<(u32, Vec<Entry>)>,
}

impl Kept {
    /// Has the backend keep the pages of all queues, as far as it does that: of each queue those
    /// first that it receives into.
    ///
    /// # Errors
    /// As for [`Caller::ask`]. A backend that keeps none, or no more, is none.
    pub fn all(caller: &mut Caller, queues: &[Queue]) -> Result<Kept, FrontError> {
        let mut kept = Kept::default();
        for (n, queue) in (0..).zip(queues) {
            let (status, most) = caller.ask(message::GET_GREF_MAPPING_SIZE, [n, 0, 0])?;
            if status != 0 {
                break;
            }
            let pages: Vec<Entry> = entries(queue).take(most as usize).collect();
            for list in pages.chunks(LIST as usize) {
                caller.write_list(&Entry::encode_all(list))?;
                let at = caller.list_page().0;
                match caller.ask(message::ADD_GREF_MAPPING, [n, at, list.len() as u32])? {
                    (0, _) => kept.lists.push((n, list.to_vec())),
                    // Others were faster.
                    (status, _) if status == Refusal::BufferOverflow as u32 => return Ok(kept),
                    _ => return Err(FrontError::Backend("refuses pages that are granted")),
                }
            }
        }
        Ok(kept)
    }

    /// How many pages they are.
    pub fn len(&self) -> usize {
        self.lists.iter().map(|(_, list)| list.len()).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.lists.is_empty()
    }

    /// Has the backend unmap them all, so that the grants can be taken back. How many it had
    /// mapped: one that took over from another may know of none.
    ///
    /// # Errors
    /// As for [`Caller::ask`], and when it says that it unmapped others than it did.
    pub fn give_back(self, caller: &mut Caller) -> Result<u32, FrontError> {
        let mut total = 0;
        for (queue, list) in &self.lists {
            caller.write_list(&Entry::encode_all(list))?;
            let at = caller.list_page().0;
            let (status, count) =
                caller.ask(message::DEL_GREF_MAPPING, [*queue, at, list.len() as u32])?;
            let unmapped = Entry::decode_all(&caller.read_list(list.len())?)
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

/// All pages of a queue that are granted as long as it lives.
fn entries(queue: &Queue) -> impl Iterator<Item = Entry> {
    let entry =
        |flags| move |reference: &GrantRef| Entry { reference: *reference, flags, status: 0 };
    let rx = queue.rx.pages().references();
    let tx = if queue.tx.grants_ranges() { &[] } else { queue.tx.pages().references() };
    rx.iter().map(entry(0)).chain(tx.iter().map(entry(READ_ONLY)))
}
