//! The daemon that all inputs of a process share.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use ::control::api::{Reply, Request};
use ::control::client::{Client, ClientError};
use ::control::config::{Config, Host};
use ::control::daemon::Daemon;
use serde_json::Value as Json;

use super::honest::Pair;

/// Ports that exist as long as the process.
pub const LASTING: [&str; 4] = ["honest-1", "honest-2", "guests", "copying"];

/// Most descriptors of the process between two inputs.
const DESCRIPTORS: usize = 300;

/// Threads of which each serves one connection.
const BRIEF: [&str; 3] = ["rm-control-peer", "rm-guest", "rm-guest-store"];

/// How long a connection may be served after its peer has hung up.
pub const LIMIT: Duration = Duration::from_secs(10);

/// Inputs from one look at the descriptors to the next.
const INTERVAL: u64 = 64;

/// A running daemon, and two honest guests.
pub struct Site {
    folder: PathBuf,
    client: Client,
    honest: Pair,
    inputs: u64,
    _daemon: Daemon,
}

static SITE: OnceLock<Mutex<Site>> = OnceLock::new();

impl Site {
    /// The site of this process. It is started by the first call.
    pub fn get() -> MutexGuard<'static, Site> {
        SITE.get_or_init(|| Mutex::new(Site::start()))
            .lock()
    }

    fn start() -> Site {
        let folder = std::env::temp_dir().join(format!("ringmain-fuzz-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder for sockets");
        let text = configuration(&folder);
        let host = Host { cpus: vec![0, 1] };
        let config = Config::parse("fuzz", &text, &host).expect("a configuration");
        let daemon = Daemon::start(&config).expect("a daemon");
        let client = Client::new(&config.socket);
        let honest = Pair::connect(&folder.join("honest-1"), &folder.join("honest-2"));
        Site { folder, client, honest, inputs: 0, _daemon: daemon }
    }

    /// The folder with all sockets.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The path of the control socket.
    pub fn control(&self) -> &Path {
        self.client.socket()
    }

    /// Adds a vhost-user port; returns the path of its socket.
    pub fn add(&self, name: &str, queues: u16) -> PathBuf {
        let socket = self.folder.join(name);
        let Json::Object(port) = serde_json::json!({
            "name": name, "kind": "vhost-user", "socket": socket, "queues": queues,
        }) else {
            unreachable!("an object")
        };
        self.ask(&Request::PortAdd { port }).expect("the port is added");
        socket
    }

    /// Removes a port.
    pub fn remove(&self, name: &str) {
        self.ask(&Request::PortRemove { name: name.into() }).expect("the port is removed");
    }

    /// Sends a request of an operator.
    ///
    /// # Errors
    /// What the daemon says.
    pub fn ask(&self, request: &Request) -> Result<Reply, ClientError> {
        self.client.ask(request)
    }

    /// Checks after an input that honest guests are served.
    pub fn is_served(&mut self) {
        self.honest.exchange();
    }

    /// Waits until all processes as guests are gone.
    pub fn awaits_no_guest(&self) {
        let begin = Instant::now();
        loop {
            let Ok(Reply::Ports(ports)) = self.ask(&Request::PortList) else { panic!("no ports") };
            if ports.iter().all(|port| LASTING.contains(&&*port.name)) {
                return;
            }
            assert!(begin.elapsed() < LIMIT, "a guest is still there: {ports:?}");
            std::thread::yield_now();
        }
    }

    /// Checks after an input, when its ports are gone, that nothing was left behind.
    pub fn is_clean(&mut self) {
        awaits_threads();
        self.inputs += 1;
        if self.inputs.is_multiple_of(INTERVAL) {
            let open = std::fs::read_dir("/proc/self/fd").expect("a list").count();
            assert!(open < DESCRIPTORS, "{open} descriptors are open");
        }
    }
}

/// Waits until all threads of connections are gone. The search for leaks after each input would
/// report what a thread owns that is just ending.
fn awaits_threads() {
    let begin = Instant::now();
    loop {
        let tasks = std::fs::read_dir("/proc/self/task").expect("a list").flatten();
        let names = tasks.flat_map(|task| std::fs::read_to_string(task.path().join("comm")));
        let left: Vec<String> = names.filter(|name| BRIEF.contains(&name.trim_end())).collect();
        if left.is_empty() {
            return;
        }
        assert!(begin.elapsed() < LIMIT, "connections are still served by {left:?}");
        std::thread::yield_now();
    }
}

fn configuration(folder: &Path) -> String {
    let at = |name: &str| folder.join(name).display().to_string();
    let [first, second, guests, copying] = LASTING;
    format!(
        "[workers]\ncount = 2\n[control]\nsocket = {control:?}\n\
         [[port]]\nname = {first:?}\nkind = \"vhost-user\"\nsocket = {:?}\n\
         mac = \"52:54:00:00:01:01\"\n\
         [[port]]\nname = {second:?}\nkind = \"vhost-user\"\nsocket = {:?}\n\
         mac = \"52:54:00:00:01:02\"\n\
         [[port]]\nname = {guests:?}\nkind = \"embedded\"\nsocket = {:?}\ncache = 16\n\
         [[port]]\nname = {copying:?}\nkind = \"embedded\"\nsocket = {:?}\ncopy = \"guest\"\n",
        at(first),
        at(second),
        at(guests),
        at(copying),
        control = at("control"),
    )
}
