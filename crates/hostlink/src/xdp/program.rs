//! The XDP program that directs frames to sockets, as a list of BPF instructions
//! (Documentation/bpf/standardization/instruction-set.rst). The list is shorter than the code that
//! loading a compiled program would need.

use std::os::fd::{AsRawFd, BorrowedFd};

use std::net::{IpAddr, SocketAddr};

use frame::Mac;

/// An address and a queue, as the program puts them side by side on its stack: six bytes, and two.
pub type Key = [u8; 8];

/// The key of frames for `mac` that come in through `queue`, which is below 65536.
pub fn key(mac: Mac, queue: u32) -> Key {
    let [a, b, c, d, e, f] = mac.0;
    let [low, high] = (queue as u16).to_ne_bytes();
    [a, b, c, d, e, f, low, high]
}

/// An instruction (`struct bpf_insn`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Instruction {
    code: u8,
    /// Destination in the lower half, source in the upper.
    registers: u8,
    offset: i16,
    value: i32,
}

/// The verdict of the program about other frames (`enum xdp_action`): as if there were no program.
const PASS: i32 = 2;

/// Helpers (`enum bpf_func_id`).
const MAP_LOOKUP: i32 = 1;
const REDIRECT_MAP: i32 = 51;

/// In the source's place: the value is a map's descriptor (`BPF_PSEUDO_MAP_FD`).
const MAP_FD: u8 = 1;

/// `struct xdp_md`: where the frame begins and ends, and the queue that it came in through.
const DATA: i16 = 0;
const DATA_END: i16 = 4;
const QUEUE: i16 = 16;

/// Bytes of an Ethernet header.
const ETHERNET: i32 = 14;

const fn new(code: u8, to: u8, from: u8, offset: i16, value: i32) -> Instruction {
    Instruction { code, registers: to | from << 4, offset, value }
}

/// `to = value`
const fn set(to: u8, value: i32) -> Instruction {
    new(0xb7, to, 0, 0, value)
}

/// `to = from`
const fn copy(to: u8, from: u8) -> Instruction {
    new(0xbf, to, from, 0, 0)
}

/// `to += value`
const fn add(to: u8, value: i32) -> Instruction {
    new(0x07, to, 0, 0, value)
}

/// `to = *(u32 *)(from + offset)`
const fn load4(to: u8, from: u8, offset: i16) -> Instruction {
    new(0x61, to, from, offset, 0)
}

/// `to = *(u16 *)(from + offset)`
const fn load2(to: u8, from: u8, offset: i16) -> Instruction {
    new(0x69, to, from, offset, 0)
}

/// `*(u32 *)(to + offset) = from`
const fn store4(to: u8, offset: i16, from: u8) -> Instruction {
    new(0x63, to, from, offset, 0)
}

/// `*(u16 *)(to + offset) = from`
const fn store2(to: u8, offset: i16, from: u8) -> Instruction {
    new(0x6b, to, from, offset, 0)
}

/// `if a > b: skip that many instructions`
const fn skip_if_above(a: u8, b: u8, skip: i16) -> Instruction {
    new(0x2d, a, b, skip, 0)
}

/// `if a == value: skip that many instructions`
const fn skip_if_equal(a: u8, value: i32, skip: i16) -> Instruction {
    new(0x15, a, 0, skip, value)
}

/// `to = *(u8 *)(from + offset)`
const fn load1(to: u8, from: u8, offset: i16) -> Instruction {
    new(0x71, to, from, offset, 0)
}

/// `to &= value`
const fn and(to: u8, value: i32) -> Instruction {
    new(0x57, to, 0, 0, value)
}

/// `if the lower half of a != value: skip that many instructions`
const fn skip_unless_equal(a: u8, value: i32, skip: i16) -> Instruction {
    new(0x56, a, 0, skip, value)
}

/// `r0 = helper(r1, ..)`; the values of `r1` to `r5` are lost.
const fn call(helper: i32) -> Instruction {
    new(0x85, 0, 0, 0, helper)
}

/// `return r0`
const EXIT: Instruction = new(0x95, 0, 0, 0, 0);

/// `to = map`, which takes the room of two instructions.
fn map(to: u8, map: BorrowedFd<'_>) -> [Instruction; 2] {
    [new(0x18, to, MAP_FD, 0, map.as_raw_fd()), new(0, 0, 0, 0, 0)]
}

/// The end of the stack.
const STACK: u8 = 10;

/// The program that redirects frames of stations.
///
/// The map `stations`, from [`Key`] to a number, says whether a frame belongs to a station, and to
/// which socket of the map `sockets` the frame goes.
pub fn redirect(stations: BorrowedFd<'_>, sockets: BorrowedFd<'_>) -> Vec<Instruction> {
    let [stations_low, stations_high] = map(1, stations);
    let [sockets_low, sockets_high] = map(1, sockets);
    vec![
        // A frame without a whole header passes to the kernel.
        load4(2, 1, DATA),
        load4(3, 1, DATA_END),
        copy(4, 2),
        add(4, ETHERNET),
        skip_if_above(4, 3, 18),
        // The key: the destination, and the queue behind it.
        load4(4, 2, 0),
        store4(STACK, -8, 4),
        load2(4, 2, 4),
        store2(STACK, -4, 4),
        load4(4, 1, QUEUE),
        store2(STACK, -2, 4),
        copy(2, STACK),
        add(2, -8),
        stations_low,
        stations_high,
        call(MAP_LOOKUP),
        skip_if_equal(0, 0, 6),
        // The frame goes to that socket, or to the kernel if the socket was closed meanwhile.
        load4(2, 0, 0),
        sockets_low,
        sockets_high,
        set(3, PASS),
        call(REDIRECT_MAP),
        EXIT,
        set(0, PASS),
        EXIT,
    ]
}

/// The program that redirects UDP datagrams for `local` to the socket of their queue in the map
/// `sockets`. Fragments, datagrams behind options or extension headers, and everything else pass to
/// the kernel.
pub fn datagrams(local: SocketAddr, sockets: BorrowedFd<'_>) -> Vec<Instruction> {
    const UDP: i32 = 17;
    let [sockets_low, sockets_high] = map(1, sockets);
    // Fields of frames are in network byte order, and are loaded as they are.
    let field2 = |value: u16| i32::from(u16::from_ne_bytes(value.to_be_bytes()));
    let (headers, mut wanted) = match local.ip() {
        IpAddr::V4(v4) => {
            let fragment = [load2(5, 2, 20), and(5, field2(0x3fff))];
            let mut wanted = vec![
                (vec![load2(5, 2, 12)], field2(0x0800)),
                (vec![load1(5, 2, 14)], 0x45),
                (fragment.to_vec(), 0),
                (vec![load1(5, 2, 23)], UDP),
            ];
            wanted.push((vec![load4(5, 2, 30)], i32::from_ne_bytes(v4.octets())));
            (ETHERNET + 20 + 8, wanted)
        }
        IpAddr::V6(v6) => {
            let mut wanted =
                vec![(vec![load2(5, 2, 12)], field2(0x86dd)), (vec![load1(5, 2, 20)], UDP)];
            for (at, part) in (38..).step_by(4).zip(v6.octets().as_chunks::<4>().0) {
                wanted.push((vec![load4(5, 2, at)], i32::from_ne_bytes(*part)));
            }
            (ETHERNET + 40 + 8, wanted)
        }
    };
    wanted.push((vec![load2(5, 2, (headers - 6) as i16)], field2(local.port())));
    let hit =
        [load4(2, 1, QUEUE), sockets_low, sockets_high, set(3, PASS), call(REDIRECT_MAP), EXIT];
    let checks: usize = wanted.iter().map(|(loads, _)| loads.len() + 1).sum();
    let mut rest = checks + hit.len();
    let mut program = vec![
        load4(2, 1, DATA),
        load4(3, 1, DATA_END),
        copy(4, 2),
        add(4, headers),
        skip_if_above(4, 3, rest as i16),
    ];
    for (loads, value) in wanted {
        rest -= loads.len() + 1;
        program.extend(loads);
        program.push(skip_unless_equal(5, value, rest as i16));
    }
    program.extend(hit);
    program.extend([set(0, PASS), EXIT]);
    program
}
