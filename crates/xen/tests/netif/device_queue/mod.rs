//! Device queues: a simulated device writes into pages that a frontend granted, and the backend
//! never reads them.

mod violations;

use std::error::Error;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::front::{Host, frame, mac, wait};
use hypervisor::test::{Device, Guest, Machine};
use hypervisor::{DomId, Domain, PAGE};
use ring::Memory;
use ring::xdp::{Descriptor, Feeder, HEADROOM, Receiver, Socket, rings};
use rustix::event::{EventfdFlags, eventfd};
use xen::netif::device_queue::{DeviceQueueStatus, Uplink, UplinkQueue};
use xen::netif::frontend::{
    DeviceQueue, Frame, FrameSource, Frontend, FrontendConfig, PageAllocator, Queue,
};
use xen::netif::service::{Service, ServiceConfig};
use xen::netif::status::{Condition, VifStatus};
use xen::xenbus::State;

const LONG: Duration = Duration::from_secs(60);

/// A simulated device with one queue.
#[derive(Clone, Debug)]
struct Nic {
    machine: Machine,
    given: Arc<Mutex<Option<Given>>>,
    /// How many pages of domain 1 were mapped when the queue was given back.
    mapped: Arc<Mutex<Vec<usize>>>,
}

/// The device's side of the queue.
#[derive(Debug)]
struct Given {
    mac: frame::Mac,
    feeder: Feeder,
    pages: Arc<Memory>,
    bell: OwnedFd,
}

impl Uplink for Nic {
    fn add_queue(
        &self,
        mac: frame::Mac,
        pages: Arc<Memory>,
        count: u32,
    ) -> Result<Box<dyn UplinkQueue>, Box<dyn Error + Send + Sync>> {
        let mut given = self.given.lock();
        if given.is_some() {
            return Err("its only queue is given away".into());
        }
        let (fill, frames) = rings(count.next_power_of_two())?;
        let feeder = Feeder::new(fill.clone(), frames.clone());
        let bell =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(io::Error::from)?;
        let socket = Socket::stand_in(bell.try_clone()?, Arc::clone(&pages));
        *given = Some(Given { mac, feeder, pages, bell });
        Ok(Box::new(TestUplinkQueue {
            nic: self.clone(),
            receiver: Receiver::over(fill, frames, socket),
        }))
    }
}

struct TestUplinkQueue {
    nic: Nic,
    receiver: Receiver,
}

impl UplinkQueue for TestUplinkQueue {
    fn receiver(&self) -> &Receiver {
        &self.receiver
    }

    fn receiver_mut(&mut self) -> &mut Receiver {
        &mut self.receiver
    }

    fn name(&self) -> &str {
        "nic0 queue 0"
    }
}

impl Drop for TestUplinkQueue {
    fn drop(&mut self) {
        self.nic.mapped.lock().push(self.nic.machine.mapped(DomId(1)));
        *self.nic.given.lock() = None;
    }
}

impl Nic {
    /// Receives a frame. False when no page is posted, or the queue is not assigned.
    fn receive(&self, bytes: &[u8]) -> bool {
        let mut given = self.given.lock();
        let Some(Given { feeder, pages, bell, .. }) = given.as_mut() else { return false };
        let Some(page) = feeder.page().unwrap() else { return false };
        let addr = page + HEADROOM;
        pages.write(addr, bytes).unwrap();
        assert!(feeder.publish(Descriptor { addr, len: bytes.len() as u32 }).unwrap());
        rustix::io::write(bell, &1u64.to_ne_bytes()).unwrap();
        true
    }
}

/// A host with such a device.
fn host() -> (Host, Nic) {
    let mut host = Host::bare();
    let nic = Nic { machine: host.machine.clone(), given: Arc::default(), mapped: Arc::default() };
    let config = ServiceConfig { queues: 4, stall: LONG, ..ServiceConfig::default() };
    let uplink: Option<Arc<dyn Uplink>> = Some(Arc::new(nic.clone()));
    let (fabric, hypervisor) = (Arc::clone(&host.fabric), host.machine.hypervisor(DomId(0)));
    host.service = Some(Service::start_with(fabric, hypervisor, config, uplink).unwrap());
    (host, nic)
}

struct Station {
    guest: Guest,
    frontend: Frontend,
    queues: Vec<Queue>,
    staging: Option<DeviceQueue>,
}

impl Station {
    /// One with this number, that has not asked for anything yet.
    fn attached(host: &Host, id: u16) -> Station {
        let guest = host.machine.guest(DomId(id), Frontend::pages(2) + DeviceQueue::PAGES).unwrap();
        let address = front_address(id);
        let backend_keys = &[
            ("script", "vif-ringmain"),
            ("hotplug-status", "connected"),
            ("mac", address.as_str()),
        ];
        let (frontend, backend) = (DomId(id), DomId(0));
        let device =
            Device { class: "vif", handle: 0, frontend, backend, frontend_keys: &[], backend_keys };
        host.machine.attach(&device).unwrap();
        let domain: Arc<dyn Domain> = guest.domain().clone();
        let frontend = Frontend::find(domain, 0).unwrap();
        assert!(frontend.bus().wait(LONG, |state| state == State::InitWait).unwrap());
        Station { guest, frontend, queues: Vec::new(), staging: None }
    }

    fn connected(host: &Host, id: u16) -> Station {
        let mut station = Station::attached(host, id);
        station.request_device_queue();
        station.connect();
        assert!(station.frontend.bus().wait(LONG, |state| state == State::Connected).unwrap());
        station
    }

    fn request_device_queue(&mut self) {
        self.staging = self
            .frontend
            .request_device_queue(PageAllocator::new(Frontend::pages(2), DeviceQueue::PAGES))
            .unwrap();
    }

    fn connect(&mut self) {
        let area = PageAllocator::new(0, Frontend::pages(2));
        let config = FrontendConfig { queues: 2, control: false, ..FrontendConfig::default() };
        self.queues = self.frontend.connect(&config, area).unwrap().0;
    }

    /// Frames that the device delivered; their pages are posted again.
    fn device_queue_status(&mut self) -> Vec<Vec<u8>> {
        let frames = self.peek();
        self.staging.as_mut().unwrap().post().unwrap();
        frames
    }

    /// As before, but their pages stay here.
    fn peek(&mut self) -> Vec<Vec<u8>> {
        let staging = self.staging.as_mut().unwrap();
        let (mut all, mut got) = (Vec::new(), Frame::default());
        while staging.next(&mut got).unwrap() {
            let mut bytes = vec![0; got.len as usize];
            assert_eq!(got.pieces.len(), 1);
            staging.ring().memory().read(got.pieces[0].0, &mut bytes).unwrap();
            all.push(bytes);
        }
        // To be told of the next.
        staging.ring().channel().take();
        staging.arm().unwrap();
        all
    }

    fn expect(&mut self, n: usize) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        wait(|| {
            all.extend(self.device_queue_status());
            all.len() >= n
        });
        all
    }
}

fn front_address(id: u16) -> String {
    frame::Mac(mac(id as u8)).to_string()
}

/// The status of a station's vif, once there is one.
fn vif(host: &Host, id: u16) -> VifStatus {
    let mut found = None;
    wait(|| {
        found = host
            .service
            .as_ref()
            .unwrap()
            .vifs()
            .into_iter()
            .find(|vif| vif.id.domain == DomId(id));
        found.is_some()
    });
    found.unwrap()
}

/// Frames and bytes that devices delivered to a station.
fn counted(host: &Host, id: u16) -> (u64, u64) {
    let counters = host.fabric.counters(vif(host, id).port.unwrap());
    counters.iter().fold((0, 0), |(frames, bytes), queue| {
        (frames + queue.direct.frames.get(), bytes + queue.direct.bytes.get())
    })
}

#[test]
fn frames_from_a_device_are_not_copied() {
    let (host, nic) = host();
    let mut a = Station::connected(&host, 1);
    assert_eq!(a.frontend.device_queue_status().unwrap().as_deref(), Some("nic0 queue 0"));
    assert_eq!(nic.given.lock().as_ref().unwrap().mac, frame::Mac(mac(1)));
    let before = host.machine.counts();
    let mut bytes = 0;
    for n in 0..2000 {
        let there = frame(9, 1, (n as usize * 37) % 1500, n);
        bytes += there.len() as u64;
        wait(|| nic.receive(&there));
        assert_eq!(a.expect(1), [there]);
    }
    assert_eq!(host.machine.counts(), before);
    wait(|| counted(&host, 1) == (2000, bytes));
    assert_eq!(host.machine.refusals(), []);
}

#[test]
fn frames_of_other_ports_come_through_the_switch() {
    let (host, nic) = host();
    let (mut a, mut b) = (Station::connected(&host, 1), Station::connected(&host, 2));
    assert_eq!(
        b.frontend.device_queue_status().unwrap().as_deref(),
        Some("none: its only queue is given away")
    );
    wait(
        || matches!(vif(&host, 2).device_queue, Some(DeviceQueueStatus::Refused(why)) if why == "its only queue is given away"),
    );
    wait(
        || matches!(vif(&host, 1).device_queue, Some(DeviceQueueStatus::Active { queue: place, .. }) if place == "nic0 queue 0"),
    );
    let send = |from: &mut Station, bytes: &[u8]| {
        let tx = &mut from.queues[0].tx;
        tx.collect().unwrap();
        tx.ring().memory().write(tx.place().unwrap(), bytes).unwrap();
        assert!(tx.send(bytes.len(), Default::default()).unwrap());
        tx.flush().unwrap();
    };
    let heard = |station: &mut Station, bytes: &[u8]| {
        let mut got = Frame::default();
        let mut all = vec![0; bytes.len()];
        station.queues.iter_mut().any(|queue| {
            while queue.rx.next(&mut got).unwrap() {
                if got.len as usize == bytes.len() {
                    queue.rx.ring().memory().read(got.pieces[0].0, &mut all).unwrap();
                }
            }
            queue.rx.post().unwrap();
            all == bytes
        })
    };
    let mut broadcast = frame(2, 1, 60, 1);
    broadcast[..6].fill(0xff);
    for bytes in [broadcast, frame(2, 1, 100, 2)] {
        wait(|| {
            send(&mut b, &bytes);
            std::thread::sleep(Duration::from_millis(5));
            heard(&mut a, &bytes)
        });
    }
    wait(|| nic.receive(&frame(9, 1, 70, 3)));
    assert_eq!(a.expect(1), [frame(9, 1, 70, 3)]);
    assert_eq!(counted(&host, 1).0, 1);
}

#[test]
fn a_device_queue_without_buffers_resumes_when_buffers_are_posted() {
    let (host, nic) = host();
    let mut a = Station::connected(&host, 1);
    for round in 0..20 {
        let (mut sent, mut got) = (0, Vec::new());
        wait(|| {
            while sent < 256 && nic.receive(&frame(9, 1, 64, round << 16 | sent)) {
                sent += 1;
            }
            got.extend(a.peek());
            got.len() == 256
        });
        let numbers: Vec<u32> = got.iter().map(|bytes| crate::front::what(bytes)).collect();
        assert_eq!(numbers, (0..256).map(|n| round << 16 | n).collect::<Vec<_>>(), "in order");
        assert!(!nic.receive(&frame(9, 1, 64, 0)), "all pages are the station's");
        std::thread::sleep(Duration::from_millis(u64::from(round % 3)));
        a.staging.as_mut().unwrap().post().unwrap();
    }
}

#[test]
fn pages_are_in_use_until_the_device_releases_them() {
    let (host, nic) = host();
    let mut a = Station::connected(&host, 1);
    let references: Vec<_> =
        (0..256).map(|n| a.staging.as_ref().unwrap().pages().reference(n)).collect();
    let revoked = |a: &Station| {
        references.iter().filter(|reference| a.guest.domain().revoke(**reference)).count()
    };
    assert_eq!(revoked(&a), 0);
    wait(|| nic.receive(&frame(9, 1, 64, 1)));
    a.expect(1);
    a.frontend.bus().set_state(State::Closed).unwrap();
    assert!(a.frontend.bus().wait(LONG, |state| state == State::Closed).unwrap());
    wait(|| nic.given.lock().is_none());
    assert!(nic.mapped.lock()[0] >= 256, "let go before the device had");
    assert!(!nic.receive(&frame(9, 1, 64, 2)));
    wait(|| a.guest.mapped() == 0);
    assert_eq!(revoked(&a), 256);
    // And once more, from the start.
    (a.staging, a.queues) = (None, Vec::new());
    a.frontend.bus().set_state(State::Initialising).unwrap();
    assert!(a.frontend.bus().wait(LONG, |state| state == State::InitWait).unwrap());
    a.request_device_queue();
    a.connect();
    assert!(a.frontend.bus().wait(LONG, |state| state == State::Connected).unwrap());
    wait(|| nic.receive(&frame(9, 1, 64, 3)));
    assert_eq!(a.expect(1), [frame(9, 1, 64, 3)]);
}

#[test]
fn a_domain_is_destroyed_under_traffic() {
    let (host, nic) = host();
    for _ in 0..10 {
        let mut a = Station::connected(&host, 1);
        for n in 0..300 {
            nic.receive(&frame(9, 1, 64, n));
        }
        a.device_queue_status();
        host.machine.destroy(DomId(1));
        while nic.receive(&frame(9, 1, 64, 0)) {}
        wait(|| nic.given.lock().is_none());
        let device = DomId(1);
        let forget = Device {
            class: "vif",
            handle: 0,
            frontend: device,
            backend: DomId(0),
            frontend_keys: &[],
            backend_keys: &[],
        };
        host.machine.forget(&forget).unwrap();
        wait(|| host.service.as_ref().unwrap().vifs().is_empty());
    }
}
