//! Static grants of hostile frontends: invalid ones are refused, and no other vif is affected.

use crate::front::{Front, FrontSpec, Host, RawControlRing, frame, introduce, wait, what};
use hypervisor::{DomId, GrantRef};
use xen::netif::options::PortOptions;

const SIZE: u16 = 8;
const ADD: u16 = 9;
const DEL: u16 = 10;

const OKAY: u32 = 0;
const NOT_SUPPORTED: u32 = 1;
const INVALID: u32 = 2;
const OVERFLOW: u32 = 3;

const READ_ONLY: u16 = 1;

/// A frontend with a control ring, on a host that keeps so many pages of it.
fn front(host: &Host, domain: u16, queues: u32) -> Front {
    Front::connected(host, domain, FrontSpec { control: true, queues, ..FrontSpec::default() })
}

fn host(cache: u16) -> Host {
    Host::switched(PortOptions { cache, ..PortOptions::default() })
}

fn control_ring(front: &Front) -> &RawControlRing {
    front.control_ring.as_ref().unwrap()
}

/// So many pages that it grants, for writing or not.
fn grants(front: &Front, count: usize, writable: bool) -> Vec<GrantRef> {
    (0..count).map(|_| front.guest.grant(DomId(0), front.page(), writable)).collect()
}

fn list(grants: &[GrantRef], flags: u16) -> Vec<(GrantRef, u16)> {
    grants.iter().map(|reference| (*reference, flags)).collect()
}

/// How many pages of it are mapped beside those of its rings.
fn kept(front: &Front) -> usize {
    front.guest.mapped() - front.queues.len() * 2 - 1
}

#[test]
fn a_table_of_its_size() {
    let host = host(64);
    let a = front(&host, 1, 4);
    let ask = control_ring(&a);
    assert_eq!(ask.ask(SIZE, [0; 3]), (OKAY, 16), "each queue its part");
    assert_eq!(ask.ask(SIZE, [3, 0, 0]), (OKAY, 16));
    let pages = grants(&a, 17, true);
    for queue in [4, u32::MAX] {
        assert_eq!(ask.ask(SIZE, [queue, 0, 0]), (INVALID, 0));
        assert_eq!(ask.ask_of(ADD, queue, &list(&pages[..1], 0)), (INVALID, 0));
        assert_eq!(ask.ask_of(DEL, queue, &list(&pages[..1], 0)), (INVALID, 0));
    }
    assert_eq!(ask.ask_of(ADD, 0, &list(&pages, 0)), (OVERFLOW, 0));
    assert_eq!(kept(&a), 0, "all or nothing");
    assert_eq!(ask.ask_of(ADD, 0, &list(&pages[..10], 0)), (OKAY, 0));
    assert_eq!(ask.ask_of(ADD, 0, &list(&pages[10..], 0)), (OVERFLOW, 0));
    assert_eq!(ask.ask_of(ADD, 1, &list(&pages, 0)[..16]), (OKAY, 0), "another queue's table");
    assert_eq!(kept(&a), 26);
    assert_eq!(ask.ask_of(DEL, 0, &list(&pages, 0)), (OKAY, 10));
    assert_eq!(ask.marks(17), [vec![0; 10], vec![2; 7]].concat());
    assert_eq!(kept(&a), 16);
    assert!(pages[16..].iter().all(|reference| a.guest.revoke(*reference)));
    assert!(!a.guest.revoke(pages[0]), "the other queue has it");
}

#[test]
fn static_grants_need_the_key() {
    let host = Host::new();
    let a = front(&host, 1, 1);
    let pages = grants(&a, 1, true);
    assert_eq!(control_ring(&a).ask(SIZE, [0; 3]), (NOT_SUPPORTED, 0));
    for kind in [ADD, DEL] {
        assert_eq!(control_ring(&a).ask_of(kind, 0, &list(&pages, 0)), (NOT_SUPPORTED, 0));
    }
    assert!(host.vif(&a).unwrap().cache.is_none());
}

#[test]
fn pages_that_cannot_be_mapped_are_refused() {
    let host = host(600);
    let (a, other) = (front(&host, 1, 1), front(&host, 2, 1));
    let (good, reading) = (grants(&a, 3, true), grants(&a, 1, false));
    let (revoked, foreign) = (grants(&a, 1, true)[0], a.guest.grant(DomId(7), a.page(), true));
    assert!(a.guest.revoke(revoked));
    // A reference that means something, but to another.
    let others = (0..2000).map(|_| grants(&other, 1, true)[0]).last().unwrap();
    let ask = control_ring(&a);
    let never = GrantRef(5_000);
    for (bad, flags) in
        [(revoked, 0), (foreign, READ_ONLY), (others, 0), (never, 0), (GrantRef(0), 0)]
    {
        let all = [list(&good, 0), vec![(bad, flags)]].concat();
        assert_eq!(ask.ask_of(ADD, 0, &all), (INVALID, 0), "{bad}");
    }
    for bad in [GrantRef(u32::MAX), good[0]] {
        assert_eq!(
            ask.ask_of(ADD, 0, &[list(&good, 0), vec![(bad, 0)]].concat()),
            (INVALID, 0),
            "{bad}"
        );
    }
    assert_eq!(ask.ask_of(ADD, 0, &list(&reading, 0)), (INVALID, 0), "granted for reading only");
    assert_eq!(ask.ask_of(ADD, 0, &list(&good, 2)), (INVALID, 0), "a flag that is not known");
    assert_eq!(kept(&a), 0, "all or nothing");
    assert_eq!(ask.ask_of(ADD, 0, &list(&reading, READ_ONLY)), (OKAY, 0));
    assert_eq!(
        ask.ask_of(ADD, 0, &list(&good, READ_ONLY)),
        (OKAY, 0),
        "more is granted than is asked for"
    );
    assert_eq!(ask.ask_of(ADD, 0, &list(&good, 0)), (INVALID, 0), "they are there");
    assert_eq!(kept(&a), 4);
}

#[test]
fn invalid_lists_are_refused() {
    let host = host(2000);
    let a = front(&host, 1, 1);
    let ask = control_ring(&a);
    let pages = grants(&a, 512, true);
    assert_eq!(ask.ask_of(ADD, 0, &list(&pages, 0)), (OKAY, 0), "a page of them");
    for kind in [ADD, DEL] {
        for count in [513, 1 << 29, u32::MAX] {
            assert_eq!(ask.ask(kind, [0, ask.list.1.0, count]), (INVALID, 0), "{count}");
        }
        assert_eq!(ask.ask(kind, [0, 5_000, 1]), (INVALID, 0), "not granted");
        assert_eq!(ask.ask(kind, [0, u32::MAX, 1]), (INVALID, 0));
        assert_eq!(ask.ask(kind, [0, 5_000, 0]), (OKAY, 0), "an empty one needs no page");
    }
    assert_eq!(ask.ask(DEL, [0, ask.page.1.0, 4]), (INVALID, 0), "it can't be marked");
    assert_eq!(kept(&a), 512);
    // Twice in one list: off once.
    assert_eq!(ask.ask_of(DEL, 0, &list(&[pages[3], pages[3], GrantRef(9_999)], 0)), (OKAY, 1));
    assert_eq!(ask.marks(3), [0, 2, 2]);
    assert_eq!(ask.ask_of(DEL, 0, &list(&pages[3..4], 0)), (OKAY, 0), "it is off");
    assert_eq!(kept(&a), 511);
    assert!(a.guest.revoke(pages[3]) && !a.guest.revoke(pages[4]));
}

/// Pages that are mapped for reading are never written. If such a page is posted for receiving, the
/// grant is used instead.
#[test]
fn pages_for_reading_to_receive_into() {
    let host = host(600);
    let (a, b) = (front(&host, 1, 1), front(&host, 2, 1));
    introduce((&a, 1), (&b, 2));
    let posted: Vec<GrantRef> =
        b.queues[0].posted.borrow().iter().flatten().map(|page| page.1).collect();
    assert_eq!(control_ring(&b).ask_of(ADD, 0, &list(&posted, READ_ONLY)), (OKAY, 0));
    for n in 0..100 {
        a.send(&frame(1, 2, 3000, n));
        assert_eq!(b.expect(1)[0].frame, frame(1, 2, 3000, n));
    }
    wait(|| host.vif(&b).unwrap().cache.unwrap().misses > 0);
    // And where the grant is for reading only, too, its vif is stopped under the name that it
    // always was.
    let bad = Front::connected(
        &host,
        3,
        FrontSpec { control: true, read_only: true, ..FrontSpec::default() },
    );
    let posted: Vec<GrantRef> =
        bad.queues[0].posted.borrow().iter().flatten().map(|page| page.1).collect();
    assert_eq!(control_ring(&bad).ask_of(ADD, 0, &list(&posted, READ_ONLY)), (OKAY, 0));
    bad.send(&frame(3, 9, 60, 1));
    wait(|| {
        a.send(&frame(1, 3, 60, 7));
        host.vif(&bad).unwrap().violations > 0
    });
    assert_eq!(
        host.stopped(&bad),
        "queue 0: a page is not granted for what it is used for (refused)"
    );
    assert_eq!(bad.guest.mapped(), 0, "nothing of it stays mapped");
    introduce((&a, 1), (&b, 2));
}

/// A grant is cleared and made again while its page is mapped. The page that was granted first
/// stays mapped.
#[test]
fn a_page_whose_grant_is_gone_stays_mapped() {
    let host = host(600);
    let (a, b) = (front(&host, 1, 1), front(&host, 2, 1));
    introduce((&a, 1), (&b, 2));
    let posted: Vec<GrantRef> =
        b.queues[0].posted.borrow().iter().flatten().map(|page| page.1).collect();
    assert_eq!(control_ring(&b).ask_of(ADD, 0, &list(&posted, 0)), (OKAY, 0));
    assert!(posted.iter().all(|reference| !b.guest.revoke(*reference)), "in use");
    for n in 0..300 {
        a.send(&frame(1, 2, 1400, n));
        assert_eq!(b.expect(1)[0].frame, frame(1, 2, 1400, n));
    }
    wait(|| host.vif(&b).unwrap().cache.unwrap().hits >= 300);
}

#[test]
fn a_guest_ends_while_its_pages_stay_mapped() {
    let host = host(2000);
    let (a, b) = (front(&host, 1, 1), front(&host, 2, 1));
    introduce((&a, 1), (&b, 2));
    let pages: Vec<GrantRef> =
        b.queues[0].posted.borrow().iter().flatten().map(|page| page.1).collect();
    assert_eq!(control_ring(&b).ask_of(ADD, 0, &list(&pages, 0)), (OKAY, 0));
    for n in 0..50 {
        a.send(&frame(1, 2, 1400, n));
    }
    host.machine.destroy(DomId(2));
    for n in 0..50 {
        a.send(&frame(1, 2, 1400, n));
    }
    wait(|| host.vif(&b).is_none_or(|vif| vif.cache.is_none()));
    let c = front(&host, 3, 1);
    introduce((&a, 1), (&c, 3));
}

/// A frontend that adds and removes pages as fast as it can is stopped, and its pages are unmapped.
/// Frames of other vifs arrive meanwhile.
#[test]
fn a_flood_of_additions_and_removals() {
    let host = host(2000);
    let (a, b) = (front(&host, 1, 1), front(&host, 2, 1));
    introduce((&a, 1), (&b, 2));
    let bad = front(&host, 3, 1);
    let ask = control_ring(&bad);
    let pages = grants(&bad, 512, true);
    // The list that is posted again and again.
    assert_eq!(ask.ask_of(ADD, 0, &list(&pages, 0)), (OKAY, 0));
    let (mut n, mut posted, mut got) = (0, ask.answered(), Vec::new());
    let hear = |got: &mut Vec<u32>| got.extend(b.received().iter().map(|one| what(&one.frame)));
    wait(|| {
        // Each 17 times as dear as a message without pages.
        for kind in [DEL, ADD] {
            if posted < ask.answered() + 100 {
                ask.post(kind, [0, ask.list.1.0, 512]);
                posted += 1;
            }
            a.send(&frame(1, 2, 1400, n));
            n += 1;
        }
        hear(&mut got);
        host.vif(&bad).unwrap().violations > 0
    });
    assert_eq!(host.stopped(&bad), "control ring: a flood of control messages");
    assert_eq!(bad.guest.mapped(), 0);
    wait(|| {
        hear(&mut got);
        got.len() == n as usize
    });
    assert_eq!(got, (0..n).collect::<Vec<_>>());
}
