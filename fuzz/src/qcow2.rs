//! A qcow2 image whose header and tables say anything, and a guest that uses the disk all the same.

use std::os::fd::AsRawFd;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::pwrite;
use storage::Image;
use storage::engine;
use storage::image::{Direct, Format, ImageOptions};

use crate::guest::{SECTOR, Sent, Site};
use crate::input::Input;

/// Bytes of a cluster, and the numbers of those that the image has: header, L1 table, table of
/// refcount blocks, a refcount block, an L2 table, and data.
const CLUSTER: u64 = 512;
const CLUSTERS: u64 = 9;
/// Bytes of the disk: those of four L2 tables.
const BYTES: u64 = 4 * CLUSTER / 8 * CLUSTER;
/// An entry of a table that nothing else refers to the same cluster.
const COPIED: u64 = 1 << 63;

/// Most requests of one run.
const REQUESTS: usize = 24;

/// One life of an image.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut bytes = sound();
    for _ in 0..input.below(16) {
        damage(&mut bytes, &mut input);
    }
    // Backing files are the operator's: no name of one is opened.
    bytes[8..20].fill(0);
    let file = memfd_create(c"image", MemfdFlags::CLOEXEC).expect("a memory file");
    ftruncate(&file, bytes.len() as u64).expect("room");
    pwrite(&file, &bytes, 0).expect("room");
    let options = ImageOptions {
        format: Format::Qcow2,
        direct: Direct::Never,
        read_only: input.u8() < 32,
        ..ImageOptions::new(format!("/proc/self/fd/{}", file.as_raw_fd()).into())
    };
    let Ok(image) = Image::open(&options) else { return };
    if image.lock().is_err() {
        return;
    }
    let mut site = Site::new(image, 1, engine::best().expect("an engine"));
    for _ in 0..REQUESTS {
        if input.is_empty() {
            break;
        }
        // Each is answered, whatever becomes of it.
        site.ask(&request(&mut input));
    }
    assert!(site.errors.lock().is_empty(), "the guest broke no protocol");
}

/// A small image with nothing wrong in it.
fn sound() -> Vec<u8> {
    let mut bytes = vec![0; (CLUSTERS * CLUSTER) as usize];
    let mut put = |at: u64, value: &[u8]| {
        bytes[at as usize..at as usize + value.len()].copy_from_slice(value);
    };
    put(0, b"QFI\xfb");
    let words: [(u64, u32); 6] =
        [(4, 3), (20, CLUSTER.ilog2()), (36, 4), (56, 1), (96, 4), (100, 104)];
    words.iter().for_each(|(at, value)| put(*at, &value.to_be_bytes()));
    let longs = [(24, BYTES), (40, CLUSTER), (48, 2 * CLUSTER)];
    longs.iter().for_each(|(at, value)| put(*at, &value.to_be_bytes()));
    put(CLUSTER, &(4 * CLUSTER | COPIED).to_be_bytes());
    put(2 * CLUSTER, &(3 * CLUSTER).to_be_bytes());
    (0..CLUSTERS).for_each(|cluster| put(3 * CLUSTER + 2 * cluster, &1u16.to_be_bytes()));
    (5..CLUSTERS).for_each(|cluster| {
        put(4 * CLUSTER + 8 * (cluster - 5), &(cluster * CLUSTER | COPIED).to_be_bytes());
    });
    bytes
}

/// Writes a number into the header or into a table: any, or one that could be there.
fn damage(bytes: &mut [u8], input: &mut Input<'_>) {
    let value = match input.below(6) {
        0 => input.u64(),
        1 => u64::from(input.u16()) * CLUSTER | u64::from(input.u8() & 3) << 62,
        2 => 1 << 62 | u64::from(input.u16()) | u64::from(input.u8()) << 61,
        3 => u64::from(input.u8()),
        _ => u64::from(input.u8() % 32) * CLUSTER | u64::from(input.u8() & 3) << 62,
    };
    let len = [8, 4, 2, 1][input.below(4) as usize];
    let at = match input.below(6) {
        0 => input.below(112),
        1 => input.u16().into(),
        table => (table - 1) * CLUSTER as u32 + 8 * input.below(64),
    };
    let value = &value.to_be_bytes()[8 - len..];
    if let Some(there) = bytes.get_mut(at as usize..).and_then(|rest| rest.get_mut(..len)) {
        there.copy_from_slice(value);
    }
}

fn request(input: &mut Input<'_>) -> Sent {
    let sector = if input.u8() < 16 { input.u64() } else { u64::from(input.below(520)) };
    let sectors = 1 + u64::from(input.below(16));
    match input.below(6) {
        0 => Sent::flush(),
        1 => Sent::range(11, sector, sectors as u32, 0),
        2 => Sent::range(13, sector, sectors as u32, u32::from(input.u8() & 1)),
        3 => Sent::read(sector, sectors),
        _ => Sent::write(sector, vec![input.u8(); sectors as usize * SECTOR]),
    }
}
