//! A station with this project's own frontend, on any hypervisor.

use std::sync::Arc;
use std::time::Duration;

use hypervisor::test::{Device, Guest, Version};
use hypervisor::{DomId, Domain};
use xen::netif::frontend::{
    ControlRing, Frame, FrameSource, Frontend, FrontendConfig, PageAllocator, Queue, Sender,
};
use xen::netif::slots::Meta;
use xen::xenbus::State;

use super::tcp::tcp;
use super::{Host, frame, wait, what};

pub const LONG: Duration = Duration::from_secs(60);

/// The kind of segmentation of [`tcp`] frames.
const TCPV4: u8 = 1;

/// A domain with an interface that is connected.
pub struct Station<G = Guest> {
    pub guest: G,
    pub frontend: Frontend,
    pub queues: Vec<Queue>,
    pub caller: Option<ControlRing>,
    pub config: FrontendConfig,
}

/// A frame that came: on which queue, its bytes, and where and how it came.
pub type Received = (usize, Vec<u8>, Frame);

/// A guest with an interface that is not connected yet. The backend's directory also has these
/// keys.
pub fn attach(host: &Host, id: u16, keys: &[(&str, &str)]) -> (Guest, Frontend) {
    let version = if keys.is_empty() { Version::V1 } else { Version::V2 };
    let guest = host.machine.guest_of(DomId(id), Frontend::pages(4), version).unwrap();
    let backend_keys =
        &[&[("script", "vif-ringmain"), ("hotplug-status", "connected")], keys].concat();
    let (frontend, backend) = (DomId(id), DomId(0));
    host.machine
        .attach(&Device {
            class: "vif",
            handle: 0,
            frontend,
            backend,
            frontend_keys: &[],
            backend_keys,
        })
        .unwrap();
    let domain: Arc<dyn Domain> = guest.domain().clone();
    let frontend = Frontend::find(domain, 0).unwrap();
    (guest, frontend)
}

pub fn connect(frontend: &Frontend, config: &FrontendConfig) -> (Vec<Queue>, Option<ControlRing>) {
    assert!(frontend.bus().wait(LONG, |state| state == State::InitWait).unwrap());
    let connected =
        frontend.connect(config, PageAllocator::new(0, frontend.bus().domain().pages())).unwrap();
    assert!(frontend.bus().wait(LONG, |state| state == State::Connected).unwrap());
    connected
}

pub fn station(host: &Host, id: u16, config: &FrontendConfig) -> Station {
    station_with(host, id, config, &[])
}

/// One with keys in the backend's directory, and a grant table of version 2.
pub fn station_with(
    host: &Host,
    id: u16,
    config: &FrontendConfig,
    keys: &[(&str, &str)],
) -> Station {
    let (guest, frontend) = attach(host, id, keys);
    let (queues, caller) = connect(&frontend, config);
    Station { guest, frontend, queues, caller, config: config.clone() }
}

impl Station<Arc<dyn Domain>> {
    /// Interface `handle` of a domain on any hypervisor.
    pub fn of(domain: Arc<dyn Domain>, handle: u32, config: &FrontendConfig) -> Self {
        let frontend = Frontend::find(Arc::clone(&domain), handle).unwrap();
        let (queues, caller) = connect(&frontend, config);
        Station { guest: domain, frontend, queues, caller, config: config.clone() }
    }
}

impl<G> Station<G> {
    /// Closes as Linux' frontend does, and lets go of its rings.
    pub fn close(&mut self) {
        self.frontend.bus().set_state(State::Closing).unwrap();
        assert!(
            self.frontend
                .bus()
                .wait(LONG, |state| matches!(state, State::Closing | State::Closed))
                .unwrap()
        );
        self.frontend.bus().set_state(State::Closed).unwrap();
        assert!(self.frontend.bus().wait(LONG, |state| state == State::Closed).unwrap());
        self.queues.clear();
        self.caller = None;
    }

    /// Begins anew after it was closed, with so many queues.
    pub fn begin_anew(&mut self, queues: u16) {
        self.config.queues = queues;
        self.frontend.bus().set_state(State::Initialising).unwrap();
        (self.queues, self.caller) = connect(&self.frontend, &self.config);
    }

    #[track_caller]
    pub fn send_on(&mut self, queue: usize, bytes: &[u8], meta: Meta) {
        self.queue_on(queue, bytes, meta);
        self.queues[queue].tx.flush().unwrap();
    }

    /// Queues a frame without telling, once there is room.
    #[track_caller]
    pub fn queue_on(&mut self, queue: usize, bytes: &[u8], meta: Meta) {
        let tx = &mut self.queues[queue].tx;
        wait(|| {
            tx.collect().unwrap();
            tx.place().is_some()
        });
        tx.ring().memory().write(tx.place().unwrap(), bytes).unwrap();
        assert!(tx.send(bytes.len(), meta).unwrap());
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.send_on(0, bytes, Meta::default());
    }

    /// The frames that came, and on which queues.
    pub fn received(&mut self) -> Vec<Received> {
        (0..self.queues.len()).flat_map(|n| self.received_on(n)).collect()
    }

    /// The frames that came on queue `n`.
    pub fn received_on(&mut self, n: usize) -> Vec<Received> {
        let rx = &mut self.queues[n].rx;
        let (mut all, mut got) = (Vec::new(), Frame::default());
        while rx.next(&mut got).unwrap() {
            let mut bytes = vec![0; got.len as usize];
            let mut at = 0;
            for (addr, len) in &got.pieces {
                rx.ring().memory().read(*addr, &mut bytes[at..at + *len as usize]).unwrap();
                at += *len as usize;
            }
            all.push((n, bytes, got.clone()));
        }
        rx.post().unwrap();
        all
    }

    #[track_caller]
    pub fn expect(&mut self, n: usize) -> Vec<Received> {
        let mut all = Vec::new();
        wait(|| {
            all.extend(self.received());
            all.len() >= n
        });
        all
    }

    /// Waits until everything that was sent was answered, and well.
    #[track_caller]
    pub fn wait_until_idle(&mut self) {
        for queue in &mut self.queues {
            wait(|| {
                queue.tx.collect().unwrap();
                queue.tx.is_idle()
            });
            assert_eq!((queue.tx.refused(), queue.rx.failed()), (0, 0));
        }
    }
}

/// Makes two stations known to the switch. Frames may be lost while a queue is put into service, so
/// each station sends until one frame has arrived, and waits until all have arrived that were sent
/// since.
pub fn introduce<G, H>(a: &mut Station<G>, b: &mut Station<H>) {
    reach(a, b, (1, 2));
    reach(b, a, (2, 1));
}

pub fn reach<G, H>(from: &mut Station<G>, to: &mut Station<H>, (x, y): (u8, u8)) {
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
pub fn talk<G, H>(a: &mut Station<G>, b: &mut Station<H>) {
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
    a.wait_until_idle();
    b.wait_until_idle();
}

/// Sends frames to be segmented, and frames with blank checksums, from `a` to `b`, each with the
/// number of its address.
pub fn offload<G, H>((a, x): (&mut Station<G>, u8), (b, y): (&mut Station<H>, u8)) {
    let meta = Meta { csum_blank: true, gso: Some((TCPV4, 1448)) };
    a.send_on(0, &tcp(x, y, 60_000), meta);
    let (_, bytes, got) = b.expect(1).remove(0);
    assert!(bytes == tcp(x, y, 60_000), "it comes as it was sent");
    assert_eq!(got.meta, meta);
    // Extra info has a slot, and the page of that slot holds nothing.
    assert!(got.pieces.len() >= 2, "{:?}", got.pieces);
    a.send_on(0, &tcp(x, y, 1000), Meta { csum_blank: true, gso: None });
    assert!(b.expect(1)[0].2.meta.csum_blank);
    a.wait_until_idle();
}

/// Sets a hash key at `b`, which has two queues and a control ring, so that frames use both queues.
pub fn spread<G, H>(a: &mut Station<G>, b: &mut Station<H>) {
    let key: Vec<u8> = (1..41).collect();
    let caller = b.caller.as_mut().unwrap();
    caller.set_hash(2, &key).unwrap();
    assert_eq!(caller.request(99, [0; 3]).unwrap(), (1, 0), "not supported");
    let mut queues = [0; 2];
    for last in 0..32 {
        let mut bytes = tcp(1, 2, 100);
        bytes[35] = last;
        a.send_on(0, &bytes, Meta { csum_blank: true, gso: None });
        queues[b.expect(1)[0].0] += 1;
    }
    assert!(queues.iter().all(|count| *count > 4), "{queues:?}");
}
