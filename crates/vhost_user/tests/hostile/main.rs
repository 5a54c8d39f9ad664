//! Attacks of hostile guests and front-ends, one after the other, on a real datapath that carries
//! the frames of two good guests all the time: each attack ends in its own port's stop, under its
//! own name, and nobody else notices.

mod attacks;
mod front_end;
mod logs;
mod random;
mod station;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use frame::Mac;
use network::fabric::{Fabric, Workers};
use ring::split::driver::SplitDriver;
use rustix::net::sockopt::set_socket_linger;
use switch::{PortId, PortRule};
use tempfile::TempDir;
use vhost_user::net::{Port, PortConfig};
use vhost_user::transport::status::{PortStatus, State};

use attacks::{Attack, Outcome};
use front_end::{HostileFrontEnd, Kind, code};
use random::Random;
use station::{Station, Traffic, address};

/// Ends a test that would hang. Nothing is measured by it.
pub const WATCHDOG: Duration = Duration::from_secs(40);

/// A guest that says something to all others when it is asked to.
pub type Beacon = Station<SplitDriver>;

/// Waits for something that must come.
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + WATCHDOG;
    while !is_so() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_micros(500));
    }
}

/// Ends the process when the test does not end by itself, whatever it hangs in.
struct Watchdog(#[allow(dead_code, reason = "its end is what matters")] Sender<()>);

impl Watchdog {
    fn new() -> Watchdog {
        let (alive, ended) = mpsc::channel();
        std::thread::spawn(move || {
            if ended.recv_timeout(3 * WATCHDOG) == Err(RecvTimeoutError::Timeout) {
                eprintln!("the test hangs");
                std::process::abort();
            }
        });
        Watchdog(alive)
    }
}

/// A datapath of two workers, with two guests that send each other frames and a third that listens.
struct Lab {
    fabric: Arc<Fabric>,
    dir: TempDir,
    good: Vec<Port>,
    beacon: Beacon,
    traffic: Traffic,
    /// Frames that came in, less those that went out or were dropped, on ports that are gone.
    balance: i64,
    _watchdog: Watchdog,
}

impl Lab {
    fn new() -> Lab {
        let watchdog = Watchdog::new();
        let fabric = Arc::new(Fabric::start(&Workers { count: 2, ..Workers::default() }).unwrap());
        let dir = tempfile::tempdir().unwrap();
        let locked = |number| PortRule { mac: Some(Mac(address(number))), ..PortRule::default() };
        let good = [("a", locked(1)), ("b", locked(2)), ("beacon", PortRule::default())]
            .map(|(name, rule)| start(&fabric, dir.path().join(name), rule));
        let traffic = Traffic::start(&dir.path().join("a"), &dir.path().join("b"));
        let beacon = Station::connect(&dir.path().join("beacon"), 3, 1, 0);
        Lab { fabric, good: good.into(), beacon, traffic, balance: 0, _watchdog: watchdog, dir }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("hostile")
    }

    fn device(&self) -> Port {
        start(&self.fabric, self.path(), PortRule::default())
    }

    /// Lets a hostile do its worst on a port of its own; what then became of the port.
    fn suffer(
        &mut self,
        kind: Kind,
        started: bool,
        act: impl FnOnce(&mut HostileFrontEnd, &mut Beacon),
    ) -> (Port, HostileFrontEnd) {
        let device = self.device();
        let mut hostile = HostileFrontEnd::connect(&self.path(), kind);
        if started {
            hostile.start();
        }
        act(&mut hostile, &mut self.beacon);
        (device, hostile)
    }

    /// A good guest takes the port over, and the port goes.
    fn recover(&mut self, device: Port) {
        let mut next: Station<SplitDriver> = Station::connect(&self.path(), 4, 1, 0);
        next.reaches(&mut self.beacon, 1);
        self.beacon.reaches(&mut next, 2);
        self.traffic.goes_on();
        drop(next);
        eventually("the next guest's end is seen", || device.status().state == State::Listening);
        self.balance += balance(&self.fabric, device.port());
        device.stop();
    }

    /// Makes an attack, and says what came of it instead of what should have.
    fn attack(&mut self, attack: &Attack) -> Option<String> {
        let (device, hostile) = self
            .suffer(attack.kind, attack.started, |hostile, beacon| (attack.act)(hostile, beacon));
        let wrong = match attack.outcome {
            Outcome::Stops(reason) => {
                eventually("the connection ends", || hostile.is_hung_up());
                let ended = |status: &PortStatus| {
                    status.connections == 1 && status.state == State::Listening
                };
                eventually("the port is stopped", || ended(&device.status()));
                let status = device.status();
                let told = status.reason.unwrap_or_default();
                let right = status.violations == 1 && told.contains(reason);
                (!right).then(|| format!("{told:?} instead of {reason:?}"))
            }
            Outcome::GoesOn => {
                hostile.wait_until_idle();
                unharmed(&device)
            }
            Outcome::Waits => {
                self.traffic.goes_on();
                unharmed(&device)
            }
        };
        drop(hostile);
        self.recover(device);
        wrong.map(|wrong| format!("{}: {wrong}", attack.name))
    }

    /// All good guests are still connected, have lost nothing, and every frame of everybody is
    /// accounted for.
    fn finish(self) {
        let frames = self.traffic.finish();
        drop(self.beacon);
        eventually("all is quiet", || {
            self.good.iter().all(|device| device.status().state == State::Listening)
        });
        let mut rest = self.balance;
        for device in &self.good {
            let status = device.status();
            assert_eq!((status.connections, status.violations), (1, 0), "{status:?}");
            rest += balance(&self.fabric, device.port());
        }
        assert_eq!(rest, 0, "of {frames} frames and those of others");
        assert!(frames > 1000, "{frames}");
    }
}

fn start(fabric: &Arc<Fabric>, socket: PathBuf, rule: PortRule) -> Port {
    let config = PortConfig { mtu: Some(1500), rule, ..PortConfig::new(&socket, 2) };
    Port::start(Arc::clone(fabric), config).unwrap()
}

/// The complaint about a front-end that did nothing wrong, if any.
fn unharmed(device: &Port) -> Option<String> {
    let status = device.status();
    (status.violations > 0).then(|| format!("{:?} although all was well", status.reason))
}

/// In and copies, less out and drops.
fn balance(fabric: &Fabric, port: PortId) -> i64 {
    let queue = |queue: &Arc<network::count::QueueCounters>| {
        let into = queue.tx.frames.get() + queue.copies.get();
        into as i64 - (queue.rx.frames.get() + queue.dropped_total()) as i64
    };
    fabric.counters(port).iter().map(queue).sum()
}

#[test]
fn every_attack_ends_under_its_name_and_harms_nobody_else() {
    let mut lab = Lab::new();
    let mut wrong = Vec::new();
    for attack in attacks::all() {
        eprintln!("{}", attack.name);
        wrong.extend(lab.attack(&attack));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    lab.finish();
}

#[test]
fn attacks_made_up_at_random_harm_nobody_else() {
    let mut lab = Lab::new();
    let mut random = Random::seeded("HOSTILE_SEED");
    for round in 0..40 {
        let kind = random.kind();
        eprintln!("round {round}");
        let (device, hostile) = lab.suffer(kind, random.below(8) > 0, |hostile, beacon| {
            for _ in 0..random.below(30) {
                random.attack(hostile, beacon);
            }
        });
        lab.traffic.goes_on();
        drop(hostile);
        lab.recover(device);
    }
    lab.finish();
}

#[test]
fn a_port_goes_whatever_its_front_end_left_behind() {
    let mut lab = Lab::new();
    // A socket that lingers when it is closed, for longer than anybody would wait: its other end
    // takes nothing.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let lingers = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    lingers.set_nonblocking(true).unwrap();
    while std::io::Write::write(&mut &lingers, &[0; 1 << 16]).is_ok() {}
    set_socket_linger(&lingers, Some(Duration::from_secs(3600))).unwrap();
    let (device, hostile) = lab.suffer(Kind::SPLIT, true, |hostile, _| {
        hostile.say(code::SET_OWNER, &[], &[std::os::fd::AsFd::as_fd(&lingers)]);
        // Ours should not be the last copy any more. Where the port was quicker, it is ours that
        // lingers.
        std::thread::spawn(|| drop(lingers));
    });
    lab.traffic.goes_on();
    let port = device.port();
    device.stop();
    lab.traffic.goes_on();
    // The number is free again, and nobody takes it back from its next owner.
    let other = start(&lab.fabric, lab.dir.path().join("other"), PortRule::default());
    assert_eq!(other.port(), port);
    let mut next: Station<SplitDriver> = Station::connect(&lab.dir.path().join("other"), 4, 1, 0);
    next.reaches(&mut lab.beacon, 1);
    drop((hostile, listener, next));
    lab.traffic.goes_on();
}
