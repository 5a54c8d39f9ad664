//! Frames of TCP whose checksums are left to be done.

use super::mac;

/// An Ethernet, IPv4 and TCP header with a blank checksum, and so much payload.
pub fn tcp(from: u8, to: u8, payload: usize) -> Vec<u8> {
    let total = (40 + payload) as u16;
    let mut frame = [mac(to).to_vec(), mac(from).to_vec(), vec![8, 0, 0x45, 0]].concat();
    frame.extend(total.to_be_bytes());
    frame.extend([0, 1, 0, 0, 64, 6, 0, 0, 10, 0, 0, from, 10, 0, 0, to]);
    let sum = frame::Sum::of(&frame[14..34]).checksum();
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    with_segment(frame, payload)
}

/// The same over IPv6.
pub fn tcp6(from: u8, to: u8, payload: usize) -> Vec<u8> {
    let mut frame =
        [mac(to).to_vec(), mac(from).to_vec(), vec![0x86, 0xdd, 0x60, 0, 0, 0]].concat();
    frame.extend((20 + payload as u16).to_be_bytes());
    frame.extend([6, 64]);
    for last in [from, to] {
        frame.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
    }
    with_segment(frame, payload)
}

fn with_segment(mut frame: Vec<u8>, payload: usize) -> Vec<u8> {
    let at = frame.len();
    frame.extend([0x12, 0x34, 0x56, 0x78, 0, 0, 0, 9, 0, 0, 0, 0, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
    frame.extend((0..payload).map(|i| ((i * 13) >> 3) as u8));
    let sum = pseudo(&frame).fold();
    frame[at + 16..at + 18].copy_from_slice(&sum.to_be_bytes());
    frame
}

/// Where the TCP header begins.
pub fn at(frame: &[u8]) -> usize {
    if frame[12..14] == [8, 0] { 34 } else { 54 }
}

fn pseudo(frame: &[u8]) -> frame::Sum {
    let (mut sum, len) = (frame::Sum::new(), (frame.len() - at(frame)) as u32);
    match at(frame) {
        34 => sum.add_pseudo_v4(
            frame[26..30].try_into().unwrap(),
            frame[30..34].try_into().unwrap(),
            6,
            len,
        ),
        _ => sum.add_pseudo_v6(
            frame[22..38].try_into().unwrap(),
            frame[38..54].try_into().unwrap(),
            6,
            len,
        ),
    }
    sum
}

/// Whether the checksum is complete and right.
pub fn is_right(frame: &[u8]) -> bool {
    let mut sum = frame::Sum::new();
    sum.add_u16(pseudo(frame).fold());
    sum.append(frame::Sum::of(&frame[at(frame)..]));
    sum.fold() == 0xffff
}
