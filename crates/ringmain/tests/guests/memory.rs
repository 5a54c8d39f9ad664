//! The memories of two QEMUs, compared page by page.

use std::fs::{self, File};
use std::io::Read;
use std::path::PathBuf;

use lab::guest::Guest;

const PAGE: usize = 4096;
/// Bytes that are read at a time.
const CHUNK: usize = 1 << 20;

/// Both ends of a migration, stopped.
pub struct Sides<'a> {
    pub source: &'a Guest,
    pub target: &'a Guest,
}

/// The pages that differ, by the guest's address divided by 4096.
#[derive(Debug)]
pub struct Differences {
    pages: Vec<u64>,
}

impl Differences {
    /// Compares all memory that daemons could write.
    pub fn between(sides: Sides<'_>) -> Differences {
        let [mut source, mut target] = [sides.source, sides.target].map(memory);
        let [mut ours, mut theirs] = [vec![0; CHUNK], vec![0; CHUNK]];
        let (mut pages, mut first) = (Vec::new(), 0);
        loop {
            let (got, same) = (read(&mut source, &mut ours), read(&mut target, &mut theirs));
            assert_eq!(got, same, "the memories are not of one size");
            if got == 0 {
                assert!(first > 0, "there is no memory");
                return Differences { pages };
            }
            let both = ours[..got].chunks(PAGE).zip(theirs[..got].chunks(PAGE));
            pages.extend((first..).zip(both).filter(|(_, (a, b))| a != b).map(|(page, _)| page));
            first += (got / PAGE) as u64;
        }
    }

    pub fn pages(&self) -> &[u64] {
        &self.pages
    }
}

/// The file that is a guest's memory.
fn memory(guest: &Guest) -> File {
    let descriptors = fs::read_dir(format!("/proc/{}/fd", guest.id())).unwrap();
    let is_memory = |path: &PathBuf| {
        fs::read_link(path).is_ok_and(|to| to.to_string_lossy().contains("memory-backend-memfd"))
    };
    let path = descriptors.map(|entry| entry.unwrap().path()).find(is_memory).unwrap();
    File::open(path).unwrap()
}

fn read(file: &mut File, bytes: &mut [u8]) -> usize {
    let mut have = 0;
    while have < bytes.len() {
        match file.read(&mut bytes[have..]).unwrap() {
            0 => break,
            more => have += more,
        }
    }
    have
}
