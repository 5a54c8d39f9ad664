use proptest::prelude::*;

use super::*;

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
    tree.write(ROOT, "/one/a", b"1").unwrap();
    for path in ["/one", "/one/a"] {
        tree.set_permissions(ROOT, path, &set(&[(1, Access::None), (2, Access::Read)])).unwrap();
    }
    tree
}

#[test]
fn permissions_are_kept() {
    let mut tree = tree();
    assert_eq!(tree.read(ONE, "/one/a").unwrap(), b"1");
    assert_eq!(tree.read(TWO, "/one/a").unwrap(), b"1");
    assert_eq!(tree.read(ROOT, "/one/a").unwrap(), b"1");
    assert_eq!(name(&tree.read(DomId(3), "/one/a").unwrap_err()), "denied");
    tree.write(ONE, "/one/a", b"2").unwrap();
    assert_eq!(name(&tree.write(TWO, "/one/a", b"3").unwrap_err()), "denied");
    assert_eq!(name(&tree.write(TWO, "/one/b", b"3").unwrap_err()), "denied");
    assert_eq!(name(&tree.remove(TWO, "/one/a").unwrap_err()), "denied");
    assert_eq!(name(&tree.write(ONE, "/two", b"").unwrap_err()), "denied");
    // Whether a node is there shows to those who may read what is above it.
    assert_eq!(name(&tree.read(TWO, "/one/none").unwrap_err()), "not found");
    assert_eq!(name(&tree.read(DomId(3), "/one/none").unwrap_err()), "denied");
    tree.write(ONE, "/one/b/c", b"4").unwrap();
    assert_eq!(tree.read(TWO, "/one/b/c").unwrap(), b"4", "inherited");
}

#[test]
fn owners_give_rights_and_keep_the_node() {
    let mut tree = tree();
    tree.set_permissions(ONE, "/one/a", &set(&[(1, Access::None), (3, Access::Both)])).unwrap();
    assert_eq!(name(&tree.read(TWO, "/one/a").unwrap_err()), "denied");
    tree.write(DomId(3), "/one/a", b"3").unwrap();
    assert_eq!(
        name(&tree.set_permissions(DomId(3), "/one/a", &set(&[(3, Access::Both)])).unwrap_err()),
        "denied"
    );
    assert_eq!(
        name(&tree.set_permissions(ONE, "/one/a", &set(&[(2, Access::None)])).unwrap_err()),
        "denied"
    );
    assert_eq!(name(&tree.set_permissions(ONE, "/one/a", &[]).unwrap_err()), "other");
    tree.set_permissions(ROOT, "/one/a", &set(&[(2, Access::None)])).unwrap();
    assert_eq!(name(&tree.read(ONE, "/one/a").unwrap_err()), "denied");
}

#[test]
fn a_domain_has_so_much_room() {
    let mut tree = tree();
    assert_eq!(name(&tree.write(ONE, "/one/a", &[0; 2049]).unwrap_err()), "quota");
    tree.write(ROOT, "/one/a", &[0; 2049]).unwrap();
    assert_eq!(name(&tree.write(ROOT, "/one/a", &[0; 4096]).unwrap_err()), "too long");
    let made = (0..2000).take_while(|n| tree.write(ONE, &format!("/one/{n}"), b"").is_ok()).count();
    assert_eq!(made, 998, "with the two that it had");
    assert_eq!(name(&tree.make(ONE, "/one/more").unwrap_err()), "quota");
    tree.remove(ONE, "/one/5").unwrap();
    tree.make(ONE, "/one/more").unwrap();
}

#[test]
fn removal_takes_all_below() {
    let mut tree = tree();
    tree.write(ROOT, "/one/b/c/d", b"").unwrap();
    tree.write(ROOT, "/one/bb", b"").unwrap();
    assert!(tree.remove(ROOT, "/one/b").unwrap().is_some_and(|change| change.removed));
    assert_eq!(tree.directory(ROOT, "/one").unwrap(), ["a", "bb"]);
    assert!(tree.remove(ROOT, "/one/b").unwrap().is_none());
    assert_eq!(name(&tree.remove(ROOT, "/one/b/c").unwrap_err()), "not found");
    assert!(tree.remove(ROOT, "/").is_err());
    assert_eq!(tree.directory(ROOT, "/").unwrap(), ["one"]);
}

#[test]
fn transactions_depend_on_nodes_that_they_read() {
    /// What is done in a transaction, what meanwhile, and whether it is overtaken.
    type Case = (fn(&mut Tree), fn(&mut Tree), bool);
    let cases: [Case; 8] = [
        (|t| drop(t.read(ROOT, "/one/a")), |t| drop(t.write(ROOT, "/one/a", b"x")), true),
        (|t| drop(t.read(ROOT, "/one/a")), |t| drop(t.write(ROOT, "/one/b", b"x")), false),
        (|t| drop(t.read(ROOT, "/one/b")), |t| drop(t.write(ROOT, "/one/b", b"x")), true),
        (|t| drop(t.directory(ROOT, "/one")), |t| drop(t.write(ROOT, "/one/b", b"x")), true),
        (|t| drop(t.directory(ROOT, "/one")), |t| drop(t.write(ROOT, "/one/a", b"x")), false),
        (|t| drop(t.write(ROOT, "/one/a", b"y")), |t| drop(t.remove(ROOT, "/one/a")), true),
        (|t| drop(t.remove(ROOT, "/one")), |t| drop(t.write(ROOT, "/one/b", b"x")), true),
        (|t| drop(t.write(ROOT, "/one/c", b"y")), |t| drop(t.write(ROOT, "/two", b"x")), false),
    ];
    for (n, (inside, meanwhile, overtaken)) in cases.into_iter().enumerate() {
        let mut tree = tree();
        let before = tree.begin();
        let mut now = before.clone();
        inside(&mut now);
        meanwhile(&mut tree);
        assert_eq!(tree.commit(&before, &now).is_err(), overtaken, "case {n}");
    }
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
    ]
}

fn apply(tree: &mut Tree, op: &Op) -> Option<Vec<u8>> {
    match op {
        Op::Write(path, value) => tree.write(ROOT, path, &[*value]).is_ok().then(Vec::new),
        Op::Make(path) => tree.make(ROOT, path).is_ok().then(Vec::new),
        Op::Remove(path) => tree.remove(ROOT, path).is_ok().then(Vec::new),
        Op::Read(path) => tree.read(ROOT, path).ok(),
    }
}

fn values(tree: &Tree) -> Vec<(&String, &Vec<u8>)> {
    tree.nodes.iter().map(|(path, node)| (path, &node.value)).collect()
}

proptest! {
    /// A transaction that commits did what it would have done without others, all at that moment.
    #[test]
    fn what_commits_is_as_if_alone(
        start in prop::collection::vec(op(), 0..12),
        inside in prop::collection::vec(op(), 0..8),
        meanwhile in prop::collection::vec(op(), 0..3),
    ) {
        let mut tree = Tree::new();
        start.iter().for_each(|op| drop(apply(&mut tree, op)));
        let before = tree.begin();
        let mut now = before.clone();
        let seen: Vec<_> = inside.iter().map(|op| apply(&mut now, op)).collect();
        meanwhile.iter().for_each(|op| drop(apply(&mut tree, op)));
        let mut alone = tree.clone();
        if tree.commit(&before, &now).is_ok() {
            let again: Vec<_> = inside.iter().map(|op| apply(&mut alone, op)).collect();
            prop_assert_eq!(seen, again);
            prop_assert_eq!(values(&tree), values(&alone));
        } else {
            prop_assert_eq!(values(&tree), values(&alone), "nothing happened");
            prop_assert!(!meanwhile.is_empty());
        }
        // Every node has one above it.
        for path in tree.nodes.keys() {
            prop_assert!(above(path).all(|above| tree.nodes.contains_key(above)), "{}", path);
        }
    }
}
