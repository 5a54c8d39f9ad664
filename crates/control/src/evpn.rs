//! EVPN for an overlay: a thread between the kernel's tables, which FRR reads and writes, and the
//! tunnels.
//!
//! Announcements of other hosts become peers and stations of the overlay. The thread announces
//! guests that are learned at ports of this host, and their IP addresses if the configuration asks
//! for it. The thread sleeps until the kernel or the switch has news.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use frame::{Mac, Vni};
use hostlink::fdb::{self, FdbWatch, Heard};
use hostlink::shadow;
use hostlink::underlay::{PeerSpec, Underlay};
use network::fabric::Fabric;
use overlay::mirror::{Change, Mirror, Peer, Presence};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::time::Timespec;
use switch::{Network, PinKind, PortId, Sighted, Station, Tunnel, WatcherId};
use tracing::{info, warn};

use crate::api::Counts;
use crate::config::OverlaySpec;
use crate::overlay_network::{TUNNELS, network};
use crate::report;

/// Pause after the kernel has refused something.
const PAUSE: Duration = Duration::from_secs(2);

/// The status of the thread's work.
#[derive(Clone, Default)]
pub struct Status {
    /// The VTEPs: whether each gets floods, and whether the control plane has withdrawn it.
    pub peers: BTreeMap<(Vni, IpAddr), Peer>,
    /// How many IP addresses of stations on other hosts are known.
    pub neighbours: usize,
    /// How many IP addresses of stations of this host are announced.
    pub announced: usize,
    /// How many IP addresses were learned from frames of stations of this host.
    pub learned: usize,
    /// The present problem, if there is one.
    pub trouble: Option<String>,
    /// The counts of ports of removed VTEPs.
    removed: Option<Counts>,
}

/// The control plane of an overlay. Dropping it ends the thread; peers and stations stay, and IP
/// addresses are forgotten.
pub struct Evpn {
    fabric: Arc<Fabric>,
    watcher: WatcherId,
    stop: Arc<AtomicBool>,
    wake: Arc<OwnedFd>,
    status: Arc<Mutex<Status>>,
    thread: Option<JoinHandle<()>>,
}

impl Evpn {
    /// Makes the kernel's devices where they are missing, and begins. `mtu`: longest IP packet of
    /// the networks.
    ///
    /// # Errors
    /// When the kernel refuses a device, a socket or a thread.
    pub fn start(
        fabric: &Arc<Fabric>,
        underlay: &Arc<Underlay>,
        spec: &OverlaySpec,
        mtu: u16,
    ) -> io::Result<Evpn> {
        let mut mirror = Mirror::default();
        for (vni, _) in &spec.networks {
            mirror.add(*vni, shadow::ensure(*vni, spec.local.ip())?);
        }
        let watch = FdbWatch::open()?;
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let ring = Arc::clone(&wake);
        let watcher = fabric.watch(Arc::new(move || signal(&ring)));
        if spec.announce_addresses {
            let networks = spec.networks.iter().map(|(_, vlan)| network(*vlan));
            fabric.learn_addresses(watcher, networks.collect());
        }
        let (stop, status) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let engine = Engine {
            fabric: Arc::clone(fabric),
            underlay: Arc::clone(underlay),
            networks: spec.networks.iter().map(|(vni, vlan)| (*vni, *vlan)).collect(),
            announces_addresses: spec.announce_addresses,
            mtu,
            mirror,
            ports: HashMap::new(),
            watch,
            watcher,
            wake: Arc::clone(&wake),
            stop: Arc::clone(&stop),
            start: Instant::now(),
            status: Arc::clone(&status),
        };
        let name = "rm-evpn".to_owned();
        let thread = Builder::new().name(name).spawn(move || engine.run());
        let thread = thread.inspect_err(|_| fabric.unwatch(watcher))?;
        let fabric = Arc::clone(fabric);
        Ok(Evpn { fabric, watcher, stop, wake, status, thread: Some(thread) })
    }

    /// The status of the thread's work.
    pub fn status(&self) -> Status {
        self.status.lock().clone()
    }

    /// Adds the counts of removed ports.
    pub fn add_removed(&self, sum: &mut Counts) {
        self.status.lock().removed.iter().for_each(|counts| sum.add(counts));
    }
}

impl Drop for Evpn {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        signal(&self.wake);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.fabric.unwatch(self.watcher);
    }
}

fn signal(wake: &OwnedFd) {
    // A full counter also wakes the thread.
    let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
}

fn presence(found: switch::Presence) -> Presence {
    match found {
        switch::Presence::Away => Presence::Away,
        switch::Presence::Learned => Presence::Moves,
        switch::Presence::Locked => Presence::Sticky,
    }
}

struct Engine {
    fabric: Arc<Fabric>,
    underlay: Arc<Underlay>,
    networks: BTreeMap<Vni, Option<u16>>,
    announces_addresses: bool,
    mtu: u16,
    mirror: Mirror,
    ports: HashMap<(Vni, IpAddr), PortId>,
    watch: FdbWatch,
    watcher: WatcherId,
    wake: Arc<OwnedFd>,
    stop: Arc<AtomicBool>,
    start: Instant,
    status: Arc<Mutex<Status>>,
}

impl Engine {
    fn run(mut self) {
        let mut again = Some(self.now());
        while !self.stop.load(Ordering::Acquire) {
            if again.is_some_and(|at| at <= self.now()) {
                again = self.attempt(Engine::read_all);
            }
            self.see_guests();
            self.reconcile();
            let refused = self.attempt(Engine::announce);
            again = again.or(refused);
            self.sleep(again);
            match self.hear() {
                Ok(Heard::All) => {}
                Ok(Heard::Lost) => again = Some(self.now()),
                Err(error) => again = Some(self.put_off(&error)),
            }
        }
        self.networks.values().for_each(|vlan| self.fabric.forget_neighbours(network(*vlan)));
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    /// Does work that the kernel may refuse. Returns when to read everything again, if it has
    /// refused.
    fn attempt(&mut self, work: impl FnOnce(&mut Engine) -> io::Result<()>) -> Option<u64> {
        work(self).err().map(|error| self.put_off(&error))
    }

    /// Notes that the kernel has refused. Returns when to read everything again.
    fn put_off(&self, error: &io::Error) -> u64 {
        self.complain(error.to_string());
        self.now() + PAUSE.as_millis() as u64
    }

    fn complain(&self, trouble: String) {
        let mut status = self.status.lock();
        if status.trouble.as_ref() != Some(&trouble) {
            warn!(overlay = %self.underlay.name(), %trouble, "EVPN");
        }
        status.trouble = Some(trouble);
    }

    /// Reads all tables of the kernel.
    fn read_all(&mut self) -> io::Result<()> {
        let now = self.now();
        self.mirror.begin_dump();
        fdb::dump(|row| self.mirror.apply(now, row, true))?;
        self.mirror.end_dump(now);
        self.status.lock().trouble = None;
        Ok(())
    }

    fn hear(&mut self) -> io::Result<Heard> {
        let now = self.now();
        let mirror = &mut self.mirror;
        self.watch.receive(|row, present| mirror.apply(now, row, present))
    }

    fn sleep(&self, again: Option<u64>) {
        let until = self.mirror.deadline().into_iter().chain(again).min();
        let pause = until.map(|until| until.saturating_sub(self.now()));
        let pause = pause.map(|ms| Timespec {
            tv_sec: (ms / 1000) as i64,
            tv_nsec: (ms % 1000 * 1_000_000) as i64,
        });
        let mut ready =
            [PollFd::new(&self.watch, PollFlags::IN), PollFd::new(&self.wake, PollFlags::IN)];
        // A signal does not stop the thread, and all sources are checked anyway.
        let _ = poll(&mut ready, pause.as_ref());
        // The read does not block.
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
    }

    /// Notes guests that came or left.
    fn see_guests(&mut self) {
        match self.fabric.sighted(self.watcher) {
            Sighted::Some(stations) => {
                for (station, found) in stations {
                    for vni in self.vnis_of(station.network) {
                        self.mirror.set_here(vni, station.mac, presence(found));
                        self.see_addresses(vni, station, found);
                    }
                }
            }
            Sighted::All(stations) => {
                let networks: Vec<_> =
                    self.networks.iter().map(|(vni, vlan)| (*vni, network(*vlan))).collect();
                for (vni, network) in networks {
                    let own = || stations.iter().filter(|(station, _)| station.network == network);
                    let macs: HashMap<Mac, Presence> =
                        own().map(|(station, found)| (station.mac, presence(*found))).collect();
                    self.mirror.set_all_here(vni, &macs);
                    own().for_each(|(station, found)| self.see_addresses(vni, *station, *found));
                }
            }
        }
    }

    /// Notes the addresses of a guest that are announced: those of the configuration, and those
    /// that the guest claims.
    fn see_addresses(&mut self, vni: Vni, station: Station, found: switch::Presence) {
        // The addresses left with the guest.
        if found == switch::Presence::Away {
            return;
        }
        let (mut given, mut heard) = (Vec::new(), Vec::new());
        if self.announces_addresses {
            given = self.fabric.given_addresses(station);
            heard = self.fabric.learned_addresses(station);
        }
        self.mirror.set_addresses(vni, station.mac, &given);
        self.mirror.set_heard(vni, station.mac, &heard);
    }

    /// The virtual networks of a network of the switch. Each overlay has at most one.
    fn vnis_of(&self, wanted: Network) -> Vec<Vni> {
        let all = self.networks.iter().filter(|(_, vlan)| network(**vlan) == wanted);
        all.map(|(vni, _)| *vni).collect()
    }

    fn announce(&mut self) -> io::Result<()> {
        for change in self.mirror.announcements(self.now()) {
            fdb::set(change.here, change.mac, change.presence)?;
        }
        for change in self.mirror.address_announcements() {
            fdb::set_address(change.bridge, change.address, change.mac)?;
        }
        Ok(())
    }

    /// Makes the overlay's peers and stations those of the kernel's tables.
    fn reconcile(&mut self) {
        let changes = self.mirror.reconcile(self.now());
        for change in changes {
            if let Err(trouble) = self.change(change) {
                self.complain(trouble);
            }
        }
        let peers: BTreeMap<_, _> = self.mirror.peers().collect();
        let mut status = self.status.lock();
        status.neighbours = self.mirror.neighbours();
        (status.announced, status.learned) = (self.mirror.announced(), self.mirror.heard());
        if status.peers != peers {
            let stale = |peers: &BTreeMap<_, Peer>| peers.values().filter(|it| it.stale).count();
            let (before, now) = (stale(&status.peers), stale(&peers));
            status.peers = peers;
            drop(status);
            if now > 0 && before == 0 {
                let name = self.underlay.name();
                warn!(overlay = %name, peers = now, "stale peers: withdrawn, and in use for a while");
            } else if now == 0 && before > 0 {
                info!(overlay = %self.underlay.name(), "no peer is stale any more");
            }
        }
        if self.mirror.refused() > 0 {
            self.complain(format!("{} rows of the kernel are too many", self.mirror.refused()));
        }
    }

    fn change(&mut self, change: Change) -> Result<(), String> {
        match change {
            Change::Vtep(vni, vtep, floods) => {
                let tunnel = Tunnel { group: TUNNELS, learns: false, floods };
                if let Some(port) = self.ports.get(&(vni, vtep)) {
                    self.fabric.set_tunnel(*port, tunnel);
                    return Ok(());
                }
                let vlan = self.vlan(vni);
                let peer = PeerSpec { vni, vtep, vlan, mtu: self.mtu, tunnel };
                let port = self.underlay.add_peer(&peer);
                let port = port.map_err(|error| format!("peer {vtep}: {error}"))?;
                self.ports.insert((vni, vtep), port);
            }
            Change::NoVtep(vni, vtep) => {
                let Some(port) = self.ports.remove(&(vni, vtep)) else { return Ok(()) };
                let mut removed = report::no_counts();
                report::add_removed(&mut removed, &self.fabric, &[port], || {
                    self.underlay.remove_peer(vni, vtep);
                });
                let mut status = self.status.lock();
                status.removed.get_or_insert_with(report::no_counts).add(&removed);
            }
            Change::Station(vni, mac, vtep) => {
                let Some(port) = self.ports.get(&(vni, vtep)) else { return Ok(()) };
                let pinned = self.fabric.pin(self.station(vni, mac), *port, PinKind::Learned);
                pinned.map_err(|error| error.to_string())?;
            }
            Change::Neighbour(vni, address, owner) => {
                self.fabric.set_neighbour(self.network(vni), address, owner);
            }
            Change::NoStation(vni, mac) => _ = self.fabric.unpin(self.station(vni, mac)),
        }
        Ok(())
    }

    fn vlan(&self, vni: Vni) -> Option<u16> {
        self.networks.get(&vni).copied().flatten()
    }

    fn network(&self, vni: Vni) -> Network {
        network(self.vlan(vni))
    }

    fn station(&self, vni: Vni, mac: Mac) -> Station {
        Station { network: self.network(vni), mac }
    }
}
