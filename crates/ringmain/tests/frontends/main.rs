//! Attacks by hostile frontends of the embedded hypervisor, beside two guests that exchange frames
//! through the same daemon. The daemon must live, charge the hostile port, account for every frame,
//! and serve the innocent guests. Nothing is timed.
//!
//! The tests on Xen (`tests/xen/hostile.rs`) run this executable in a guest, for the same attacks.

mod attacks;
mod guest;
mod innocents;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use attacks::{ATTACKS, Attack, Foe, NUMBER};
use guest::Guest;
use innocents::Innocents;
use lab::daemon::Daemon;
use lab::fixture::balance;

/// How long something may take that must happen.
const LIMIT: Duration = Duration::from_secs(120);

/// Steps of the hostile guest, and rounds of the innocent guests meanwhile.
const STEPS: u64 = 5;
const ROUNDS: u64 = 50;

fn eventually(what: &str, daemon: &Daemon, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        let ports = daemon.stats().map(|stats| stats.ports);
        assert!(start.elapsed() < LIMIT, "{what}: {ports:#?}\n{}", daemon.log());
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn config(dir: &Path) -> String {
    format!(
        "[workers]\ncount = 2\n[[port]]\nname = \"guests\"\nkind = \"embedded\"\nsocket = \"{}\"\n",
        dir.join("guests.sock").display()
    )
}

/// Whether the port of the hostile guest is charged for this attack.
fn is_charged(attack: &Attack, daemon: &Daemon) -> bool {
    let stats = daemon.stats().unwrap();
    stats.ports.iter().any(|port| port.name == "guests/foe" && (attack.is_charged)(port))
}

/// Ends the attack when it is dropped: a check that fails must not wait for an attack that goes on.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Carries out the attack while the innocent guests exchange frames.
fn run(attack: &Attack, daemon: &Daemon, socket: &Path, innocents: &mut Innocents) {
    let mut foe = Foe::new(Guest::connect(socket, "foe", NUMBER));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            while foe.steps < STEPS || !stop.load(Ordering::Relaxed) {
                attack
                    .step(&mut foe)
                    .unwrap_or_else(|error| panic!("{}, step {}: {error}", attack.name, foe.steps));
            }
            foe
        });
        let ending = Ending(&stop);
        let mut rounds = 0;
        eventually(attack.name, daemon, || {
            innocents.send(attack.receives.then_some(NUMBER));
            innocents.receive();
            rounds += 1;
            thread.is_finished() || rounds >= ROUNDS && is_charged(attack, daemon)
        });
        drop(ending);
        println!("{}: {} steps", attack.name, thread.join().unwrap().steps);
    });
}

/// Waits until the daemon accounts for all frames so far; then each frame of another round arrives.
fn check(what: &str, daemon: &Daemon, innocents: &mut Innocents) {
    eventually(what, daemon, || {
        let stats = daemon.stats().unwrap();
        let (came, went) = balance(&stats);
        innocents.are_accounted_for(&stats) && came == went
    });
    let before = innocents.receive();
    let mut sent = 0;
    eventually(what, daemon, || {
        sent += innocents.send(None);
        sent > 0
    });
    eventually(what, daemon, || innocents.receive() - before == sent);
}

#[test]
fn hostile_frontends_do_not_disturb_the_exchange_of_others() {
    let daemon = Daemon::start(Path::new(env!("CARGO_BIN_EXE_ringmain")), config, None).unwrap();
    let socket = daemon.dir().join("guests.sock");
    let mut innocents = Innocents::connect(&socket);
    check("before all attacks", &daemon, &mut innocents);
    for attack in ATTACKS {
        run(attack, &daemon, &socket, &mut innocents);
        check(attack.name, &daemon, &mut innocents);
    }
}

/// Carries out the attack that the variable `ATTACK` names, until there is a file `/tmp/stop`.
#[test]
#[ignore = "runs in a guest of Xen"]
fn an_attack_by_a_guest_of_xen() {
    let name = std::env::var("ATTACK").unwrap();
    let attack = ATTACKS.iter().find(|attack| attack.name == name).unwrap();
    // The kernel limits such pages to four megabytes by default. The rings of the connection
    // before are revoked only when the backend has unmapped them.
    std::fs::write("/sys/module/xen_gntalloc/parameters/limit", "16384").unwrap();
    let mut foe = Foe::new(Guest::of_xen());
    while !Path::new("/tmp/stop").exists() {
        attack.step(&mut foe).unwrap_or_else(|error| panic!("step {}: {error}", foe.steps));
    }
    println!("{} steps", foe.steps);
}
