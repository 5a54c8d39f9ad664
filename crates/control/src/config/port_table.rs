//! A `[[port]]` table as written, and the types of its values.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use frame::{BadPrefix, Mac, Prefix};
use network::coalescing::CoalescingLimits;
use network::poll::PollingPolicy;

use super::access::{SocketGroup, SocketMode, SocketOwner};
use super::amount::{BitRate, BurstBytes, Frames};
use super::defaults::MAX_QUEUES;
use super::key_table::key_table;
use super::memory_size::MemorySize;
use super::port::{Mode, OWN_MAC};
use super::source::VALUE;
use super::value::{Amount, FromText, Item, Limits, List, Number, TableName, Text};
use crate::kind::Kind;

/// Longest path of a UNIX socket in bytes: `sun_path` less its final zero.
const LONGEST_SOCKET: usize = 107;
/// Longest name of a network interface in bytes (IFNAMSIZ less its final zero).
const LONGEST_INTERFACE: usize = 15;
/// Longest name of a port in bytes.
const LONGEST_NAME: usize = 32;

key_table! {
    /// A `[[port]]` table. Which keys are required depends on the kind.
    PortTable {
        "name" name: Text<Name>,
        "kind" kind: Text<Kind>,
        "socket" socket: Text<Socket>,
        "mode" mode: Text<Mode>,
        "socket-mode" socket_mode: Text<SocketMode>,
        "socket-owner" socket_owner: Text<SocketOwner>,
        "socket-group" socket_group: Text<SocketGroup>,
        "device" device: Text<Interface>,
        "queues" queues: Number<Queues>,
        "mtu" mtu: Number<Mtu>,
        "vlan" vlan: Number<Vid>,
        "trunk" trunk: List<Number<Trunk>>,
        "device-queue" device_queue: Text<Interface>,
        "mac" mac: Text<MacLock>,
        "cache" cache: Number<CachePages>,
        "align" align: bool,
        "interrupt-frames" interrupt_frames: Number<InterruptFrames>,
        "interrupt-microseconds" interrupt_microseconds: Number<InterruptMicroseconds>,
        "polling" polling: Text<PollingPolicy>,
        "copy" copy: Text<CopySide>,
        "grants" grants: Text<Grants>,
        "tx-rate" tx_rate: Amount<BitRate>,
        "tx-burst" tx_burst: Amount<BurstBytes>,
        "tx-frames" tx_frames: Amount<Frames>,
        "tx-frames-burst" tx_frames_burst: Amount<Frames>,
        "rx-rate" rx_rate: Amount<BitRate>,
        "rx-burst" rx_burst: Amount<BurstBytes>,
        "rx-frames" rx_frames: Amount<Frames>,
        "rx-frames-burst" rx_frames_burst: Amount<Frames>,
        "budget" budget: Text<Name>,
        "memory" memory: Text<MemorySize>,
        "mirror" mirror: Text<Name>,
        "addresses" addresses: List<Text<Prefix>>,
        "security-groups" security_groups: List<Text<Name>>,
    }
}

impl PortTable {
    /// The name of the port, if it can be a mirror.
    pub(super) fn can_mirror(&self) -> Option<String> {
        let Text(kind) = self.kind.as_ref()?.get_ref();
        let Text(Name(name)) = self.name.as_ref()?.get_ref();
        kind.can_mirror().then(|| name.clone())
    }
}

impl TableName for PortTable {
    const EXPECTED: &'static str = "a list of tables; write [[port]]";
}

fn is_plain(text: &str, longest: usize) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-');
    (1..=longest).contains(&text.len()) && text.bytes().all(plain)
}

/// The name of a port.
#[derive(Clone, Debug)]
pub(super) struct Name(pub String);

impl FromText for Name {
    fn right() -> String {
        r#"1 to 32 letters, digits, "_", "." or "-""#.to_owned()
    }

    fn from_text(text: &str) -> Result<Self, String> {
        // A leading dash would look like a flag on the command line.
        if is_plain(text, LONGEST_NAME) && !text.starts_with('-') {
            return Ok(Name(text.to_owned()));
        }
        Err(format!("{VALUE} cannot be a name; give {}", Self::right()))
    }
}

impl FromText for Kind {
    fn right() -> String {
        Kind::choice(Kind::ALL.into_iter())
    }

    fn from_text(text: &str) -> Result<Self, String> {
        let known = Kind::ALL.into_iter().find(|kind| kind.name() == text.replace('_', "-"));
        known.ok_or_else(|| format!("{VALUE} is not a kind of port; give {}", Self::right()))
    }
}

impl FromText for Mode {
    fn right() -> String {
        r#""server" or "client""#.to_owned()
    }

    fn from_text(text: &str) -> Result<Self, String> {
        let known = [Mode::Server, Mode::Client].into_iter().find(|mode| mode.name() == text);
        known.ok_or_else(|| format!("{VALUE} is not a mode; give {}", Self::right()))
    }
}

/// The path of a guest's socket.
#[derive(Clone, Debug)]
pub(super) struct Socket(pub PathBuf);

impl FromText for Socket {
    fn right() -> String {
        r#"the path of a socket, like "/run/ringmain/vm.sock""#.to_owned()
    }

    fn from_text(text: &str) -> Result<Self, String> {
        socket_path(text).map(Socket)
    }
}

/// Checks that a text can be the path of a UNIX socket.
pub(super) fn socket_path(text: &str) -> Result<PathBuf, String> {
    if text.is_empty() || text.contains('\0') || text.ends_with('/') {
        let right = format!("one of 1 to {LONGEST_SOCKET} bytes");
        return Err(format!("{VALUE} is not the path of a socket; give {right}"));
    }
    if text.len() > LONGEST_SOCKET {
        let length = text.len();
        return Err(format!(
            "the path is {length} bytes long; give one of at most {LONGEST_SOCKET}"
        ));
    }
    Ok(PathBuf::from(text))
}

/// The name of an interface of the host.
#[derive(Clone, Debug)]
pub(super) struct Interface(pub String);

impl FromText for Interface {
    fn right() -> String {
        r#"the name of an interface, 1 to 15 letters, digits, "_", "." or "-""#.to_owned()
    }

    fn from_text(text: &str) -> Result<Self, String> {
        if is_plain(text, LONGEST_INTERFACE) && text != "." && text != ".." {
            return Ok(Interface(text.to_owned()));
        }
        Err(format!("{VALUE} cannot be an interface; give {}", Self::right()))
    }
}

/// The address lock of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum MacLock {
    /// This address.
    Address(Mac),
    /// The address that each guest of the port names when it connects.
    Own,
}

impl FromText for MacLock {
    fn right() -> String {
        r#"the address of one station, like "52:54:00:00:00:01""#.to_owned()
    }

    fn from_text(text: &str) -> Result<Self, String> {
        if text == OWN_MAC {
            return Ok(MacLock::Own);
        }
        let wrong = |problem| format!("{VALUE} is {problem}; give {}", Self::right());
        let mac: Mac = text.parse().map_err(|_| wrong("not a MAC address"))?;
        if mac.is_multicast() {
            return Err(wrong("a group address"));
        }
        if mac.is_zero() {
            return Err(wrong("nobody's address"));
        }
        Ok(MacLock::Address(mac))
    }
}

impl FromText for Prefix {
    fn right() -> String {
        r#"an address or a network, like "10.0.0.2" or "2001:db8::/64""#.to_owned()
    }

    fn from_text(text: &str) -> Result<Self, String> {
        text.parse().map_err(|error| match error {
            BadPrefix::Ambiguous(address, network) => {
                let (address, network) = (address.to_string(), network.to_string());
                format!(
                    "{VALUE} may be the address or the network; write {address:?} or {network:?}"
                )
            }
            error => format!("{VALUE} is {error}; give {}", Self::right()),
        })
    }
}

impl Item for Text<Prefix> {
    fn right_list() -> String {
        r#"a list of addresses and networks, like ["10.0.0.2", "2001:db8::/64"]"#.to_owned()
    }
}

impl FromText for PollingPolicy {
    fn right() -> String {
        PollingPolicy::WORDS.to_owned()
    }

    fn from_text(text: &str) -> Result<Self, String> {
        text.parse().map_err(|_| format!("{VALUE} is not known; give {}", Self::right()))
    }
}

/// The words that a value can be, and what each means.
type Words<T> = [(&'static str, T); 2];

fn either<T>([(one, _), (other, _)]: &Words<T>) -> String {
    format!("{one:?} or {other:?}")
}

fn find<T: Copy>(words: &Words<T>, text: &str) -> Result<T, String> {
    let found = words.iter().find(|(word, _)| *word == text);
    let unknown = || format!("{VALUE} is not known; give {}", either(words));
    found.map(|(_, value)| *value).ok_or_else(unknown)
}

/// The side that copies what a guest receives.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum CopySide {
    /// The backend, by grant copies.
    Backend,
    /// The guest.
    Guest,
}

impl CopySide {
    const WORDS: Words<CopySide> = [("backend", CopySide::Backend), ("guest", CopySide::Guest)];
}

impl FromText for CopySide {
    fn right() -> String {
        either(&Self::WORDS)
    }

    fn from_text(text: &str) -> Result<Self, String> {
        find(&Self::WORDS, text)
    }
}

/// The unit in which guests grant the frames that they send.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Grants {
    /// Whole pages.
    Page,
    /// The bytes of a frame.
    Range,
}

impl Grants {
    const WORDS: Words<Grants> = [("page", Grants::Page), ("range", Grants::Range)];
}

impl FromText for Grants {
    fn right() -> String {
        either(&Self::WORDS)
    }

    fn from_text(text: &str) -> Result<Self, String> {
        find(&Self::WORDS, text)
    }
}

/// Queue pairs of a port.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queues;

impl Limits for Queues {
    const RANGE: RangeInclusive<u16> = 1..=MAX_QUEUES;
}

/// Longest IP packet in bytes. The least is what IPv4 requires of every link (RFC 791).
#[derive(Clone, Copy, Debug)]
pub(super) struct Mtu;

impl Limits for Mtu {
    const RANGE: RangeInclusive<u16> = 68..=u16::MAX;
}

/// The number of a VLAN.
#[derive(Clone, Copy, Debug)]
pub(super) struct Vid;

impl Limits for Vid {
    const RANGE: RangeInclusive<u16> = 1..=4094;
}

/// The numbers of several VLANs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trunk;

impl Limits for Trunk {
    const RANGE: RangeInclusive<u16> = Vid::RANGE;

    fn right() -> String {
        "a list of VLANs from 1 to 4094, like [10, 20]".to_owned()
    }
}

/// Pages of a guest that may stay mapped: those of 16 queues of this project's own frontend, and
/// some more.
#[derive(Clone, Copy, Debug)]
pub(super) struct CachePages;

impl Limits for CachePages {
    const RANGE: RangeInclusive<u16> = 0..=16384;
}

/// Frames that an interrupt can wait for.
#[derive(Clone, Copy, Debug)]
pub(super) struct InterruptFrames;

impl Limits for InterruptFrames {
    const RANGE: RangeInclusive<u16> = 1..=1024;
}

/// Microseconds that an interrupt can wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct InterruptMicroseconds;

impl Limits for InterruptMicroseconds {
    const RANGE: RangeInclusive<u16> = 1..=CoalescingLimits::MAX_TIME.as_micros() as u16;
}
