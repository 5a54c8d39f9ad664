//! A guest that behaves as the suite expects a stock one to: it grants its pages, connects, and
//! sends one frame.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use hypervisor::store::Changes;
use hypervisor::test::{Device, Guest, Machine, Port};
use hypervisor::{Channel, DomId};

/// Pages: Tx ring, Rx ring, the frame, and as many buffers as the Rx ring has slots.
const FRAME: u32 = 2;
const BUFFERS: u32 = 3;
const SLOTS: u32 = 256;

const KEYS: [[(&str, &str); 1]; 2] =
    [[("mac", "00:16:3e:00:00:01")], [("mac", "00:16:3e:00:00:02")]];

pub fn device(frontend: DomId) -> Device<'static> {
    let frontend_keys = &KEYS[usize::from(frontend.0 - 1)];
    Device {
        class: "vif",
        handle: 0,
        frontend,
        backend: DomId(0),
        frontend_keys,
        backend_keys: &[],
    }
}

pub struct Front {
    pub id: DomId,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Front {
    pub fn start(machine: &Machine, id: DomId) -> Self {
        let guest = machine.guest(id, BUFFERS + SLOTS).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = Some(thread::spawn(move || live(&guest, &stopped)));
        Self { id, stop, thread }
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

fn live(guest: &Guest, stop: &AtomicBool) {
    let device = device(guest.id());
    let (store, backend) = (guest.store(), format!("{}/state", device.backend_path()));
    let changes = Changes::new().unwrap();
    let _watch = changes.watch(store, &backend, ()).unwrap();
    let (mut port, mut sent) = (None, false);
    while !stop.load(Ordering::Relaxed) {
        changes.wait(Duration::from_millis(20));
        match store.nodes().number(&backend).unwrap_or(None) {
            Some(2) if port.is_none() => port = Some(connect(guest, &device)),
            Some(4) if !sent => {
                send(guest, port.as_ref().unwrap());
                sent = true;
            }
            _ => {}
        }
    }
}

fn put(guest: &Guest, page: u32, at: u64, words: &[u32]) {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    guest.memory().write(u64::from(page) * 4096 + at, &bytes).unwrap();
}

fn connect(guest: &Guest, device: &Device<'_>) -> Port {
    let rings = [0, 1].map(|page| guest.grant(DomId(0), page, true));
    for n in 0..SLOTS {
        let reference = guest.grant(DomId(0), BUFFERS + n, true);
        put(guest, 1, 64 + u64::from(n) * 8, &[n, reference.0]);
    }
    put(guest, 1, 0, &[SLOTS]);
    let port = guest.open(DomId(0)).unwrap();
    let front = device.frontend_path();
    let keys = [
        ("tx-ring-ref", rings[0].0),
        ("rx-ring-ref", rings[1].0),
        ("event-channel-tx", port.number().0),
    ];
    hypervisor::transaction(guest.store(), |nodes| {
        keys.iter().try_for_each(|(key, value)| nodes.put(&format!("{front}/{key}"), value))?;
        nodes.put(&format!("{front}/state"), 4)
    })
    .unwrap();
    port
}

fn send(guest: &Guest, port: &Port) {
    let reference = guest.grant(DomId(0), FRAME, false);
    let mut frame = vec![0xff; 6];
    frame.extend([0, 0x16, 0x3e, 0, 0, guest.id().0 as u8]);
    frame.extend(0..60);
    guest.memory().write(u64::from(FRAME) * 4096 + 66, &frame).unwrap();
    put(guest, 0, 64, &[reference.0, 66, (frame.len() as u32) << 16]);
    put(guest, 0, 0, &[1]);
    port.notify();
}
