use proptest::prelude::*;

use super::*;

fn on(tree: &mut Tree, by: DomId) -> Session<'_> {
    Session::new(tree, None, by)
}

const ROOT: DomId = DomId(0);
const ONE: DomId = DomId(1);
const TWO: DomId = DomId(2);

fn set(list: &[(u16, Access)]) -> Vec<Permission> {
    list.iter()
        .map(|(domain, access)| Permission { domain: DomId(*domain), access: *access })
        .collect()
}

fn name(error: &StoreError) -> &'static str {
    match error {
        StoreError::NotFound { .. } => "not found",
        StoreError::Denied { .. } => "denied",
        StoreError::Quota { .. } => "quota",
        StoreError::TooLong { .. } => "too long",
        _ => "other",
    }
}

/// A directory of domain 1 that domain 2 reads.
fn tree() -> Tree {
    let mut tree = Tree::new();
    on(&mut tree, ROOT).write("/one/a", b"1").unwrap();
    for path in ["/one", "/one/a"] {
        on(&mut tree, ROOT)
            .set_permissions(path, &set(&[(1, Access::None), (2, Access::Read)]))
            .unwrap();
    }
    tree
}

#[test]
fn permissions_are_kept() {
    let mut tree = tree();
    assert_eq!(on(&mut tree, ONE).read("/one/a").unwrap(), b"1");
    assert_eq!(on(&mut tree, TWO).read("/one/a").unwrap(), b"1");
    assert_eq!(on(&mut tree, ROOT).read("/one/a").unwrap(), b"1");
    assert_eq!(name(&on(&mut tree, DomId(3)).read("/one/a").unwrap_err()), "denied");
    on(&mut tree, ONE).write("/one/a", b"2").unwrap();
    assert_eq!(name(&on(&mut tree, TWO).write("/one/a", b"3").unwrap_err()), "denied");
    assert_eq!(name(&on(&mut tree, TWO).write("/one/b", b"3").unwrap_err()), "denied");
    assert_eq!(name(&on(&mut tree, TWO).remove("/one/a").unwrap_err()), "denied");
    assert_eq!(name(&on(&mut tree, ONE).write("/two", b"").unwrap_err()), "denied");
    // A domain that may read the directory learns whether a node is there.
    assert_eq!(name(&on(&mut tree, TWO).read("/one/none").unwrap_err()), "not found");
    assert_eq!(name(&on(&mut tree, DomId(3)).read("/one/none").unwrap_err()), "denied");
    on(&mut tree, ONE).write("/one/b/c", b"4").unwrap();
    assert_eq!(on(&mut tree, TWO).read("/one/b/c").unwrap(), b"4", "inherited");
}

#[test]
fn owners_give_rights_and_keep_the_node() {
    let mut tree = tree();
    on(&mut tree, ONE)
        .set_permissions("/one/a", &set(&[(1, Access::None), (3, Access::Both)]))
        .unwrap();
    assert_eq!(name(&on(&mut tree, TWO).read("/one/a").unwrap_err()), "denied");
    on(&mut tree, DomId(3)).write("/one/a", b"3").unwrap();
    assert_eq!(
        name(
            &on(&mut tree, DomId(3))
                .set_permissions("/one/a", &set(&[(3, Access::Both)]))
                .unwrap_err()
        ),
        "denied"
    );
    assert_eq!(
        name(
            &on(&mut tree, ONE).set_permissions("/one/a", &set(&[(2, Access::None)])).unwrap_err()
        ),
        "denied"
    );
    assert_eq!(name(&on(&mut tree, ONE).set_permissions("/one/a", &[]).unwrap_err()), "other");
    on(&mut tree, ROOT).set_permissions("/one/a", &set(&[(2, Access::None)])).unwrap();
    assert_eq!(name(&on(&mut tree, ONE).read("/one/a").unwrap_err()), "denied");
}

#[test]
fn a_domain_has_so_much_room() {
    let mut tree = tree();
    assert_eq!(name(&on(&mut tree, ONE).write("/one/a", &[0; 2049]).unwrap_err()), "quota");
    on(&mut tree, ROOT).write("/one/a", &[0; 2049]).unwrap();
    assert_eq!(name(&on(&mut tree, ROOT).write("/one/a", &[0; 4096]).unwrap_err()), "too long");
    let made = (0..2000)
        .take_while(|n| on(&mut tree, ONE).write(&format!("/one/{n}"), b"").is_ok())
        .count();
    assert_eq!(made, 998, "with the two that it had");
    assert_eq!(name(&on(&mut tree, ONE).make("/one/more").unwrap_err()), "quota");
    on(&mut tree, ONE).remove("/one/5").unwrap();
    on(&mut tree, ONE).make("/one/more").unwrap();
}

#[test]
fn removal_takes_all_below() {
    let mut tree = tree();
    on(&mut tree, ROOT).write("/one/b/c/d", b"").unwrap();
    on(&mut tree, ROOT).write("/one/bb", b"").unwrap();
    assert!(on(&mut tree, ROOT).remove("/one/b").unwrap().is_some_and(|change| change.removed));
    assert_eq!(on(&mut tree, ROOT).directory("/one").unwrap(), ["a", "bb"]);
    assert!(on(&mut tree, ROOT).remove("/one/b").unwrap().is_none());
    assert_eq!(name(&on(&mut tree, ROOT).remove("/one/b/c").unwrap_err()), "not found");
    assert!(on(&mut tree, ROOT).remove("/").is_err());
    assert_eq!(on(&mut tree, ROOT).directory("/").unwrap(), ["one"]);
}

#[test]
fn transactions_depend_on_nodes_that_they_read() {
    /// The actions in a transaction, those meanwhile, and whether the transaction is overtaken.
    type Case = (fn(&mut Session<'_>), fn(&mut Session<'_>), bool);
    let cases: [Case; 9] = [
        (|t| drop(t.read("/one/a")), |t| drop(t.write("/one/a", b"x")), true),
        (|t| drop(t.read("/one/a")), |t| drop(t.write("/one/b", b"x")), false),
        (|t| drop(t.read("/one/b")), |t| drop(t.write("/one/b", b"x")), true),
        (|t| drop(t.directory("/one")), |t| drop(t.write("/one/b", b"x")), true),
        (|t| drop(t.directory("/one")), |t| drop(t.write("/one/a", b"x")), false),
        (|t| drop(t.write("/one/a", b"y")), |t| drop(t.remove("/one/a")), true),
        (|t| drop(t.remove("/one")), |t| drop(t.write("/one/b", b"x")), true),
        (|t| drop(t.write("/one/c", b"y")), |t| drop(t.write("/two", b"x")), false),
        (|t| drop(t.remove("/one")), |t| drop(t.write("/one/a/x", b"x")), true),
    ];
    for (n, (inside, meanwhile, overtaken)) in cases.into_iter().enumerate() {
        let mut tree = tree();
        let mut pending = tree.begin();
        inside(&mut Session::new(&mut tree, Some(&mut pending), ROOT));
        meanwhile(&mut on(&mut tree, ROOT));
        assert_eq!(tree.commit(ROOT, pending).is_err(), overtaken, "case {n}");
    }
}

#[test]
fn what_changed_after_the_beginning_is_a_conflict_when_it_is_looked_at() {
    let mut tree = tree();
    let mut pending = tree.begin();
    on(&mut tree, ROOT).write("/one/a", b"x").unwrap();
    Session::new(&mut tree, Some(&mut pending), ROOT).read("/one/a").unwrap();
    assert!(tree.commit(ROOT, pending).is_err());
}

#[test]
fn a_transaction_shows_its_own_changes_only_to_itself() {
    let mut tree = tree();
    let mut pending = tree.begin();
    let mut inside = Session::new(&mut tree, Some(&mut pending), ROOT);
    inside.write("/one/b/c", b"new").unwrap();
    inside.remove("/one/a").unwrap();
    assert_eq!(inside.directory("/one").unwrap(), ["b"]);
    assert_eq!(inside.directory("/one/b").unwrap(), ["c"]);
    inside.remove("/one/b").unwrap();
    inside.make("/one/a0").unwrap();
    assert_eq!(inside.directory("/one").unwrap(), ["a0"]);
    assert_eq!(on(&mut tree, ROOT).directory("/one").unwrap(), ["a"]);
    tree.commit(ROOT, pending).unwrap();
    assert_eq!(on(&mut tree, ROOT).directory("/one").unwrap(), ["a0"]);
}

#[test]
fn a_transaction_has_so_much_room_and_is_not_committed_beyond() {
    let paths = |n: usize| format!("/one/none{n}");
    // Reads of what is not there, many small changes, and a few large ones.
    let reads = |inside: &mut Session<'_>, n: usize| match inside.read(&paths(n)) {
        Err(error) => !matches!(error, StoreError::Quota { .. }),
        Ok(_) => true,
    };
    let changes = |inside: &mut Session<'_>, n: usize| {
        let path = paths(n);
        inside.make(&path).and_then(|_| inside.remove(&path)).is_ok()
    };
    let long = "n".repeat(1000);
    let writes = |inside: &mut Session<'_>, n: usize| {
        inside.write(&format!("/one/{long}{n}"), &[0; 2000]).is_ok()
    };
    type Step<'a> = &'a dyn Fn(&mut Session<'_>, usize) -> bool;
    let steps: [Step<'_>; 3] = [&reads, &changes, &writes];
    for (kind, step) in steps.into_iter().enumerate() {
        let mut tree = tree();
        let mut pending = tree.begin();
        let mut inside = Session::new(&mut tree, Some(&mut pending), ONE);
        let done = (0..100_000).take_while(|n| step(&mut inside, *n)).count();
        assert!((50..=1024).contains(&done), "kind {kind}: {done}");
        assert_eq!(name(&tree.commit(ONE, pending).unwrap_err()), "quota");
        // Domain 0 is not limited.
        let mut pending = tree.begin();
        let mut inside = Session::new(&mut tree, Some(&mut pending), ROOT);
        assert!((0..2000).all(|n| step(&mut inside, n)));
        tree.commit(ROOT, pending).unwrap();
    }
}

#[test]
fn two_transactions_together_keep_to_the_quota() {
    let mut tree = tree();
    let mut begun = [tree.begin(), tree.begin()];
    for (which, pending) in begun.iter_mut().enumerate() {
        let mut inside = Session::new(&mut tree, Some(pending), ONE);
        on_each(600, |n| inside.make(&format!("/one/a/{which}-{n}")).is_ok());
    }
    let [first, second] = begun;
    tree.commit(ONE, first).unwrap();
    assert!(tree.commit(ONE, second).is_err());
    assert!(tree.owned_by(ONE) <= NODES);
}

fn on_each(count: usize, mut step: impl FnMut(usize) -> bool) {
    (0..count).for_each(|n| assert!(step(n), "step {n}"));
}

#[test]
fn changes_are_told_once_each_in_order() {
    let mut tree = tree();
    let mut pending = tree.begin();
    for n in 0..1000 {
        let path = format!("/one/{}", n % 3);
        let change = Session::new(&mut tree, Some(&mut pending), ONE).write(&path, b"x").unwrap();
        pending.note(change);
    }
    let paths: Vec<_> = pending.take_changes().into_iter().map(|change| change.path).collect();
    assert_eq!(paths, ["/one/1", "/one/2", "/one/0"]);
}

#[test]
fn a_listing_costs_what_it_lists() {
    let mut tree = tree();
    for n in 0..500 {
        on(&mut tree, ROOT).make(&format!("/one/a/deep/{n}")).unwrap();
    }
    for name in ["a-b", "a0", "b"] {
        on(&mut tree, ROOT).make(&format!("/one/{name}")).unwrap();
    }
    let mut session = on(&mut tree, ROOT);
    assert_eq!(session.directory("/one").unwrap(), ["a", "a-b", "a0", "b"]);
    assert!(session.work() < 10, "{}", session.work());
}

#[test]
fn paths_are_checked_and_made_absolute() {
    assert_eq!(absolute(ONE, "device/vif").unwrap(), "/local/domain/1/device/vif");
    assert_eq!(absolute(ONE, "/a-b/c_d@e").unwrap(), "/a-b/c_d@e");
    assert_eq!(absolute(ONE, "/").unwrap(), "/");
    for bad in ["", "//", "/a/", "/a//b", "a/", "/a b", "/ä", &format!("/{}", "a".repeat(3072))] {
        assert!(absolute(ONE, bad).is_err(), "{bad}");
    }
    assert_eq!(above("/a/b/c").collect::<Vec<_>>(), ["/a/b", "/a", "/"]);
    assert_eq!(above("/").count(), 0);
}

#[derive(Clone, Debug)]
enum Op {
    Write(String, u8),
    Make(String),
    Remove(String),
    Read(String),
    List(String),
}

fn path() -> impl Strategy<Value = String> {
    prop::collection::vec("[abc]", 1..4).prop_map(|parts| format!("/{}", parts.join("/")))
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        (path(), any::<u8>()).prop_map(|(path, value)| Op::Write(path, value)),
        path().prop_map(Op::Make),
        path().prop_map(Op::Remove),
        path().prop_map(Op::Read),
        path().prop_map(Op::List),
    ]
}

fn apply(session: &mut Session<'_>, op: &Op) -> Option<Vec<u8>> {
    match op {
        Op::Write(path, value) => session.write(path, &[*value]).is_ok().then(Vec::new),
        Op::Make(path) => session.make(path).is_ok().then(Vec::new),
        Op::Remove(path) => session.remove(path).is_ok().then(Vec::new),
        Op::Read(path) => session.read(path).ok(),
        Op::List(path) => session.directory(path).ok().map(|names| names.join(" ").into_bytes()),
    }
}

fn values(tree: &Tree) -> BTreeMap<String, Vec<u8>> {
    tree.nodes.iter().map(|(path, node)| (path.clone(), node.value.clone())).collect()
}

proptest! {
    /// A committed transaction has the same effect as if it had run alone at the moment of its
    /// commit.
    #[test]
    fn what_commits_is_as_if_alone(
        start in prop::collection::vec(op(), 0..12),
        inside in prop::collection::vec(op(), 0..8),
        meanwhile in prop::collection::vec(op(), 0..3),
    ) {
        let (mut tree, mut alone) = (Tree::new(), Tree::new());
        for tree in [&mut tree, &mut alone] {
            start.iter().for_each(|op| drop(apply(&mut on(tree, ROOT), op)));
        }
        let mut pending = tree.begin();
        let mut session = Session::new(&mut tree, Some(&mut pending), ROOT);
        let seen: Vec<_> = inside.iter().map(|op| apply(&mut session, op)).collect();
        for tree in [&mut tree, &mut alone] {
            meanwhile.iter().for_each(|op| drop(apply(&mut on(tree, ROOT), op)));
        }
        if tree.commit(ROOT, pending).is_ok() {
            let again: Vec<_> =
                inside.iter().map(|op| apply(&mut on(&mut alone, ROOT), op)).collect();
            prop_assert_eq!(seen, again);
            prop_assert_eq!(values(&tree), values(&alone));
        } else {
            prop_assert_eq!(values(&tree), values(&alone), "nothing happened");
            prop_assert!(!meanwhile.is_empty());
        }
        // Every node has a parent and an owner.
        for path in tree.nodes.keys() {
            prop_assert!(above(path).all(|above| tree.nodes.contains_key(above)), "{}", path);
        }
        prop_assert_eq!(tree.owned_by(ROOT), tree.nodes.len());
    }
}
