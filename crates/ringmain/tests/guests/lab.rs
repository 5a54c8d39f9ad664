//! A daemon, and guests on its ports.

use super::traffic::{LIMIT, address_it, eventually};
use lab::daemon::{Daemon, is_balanced};
use lab::guest::{Accel, Emulator, Guest, Image, Link, Mac, Namespace, Nic, Release, Spec};
use std::path::{Path, PathBuf};

/// A daemon with some ports. Guests are told apart by the number of their port, which is in their
/// addresses.
pub struct Lab {
    // Guests of a namespace need it as long as they run; the daemon too.
    pub namespace: Option<Namespace>,
    pub daemon: Daemon,
    accel: Accel,
}

/// A kernel and a QEMU of one release, and what that runs guests on.
pub fn machine(release: Release) -> (Image, Accel, Emulator) {
    let accel = Accel::probe(&Image::prepare(&cache()).unwrap(), &cache()).unwrap();
    (release.image(&cache()).unwrap(), accel, release.emulator(&cache()).unwrap())
}

fn cache() -> PathBuf {
    lab::folders::cache(env!("CARGO_MANIFEST_DIR"))
}

/// How a guest is attached, beyond the usual: four queue pairs, QEMU connecting.
#[derive(Clone, Copy, Default)]
pub struct Attach<'a> {
    /// Queue pairs; 0 stands for four.
    pub queues: u16,
    /// QEMU makes the socket.
    pub listens: bool,
    /// QEMU's properties of the interface.
    pub options: &'a [&'a str],
    /// Its QEMU.
    pub emulator: Release,
    /// Its kernel.
    pub kernel: Release,
}

impl Lab {
    /// Starts a daemon with one vhost-user port for each of `ports`, which are further lines of
    /// their tables.
    pub fn new(ports: &[&str]) -> Lab {
        Lab::with_workers("", ports)
    }

    /// The same, with lines of the table of workers.
    pub fn with_workers(workers: &str, ports: &[&str]) -> Lab {
        Lab::start(None, |dir| {
            let table = |(index, lines): (usize, &&str)| {
                format!(
                    "[[port]]\nname = \"guest-{index}\"\nkind = \"vhost-user\"\nsocket = \"{}\"\nqueues = 4\n{lines}\n",
                    socket(dir, index).display()
                )
            };
            let tables: String = ports.iter().enumerate().map(table).collect();
            format!("[workers]\n{workers}\n{tables}")
        })
    }

    /// Starts a daemon with a configuration of its own, in a namespace if one is given.
    pub fn start(namespace: Option<Namespace>, config: impl FnOnce(&Path) -> String) -> Lab {
        let accel = machine(Release::Installed).1;
        let binary = Path::new(env!("CARGO_BIN_EXE_ringmain"));
        let daemon = Daemon::start(binary, config, namespace.as_ref()).unwrap();
        Lab { namespace, daemon, accel }
    }

    /// Boots guests on ports of these numbers, all at the same time, and gives them their
    /// addresses.
    pub fn boot<const N: usize>(&self, guests: [(usize, Attach<'_>); N]) -> [Guest; N] {
        let started = guests.map(|(port, attach)| (port, self.begin(port, attach)));
        started.map(|(port, guest)| {
            guest.ready(LIMIT).unwrap_or_else(|error| panic!("{error}\n{}", self.daemon.log()));
            address_it(&guest, "eth0", port);
            guest
        })
    }

    fn begin(&self, port: usize, attach: Attach<'_>) -> Guest {
        self.begin_at(socket(self.daemon.dir(), port), port, attach)
    }

    fn begin_at(&self, socket: PathBuf, port: usize, attach: Attach<'_>) -> Guest {
        let nic = Nic {
            link: Link::VhostUser { socket, listens: attach.listens },
            mac: Mac([0x52, 0x54, 0, 0x77, 0, u8::try_from(port).unwrap() + 1]),
            queues: if attach.queues == 0 { 4 } else { attach.queues },
            options: attach.options.iter().map(|option| (*option).to_owned()).collect(),
        };
        // Receive buffers that do not merge are 64 KiB each: two queues with 1024 of them take half
        // of this.
        let spec = Spec {
            cpus: 2,
            memory: 512,
            nics: vec![nic],
            emulator: attach.emulator.emulator(&cache()).unwrap(),
            ..Spec::new(&format!("guest-{port}"))
        };
        Guest::start(&attach.kernel.image(&cache()).unwrap(), self.accel, &spec).unwrap()
    }

    /// Checks, once nothing moves, that what came in equals what went out plus what was dropped.
    pub fn check_balance(&self) {
        eventually("the counters to add up", || is_balanced(&self.daemon.stats().unwrap()));
    }
}

/// A test that failed says what the daemon counted.
impl Drop for Lab {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Ok(stats) = self.daemon.stats()
        {
            eprintln!("{stats:#?}\n{}", self.daemon.log());
        }
    }
}

/// The socket of a port.
pub fn socket(dir: &Path, port: usize) -> PathBuf {
    dir.join(format!("{port}.sock"))
}
