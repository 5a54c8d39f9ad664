use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::region::Memory;

/// A page of memory that tells when it is let go.
#[derive(Debug)]
struct Told(#[expect(dead_code, reason = "kept to be dropped")] Memory, Arc<AtomicUsize>);

impl MappingOwner for Told {}

impl Drop for Told {
    fn drop(&mut self) {
        self.1.fetch_add(1, Ordering::SeqCst);
    }
}

fn page(writable: bool, gone: &Arc<AtomicUsize>) -> Arc<Page> {
    let memory = Memory::anonymous(PAGE).unwrap();
    let (base, _) = memory.run(0, &mut 0).unwrap();
    // SAFETY: a page of memory that the owner keeps.
    Arc::new(unsafe { Page::adopt(base, writable, Box::new(Told(memory, Arc::clone(gone)))) })
}

fn pages(references: &[u32]) -> Pages {
    let gone = Arc::default();
    let entries =
        references.iter().map(|reference| (GrantRef(*reference), page(true, &gone))).collect();
    Pages::default().with(entries).unwrap()
}

#[test]
fn bytes_go_in_and_out_within_the_page() {
    let page = page(true, &Arc::default());
    assert!(
        page.write(4000, &[7; 96]) && !page.write(4001, &[7; 96]) && !page.write(u16::MAX, &[1])
    );
    let mut bytes = [1; 100];
    assert!(page.read(3996, &mut bytes) && !page.read(3997, &mut bytes));
    assert_eq!((&bytes[..4], &bytes[4..]), (&[0; 4][..], &[7; 96][..]));
    assert!(page.write(4096, &[]) && page.read(4096, &mut []));
}

#[test]
fn what_is_for_reading_is_not_written() {
    let page = page(false, &Arc::default());
    assert!(!page.write(0, &[1]) && page.read(0, &mut [0; PAGE]));
    let pages = Pages::default().with(vec![(GrantRef(8), page)]).unwrap();
    let mut seen = LookupHint::default();
    assert!(pages.find(GrantRef(8), true, &mut seen).is_none());
    let held = pages.find(GrantRef(8), false, &mut seen).unwrap();
    assert!(held.target(0, 1).is_none() && held.page().at(0, 1).is_some());
    assert_eq!((seen.hits, seen.misses), (1, 1));
}

#[test]
fn each_is_found_in_whatever_order() {
    let references = [9, 10, 11, 500, u32::MAX, 77];
    let pages = pages(&references);
    let mut seen = LookupHint::default();
    for reference in references.iter().chain(references.iter().rev()).chain(&[77, 77, 9]) {
        assert!(pages.find(GrantRef(*reference), true, &mut seen).is_some(), "{reference}");
    }
    for reference in [0, 8, 12, 499, u32::MAX - 1] {
        assert!(pages.find(GrantRef(reference), false, &mut seen).is_none(), "{reference}");
    }
    assert_eq!((seen.hits, seen.misses), (15, 5));
}

#[test]
fn none_is_there_twice() {
    let one = pages(&[9, 10]);
    let again = |references: &[u32]| {
        references.iter().map(|n| (GrantRef(*n), page(true, &Arc::default()))).collect::<Vec<_>>()
    };
    assert!(one.with(again(&[11, 10])).is_none());
    assert!(one.with(again(&[11, 11])).is_none());
    let more = one.with(again(&[11, 8])).unwrap();
    assert_eq!((one.len(), more.len()), (2, 4));
    let (fewer, gone) = more.without(&[GrantRef(7), GrantRef(9), GrantRef(11)]);
    assert_eq!(gone.len(), 2);
    assert!(fewer.has(GrantRef(8)) && fewer.has(GrantRef(10)) && fewer.len() == 2);
}

#[test]
fn a_page_is_let_go_with_the_last_set_that_has_it() {
    let gone = Arc::<AtomicUsize>::default();
    let entries = [8, 9].map(|n| (GrantRef(n), page(true, &gone)));
    let all = Pages::default().with(entries.into()).unwrap();
    let (fewer, _) = all.without(&[GrantRef(8)]);
    assert_eq!(gone.load(Ordering::SeqCst), 0);
    drop(all);
    assert_eq!(gone.load(Ordering::SeqCst), 1);
    drop(fewer);
    assert_eq!(gone.load(Ordering::SeqCst), 2);
}
