use std::cell::RefCell;

use hypervisor::test::{Guest, Machine};

use super::*;
use crate::netif::hash_control::ctrl_type::{ADD_GREF_MAPPING as ADD, DEL_GREF_MAPPING as DEL};

/// A list in no page at all.
struct List(RefCell<Vec<GrefEntry>>);

impl GrantedLists for List {
    fn read(&self, _: GrantRef, len: usize) -> Option<Vec<u8>> {
        GrefEntry::encode_all(&self.0.borrow()).get(..len).map(<[u8]>::to_vec)
    }

    fn write(&self, _: GrantRef, bytes: &[u8]) -> bool {
        *self.0.borrow_mut() = GrefEntry::decode_all(bytes);
        true
    }
}

fn ask(
    cache: &mut StaticGrants,
    kind: u16,
    queue: u32,
    references: &[GrantRef],
) -> Option<CtrlSlot> {
    let entries = references
        .iter()
        .map(|reference| GrefEntry { reference: *reference, flags: 0, status: 9 })
        .collect();
    cache.answer(
        [7 | u32::from(kind) << 16, queue, 1, references.len() as u32],
        &List(RefCell::new(entries)),
    )
}

fn okay(kind: u16, data: u32) -> Option<CtrlSlot> {
    Some([7 | u32::from(kind) << 16, 0, data, 0])
}

fn refused(kind: u16, refusal: CtrlError) -> Option<CtrlSlot> {
    Some([7 | u32::from(kind) << 16, refusal as u32, 0, 0])
}

/// A guest, pages that it grants, and room for so many of them.
fn room(most: u32, budget: &Arc<PageBudget>) -> (Machine, Guest, Vec<GrantRef>, StaticGrants) {
    let machine = Machine::new();
    let guest = machine.guest(DomId(1), 16).unwrap();
    let references = (0..16).map(|page| guest.grant(DomId(0), page, true)).collect();
    let grants = machine.hypervisor(DomId(0)).grants;
    let cache = StaticGrants::new(DomId(1), grants, most, 2, Arc::clone(budget));
    (machine, guest, references, cache)
}

#[test]
fn entries_are_as_in_the_protocol() {
    let entry = GrefEntry { reference: GrantRef(0x0102_0304), flags: 0x0506, status: 0x0708 };
    assert_eq!(entry.encode(), [4, 3, 2, 1, 6, 5, 8, 7]);
    assert_eq!(GrefEntry::decode_all(&[4, 3, 2, 1, 6, 5, 8, 7, 1]), [entry]);
}

/// Pages that a burst has found, in any set, stay mapped until the burst is over, and until then
/// there is no answer.
#[test]
fn a_burst_that_is_under_way_is_waited_for() {
    let (_machine, guest, references, mut cache) = room(32, &Arc::default());
    assert_eq!(ask(&mut cache, ADD, 0, &references[..4]), okay(ADD, 0));
    let burst = cache.mapped_pages(0).unwrap().take().unwrap();
    assert_eq!(ask(&mut cache, ADD, 0, &references[4..6]), okay(ADD, 0));
    assert_eq!(ask(&mut cache, DEL, 0, &references[2..5]), None);
    assert!(cache.is_unmap_pending() && cache.finish_unmap().is_none());
    // The page that no burst had is unmapped already.
    assert_eq!(guest.mapped(), 5);
    assert!(!guest.revoke(references[2]) && guest.revoke(references[4]));
    let next = cache.mapped_pages(0).unwrap().take().unwrap();
    assert!(next.has(references[0]) && !next.has(references[2]), "nobody finds it any more");
    drop(burst);
    assert_eq!(cache.finish_unmap(), okay(DEL, 3), "the burst that began later is not waited for");
    assert_eq!((guest.mapped(), cache.finish_unmap()), (3, None));
    assert!(guest.revoke(references[2]));
}

#[test]
fn all_vifs_share_one_budget() {
    let budget = Arc::new(PageBudget::new(6));
    let (_one, _, references, mut cache) = room(32, &budget);
    let (_two, _, others, mut other) = room(32, &budget);
    assert_eq!(ask(&mut cache, ADD, 0, &references[..4]), okay(ADD, 0));
    assert_eq!(ask(&mut other, ADD, 0, &others[..3]), refused(ADD, CtrlError::BufferOverflow));
    assert_eq!(
        ask(&mut other, ADD, 0, &[others[0], GrantRef(400)]),
        refused(ADD, CtrlError::InvalidParameter)
    );
    assert_eq!(ask(&mut other, ADD, 1, &others[..2]), okay(ADD, 0), "what failed has cost nothing");
    assert_eq!(ask(&mut cache, DEL, 0, &references[..3]), None);
    assert_eq!(
        ask(&mut other, ADD, 0, &others[..1]),
        refused(ADD, CtrlError::BufferOverflow),
        "not unmapped yet"
    );
    assert_eq!(cache.finish_unmap(), okay(DEL, 3));
    assert_eq!(ask(&mut other, ADD, 0, &others[..1]), okay(ADD, 0));
    drop(cache);
    assert_eq!(ask(&mut other, ADD, 0, &others[1..4]), okay(ADD, 0));
    drop(other);
    assert!(budget.take(6) && !budget.take(1));
}

#[test]
fn an_empty_shelf_is_nothing_to_lock() {
    let (_machine, _, references, mut cache) = room(32, &Arc::default());
    assert!(cache.mapped_pages(0).unwrap().take().is_none());
    ask(&mut cache, ADD, 1, &references[..1]);
    assert!(
        cache.mapped_pages(0).unwrap().take().is_none()
            && cache.mapped_pages(1).unwrap().take().is_some()
    );
    assert_eq!(cache.size(), (1, 32));
}
