//! One Xen host for all tests, with two stock guests that have no vif: booting it takes longer than
//! most tests. What a test leaves behind goes with its [`Scene`]; what may be in disorder is made
//! anew.

use super::traffic::{LIMIT, address_it, clean, eventually};
use control::api::{PortReport, Stats};
use lab::daemon::is_balanced;
use lab::guest::{Emulator, GuestError, Shell};
use lab::xen::{Dom0, Domain, DomainSpec, LOG, Options, Service, Testbed};
use parking_lot::{Mutex, MutexGuard};
use std::cell::{OnceCell, RefCell};
use std::path::{Path, PathBuf};
use std::sync::mpsc;

/// Queues that the guests' frontends ask for, and that a vif may have.
pub const QUEUES: u16 = 4;
/// The words in `xl.cfg` for a vif that the daemon serves.
pub const VIF: &str = "script=vif-ringmain";
/// Memory of the guests that serve all tests, in MiB. Each connection costs them some for good.
const GUEST_MEMORY: u32 = 256;
const VIFS: &str = "[[port]]\nname = \"vifs\"\nkind = \"xen\"\nqueues = 4\n";

static HOST: Mutex<Option<Host>> = Mutex::new(None);

struct Host {
    dom0: Dom0,
    emulator: Emulator,
    guests: Option<[Domain; 2]>,
}

/// A daemon in dom0 that serves vifs, and two guests, while a test runs.
pub struct Scene {
    pub dom0: Dom0,
    service: RefCell<Option<Service>>,
    guests: OnceCell<[Domain; 2]>,
    host: MutexGuard<'static, Option<Host>>,
}

/// The folder with what `scripts/deps` fetched and built.
fn cache() -> PathBuf {
    lab::folders::cache(env!("CARGO_MANIFEST_DIR"))
}

impl Host {
    fn boot(emulator: Emulator) -> Host {
        let testbed = Testbed { emulator: emulator.clone(), ..Testbed::find(&cache()).unwrap() };
        // The host goes with the thread that boots it. It serves all tests, and each of them is a
        // thread of its own.
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            let dom0 = Dom0::boot(&testbed, &Options::default());
            if sender.send(dom0).is_ok() {
                loop {
                    std::thread::park();
                }
            }
        });
        let dom0 = receiver.recv().unwrap().unwrap();
        dom0.install(Path::new(env!("CARGO_BIN_EXE_ringmain"))).unwrap();
        Host { dom0, emulator, guests: None }
    }

    fn boot_guests(dom0: &Dom0, vifs: &[&str]) -> [Domain; 2] {
        let spec = |name| DomainSpec {
            max_queues: Some(QUEUES),
            memory: GUEST_MEMORY,
            vifs: vifs.iter().map(|vif| (*vif).to_owned()).collect(),
            ..DomainSpec::new(name)
        };
        let guests = ["a", "b"].map(|name| dom0.create(&spec(name)).unwrap());
        guests
            .iter()
            .for_each(|guest| guest.ready(LIMIT).unwrap_or_else(|error| panic!("{error}")));
        guests
    }
}

impl Scene {
    /// A daemon that serves vifs with up to four queues, and has these ports besides.
    pub fn new(ports: &str) -> Scene {
        Scene::without_daemon().with_daemon(ports)
    }

    /// The same on a host that the QEMU that is installed runs.
    pub fn on_installed_emulator() -> Scene {
        Scene::on(Emulator::installed()).with_daemon("")
    }

    fn with_daemon(self, ports: &str) -> Scene {
        let config = format!("[workers]\ncount = 2\n{VIFS}{ports}");
        self.service.replace(Some(self.dom0.serve(&config).unwrap()));
        self
    }

    /// The same, with two guests that boot with a vif each: new ones, in the place of those that
    /// were there. They serve the tests that come later, too.
    pub fn with_new_guests() -> Scene {
        Scene::new("").replace_guests(&[VIF])
    }

    /// The same with two new guests without vifs.
    pub fn with_bare_guests() -> Scene {
        Scene::new("").replace_guests(&[])
    }

    fn replace_guests(mut self, vifs: &[&str]) -> Scene {
        for guest in self.guests.take().into_iter().flatten() {
            guest.destroy().unwrap();
        }
        self.guests = OnceCell::from(Host::boot_guests(&self.dom0, vifs));
        self
    }

    /// Nobody serves vifs. QEMU 10 emulates a host that runs the tests 1.13 times as fast as QEMU
    /// 7.2 does.
    pub fn without_daemon() -> Scene {
        Scene::on(Emulator::backports(&cache()).unwrap())
    }

    fn on(emulator: Emulator) -> Scene {
        let mut host = HOST.lock();
        let with_guests = host.as_ref().is_some_and(|host| host.guests.is_some());
        let fits = |host: &Host| {
            host.emulator == emulator && host.dom0.must(&leftovers(with_guests), LIMIT).is_ok()
        };
        if !host.as_ref().is_some_and(fits) {
            *host = None;
            *host = Some(Host::boot(emulator));
        }
        let Host { dom0, guests, .. } = host.as_mut().unwrap();
        let (dom0, guests) = (dom0.clone(), guests.take());
        let guests = guests.map_or_else(OnceCell::new, OnceCell::from);
        Scene { dom0, service: RefCell::default(), guests, host }
    }

    /// The two guests.
    pub fn guests(&self) -> [&Domain; 2] {
        self.guests.get_or_init(|| Host::boot_guests(&self.dom0, &[])).each_ref()
    }

    /// Both guests with one vif each, and the addresses of ports 0 and 1. The texts are what `xl`
    /// is told of the vifs.
    pub fn plugged(&self, vifs: [&str; 2]) -> [&Domain; 2] {
        let guests = self.guests();
        for (port, (guest, vif)) in guests.iter().zip(vifs).enumerate() {
            address_it(*guest, &self.plug(guest, vif), port);
        }
        guests
    }

    /// `xl network-attach`, and the name of the interface that came in the guest. The text is words
    /// for that command, which, unlike `xl.cfg`, has blanks between them, and takes a comma for
    /// a part of the script's name.
    pub fn plug(&self, guest: &Domain, vif: &str) -> String {
        let count = "ls /sys/class/net | grep -c eth";
        let before: u32 = guest.run(count, LIMIT).unwrap().text.trim().parse().unwrap();
        // Here the toolstack wants words where its files have commas.
        let vif = vif.replace(',', " ");
        self.dom0
            .must(&format!("xl network-attach {} script=vif-ringmain{vif}", guest.id()), LIMIT)
            .unwrap();
        guest
            .must(&format!("until [ -d /sys/class/net/eth{before} ]; do usleep 50000; done"), LIMIT)
            .unwrap();
        format!("eth{before}")
    }

    /// Ends the host, whose toolstack is of no more use. The next test boots another.
    pub fn end_host(mut self) {
        self.guests.take().into_iter().flatten().for_each(Domain::abandon);
        self.service.take();
        *self.host = None;
    }

    /// Kills the daemon, in the manner of `kill -9`.
    pub fn kill(&self) {
        self.service.take().unwrap().kill().unwrap();
    }

    /// Starts it again.
    pub fn go_on(&self) {
        self.service.replace(Some(self.dom0.go_on().unwrap()));
    }

    /// The daemon's counters.
    pub fn stats(&self) -> Stats {
        self.service.borrow().as_ref().unwrap().stats().unwrap()
    }

    /// What dom0's kernel tells of the daemon's process.
    pub fn process_stat(&self) -> String {
        self.service.borrow().as_ref().unwrap().process_stat().unwrap()
    }

    /// What each port has counted, for a test that fails.
    fn print_counters(&self) {
        let Ok(service) = self.service.try_borrow() else { return };
        match service.as_ref().map(|service| service.stats()) {
            Some(Ok(stats)) => {
                for port in &stats.ports {
                    eprintln!("{} {:?}: {:?}", port.name, port.state, port.total);
                }
            }
            Some(Err(error)) => eprintln!("no counters: {error}"),
            None => {}
        }
    }

    /// The daemon's log.
    pub fn log(&self) -> String {
        self.service.borrow().as_ref().unwrap().log().unwrap()
    }

    /// The port of a guest's vif, when there is one.
    pub fn port(&self, guest: &Domain, handle: u16) -> Option<PortReport> {
        port_of(&self.stats(), guest, handle).cloned()
    }

    /// Checks, once nothing moves, that what came in equals what went out plus what was dropped.
    pub fn check_balance(&self) {
        eventually("all frames", || is_balanced(&self.stats()));
    }
}

/// The port of a guest's vif, when there is one.
pub fn port_of<'a>(stats: &'a Stats, guest: &Domain, handle: u16) -> Option<&'a PortReport> {
    let name = format!("vif{}.{handle}", guest.id());
    stats.ports.iter().find(|port| port.name == name)
}

/// Removes what other tests left behind in dom0, and after one that failed, all guests.
fn leftovers(with_guests: bool) -> String {
    let destroy = "for id in $(xl list | awk 'NR > 2 { print $2 }'); do xl destroy $id; done; \
                   xenstore-rm /local/domain/0/backend/vif; \
                   xenstore-rm /local/domain/0/backend/vbd; ";
    let destroy = if with_guests { "" } else { destroy };
    let files = format!("{LOG} /etc/xen/vif-ringmain.conf");
    format!("{destroy}xenstore-rm /local/domain/0/error; rm -f {files}")
}

impl Drop for Scene {
    fn drop(&mut self) {
        let guests = self.guests.take();
        if std::thread::panicking() {
            // The guests go, and so does everything that belongs to them.
            let log = self.dom0.run(&format!("cat {LOG}"), LIMIT);
            eprintln!(
                "the daemon's log: {}",
                log.map_or_else(|error| error.to_string(), |log| log.text)
            );
            self.print_counters();
            eprintln!("Xen's and dom0's console: {}", self.dom0.console());
            for guest in guests.iter().flatten() {
                eprintln!("{}'s console: {}", guest.name(), guest.console());
            }
            return;
        }
        // Guests that cannot be brought back to where they were go, too.
        if let Some(guests) = guests
            && guests
                .iter()
                .all(|guest| unplug(guest).inspect_err(|error| eprintln!("{error}")).is_ok())
            && let Some(host) = self.host.as_mut()
        {
            host.guests = Some(guests);
        }
    }
}

/// Takes a guest back to where it was without vifs. An error says that it is of no more use.
fn unplug(guest: &Domain) -> Result<String, GuestError> {
    clean(guest)?;
    guest.detach_vifs(LIMIT)?;
    guest.load_frontend(QUEUES, LIMIT)?;
    // The frontend of Linux 6.1 loses the buffers of its receive queues, a megabyte each, when it
    // disconnects, whoever the backend is. A guest without memory kills what tests run in it.
    guest.must("[ $(awk '/MemAvailable/ { print $2 }' /proc/meminfo) -gt 40000 ]", LIMIT)
}
