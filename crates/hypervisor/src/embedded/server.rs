//! The socket to which guests that are processes of their own connect. Each connection becomes a
//! domain with one network interface, which exists as long as the connection.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, socketpair, sockopt};
use unix_socket::{Listener, Options, Permissions, SocketError, SocketType};

use super::device::Device;
use super::events::{Opened, Side};
use super::layout::{Layout, Version};
use super::protocol::{self, Hello, Reply, Request};
use super::sync::lock;
use super::table::Table;
use super::vcpus::Vcpus;
use super::{CopyUsage, Machine, StoreUsage, adopt_memory, store, xenstored};
use crate::{DomId, RemotePort};

/// Most guests at a time.
const GUESTS: usize = 250;

/// Most pages that a guest may have: 16 GiB. Pages that the guest never touches cost nothing.
const PAGES: u32 = 4 << 20;

/// The first number that no domain can have (`DOMID_FIRST_RESERVED`).
const RESERVED: u16 = 0x7ff0;

/// A hardware address, as one writes it.
fn text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// How guests are served.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// The path of the socket.
    pub socket: PathBuf,
    /// The users that may connect; by default, the daemon's user.
    pub permissions: Permissions,
    /// Keys in the backend's directory of each interface, beside its address.
    pub keys: Vec<(String, String)>,
    /// The lowest version of their grant tables.
    pub version: Version,
    /// The only address that an interface may have; `None`: any.
    pub mac: Option<[u8; 6]>,
}

/// A guest that is connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestProcess {
    /// The guest's name.
    pub name: String,
    /// The process at the other end, as the kernel reports it.
    pub process: i32,
    /// The cost of its copy calls.
    pub copy_usage: CopyUsage,
    /// Its use of the store.
    pub store_usage: StoreUsage,
}

/// A socket to which guests connect. Dropping it ends all guests.
#[derive(Debug)]
pub struct Server {
    state: Arc<ServerState>,
    thread: Option<JoinHandle<()>>,
}

/// State that all of its threads share.
#[derive(Debug)]
struct ServerState {
    machine: Machine,
    config: ServerConfig,
    listener: Listener,
    stop: OwnedFd,
    guest_processes: Mutex<GuestProcesses>,
}

#[derive(Debug, Default)]
struct GuestProcesses {
    /// The number of the newest guest.
    last: u16,
    here: BTreeMap<DomId, GuestProcess>,
}

impl Server {
    /// Starts to accept guests of `machine`.
    ///
    /// # Errors
    /// When the socket cannot be opened.
    pub fn start(machine: Machine, config: ServerConfig) -> Result<Server, SocketError> {
        let os = |error: Errno| SocketError::Os(config.socket.clone(), error.into());
        let own = Mode::RUSR | Mode::WUSR;
        let permissions =
            Permissions { mode: config.permissions.mode.or(Some(own)), ..config.permissions };
        let options = Options { kind: SocketType::SEQPACKET, backlog: 64, permissions };
        let listener = Listener::bind(&config.socket, options)?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(os)?;
        let path = config.socket.clone();
        let state = Arc::new(ServerState {
            machine,
            config,
            listener,
            stop,
            guest_processes: Mutex::default(),
        });
        let door = Arc::clone(&state);
        let thread = Builder::new().name("rm-guests".into()).spawn(move || {
            sandbox::enter_thread(sandbox::Role::Acceptor);
            door.welcome();
        });
        let thread = thread.map_err(|error| SocketError::Os(path, error))?;
        Ok(Server { state, thread: Some(thread) })
    }

    /// The guests that are connected, by domain.
    pub fn guest_processes(&self) -> BTreeMap<DomId, GuestProcess> {
        let mut here = lock(&self.state.guest_processes).here.clone();
        for (id, guest_process) in &mut here {
            guest_process.copy_usage = self.state.machine.copy_usage(*id);
            guest_process.store_usage = self.state.machine.store_usage(*id);
        }
        here
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.state.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl ServerState {
    /// Waits until `fd` is readable. False when the server must end.
    fn wait(&self, fd: &impl AsFd) -> bool {
        let mut fds = [PollFd::new(fd, PollFlags::IN), PollFd::new(&self.stop, PollFlags::IN)];
        // An interrupted wait counts as one without events.
        let _ = poll(&mut fds, None);
        fds[1].revents().is_empty()
    }

    fn welcome(self: Arc<Self>) {
        let mut sessions: Vec<JoinHandle<()>> = Vec::new();
        while self.wait(&self.listener) {
            sessions.retain(|session| !session.is_finished());
            let Ok(Some(socket)) = self.listener.accept() else {
                // Probably no descriptor is left: the next attempt waits a moment.
                std::thread::sleep(std::time::Duration::from_millis(20));
                continue;
            };
            if sessions.len() >= GUESTS {
                let refused = Reply::Refused("too many guests".into());
                let _ = protocol::send(socket.as_fd(), &refused.encode(), &[]);
                continue;
            }
            let state = Arc::clone(&self);
            let session =
                Builder::new().name("rm-guest".into()).spawn(move || state.serve(&socket));
            sessions.extend(session.ok());
        }
        sessions.into_iter().for_each(|session| drop(session.join()));
    }

    /// Serves one guest until its connection ends.
    fn serve(&self, socket: &OwnedFd) {
        let Some((Request::Hello(hello), mut fds)) = self.receive(socket) else { return };
        let guest = match self.admit(hello, fds.pop(), socket) {
            Ok(guest) => guest,
            Err(why) => {
                let _ = protocol::send(socket.as_fd(), &Reply::Refused(why).encode(), &[]);
                return;
            }
        };
        // Its store, in a thread of its own, ends with this one.
        let Ok((ours, theirs, stop)) = self.store() else { return };
        let stop = &stop;
        std::thread::scope(|scope| {
            let id = guest.table.id();
            let store = store::DomainStore::new(self.machine.host.store.clone(), id);
            let (thread, table) = (Builder::new().name("rm-guest-store".into()), &guest.table);
            let served = thread.spawn_scoped(scope, move || {
                sandbox::enter_thread(sandbox::Role::Task);
                xenstored::serve(ours, &store, table.store_usage(), stop.as_fd())
            });
            let welcome = Reply::Welcome(id, guest.table.version()).encode();
            let mut vcpus = Vcpus::new(&self.machine.host, &guest.table);
            if served.is_ok() && protocol::send(socket.as_fd(), &welcome, &[theirs.as_fd()]).is_ok()
            {
                drop(theirs);
                while let Some((request, _)) = self.receive(socket) {
                    if !self.answer(&guest.table, &mut vcpus, request, socket) {
                        break;
                    }
                }
            }
            let _ = rustix::io::write(stop, &1u64.to_ne_bytes());
        });
    }

    fn store(&self) -> io::Result<(OwnedFd, OwnedFd, OwnedFd)> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        Ok((ours, theirs, eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// The next request. `None`: the guest is gone, or sent something that is no request.
    fn receive(&self, socket: &OwnedFd) -> Option<(Request, Vec<OwnedFd>)> {
        while self.wait(socket) {
            match protocol::receive(socket.as_fd()) {
                Ok(Some((bytes, fds))) => return Some((Request::decode(&bytes)?, fds)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok(None) | Err(_) => return None,
            }
        }
        None
    }

    /// Creates a domain for the guest that sent this first message.
    fn admit(
        &self,
        hello: Hello,
        file: Option<OwnedFd>,
        socket: &OwnedFd,
    ) -> Result<Admitted<'_>, String> {
        if !(1..=PAGES).contains(&hello.pages) {
            return Err(format!("a guest has 1 to {PAGES} pages"));
        }
        if hello.mac[0] & 1 != 0 || hello.mac == [0; 6] {
            return Err("the address of its interface is not one of a station".into());
        }
        if let Some(mac) = self.config.mac.filter(|mac| *mac != hello.mac) {
            return Err(format!("guests of this port have the address {}", text(mac)));
        }
        let file = file.ok_or("a guest brings its memory along")?;
        let layout = Layout { pages: hello.pages };
        let memory = adopt_memory(&file, layout).map_err(|error| error.to_string())?;
        let process =
            sockopt::socket_peercred(socket).map_or(0, |peer| peer.pid.as_raw_nonzero().get());
        let id = self.reserve(&hello.name, process)?;
        let version = if self.config.version == Version::V2 { Version::V2 } else { hello.version };
        let table = self.machine.create(id, (Arc::new(memory), file), layout, version);
        // From here on, dropping this value removes the domain.
        let admitted = Admitted { state: self, table };
        let made = self.device(id, &text(hello.mac), |device| self.machine.attach(device));
        made.map_err(|error| error.to_string())?;
        Ok(admitted)
    }

    /// A number for a guest, and its name.
    fn reserve(&self, name: &str, process: i32) -> Result<DomId, String> {
        let mut guest_processes = lock(&self.guest_processes);
        if guest_processes.here.values().any(|guest_process| guest_process.name == name) {
            return Err(format!("a guest {name:?} is there already"));
        }
        // There are far more numbers than guests.
        let mut number = guest_processes.last;
        loop {
            number = if number + 1 >= RESERVED { 1 } else { number + 1 };
            let known = guest_processes.here.contains_key(&DomId(number));
            if !known
                && self
                    .machine
                    .host
                    .table(DomId(number))
                    .is_err_and(|reason| reason == super::Reason::NoDomain)
            {
                break;
            }
        }
        guest_processes.last = number;
        guest_processes.here.insert(
            DomId(number),
            GuestProcess {
                name: name.into(),
                process,
                copy_usage: CopyUsage::default(),
                store_usage: StoreUsage::default(),
            },
        );
        Ok(DomId(number))
    }

    /// The interface of a guest, as toolstack and hotplug script make it.
    fn device<T>(&self, frontend: DomId, mac: &str, with: impl FnOnce(&Device<'_>) -> T) -> T {
        let mut backend_keys = vec![("mac", mac), ("hotplug-status", "connected")];
        backend_keys
            .extend(self.config.keys.iter().map(|(key, value)| (key.as_str(), value.as_str())));
        with(&Device {
            class: "vif",
            handle: 0,
            frontend,
            backend: DomId(0),
            frontend_keys: &[("mac", mac)],
            backend_keys: &backend_keys,
        })
    }

    /// Carries out a guest's request. False when the guest is not to be served any longer.
    fn answer(
        &self,
        table: &Arc<Table>,
        vcpus: &mut Vcpus,
        request: Request,
        socket: &OwnedFd,
    ) -> bool {
        let event_channels = &self.machine.host.event_channels;
        let send = |reply: Reply| protocol::send(socket.as_fd(), &reply.encode(), &[]).is_ok();
        match request {
            // A guest has one domain.
            Request::Hello(_) => false,
            Request::Grow(frames) => {
                let grown = table.grow(frames) >= frames;
                send(if grown {
                    Reply::Done
                } else {
                    Reply::Refused("the grant table is full".into())
                })
            }
            Request::Open(to) => match event_channels.open(table, to) {
                Ok(opened) => {
                    let reply = Reply::Opened { number: opened.number.0, slot: opened.slot };
                    hand_over(socket, &reply, &opened)
                }
                Err(error) => send(Reply::Refused(error.to_string())),
            },
            Request::Vcpu => match vcpus.add() {
                Ok((page, opened)) => {
                    let reply = Reply::Calling { number: opened.number.0, slot: opened.slot, page };
                    hand_over(socket, &reply, &opened)
                }
                Err(error) => send(Reply::Refused(error.to_string())),
            },
            Request::Close(number) => {
                vcpus.end(RemotePort(number));
                event_channels.close(table.id(), RemotePort(number));
                send(Reply::Done)
            }
        }
    }
}

/// Sends an answer, with the eventfds of a channel. False when it cannot be sent.
fn hand_over(socket: &OwnedFd, reply: &Reply, opened: &Opened) -> bool {
    let wakers = [opened.pair.waker(Side::Opener), opened.pair.waker(Side::Binder)];
    protocol::send(socket.as_fd(), &reply.encode(), &wakers).is_ok()
}

/// A guest that was admitted. When this value is dropped, the domain is destroyed; only pages that
/// other domains have mapped remain.
struct Admitted<'a> {
    state: &'a ServerState,
    table: Arc<Table>,
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        let id = self.table.id();
        self.state.machine.destroy(id);
        // At most the backend's directory is left behind.
        let _ = self.state.device(id, "", |device| self.state.machine.forget(device));
        lock(&self.state.guest_processes).here.remove(&id);
    }
}

#[cfg(test)]
mod tests;
