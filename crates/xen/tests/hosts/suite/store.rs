//! The store.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use hypervisor::store::{Access, Changes, Permission};
use hypervisor::{DomId, Hypervisor, Nodes, StoreError, transaction};

use super::TIMEOUT;

const ROOT: &str = "/tool/ringmain-suite";

pub fn all(host: &Hypervisor) {
    let nodes = host.store.nodes();
    nodes
        .remove(ROOT)
        .or_else(|error| if error.is_not_found() { Ok(()) } else { Err(error) })
        .unwrap();
    values_and_directories(nodes);
    refuses_by_name(nodes);
    long_directories(nodes);
    permissions(nodes);
    watches(host);
    many_changes_are_one(host);
    transactions(host);
    nodes.remove(ROOT).unwrap();
    println!("suite: store passed");
}

fn at(name: &str) -> String {
    format!("{ROOT}/{name}")
}

fn values_and_directories(nodes: &dyn Nodes) {
    nodes.write(&at("a/b"), b"value").unwrap();
    assert_eq!(nodes.read(&at("a/b")).unwrap(), b"value");
    assert_eq!(nodes.read(&at("a")).unwrap(), b"", "made on the way");
    nodes.write(&at("a/b"), b"").unwrap();
    assert_eq!(nodes.text(&at("a/b")).unwrap(), "");
    nodes.make(&at("a/c")).unwrap();
    nodes.write(&at("a/c"), b"kept").unwrap();
    nodes.make(&at("a/c")).unwrap();
    assert_eq!(nodes.text(&at("a/c")).unwrap(), "kept");
    let mut names = nodes.directory(&at("a")).unwrap();
    names.sort();
    assert_eq!(names, ["b", "c"]);
    assert_eq!(nodes.directory(&at("a/b")).unwrap(), [""; 0]);
    nodes.remove(&at("a")).unwrap();
    assert!(nodes.read(&at("a/c")).unwrap_err().is_not_found());
    nodes.remove(&at("a")).unwrap();
    nodes.put(&at("number"), -12).unwrap();
    assert_eq!(nodes.number::<i32>(&at("number")).unwrap(), Some(-12));
    assert_eq!(nodes.number::<u32>(&at("none")).unwrap(), None);
    assert_eq!(nodes.number::<u16>("domid").unwrap(), Some(0), "relative to our own directory");
    nodes.write(&at("bytes"), &[0, 255, 1]).unwrap();
    assert_eq!(nodes.read(&at("bytes")).unwrap(), [0, 255, 1]);
    nodes.write(&at("long"), &[b'x'; 3000]).unwrap();
    assert_eq!(nodes.read(&at("long")).unwrap().len(), 3000);
}

fn refuses_by_name(nodes: &dyn Nodes) {
    assert!(matches!(nodes.number::<u8>(&at("number")), Err(StoreError::Value { .. })));
    assert!(matches!(nodes.text(&at("bytes")), Err(StoreError::Value { .. })));
    assert!(matches!(nodes.write(&at("long"), &[b'x'; 4096]), Err(StoreError::TooLong { .. })));
    assert!(nodes.directory(&at("none")).unwrap_err().is_not_found());
    assert!(nodes.remove(&at("none/below")).unwrap_err().is_not_found());
    for odd in ["/tool//x", "/tool/x/", "/tool/a b", ""] {
        assert!(
            matches!(nodes.write(odd, b"1"), Err(StoreError::Refused { name, .. }) if name == "EINVAL"),
            "{odd:?}"
        );
    }
    // A path with a NUL byte would be another path.
    assert!(nodes.write(&at("x\0y"), b"1").is_err());
}

/// Longer than one message.
fn long_directories(nodes: &dyn Nodes) {
    let names: Vec<String> = (0..120).map(|n| format!("{n:0>60}")).collect();
    names.iter().for_each(|name| nodes.write(&at(&format!("many/{name}")), b"").unwrap());
    let mut listed = nodes.directory(&at("many")).unwrap();
    listed.sort();
    assert_eq!(listed, names);
}

fn permissions(nodes: &dyn Nodes) {
    nodes.write(&at("p"), b"").unwrap();
    let set = [(0, Access::None), (3, Access::Both), (4, Access::Read), (5, Access::Write)];
    let set = set.map(|(domain, access)| Permission { domain: DomId(domain), access });
    nodes.set_permissions(&at("p"), &set).unwrap();
    assert_eq!(nodes.permissions(&at("p")).unwrap(), set);
    nodes.write(&at("p/below"), b"").unwrap();
    assert_eq!(nodes.permissions(&at("p/below")).unwrap(), set, "inherited");
}

fn watches(host: &Hypervisor) {
    let nodes = host.store.nodes();
    let (sender, events) = mpsc::channel();
    let watch = host
        .store
        .watch(&at("w"), Box::new(move |path| sender.send(path.to_owned()).unwrap()))
        .unwrap();
    let next = || events.recv_timeout(TIMEOUT).expect("an event");
    assert_eq!(next(), at("w"), "once from the start");
    nodes.write(&at("w/below"), b"1").unwrap();
    assert_eq!(next(), at("w/below"));
    nodes.write(&at("elsewhere"), b"1").unwrap();
    nodes.write(&at("w"), b"1").unwrap();
    assert_eq!(next(), at("w"));
    let other = host.store.watch(&at("w"), Box::new(|_| ())).unwrap();
    drop(other);
    nodes.remove(&at("w")).unwrap();
    assert_eq!(next(), at("w"));
    drop(watch);
    nodes.write(&at("w"), b"2").unwrap();
    // What the watch kept is gone with it, so nothing can come any more.
    assert_eq!(events.recv_timeout(TIMEOUT), Err(mpsc::RecvTimeoutError::Disconnected));
}

fn many_changes_are_one(host: &Hypervisor) {
    let changes = Changes::new().unwrap();
    let watches = ["x", "y"].map(|name| changes.watch(&*host.store, &at(name), name).unwrap());
    let mut first = Vec::new();
    while first.len() < 2 {
        first.extend(changes.wait(TIMEOUT));
    }
    first.sort_unstable();
    assert_eq!(first, ["x", "y"]);
    for n in 0..50 {
        host.store.nodes().put(&at("x/state"), n).unwrap();
    }
    // A later change is told later, on the same connection: all of those before it have been told
    // by then.
    let told = Arc::new(AtomicBool::new(false));
    let mark = told.clone();
    let _last =
        host.store.watch(&at("z"), Box::new(move |_| mark.store(true, Ordering::Release))).unwrap();
    super::wait_for("the last event", || told.load(Ordering::Acquire).then_some(()));
    assert_eq!(changes.take(), ["x"]);
    assert_eq!(changes.wait(Duration::ZERO), [""; 0]);
    drop(watches);
}

fn transactions(host: &Hypervisor) {
    let (store, nodes) = (&*host.store, host.store.nodes());
    nodes.write(&at("t"), b"before").unwrap();
    // Not seen before it is committed, and never if it is given up.
    let given_up = store.begin().unwrap();
    given_up.nodes().write(&at("t"), b"lost").unwrap();
    assert_eq!(given_up.nodes().text(&at("t")).unwrap(), "lost");
    assert_eq!(nodes.text(&at("t")).unwrap(), "before");
    drop(given_up);
    assert_eq!(nodes.text(&at("t")).unwrap(), "before");
    // Overtaken by what it had read.
    let overtaken = store.begin().unwrap();
    assert_eq!(overtaken.nodes().text(&at("t")).unwrap(), "before");
    overtaken.nodes().write(&at("u"), b"1").unwrap();
    nodes.write(&at("t"), b"since").unwrap();
    assert!(matches!(overtaken.commit(), Err(StoreError::Again)));
    assert!(nodes.read(&at("u")).unwrap_err().is_not_found());
    // Tried again until it gets through, all of it at once.
    let mut tries = 0;
    let sum = transaction(store, |inside| {
        tries += 1;
        let text = inside.text(&at("t"))?;
        if tries < 3 {
            nodes.put(&at("t"), tries)?;
        }
        inside.write(&at("u/v"), text.as_bytes())?;
        inside.remove(&at("t"))?;
        Ok(text)
    });
    assert_eq!((sum.unwrap().as_str(), tries), ("2", 3));
    assert_eq!(nodes.text(&at("u/v")).unwrap(), "2");
    assert!(nodes.read(&at("t")).unwrap_err().is_not_found());
    // What the body says is what comes out.
    let outcome = transaction(store, |inside| {
        inside.write(&at("q"), b"").and_then(|()| inside.text(&at("none")))
    });
    assert!(outcome.unwrap_err().is_not_found());
    assert!(nodes.read(&at("q")).unwrap_err().is_not_found());
}
