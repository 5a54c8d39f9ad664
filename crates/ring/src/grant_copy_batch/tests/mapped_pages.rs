//! Copies from and to pages that are mapped.

use super::*;

#[test]
fn bytes_in_mapped_pages_need_no_engine() {
    let (pages, engine, bytes) = pages();
    let set = mapped(&pages, &[1, 2, 5], true);
    let mut seen = crate::pages::LookupHint::default();
    let mut gather = Gather::new(0);
    let pieces = [(at(1, 100), 150), (at(2, 0), 3000), (at(5, 96), 4000)];
    let chain = gather.push_mapped(&engine, &set, &mut seen, pieces).unwrap();
    // It goes with the bytes wherever they go, and as long as they are there.
    let mut other = Gather::new(0);
    let chain = other.append_from(&gather, chain).unwrap();
    gather.clear();
    drop(gather);
    let mut got = vec![0; 7150];
    assert_eq!(other.body(chain).read(&mut got), 7150);
    assert_eq!(got, expected(&bytes, &pieces));
    let mut heads = Heads::new();
    heads.fetch(&other, &[chain], 200, 200);
    heads.fetch_again(&other, &[chain], &[0], 200);
    let mut head = [0; 200];
    assert_eq!((heads.failure(0), heads.read(0, &mut head)), (None, 200));
    assert_eq!(head[..], got[..200]);
    assert!(pages.runs.lock().iter().all(|copies| *copies == 0));
    assert_eq!((seen.hits, seen.misses, Arc::strong_count(&set)), (3, 0, 2));
    other.clear();
    assert_eq!(Arc::strong_count(&set), 1);
}

/// Both ends mapped: copied at once; one of them: by their grants, in one batch with others.
#[test]
fn only_copies_between_mapped_pages_are_made_at_once() {
    let (pages, engine, bytes) = pages();
    let (sources, targets) = (mapped(&pages, &[1, 2], false), mapped(&pages, &[8, 9, 1], true));
    let mut seen = crate::pages::LookupHint::default();
    let mut gather = Gather::new(0);
    let pieces = [(at(1, 0), 1000), (at(3, 7), 1000), (at(2, 1), 1000)];
    let chain = gather.push_mapped(&engine, &sources, &mut seen, pieces).unwrap();
    let rooms = [(8, 600), (10, 600), (9, 2000)];
    let mut next = rooms.iter().map(|(page, len)| {
        let page_at = targets.find(GrantRef(*page), true, &mut seen);
        Target { page: page_at, ..room(*page, 10, *len) }
    });
    let mut grant_copies = GrantCopyBatch::new();
    let body = gather.body(chain);
    assert!(grant_copies.begin(&engine, body, 1, 3200, 9, 200));
    let first = grant_copies.bytes(&[7; 200], next.next().unwrap());
    grant_copies.body(body, first, &next.collect::<Vec<_>>());
    assert_eq!(grant_copies.flush().count(), 0);
    // From page 1 to 8 and 2 to 9 at once; 1 to 10 and 3 to 9 not.
    assert_eq!(*pages.runs.lock(), [2]);
    let mut all = vec![0; bytes.len()];
    pages.memory.read(0, &mut all).unwrap();
    let got = expected(&all, &[(at(8, 10), 600), (at(10, 10), 600), (at(9, 10), 2000)]);
    assert_eq!(got, [vec![7; 200], expected(&bytes, &pieces)].concat());
}

/// One who likes bytes of our own best when they are granted, too. Its domain 1 is as that of
/// `Pages`.
#[derive(Debug)]
struct SelectiveEngine {
    pages: Arc<Pages>,
    own: Mutex<Vec<Arc<Memory>>>,
    seen: Mutex<Vec<[Option<Granted>; 2]>>,
}

impl Engine for SelectiveEngine {
    fn run(&self, copies: &mut Copies) {
        let ends = copies.segments().iter().map(|copy| [copy.source(), copy.target()]);
        self.seen.lock().extend(ends);
        copies.emulate(|pin, at, _, _| {
            match at.domain {
                DomId::SELF => pin.hold(&self.own.lock()[at.reference.0 as usize / 1000]),
                _ if self.pages.withheld.lock().contains(&at.reference.0) => {
                    return Err(Status::REFUSED);
                }
                _ => pin.hold(&self.pages.memory),
            }
            Ok(u64::from(at.reference.0 % 1000) * PAGE as u64 + u64::from(at.offset))
        });
    }

    fn own_pages(&self, len: usize) -> Option<OwnPages> {
        let (memory, fd) = Memory::shared(len).unwrap();
        let same = RegionSpec { guest_addr: 0, user_addr: 0, len: len as u64, offset: 0, fd };
        let mut own = self.own.lock();
        let references = (0..len.div_ceil(PAGE))
            .map(|page| GrantRef((own.len() * 1000 + page) as u32))
            .collect();
        own.push(Arc::new(Memory::map(vec![same]).unwrap()));
        Some(OwnPages { memory: memory.owned_by(Box::new(Elsewhere)), len, references })
    }
}

#[test]
fn bytes_of_our_own_go_by_grants_where_the_engine_likes_that() {
    let (pages, _, bytes) = pages();
    let selective = Arc::new(SelectiveEngine {
        pages: Arc::clone(&pages),
        own: Mutex::default(),
        seen: Mutex::default(),
    });
    let engine: Arc<dyn Engine> = Arc::clone(&selective) as _;
    let mut gather = Gather::new(0);
    // More than one page of heads: none reaches into the next.
    let frames: Vec<_> = (0..60).map(|n| [(at(n % 8, 5), 100 + n as u16)]).collect();
    let chains: Vec<_> =
        frames.iter().map(|frame| gather.push_granted(&engine, *frame).unwrap()).collect();
    let mut heads = Heads::new();
    heads.fetch(&gather, &chains, 128, 128);
    for (i, frame) in frames.iter().enumerate() {
        let mut head = [0; 128];
        let len = heads.read(i, &mut head);
        assert_eq!((heads.failure(i), len), (None, heads.len(i)));
        assert_eq!(head[..len], expected(&bytes, frame)[..len]);
    }
    let mut grant_copies = GrantCopyBatch::new();
    for n in 0..40 {
        let body = gather.body(chains[0]);
        assert!(grant_copies.begin(&engine, body, n, 110, 1, 110));
        grant_copies.bytes(&[n as u8; 110], room(8 + n / 20, (n % 20 * 200) as u16, 110));
    }
    assert_eq!(grant_copies.flush().count(), 0);
    for n in 0..40u32 {
        let mut got = [0; 110];
        pages
            .memory
            .read(u64::from(8 + n / 20) * PAGE as u64 + u64::from(n % 20 * 200), &mut got)
            .unwrap();
        assert_eq!(got, [n as u8; 110]);
    }
    // These pages have no owner.
    let seen = selective.seen.lock();
    assert_eq!(seen.len(), 100);
    assert!(seen.iter().all(|ends| ends.iter().flatten().count() == 1
        && ends.iter().flatten().all(|at| at.domain == DomId(1))));
    drop(seen);
    // And a failure is the other end's.
    pages.withheld.lock().extend([3, 12]);
    heads.fetch(&gather, &chains, 128, 128);
    assert_eq!((heads.failure(2), heads.failure(3)), (None, Some(Status::REFUSED)));
    assert!(grant_copies.begin(&engine, gather.body(chains[0]), 7, 1, 1, 1));
    grant_copies.bytes(b"x", room(12, 0, 1));
    let blamed: Vec<_> = grant_copies.flush().map(|failure| failure.faulty).collect();
    assert_eq!(blamed, [FaultyEnd::Receiver]);
}

#[test]
fn mapped_bytes_go_to_granted_pages_when_it_is_settled() {
    let (pages, engine, _) = pages();
    let source = Arc::new(Memory::anonymous(8192).unwrap());
    source.write(0, &[7; 8192]).unwrap();
    let mut gather = Gather::new(0);
    let chain = gather.push_range(&source, 100, 1000).unwrap();
    let mut grant_copies = GrantCopyBatch::new();
    let body = gather.body(chain);
    assert!(grant_copies.begin(&engine, body, 0, 1004, 3, 4));
    let left = grant_copies.bytes(b"head", room(3, 0, 500));
    let more = [room(3, 500, 504)];
    grant_copies.body(body, left, &more);
    assert!(!grant_copies.is_empty());
    assert_eq!(grant_copies.flush().count(), 0);
    assert!(grant_copies.is_empty());
    let mut page = vec![0; 1004];
    pages.memory.read(3 * PAGE as u64, &mut page).unwrap();
    assert_eq!(page, [b"head".to_vec(), vec![7; 1000]].concat());
}
