//! The configuration of daemons that innocent guests and their neighbour share.

use std::path::Path;

use super::innocents::PORTS;
use super::neighbour;

/// Ports of a neighbour.
const NEIGHBOURS: usize = 2;

/// Queues of each of them.
const QUEUES: u16 = 4;

/// Limit of the guest's memory that the daemon may have to allocate.
const MEMORY: &str = "128MiB";

/// The configuration of the daemon that serves the innocents and the neighbour, with `workers`
/// workers on these CPUs, or without pinning if none are given.
pub fn shared(dir: &Path, workers: u16, cpus: &[usize]) -> String {
    with_neighbours(dir, workers, cpus, "")
}

/// The same, where interrupts of the neighbours' ports are deferred for as long as they may be.
pub fn deferring(dir: &Path, workers: u16, cpus: &[usize]) -> String {
    let deferred = "interrupt-frames = 1024\ninterrupt-microseconds = 10000\n";
    with_neighbours(dir, workers, cpus, deferred)
}

fn with_neighbours(dir: &Path, workers: u16, cpus: &[usize], keys: &str) -> String {
    let mut text = format!("[workers]\ncount = {workers}\n");
    if !cpus.is_empty() {
        text += &format!("cpus = {cpus:?}\n");
    }
    PORTS.iter().for_each(|name| text += &port(dir, name, 1, "16GiB"));
    text + &neighbours(dir, keys)
}

/// The configuration of a second daemon, which serves only neighbours.
pub fn decoy(dir: &Path) -> String {
    format!("[workers]\ncount = 1\n{}", neighbours(dir, ""))
}

/// The neighbours' ports, with these keys each.
fn neighbours(dir: &Path, keys: &str) -> String {
    let port = |number| port(dir, &neighbour::name(number), QUEUES, MEMORY) + keys;
    (0..NEIGHBOURS).map(port).collect()
}

fn port(dir: &Path, name: &str, queues: u16, memory: &str) -> String {
    let socket = dir.join(name).with_extension("sock");
    format!(
        "[[port]]\nname = \"{name}\"\nkind = \"vhost-user\"\nsocket = \"{}\"\nqueues = {queues}\n\
         memory = \"{memory}\"\n",
        socket.display()
    )
}
