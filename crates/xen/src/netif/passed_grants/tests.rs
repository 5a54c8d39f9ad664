use parking_lot::Mutex;

use super::*;

/// A grant table. It notes which references are in use.
#[derive(Debug, Default)]
struct Table {
    reserved: Mutex<u32>,
    copied: Mutex<Vec<GrantRef>>,
}

impl TransitiveGrants for Table {
    fn reserve(&self) -> io::Result<GrantRef> {
        let mut reserved = self.reserved.lock();
        *reserved += 1;
        Ok(GrantRef(*reserved))
    }

    fn grant(&self, _: GrantRef, _: DomId, _: DomId, _: GrantRef) {}

    fn end_access(&self, reference: GrantRef) -> bool {
        !self.copied.lock().contains(&reference)
    }

    fn release(&self, _: GrantRef) {
        *self.reserved.lock() -= 1;
    }
}

const SIZE: u32 = BackRing::<2>::SIZE;
const FROM: Granted = Granted { domain: DomId(1), reference: GrantRef(9), offset: 0 };

fn grants() -> (Arc<Table>, PassedGrants) {
    let table = Arc::new(Table::default());
    let grants = PassedGrants::new(Arc::clone(&table) as Arc<dyn TransitiveGrants>, DomId(2));
    (table, grants.unwrap())
}

/// Passes a frame of two pieces in slots that end before `end`.
fn pass(grants: &mut PassedGrants, end: u32) -> [GrantRef; 2] {
    let references = [FROM; 2].map(|from| grants.pass(from));
    grants.close(end);
    references
}

#[test]
fn fetched_frames_give_their_references_back() {
    let (table, mut grants) = grants();
    let end = u32::MAX - 2;
    pass(&mut grants, end);
    pass(&mut grants, end.wrapping_add(4));
    assert!(!grants.has_room(REFERENCES - 3) && grants.has_room(REFERENCES - 4));
    assert_eq!(grants.released(end.wrapping_add(SIZE - 1)), 0);
    assert_eq!(grants.released(end.wrapping_add(SIZE + 3)), 1);
    assert_eq!(grants.released(end.wrapping_add(SIZE + 4)), 1);
    assert!(grants.has_room(REFERENCES) && !grants.has_retired());
    drop(grants);
    assert_eq!(*table.reserved.lock(), 0);
}

/// The frontend has not looked at its slots yet. Its copy would get the bytes of another frame if
/// the reference stood for that.
#[test]
fn references_of_revoked_frames_wait_for_the_frontend() {
    let (table, mut grants) = grants();
    let revoked = pass(&mut grants, 4);
    assert_eq!(grants.revoke(), 1);
    let others: Vec<GrantRef> =
        (2..REFERENCES as u32 / 2).flat_map(|n| pass(&mut grants, 4 * n)).collect();
    assert!(others.iter().all(|other| !revoked.contains(other)));
    grants.free_retired(4 + SIZE - 1);
    assert!(grants.has_retired() && grants.has_room(2) && !grants.has_room(3));
    grants.free_retired(4 + SIZE);
    assert!(!grants.has_retired() && grants.has_room(4));
    assert!(pass(&mut grants, 4 + SIZE).iter().all(|reference| revoked.contains(reference)));
    drop(grants);
    assert_eq!(*table.reserved.lock(), 0);
}

#[test]
fn frames_that_are_being_copied_are_not_released() {
    let (table, mut grants) = grants();
    let [first, _] = pass(&mut grants, 4);
    pass(&mut grants, 8);
    table.copied.lock().push(first);
    assert_eq!((grants.released(8 + SIZE), grants.revoke()), (0, 0));
    assert!(!grants.has_retired());
    table.copied.lock().clear();
    assert_eq!(grants.revoke(), 2);
    grants.free_retired(8 + SIZE);
    assert!(grants.has_room(REFERENCES));
}
