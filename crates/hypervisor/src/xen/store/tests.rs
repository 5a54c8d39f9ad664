//! A store that breaks its protocol. One that does is tried in `tests/wire.rs`.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::thread;

use super::*;
use crate::xen::wire::HEADER;
use crate::xen::wire::Header;

/// A store whose other end is `serve`, on a thread.
fn against(serve: impl FnOnce(UnixStream) + Send + 'static) -> (XenStore, JoinHandle<()>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    (XenStore::over(ours.into()).unwrap(), thread::spawn(move || serve(theirs)))
}

fn receive(end: &mut UnixStream) -> (Header, Vec<u8>) {
    let mut header = [0; HEADER];
    end.read_exact(&mut header).unwrap();
    let header = Header::decode(&header);
    let mut payload = vec![0; header.len as usize];
    end.read_exact(&mut payload).unwrap();
    (header, payload)
}

fn send(end: &mut UnixStream, kind: Kind, request: u32, payload: &[u8]) {
    end.write_all(&wire::message(kind, request, 0, payload).unwrap()).unwrap();
}

fn protocol(error: &StoreError) -> bool {
    matches!(error, StoreError::Lost(_) | StoreError::Protocol(_))
}

#[test]
fn a_store_that_goes_away_is_lost() {
    let (store, server) = against(|mut end| drop(receive(&mut end)));
    assert!(matches!(store.nodes().read("/a"), Err(StoreError::Lost(_))));
    assert!(matches!(store.nodes().read("/a"), Err(StoreError::Lost(_))), "and stays it");
    server.join().unwrap();
}

#[test]
fn wrong_answers_are_told_apart_from_right_ones() {
    let wrong: [fn(&mut UnixStream, u32); 4] = [
        |end, request| send(end, Kind::Read, request + 1, b"x"),
        |end, request| send(end, Kind::Write, request, b"x"),
        |end, _| send(end, Kind::Read, 0, b"x"),
        |end, _| end.write_all(&[0xff; 64]).unwrap(),
    ];
    for wrong in wrong {
        let (store, server) = against(move |mut end| {
            let (header, payload) = receive(&mut end);
            assert_eq!((header.kind, payload), (Kind::Read as u32, b"/a\0".to_vec()));
            wrong(&mut end, header.request);
            // The client gives up by itself, and only then goes away.
            let _ = end.read(&mut [0]);
        });
        assert!(protocol(&store.nodes().read("/a").unwrap_err()));
        drop(store);
        server.join().unwrap();
    }
}

#[test]
fn an_unexpected_answer_ends_the_connection() {
    let (store, server) = against(|mut end| send(&mut end, Kind::Read, 1, b"x"));
    server.join().unwrap();
    crate::store::tests::eventually(|| {
        store.nodes().read("/a").is_err_and(|error| protocol(&error))
    });
}

#[test]
fn events_come_between_requests_and_answers() {
    let (store, server) = against(|mut end| {
        // As the kernel's device answers: without the request's number.
        let (header, watch) = receive(&mut end);
        assert_eq!(header.kind, Kind::Watch as u32);
        send(&mut end, Kind::Event, 0, &watch);
        send(&mut end, Kind::Watch, 0, b"OK\0");
        let (header, _) = receive(&mut end);
        let token = watch.split(|byte| *byte == 0).nth(1).unwrap();
        send(&mut end, Kind::Event, 0, &[b"/w/x\0", token, b"\0"].concat());
        // Tokens that are not ours, and no token.
        send(&mut end, Kind::Event, 0, b"/w/x\0nobody\0");
        send(&mut end, Kind::Event, 0, b"/w/x");
        send(&mut end, Kind::Read, header.request, b"value");
        let (header, unwatch) = receive(&mut end);
        assert_eq!((header.kind, unwatch), (Kind::Unwatch as u32, watch));
        send(&mut end, Kind::Unwatch, 0, b"OK\0");
    });
    let (sender, events) = mpsc::channel();
    let watch =
        store.watch("/w", Box::new(move |path| sender.send(path.to_owned()).unwrap())).unwrap();
    assert_eq!(store.nodes().read("/a").unwrap(), b"value");
    drop(watch);
    assert_eq!(events.iter().collect::<Vec<_>>(), ["/w", "/w/x"]);
    server.join().unwrap();
}

#[test]
fn a_refused_watch_is_forgotten() {
    let (store, server) = against(|mut end| {
        for kind in [Kind::Watch, Kind::Unwatch] {
            let (header, _) = receive(&mut end);
            assert_eq!(header.kind, kind as u32);
            send(&mut end, Kind::Error, header.request, b"EINVAL\0");
        }
    });
    let refused = store.watch("//", Box::new(|_| ()));
    assert!(matches!(refused, Err(StoreError::Refused { name, .. }) if name == "EINVAL"));
    assert!(store.view.link.has_no_watches());
    server.join().unwrap();
}

#[test]
fn what_is_too_long_is_never_sent() {
    let (store, server) = against(|mut end| assert_eq!(end.read(&mut [0]).unwrap(), 0));
    assert!(matches!(store.nodes().write("/a", &[0; 4094]), Err(StoreError::TooLong { .. })));
    assert!(matches!(store.nodes().read("/a\0b"), Err(StoreError::Refused { .. })));
    drop(store);
    server.join().unwrap();
}

/// The ends that the store gets when it connects again.
static COMING: parking_lot::Mutex<Vec<OwnedFd>> = parking_lot::Mutex::new(Vec::new());

fn reopen() -> io::Result<OwnedFd> {
    let mut coming = COMING.lock();
    coming.pop().ok_or_else(|| io::ErrorKind::ConnectionRefused.into())
}

#[test]
fn a_store_that_comes_back_is_asked_for_all_watches() {
    let (ours, mut first) = UnixStream::pair().unwrap();
    let store = XenStore::with(ours.into(), Some(reopen)).unwrap();
    let (sender, events) = mpsc::channel();
    let sender = parking_lot::Mutex::new(sender);
    let user = thread::spawn(move || {
        let called = move |path: &str| sender.lock().send(path.to_owned()).unwrap();
        let watch = store.watch("/a", Box::new(called)).unwrap();
        let begun = store.begin().unwrap();
        let is_lost = |read: Result<_, StoreError>| matches!(read, Err(StoreError::Lost(_)));
        assert!(is_lost(begun.nodes().read("/b")));
        // Once for the loss, and once for the new connection.
        assert_eq!([(); 2].map(|()| events.recv().unwrap()), ["/a", "/a"]);
        // A transaction of the old connection is lost; a new one works.
        assert!(is_lost(begun.nodes().read("/b")));
        drop(begun);
        let read = loop {
            match store.nodes().read("/c") {
                Err(StoreError::Lost(_)) => thread::yield_now(),
                read => break read.unwrap(),
            }
        };
        assert_eq!(read, b"there");
        (store, watch)
    });
    let (watch, asked) = receive(&mut first);
    assert_eq!(watch.kind, Kind::Watch as u32);
    send(&mut first, Kind::Watch, watch.request, b"OK\0");
    let (start, _) = receive(&mut first);
    send(&mut first, Kind::Start, start.request, b"7\0");
    let (read, _) = receive(&mut first);
    assert_eq!((read.kind, read.transaction), (Kind::Read as u32, 7));

    // The connection ends while a request is under way.
    let (ours, mut second) = UnixStream::pair().unwrap();
    drop(first);
    COMING.lock().push(ours.into());
    let (again, asked_again) = receive(&mut second);
    assert_eq!((again.kind, &asked_again), (Kind::Watch as u32, &asked));
    let token = asked.split(|byte| *byte == 0).nth(1).unwrap();
    send(&mut second, Kind::Event, 0, &[b"/a\0", token, b"\0"].concat());
    send(&mut second, Kind::Watch, again.request, b"OK\0");
    let (read, path) = receive(&mut second);
    assert_eq!((read.kind, path.as_slice()), (Kind::Read as u32, b"/c\0".as_slice()));
    send(&mut second, Kind::Read, read.request, b"there");
    let kept = user.join().unwrap();
    drop(second);
    drop(kept);
}
