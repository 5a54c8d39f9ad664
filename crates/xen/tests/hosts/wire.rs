//! The client of Xen's store against a server written apart from it, over the store for tests.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;

use hypervisor::store::{Permission, Store, Transaction, Watch};
use hypervisor::test::Machine;
use hypervisor::xen::XenStore;
use hypervisor::{DomId, Nodes, StoreError};
use parking_lot::Mutex;

use crate::suite;

#[test]
fn the_suite_passes_over_the_wire() {
    let machine = Machine::new();
    let mut hypervisor = machine.hypervisor(DomId(0));
    let (ours, theirs) = UnixStream::pair().unwrap();
    let store = hypervisor.store.clone();
    let server = thread::spawn(move || serve(theirs, &*store));
    hypervisor.store = Arc::new(XenStore::over(ours.into()).unwrap());
    suite::store::all(&hypervisor);
    drop(hypervisor);
    server.join().unwrap();
}

#[test]
fn many_threads_ask_at_once() {
    let machine = Machine::new();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let behind = machine.hypervisor(DomId(0)).store;
    let server = thread::spawn(move || serve(theirs, &*behind));
    let store = XenStore::over(ours.into()).unwrap();
    store.nodes().put("/sum", 0).unwrap();
    thread::scope(|scope| {
        for n in 0..4 {
            let store = &store;
            scope.spawn(move || {
                for round in 0..50 {
                    let path = format!("/{n}");
                    store.nodes().put(&path, round).unwrap();
                    assert_eq!(store.nodes().number(&path).unwrap(), Some(round));
                    hypervisor::transaction(store, |nodes| {
                        let sum: u32 = nodes.number("/sum")?.unwrap();
                        nodes.put("/sum", sum + 1)
                    })
                    .unwrap();
                }
            });
        }
    });
    assert_eq!(store.nodes().number("/sum").unwrap(), Some(200));
    drop(store);
    server.join().unwrap();
}

/// Longest piece of a directory: short, so that there are several.
const PIECE: usize = 1000;

fn serve(mut end: UnixStream, store: &dyn Store) {
    let out = Arc::new(Mutex::new(end.try_clone().unwrap()));
    let mut watches: HashMap<Vec<u8>, Watch> = HashMap::new();
    let mut transactions: HashMap<u32, Box<dyn Transaction + '_>> = HashMap::new();
    let mut header = [0; 16];
    while end.read_exact(&mut header).is_ok() {
        let [kind, request, transaction, len] = [0, 4, 8, 12].map(|at| word(&header[at..at + 4]));
        let mut payload = vec![0; len as usize];
        end.read_exact(&mut payload).unwrap();
        let parts: Vec<&str> = match kind {
            11 => vec![text(payload.split(|byte| *byte == 0).next().unwrap())],
            _ => text(payload.strip_suffix(b"\0").unwrap()).split('\0').collect(),
        };
        let outcome = match kind {
            4 => {
                let (out, token) = (out.clone(), parts[1].to_owned());
                let told =
                    move |path: &str| send(&out, 15, 0, format!("{path}\0{token}\0").as_bytes());
                store.watch(parts[0], Box::new(told)).map(|watch| {
                    assert!(watches.insert(payload.clone(), watch).is_none(), "a token of its own");
                    b"OK\0".to_vec()
                })
            }
            5 => match watches.remove(&payload) {
                Some(_) => Ok(b"OK\0".to_vec()),
                None => Err(StoreError::NotFound { path: String::new() }),
            },
            6 => store.begin().map(|begun| {
                transactions.insert(request, begun);
                format!("{request}\0").into_bytes()
            }),
            7 => {
                let ended = transactions.remove(&transaction).expect("one that was started");
                if parts == ["T"] { ended.commit() } else { Ok(()) }.map(|()| b"OK\0".to_vec())
            }
            _ => {
                let nodes = match transaction {
                    0 => store.nodes(),
                    number => transactions.get(&number).expect("one that was started").nodes(),
                };
                node_request(nodes, kind, &parts, &payload)
            }
        };
        // As the kernel's device does: no number in an answer about watches.
        let request = if matches!(kind, 4 | 5) { 0 } else { request };
        match outcome {
            Ok(answer) => send(&out, kind, request, &answer),
            Err(error) => send(&out, 16, request, name(&error).as_bytes()),
        }
    }
    assert!(transactions.is_empty(), "all were ended");
    assert!(watches.is_empty(), "all were ended");
}

fn node_request(
    nodes: &dyn Nodes,
    kind: u32,
    parts: &[&str],
    payload: &[u8],
) -> Result<Vec<u8>, StoreError> {
    let path = parts[0];
    let done = |()| b"OK\0".to_vec();
    let list = || -> Result<Vec<u8>, StoreError> {
        Ok(nodes
            .directory(path)?
            .iter()
            .flat_map(|name| format!("{name}\0").into_bytes())
            .collect())
    };
    match kind {
        1 => list().and_then(|list| match list.len() {
            0..=4096 => Ok(list),
            _ => Err(StoreError::TooLong { path: path.into() }),
        }),
        2 => nodes.read(path),
        3 => Ok(nodes
            .permissions(path)?
            .iter()
            .flat_map(|entry| format!("{entry}\0").into_bytes())
            .collect()),
        11 => nodes.write(path, &payload[path.len() + 1..]).map(done),
        12 => nodes.make(path).map(done),
        13 => nodes.remove(path).map(done),
        14 => {
            let set: Vec<Permission> =
                parts[1..].iter().map(|entry| entry.parse().unwrap()).collect();
            nodes.set_permissions(path, &set).map(done)
        }
        22 => {
            let (list, from) = (list()?, parts[1].parse::<usize>().unwrap());
            let most = &list[from..list.len().min(from + PIECE)];
            let piece = &most[..most.iter().rposition(|byte| *byte == 0).map_or(0, |end| end + 1)];
            let last: &[u8] = if from + piece.len() == list.len() { b"\0" } else { b"" };
            Ok([b"17\0", piece, last].concat())
        }
        kind => panic!("request {kind}"),
    }
}

fn send(out: &Mutex<UnixStream>, kind: u32, request: u32, payload: &[u8]) {
    let header = [kind, request, 0, payload.len() as u32];
    let header: Vec<u8> = header.iter().flat_map(|word| word.to_ne_bytes()).collect();
    // Whoever is gone asks no more.
    let _ = out.lock().write_all(&[&header, payload].concat());
}

fn word(bytes: &[u8]) -> u32 {
    u32::from_ne_bytes(bytes.try_into().unwrap())
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn name(error: &StoreError) -> String {
    let name = match error {
        StoreError::NotFound { .. } => "ENOENT",
        StoreError::Denied { .. } => "EACCES",
        StoreError::Again => "EAGAIN",
        StoreError::TooLong { .. } => "E2BIG",
        StoreError::Quota { .. } => "ENOSPC",
        StoreError::Refused { name, .. } => name,
        other => panic!("{other}"),
    };
    format!("{name}\0")
}
