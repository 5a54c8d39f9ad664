//! Just enough of the network backend's protocol to get at what a frontend grants.

use std::sync::Arc;

use hypervisor::{Channel, DomId, GrantRef, Granted, Hypervisor, RemotePort, store::Changes};
use ring::Memory;

use super::{TIMEOUT, wait_for};

/// A network interface whose frontend is connected.
#[derive(Debug)]
pub struct Vif {
    pub domain: DomId,
    pub tx_ring: GrantRef,
    pub rx_ring: GrantRef,
    pub tx_port: RemotePort,
    pub mac: [u8; 6],
    pub back: String,
}

/// Slots of a ring page.
const SLOTS: u32 = 256;
/// Where the slots begin: after the indices.
const FIRST: u64 = 64;

impl Vif {
    /// Waits for two interfaces and connects them.
    pub fn connect_two(host: &Hypervisor) -> Vec<Vif> {
        let nodes = host.store.nodes();
        let root = format!("/local/domain/{}/backend/vif", host.domain);
        let changes = Changes::new().unwrap();
        let _watch = changes.watch(&*host.store, &root, ()).unwrap();
        let mut backs: Vec<String> = Vec::new();
        // A domain's creation waits for its backend, so each is served as it comes.
        wait_for("two interfaces", || {
            changes.wait(TIMEOUT);
            for domain in nodes.directory(&root).unwrap_or_default() {
                for handle in nodes.directory(&format!("{root}/{domain}")).unwrap_or_default() {
                    let back = format!("{root}/{domain}/{handle}");
                    let new = nodes.number(&format!("{back}/state")).unwrap_or(None) == Some(1);
                    if new && !backs.contains(&back) {
                        offer(host, &back);
                        backs.push(back);
                    }
                }
            }
            (backs.len() == 2).then_some(())
        });
        backs.iter().map(|back| Self::connect(host, back)).collect()
    }

    fn connect(host: &Hypervisor, back: &str) -> Vif {
        let nodes = host.store.nodes();
        let front = nodes.text(&format!("{back}/frontend")).unwrap();
        let state = format!("{front}/state");
        wait_for("the frontend", || (nodes.number(&state).unwrap() == Some(4)).then_some(()));
        let number =
            |key: &str| nodes.number::<u32>(&format!("{front}/{key}")).unwrap().expect("a key");
        let domain = nodes.number(&format!("{back}/frontend-id")).unwrap().unwrap();
        let mac: Vec<u8> =
            nodes.text(&format!("{front}/mac")).unwrap().split(':').map(hex).collect();
        let vif = Vif {
            domain: DomId(domain),
            tx_ring: GrantRef(number("tx-ring-ref")),
            rx_ring: GrantRef(number("rx-ring-ref")),
            tx_port: RemotePort(number("event-channel-tx")),
            mac: mac.try_into().unwrap(),
            back: back.into(),
        };
        println!("{vif:?}");
        vif
    }
}

fn hex(text: &str) -> u8 {
    u8::from_str_radix(text, 16).unwrap()
}

/// Features, and the state in which a frontend connects.
fn offer(host: &Hypervisor, back: &str) {
    hypervisor::transaction(&*host.store, |nodes| {
        for feature in ["feature-rx-copy", "feature-sg", "feature-split-event-channels"] {
            nodes.put(&format!("{back}/{feature}"), 1)?;
        }
        nodes.put(&format!("{back}/state"), 2)
    })
    .unwrap();
}

/// The rings of an interface, mapped, and its Tx event channel.
pub struct Ends {
    pub tx: Arc<Memory>,
    pub rx: Arc<Memory>,
    pub channel: Box<dyn Channel>,
}

/// A request on a Tx ring.
#[derive(Clone, Copy, Debug)]
pub struct Tx {
    pub at: Granted,
    /// Bytes of the frame.
    pub size: u16,
}

impl Ends {
    pub fn open(host: &Hypervisor, vif: &Vif) -> Self {
        let map = |reference| host.grants.map(vif.domain, &[reference]).unwrap();
        let (tx, rx) = (map(vif.tx_ring), map(vif.rx_ring));
        let channel = host.events.bind(vif.domain, vif.tx_port).unwrap();
        Self { tx, rx, channel }
    }

    /// How many requests the frontend has put on its Tx ring.
    pub fn tx_posted(&self) -> u32 {
        word(&self.tx, 0)
    }

    /// The first request on the Tx ring, when there is one.
    pub fn first_tx(&self, domain: DomId) -> Option<Tx> {
        (self.tx_posted() != 0).then(|| {
            let slot = slot::<12>(&self.tx, 0);
            let [reference, rest] =
                [0, 4].map(|at| u32::from_le_bytes(slot[at..at + 4].try_into().unwrap()));
            let size = u16::from_le_bytes(slot[10..12].try_into().unwrap());
            Tx { at: Granted { domain, reference: GrantRef(reference), offset: rest as u16 }, size }
        })
    }

    /// Request `n` of the Rx ring: a page to be filled.
    pub fn rx(&self, domain: DomId, n: u32) -> Granted {
        assert!(word(&self.rx, 0) > n, "the frontend has posted {n} requests");
        let slot = slot::<8>(&self.rx, n);
        Granted {
            domain,
            reference: GrantRef(u32::from_le_bytes(slot[4..8].try_into().unwrap())),
            offset: 0,
        }
    }

    /// How many requests the frontend has put on its Rx ring.
    pub fn rx_posted(&self) -> u32 {
        word(&self.rx, 0)
    }
}

fn word(ring: &Memory, at: u64) -> u32 {
    let mut bytes = [0; 4];
    ring.read(at, &mut bytes).unwrap();
    u32::from_le_bytes(bytes)
}

fn slot<const N: usize>(ring: &Memory, n: u32) -> [u8; N] {
    let mut bytes = [0; N];
    ring.read(FIRST + u64::from(n % SLOTS) * N as u64, &mut bytes).unwrap();
    bytes
}
