//! Payloads of vhost-user requests that look like what a front-end sends, mostly.

use vhost_user::net::feature::{ALL_PROTOCOL, all_offered, bit};

use crate::input::Input;

/// Bytes of each of two memory files, of which the memory table consists.
pub const FILE: u64 = 64 << 10;

/// Numbers of 32 bits, as a message has them.
pub fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Numbers of 64 bits, as a message has them.
pub fn longs(longs: &[u64]) -> Vec<u8> {
    longs.iter().flat_map(|long| long.to_le_bytes()).collect()
}

/// A payload of the form that request `code` has.
pub fn body(code: u32, input: &mut Input<'_>) -> Vec<u8> {
    let ring = u32::from(input.u8() % 5);
    match code {
        2 => longs(&[features(input)]),
        16 => longs(&[input.u64() & if input.u8() < 250 { ALL_PROTOCOL } else { u64::MAX }]),
        5 => [words(&[2, 0]), region(input), region(input)].concat(),
        6 => longs(&[
            [8, 16, FILE, input.u64()][input.below(4) as usize],
            [0, 8, 4096, input.u64()][input.below(4) as usize],
        ]),
        8 => words(&[ring, [16, 64, 256, 0, 7, input.u32()][input.below(6) as usize]]),
        9 => {
            let places = [place(input), place(input), place(input), place(input)];
            [words(&[ring, u32::from(input.u8() % 2)]), longs(&places)].concat()
        }
        10 => words(&[ring, if input.u8() < 128 { 0 } else { input.u32() }]),
        11 => words(&[ring, 0]),
        12..=14 => longs(&[u64::from(ring) | u64::from(input.u8() < 16) << 8]),
        18 => words(&[ring, u32::from(input.u8() % 2)]),
        19 => longs(&[input.u64()]),
        20 => longs(&[u64::from(input.u16())]),
        31 | 32 => inflight(input),
        37 | 38 => [longs(&[0]), region(input)].concat(),
        1 | 3 | 4 | 7 | 15 | 17 | 34 | 36 => vec![],
        _ => input.take(40).to_vec(),
    }
}

/// Features of which most are offered.
fn features(input: &mut Input<'_>) -> u64 {
    let base = bit::VERSION_1 | bit::PROTOCOL_FEATURES;
    match input.u8() {
        0..2 => input.u64(),
        choice => {
            base | (input.u64() & all_offered().0 & !bit::RING_PACKED) | u64::from(choice & 1) << 34
        }
    }
}

fn region(input: &mut Input<'_>) -> Vec<u8> {
    match input.u8() {
        0..32 => longs(&[input.u64(), input.u64(), input.u64(), input.u64()]),
        choice => {
            let at = u64::from(choice & 3) * FILE;
            longs(&[at, FILE, at, 0])
        }
    }
}

/// In-flight records, mostly of rings that there are.
fn inflight(input: &mut Input<'_>) -> Vec<u8> {
    let counts = match input.u8() {
        0..32 => input.u32(),
        choice => u32::from(choice % 5) | 16 << 16,
    };
    let (len, offset) = match input.u8() {
        0..32 => (input.u64(), input.u64()),
        choice => (FILE - 4096, u64::from(choice & 1) * 4096),
    };
    [longs(&[len, offset]), words(&[counts, 0])].concat()
}

fn place(input: &mut Input<'_>) -> u64 {
    match input.u8() {
        0..16 => input.u64(),
        choice => u64::from(choice) << 9 & (2 * FILE - 1),
    }
}
