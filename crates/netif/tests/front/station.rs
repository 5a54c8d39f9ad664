//! A guest with our frontend.

use std::sync::Arc;
use std::time::Duration;

use hypervisor::test::{Device, Guest, Version};
use hypervisor::{DomId, Domain};
use netif::frontend::{Area, Caller, Frame, Frontend, Queue, Sender, Wish};
use netif::handshake::State;
use netif::slots::Meta;

use super::{Host, frame, wait, what};

pub const LONG: Duration = Duration::from_secs(60);

pub struct Station {
    pub guest: Guest,
    pub frontend: Frontend,
    pub queues: Vec<Queue>,
    pub caller: Option<Caller>,
}

/// A guest with an interface that nobody has connected yet; the backend's directory has these keys, too.
pub fn attach(host: &Host, id: u16, keys: &[(&str, &str)]) -> (Guest, Frontend) {
    let version = if keys.is_empty() { Version::V1 } else { Version::V2 };
    let guest = host.machine.guest_of(DomId(id), Frontend::pages(4), version).unwrap();
    let backend_keys = &[&[("script", "vif-ringmain"), ("hotplug-status", "connected")], keys].concat();
    let (frontend, backend) = (DomId(id), DomId(0));
    host.machine
        .attach(&Device { class: "vif", handle: 0, frontend, backend, frontend_keys: &[], backend_keys })
        .unwrap();
    let domain: Arc<dyn Domain> = guest.domain().clone();
    let frontend = Frontend::find(domain, 0).unwrap();
    (guest, frontend)
}

pub fn connect(frontend: &Frontend, wish: &Wish) -> (Vec<Queue>, Option<Caller>) {
    assert!(frontend.wait(LONG, |state| state == State::InitWait).unwrap());
    let connected = frontend.connect(wish, Area::new(0, frontend.domain().pages())).unwrap();
    assert!(frontend.wait(LONG, |state| state == State::Connected).unwrap());
    connected
}

pub fn station(host: &Host, id: u16, wish: &Wish) -> Station {
    station_with(host, id, wish, &[])
}

/// One with keys in the backend's directory, and a grant table of version 2.
pub fn station_with(host: &Host, id: u16, wish: &Wish, keys: &[(&str, &str)]) -> Station {
    let (guest, frontend) = attach(host, id, keys);
    let (queues, caller) = connect(&frontend, wish);
    Station { guest, frontend, queues, caller }
}

impl Station {
    pub fn send_on(&mut self, queue: usize, bytes: &[u8], meta: Meta) {
        let tx = &mut self.queues[queue].tx;
        wait(|| {
            tx.collect().unwrap();
            tx.place().is_some()
        });
        tx.memory().write(tx.place().unwrap(), bytes).unwrap();
        assert!(tx.send(bytes.len(), meta).unwrap());
        tx.flush().unwrap();
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.send_on(0, bytes, Meta::default());
    }

    /// The frames that came, and on which queues.
    pub fn received(&mut self) -> Vec<(usize, Vec<u8>, Frame)> {
        let mut all = Vec::new();
        for (n, queue) in self.queues.iter_mut().enumerate() {
            let mut got = Frame::default();
            while queue.rx.next(&mut got).unwrap() {
                let mut bytes = vec![0; got.len as usize];
                let mut at = 0;
                for (addr, len) in &got.pieces {
                    queue.rx.memory().read(*addr, &mut bytes[at..at + *len as usize]).unwrap();
                    at += *len as usize;
                }
                all.push((n, bytes, got.clone()));
            }
            queue.rx.post().unwrap();
        }
        all
    }

    pub fn expect(&mut self, n: usize) -> Vec<(usize, Vec<u8>, Frame)> {
        let mut all = Vec::new();
        wait(|| {
            all.extend(self.received());
            all.len() >= n
        });
        all
    }
}

/// What is sent while a queue is just being taken into service may be lost, as on any wire: each sends until it is heard,
/// and all that was sent has come.
pub fn introduce(a: &mut Station, b: &mut Station) {
    reach(a, b, (1, 2));
    reach(b, a, (2, 1));
}

pub fn reach(from: &mut Station, to: &mut Station, (x, y): (u8, u8)) {
    let (mut sent, mut heard) = (0, 0);
    let mut listen = || {
        heard = to.received().last().map_or(heard, |(_, bytes, _)| what(bytes) + 1);
        heard
    };
    wait(|| {
        from.send(&frame(x, y, 40, sent));
        sent += 1;
        std::thread::sleep(Duration::from_millis(2));
        listen() > 0
    });
    wait(|| listen() == sent);
}

/// Frames of all lengths, both ways; `a` has address 1, `b` has 2.
pub fn talk(a: &mut Station, b: &mut Station) {
    introduce(a, b);
    for round in 0..3 {
        for len in [0, 42, 110, 1500, 4078, 4079, 9000, 40_000, Sender::LONGEST - 18] {
            let there = frame(1, 2, len, round);
            a.send(&there);
            assert_eq!(b.expect(1)[0].1, there, "{len} bytes");
            let back = frame(2, 1, len, round);
            b.send(&back);
            assert_eq!(a.expect(1)[0].1, back, "{len} bytes");
        }
    }
    for station in [a, b] {
        wait(|| {
            station.queues[0].tx.collect().unwrap();
            station.queues[0].tx.is_idle()
        });
        assert_eq!((station.queues[0].tx.refused(), station.queues[0].rx.spoiled()), (0, 0));
    }
}
