//! Every attack of `ringmain-lab bench-isolation`, for a moment each. Nothing is measured: the
//! daemon must live, account for every frame, and serve the innocent guests as before when the
//! neighbour has gone.

use std::path::Path;
use std::time::{Duration, Instant};

use lab::daemon::Daemon;
use lab::fixture::balance;
use lab::isolation::case::{CASES, Case};
use lab::isolation::config;
use lab::isolation::innocents::{Innocents, PORTS};
use lab::isolation::neighbour::{Role, Sockets};

/// Frames a second.
const RATE: u64 = 2000;

/// How long something may take that must happen.
const LIMIT: Duration = Duration::from_secs(120);

fn eventually(what: &str, daemon: &Daemon, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < LIMIT, "{what}: {}", daemon.log());
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn attack(case: &Case) {
    let config = |dir: &Path| config::shared(dir, case.workers, &[]);
    let daemon = Daemon::start(Path::new(env!("CARGO_BIN_EXE_ringmain")), config, None).unwrap();
    let [a, b] = PORTS.map(|name| daemon.dir().join(name).with_extension("sock"));
    let sockets = Sockets { shared: daemon.dir().to_owned(), decoy: None };
    let neighbour = case.start(&sockets, Role::Hostile, None).unwrap();
    let mut innocents = Innocents::connect([&a, &b], case.third()).unwrap();
    innocents.run(Some(RATE), Duration::from_millis(300)).unwrap();
    let ended = neighbour.stop();
    println!("{}: {} steps, {:?}", case.name, ended.steps, ended.error);
    assert!(ended.steps > 0 || ended.error.is_some(), "{}: the neighbour never began", case.name);

    // Frames may still be under way from before the neighbour went.
    eventually(case.name, &daemon, || {
        let figures = innocents.run(Some(RATE), Duration::from_millis(50)).unwrap();
        figures.due > 0 && figures.arrived >= figures.due
    });
    eventually(case.name, &daemon, || {
        let (came, went) = balance(&daemon.stats().unwrap());
        came > 0 && came == went
    });
}

#[test]
fn innocent_guests_are_served_after_every_attack() {
    CASES.iter().for_each(attack);
}
