//! Clients of the control socket that send anything.

use std::os::unix::net::UnixStream;
use std::time::Instant;

use ::control::api::{Reply, Request};
use ::control::client::ClientError;
use serde_json::Value as Json;

use super::site::{LASTING, LIMIT, Site};
use super::stubborn;
use crate::input::Input;

/// Most operations of one input.
const STEPS: usize = 60;

/// Clients at a time.
const CLIENTS: usize = 3;

const REQUESTS: [&str; 14] = [
    "port.add",
    "port.add",
    "port.add",
    "port.set",
    "port.remove",
    "port.list",
    "port.show",
    "budget.add",
    "budget.set",
    "budget.remove",
    "budget.list",
    "budget.show",
    "stats",
    "mac",
];

const KEYS: [&str; 32] = [
    "name",
    "kind",
    "socket",
    "mode",
    "socket_mode",
    "socket_owner",
    "vlan",
    "trunk",
    "queues",
    "mac",
    "mtu",
    "budget",
    "addresses",
    "tx_rate",
    "tx_burst",
    "tx_frames",
    "tx_frames_burst",
    "rx_rate",
    "rx_burst",
    "rx_frames",
    "rx_frames_burst",
    "interrupt_frames",
    "interrupt_microseconds",
    "align",
    "polling",
    "cache",
    "copy",
    "grants",
    "budget",
    "socket_group",
    "addresses",
    "seconds",
];

const VALUES: [&str; 32] = [
    "null",
    "true",
    "false",
    "0",
    "1",
    "-1",
    "4",
    "17",
    "4095",
    "1500",
    "65536",
    "1e300",
    "18446744073709551615",
    "\"\"",
    "\"a\"",
    "\"b\"",
    "\"10Mbit\"",
    "\"1kB\"",
    "\"99999999999Gbit\"",
    "\"1000\"",
    "\"52:54:00:00:02:01\"",
    "\"01:00:00:00:00:00\"",
    "[]",
    "[1, 2, 4094]",
    "[\"10.0.0.0/8\", \"fd00::/64\"]",
    "[\"10.0.0.1\", 7, null]",
    "\"client\"",
    "\"range\"",
    "\"latency\"",
    "\"guest\"",
    "{}",
    "{\"a\": [[[[[[]]]]]]}",
];

/// Reads `data` as what clients send.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut site = Site::get();
    let mut clients: [Option<Client>; CLIENTS] = [const { None }; CLIENTS];
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        let choice = input.u8();
        let client = &mut clients[usize::from(choice) % CLIENTS];
        let connected = client.get_or_insert_with(|| Client::connect(&site));
        match choice {
            0..160 => connected.say(&request(&site, &mut input), &site, &mut input),
            160..200 => {
                let len = usize::from(input.u8());
                connected.say(input.take(len), &site, &mut input);
            }
            200..230 => connected.listen(),
            230..245 => connected.babble(&mut input),
            _ => *client = None,
        }
    }
    clients.iter_mut().flatten().for_each(Client::listen);
    drop(clients);
    site.is_served();
    sweep(&site);
    site.is_clean();
}

/// Removes what clients have added.
fn sweep(site: &Site) {
    let begin = Instant::now();
    let outcome = loop {
        // Connections count among the 32 that there may be until their requests are done.
        match site.ask(&Request::Stats) {
            Err(ClientError::Refused(_)) if begin.elapsed() < LIMIT => std::thread::yield_now(),
            outcome => break outcome,
        }
    };
    assert!(matches!(outcome, Ok(Reply::Stats(_))), "no counters: {outcome:?}");
    let Ok(Reply::Ports(ports)) = site.ask(&Request::PortList) else { panic!("no ports") };
    for port in ports.iter().filter(|port| !LASTING.contains(&&*port.name)) {
        let _ = site.ask(&Request::PortRemove { name: port.name.clone() });
    }
    let Ok(Reply::Budgets(budgets)) = site.ask(&Request::BudgetList) else { panic!("no budgets") };
    for budget in budgets {
        let _ = site.ask(&Request::BudgetRemove { name: budget.name });
    }
}

struct Client {
    stream: UnixStream,
    /// Bytes that belong to no whole line yet, and that no request may follow.
    is_spoilt: bool,
}

impl Client {
    fn connect(site: &Site) -> Client {
        let stream = stubborn::connect(site.control()).expect("the daemon listens");
        Client { stream, is_spoilt: false }
    }

    /// Sends a line, in one piece or two, unless the host must be spared it.
    fn say(&mut self, line: &[u8], site: &Site, input: &mut Input<'_>) {
        if self.is_spoilt || !line.split(|byte| *byte == b'\n').all(|line| is_harmless(line, site))
        {
            return;
        }
        let line = [line, b"\n"].concat();
        let cut = match input.u8() {
            0..32 => line.len() * usize::from(input.u8()) / 256,
            _ => 0,
        };
        let (first, rest) = line.split_at(cut);
        stubborn::send(&self.stream, first, &[]);
        stubborn::send(&self.stream, rest, &[]);
    }

    /// Sends bytes that are not JSON, without an end.
    fn babble(&mut self, input: &mut Input<'_>) {
        let len = usize::from(input.u16()) % 9000;
        let mut bytes = vec![0x80];
        bytes.extend(input.take(128).iter().cycle().take(len).filter(|byte| **byte != b'\n'));
        self.is_spoilt = true;
        stubborn::send(&self.stream, &bytes, &[]);
    }

    /// Waits for an answer, and discards what is there.
    fn listen(&mut self) {
        stubborn::wait(&self.stream);
        stubborn::discard(&self.stream);
    }
}

/// A request that looks like one, mostly.
fn request(site: &Site, input: &mut Input<'_>) -> Vec<u8> {
    let choice = input.u8();
    let what = REQUESTS[usize::from(choice) % REQUESTS.len()];
    let name = ["a", "b", "c", "guests/x"][usize::from(input.u8() % 4)];
    let version = if input.u8() < 4 { input.u8() } else { 2 };
    let fields = match what {
        "port.add" => format!(",\"port\":{{{}{}}}", port(site, name, input), pairs(input)),
        "port.set" | "budget.set" => {
            format!(",\"name\":\"{name}\",\"set\":{{{}}}", pairs(input).trim_start_matches(','))
        }
        "budget.add" => format!(",\"budget\":{{\"name\":\"{name}\"{}}}", pairs(input)),
        "port.remove" | "port.show" | "budget.remove" | "budget.show" => {
            format!(",\"name\":\"{name}\"")
        }
        _ => String::new(),
    };
    let more = if input.u8() < 8 { pairs(input) } else { String::new() };
    format!("{{\"version\":{version},\"do\":\"{what}\"{fields}{more}}}").into_bytes()
}

/// The keys that each port needs.
fn port(site: &Site, name: &str, input: &mut Input<'_>) -> String {
    let choice = input.u8();
    let kind = if choice & 1 == 0 { "vhost-user" } else { "embedded" };
    let file = match choice >> 1 {
        0..4 => "control",
        4..8 => "honest-1",
        8..12 => "guests",
        12..16 => "no/such/folder",
        _ => name,
    };
    let socket = site.folder().join(file);
    format!("\"name\":\"{name}\",\"kind\":\"{kind}\",\"socket\":\"{}\"", socket.display())
}

/// Keys and values, each behind a comma.
fn pairs(input: &mut Input<'_>) -> String {
    let count = input.u8() % 6;
    let pair = |_| {
        let key = KEYS[input.below(KEYS.len() as u32) as usize];
        format!(",\"{key}\":{}", VALUES[input.below(VALUES.len() as u32) as usize])
    };
    (0..count).map(pair).collect()
}

/// Whether the host is spared by a request: it makes no interfaces, makes sockets in the folder of
/// the site only, and leaves the ports alone that all inputs need.
fn is_harmless(line: &[u8], site: &Site) -> bool {
    let Ok(json) = serde_json::from_slice::<Json>(line) else { return true };
    if json["name"].as_str().is_some_and(|name| LASTING.contains(&name)) {
        return false;
    }
    let port = &json["port"];
    let is_known = |kind: &str| matches!(kind, "vhost-user" | "vhost_user" | "embedded");
    let inside = |socket: &str| {
        socket.starts_with(&*site.folder().to_string_lossy()) && !socket.contains("..")
    };
    port["kind"].as_str().is_none_or(is_known)
        && port["socket"].as_str().is_none_or(inside)
        && port["device"].is_null()
        && port["device_queue"].is_null()
}
