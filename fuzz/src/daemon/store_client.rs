//! A hostile domain's connection to the store.

use std::os::fd::OwnedFd;

use super::stubborn;
use crate::input::Input;
use crate::requests::words;

const READ: u32 = 2;
const WRITE: u32 = 11;

/// Times that the state of the backend is read at most.
const ATTEMPTS: usize = 40;

const KEYS: [&str; 24] = [
    "state",
    "state",
    "request-rx-copy",
    "multi-queue-num-queues",
    "tx-ring-ref",
    "rx-ring-ref",
    "event-channel",
    "event-channel-tx",
    "event-channel-rx",
    "queue-0/tx-ring-ref",
    "queue-0/rx-ring-ref",
    "queue-0/event-channel",
    "queue-1/tx-ring-ref",
    "queue-1/rx-ring-ref",
    "feature-sg",
    "feature-gso-tcpv4",
    "request-range-grants",
    "request-guest-copy",
    "ctrl-ring-ref",
    "event-channel-ctrl",
    "request-multicast-control",
    "mac",
    "mcast-ctrl",
    "",
];

/// A connection.
pub struct StoreClient {
    end: OwnedFd,
    domain: u16,
    requests: u32,
    transaction: u32,
}

impl StoreClient {
    /// The client of a domain.
    pub fn new(end: OwnedFd, domain: u16) -> StoreClient {
        StoreClient { end, domain, requests: 0, transaction: 0 }
    }

    fn send(&mut self, kind: u32, transaction: u32, payload: &[u8]) {
        self.requests += 1;
        let header = words(&[kind, self.requests, transaction, payload.len() as u32]);
        stubborn::send(&self.end, &[header, payload.to_vec()].concat(), &[]);
    }

    fn put(&mut self, key: &str, value: u32) {
        self.send(WRITE, 0, format!("device/vif/0/{key}\0{value}").as_bytes());
    }

    /// Waits for an answer, and returns the last bytes that came.
    fn listen(&mut self) -> Vec<u8> {
        let mut bytes = vec![0; 8192];
        if !stubborn::wait(&self.end) {
            return Vec::new();
        }
        let flags = rustix::net::RecvFlags::DONTWAIT;
        let len = rustix::net::recv(&self.end, &mut bytes[..], flags).map_or(0, |(_, len)| len);
        bytes.truncate(len);
        bytes
    }

    /// Connects an interface with one queue: its rings, and the control ring, are of the grants
    /// from `first` on.
    pub fn ready(&mut self, first: u32, [queue, control]: [u32; 2], extras: u8) {
        stubborn::discard(&self.end);
        let backend = format!("/local/domain/0/backend/vif/{}/0/state\0", self.domain);
        // State 2 is InitWait.
        for _ in 0..ATTEMPTS {
            self.send(READ, 0, backend.as_bytes());
            let said = self.listen();
            // The store lets a guest wait that asks too much: 40 times would take a second.
            if said.is_empty() || said.last() == Some(&b'2') {
                break;
            }
            std::thread::yield_now();
        }
        let flags = ["feature-sg", "feature-gso-tcpv4", "feature-gso-tcpv6", "feature-rx-notify"];
        for (n, key) in flags.into_iter().enumerate() {
            self.put(key, (extras >> n & 1).into());
        }
        self.put("request-rx-copy", 1);
        self.put("tx-ring-ref", first);
        self.put("rx-ring-ref", first + 1);
        self.put("event-channel", queue);
        if extras & 32 != 0 {
            self.put("request-range-grants", 1);
            self.put("request-guest-copy", 1);
        }
        if extras & 16 != 0 {
            self.put("ctrl-ring-ref", first + 2);
            self.put("event-channel-ctrl", control);
        }
        self.put("state", 4);
        self.await_answer();
    }

    /// Sends a request that makes sense, or almost.
    pub fn speak(&mut self, neighbour: u16, input: &mut Input<'_>) {
        let kind = match input.u8() {
            0..8 => input.u32(),
            8..128 => WRITE,
            choice => [1, READ, 3, 4, 5, 6, 7, 12, 13, 14, 22][usize::from(choice) % 11],
        };
        let transaction = match input.u8() {
            0..8 => input.u32(),
            8..64 => self.transaction,
            _ => 0,
        };
        let mut payload = self.path(neighbour, input);
        if input.u8() > 8 {
            payload.push(0);
        }
        let value = match input.u8() {
            0..32 => {
                let len = usize::from(input.u8());
                input.take(len).to_vec()
            }
            32..40 => vec![b'x'; usize::from(input.u16() % 5000)],
            40..56 => format!("n{}\0r{neighbour}", self.domain).into_bytes(),
            56..64 => b"T".to_vec(),
            64..72 => b"token\0".to_vec(),
            number => (number % 40).to_string().into_bytes(),
        };
        payload.extend(value);
        self.send(kind, transaction, &payload);
        if kind == 6 {
            // Numbers of transactions count up from 1.
            self.transaction += 1;
        }
    }

    fn path(&self, neighbour: u16, input: &mut Input<'_>) -> Vec<u8> {
        let key = KEYS[input.below(KEYS.len() as u32) as usize];
        let (own, choice) = (self.domain, input.u8());
        match choice {
            0..8 => {
                let len = usize::from(input.u8() % 64);
                return input.take(len).to_vec();
            }
            8..32 => format!("/local/domain/0/backend/vif/{own}/0/{key}"),
            32..40 => format!("/local/domain/0/backend/vif/{neighbour}/0/{key}"),
            40..48 => format!("/local/domain/{neighbour}/device/vif/0/{key}"),
            48..60 => "device".to_owned() + &"/a".repeat(usize::from(choice)),
            60..72 => "@releaseDomain".to_owned(),
            72..80 => "/".to_owned() + key,
            80..96 => format!("data/{}", input.u16()),
            _ => format!("device/vif/0/{key}"),
        }
        .into_bytes()
    }

    /// Sends any bytes.
    pub fn babble(&mut self, input: &mut Input<'_>) {
        let len = usize::from(input.u8());
        stubborn::send(&self.end, input.take(len), &[]);
    }

    /// Waits until the store has answered a request.
    pub fn await_answer(&mut self) {
        if stubborn::discard(&self.end) {
            self.send(READ, 0, b"device/vif/0/state\0");
            self.listen();
        }
    }
}
