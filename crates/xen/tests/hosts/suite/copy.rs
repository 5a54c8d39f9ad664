//! Copies in batches, with one or both ends granted.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use hypervisor::{DomId, GrantRef, Granted, Hypervisor};
use ring::copies::{Copies, Place, Status};
use ring::{Memory, RegionSpec};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use super::vif::{Ends, Tx, Vif};

/// Where copies go: one frame that each guest sent, and the first pages that each posted.
struct Bench<'a> {
    host: &'a Hypervisor,
    sent: Vec<Tx>,
    ends: &'a [Ends],
    vifs: &'a [Vif],
}

pub fn all(host: &Hypervisor, vifs: &[Vif], ends: &[Ends]) {
    let sent = ends
        .iter()
        .zip(vifs)
        .map(|(ends, vif)| ends.first_tx(vif.domain).expect("a frame"))
        .collect();
    let bench = Bench { host, sent, ends, vifs };
    bench.fetches_the_head_of_a_frame();
    bench.copies_from_guest_to_guest();
    bench.local_ends_cross_pages();
    bench.runs_hundreds_at_once();
    bench.one_that_fails_fails_alone();
    bench.a_truncated_file_fails_alone();
    println!("suite: copies passed");
}

impl Bench<'_> {
    fn copies(&self) -> Copies {
        Copies::new(1024, 1 << 16).unwrap()
    }

    fn run(&self, copies: &mut Copies) {
        assert!(copies.is_waiting());
        self.host.grants.copy(copies).unwrap();
        assert!(!copies.is_waiting());
    }

    /// The bytes at `place`, by a copy of their own.
    fn peek(&self, place: Granted, len: usize) -> Vec<u8> {
        let mut copies = self.copies();
        let (stage, to) = copies.reserve(len).unwrap();
        copies.push(Place::Granted(place), to, len as u32, 0).unwrap();
        self.run(&mut copies);
        assert_eq!(copies.failed().count(), 0);
        let mut bytes = vec![0; len];
        assert_eq!(copies.read(stage, 0, &mut bytes), len);
        bytes
    }

    fn rx(&self, guest: usize, n: u32) -> Granted {
        self.ends[guest].rx(self.vifs[guest].domain, n)
    }

    fn fetches_the_head_of_a_frame(&self) {
        for (tx, vif) in self.sent.iter().zip(self.vifs) {
            let head = self.peek(tx.at, 14.min(tx.size.into()));
            assert_eq!(head[6..12], vif.mac, "it is the guest's own frame");
        }
    }

    fn copies_from_guest_to_guest(&self) {
        for (from, to) in [(0, 1), (1, 0), (0, 0)] {
            let tx = self.sent[from];
            let target = Granted { offset: 2, ..self.rx(to, 5) };
            let mut copies = self.copies();
            copies.push(Place::Granted(tx.at), Place::Granted(target), tx.size.into(), 9).unwrap();
            self.run(&mut copies);
            assert_eq!(copies.failed().count(), 0);
            assert_eq!(self.peek(target, tx.size.into()), self.peek(tx.at, tx.size.into()));
        }
    }

    fn local_ends_cross_pages(&self) {
        let (mem, _file) = Memory::shared(3 * 4096).unwrap();
        let (mem, pattern) =
            (Arc::new(mem), (0..4096u32).map(|n| (n * 7 + 1) as u8).collect::<Vec<_>>());
        mem.write(4000, &pattern).unwrap();
        let page = self.rx(0, 6);
        let mut copies = self.copies();
        let from = copies.place(&mem, 4000, 4096).unwrap();
        copies.push(from, Place::Granted(page), 4096, 1).unwrap();
        self.run(&mut copies);
        assert_eq!(copies.failed().count(), 0);
        assert_eq!(self.peek(page, 4096), pattern);
        // And back, elsewhere, one byte shorter, in the same batch list.
        let to = copies.place(&mem, 4095, 4096).unwrap();
        copies.push(Place::Granted(page), to, 4095, 2).unwrap();
        self.run(&mut copies);
        let mut back = vec![0; 4095];
        mem.read(4095, &mut back).unwrap();
        assert_eq!(back, pattern[..4095]);
    }

    fn runs_hundreds_at_once(&self) {
        let mut copies = self.copies();
        for n in 0..500u32 {
            let from = copies.stage(&n.to_le_bytes()).unwrap();
            let to = Granted { offset: (n % 100 * 40) as u16, ..self.rx(1, 10 + n / 100) };
            copies.push(from, Place::Granted(to), 4, n).unwrap();
        }
        self.run(&mut copies);
        assert_eq!(copies.failed().count(), 0);
        for n in [0, 17, 99, 100, 255, 499u32] {
            let at = Granted { offset: (n % 100 * 40) as u16, ..self.rx(1, 10 + n / 100) };
            assert_eq!(self.peek(at, 4), n.to_le_bytes());
        }
    }

    fn one_that_fails_fails_alone(&self) {
        let (tx, good) = (self.sent[0], self.rx(1, 20));
        let never = Granted { reference: GrantRef(16_000), ..good };
        let beyond = Granted { reference: GrantRef(1_000_000_000), ..good };
        let nobody = Granted { domain: DomId(20_000), ..good };
        let mut copies = self.copies();
        let mut push = |target: Granted, tag: u32| {
            let from = copies.stage(&tag.to_le_bytes()).unwrap();
            copies.push(from, Place::Granted(target), 4, tag).unwrap();
        };
        push(good, 1);
        push(never, 2);
        push(Granted { offset: 4, ..good }, 3);
        push(beyond, 4);
        // What a guest sends is granted for reading.
        push(tx.at, 5);
        push(nobody, 6);
        push(Granted { offset: 8, ..good }, 7);
        copies
            .push(Place::Granted(never), Place::Granted(Granted { offset: 12, ..good }), 4, 8)
            .unwrap();
        copies
            .push(Place::Granted(tx.at), Place::Granted(Granted { offset: 16, ..good }), 14, 9)
            .unwrap();
        self.run(&mut copies);
        let failed: Vec<(u32, Status)> =
            copies.failed().map(|(tag, status, _)| (tag, status)).collect();
        println!("refusals: {failed:?}");
        assert_eq!(failed.iter().map(|(tag, _)| *tag).collect::<Vec<_>>(), [2, 4, 5, 6, 8]);
        let status =
            |tag| failed.iter().find(|(failed, _)| *failed == tag).map(|(_, status)| *status);
        // How far the guest's grant table has grown is its own business.
        assert!([Status::REFUSED, Status::BAD_REFERENCE].map(Some).contains(&status(2)));
        assert_eq!(status(4), Some(Status::BAD_REFERENCE));
        assert_eq!(status(5), Some(Status::REFUSED));
        assert_eq!(status(6), Some(Status::BAD_DOMAIN));
        let words: Vec<u8> = [1u32, 3, 7].iter().flat_map(|n| n.to_le_bytes()).collect();
        assert_eq!(self.peek(good, 12), words);
        assert_eq!(self.peek(Granted { offset: 16, ..good }, 14), self.peek(tx.at, 14));
    }

    fn a_truncated_file_fails_alone(&self) {
        let file = memfd_create(c"guest", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 2 * 4096).unwrap();
        let mem = Arc::new(map(file.try_clone().unwrap(), 2 * 4096));
        let page = self.rx(0, 30);
        let mut copies = self.copies();
        for n in 0..40u32 {
            let from = match n {
                23 => copies.place(&mem, 4096, 4).unwrap(),
                _ => copies.stage(&n.to_le_bytes()).unwrap(),
            };
            let to = Granted { offset: (n * 4) as u16, ..page };
            copies.push(from, Place::Granted(to), 4, n).unwrap();
        }
        ftruncate(&file, 4096).unwrap();
        self.run(&mut copies);
        // The kernel says so, or zeros were copied; either way the owner is found out.
        assert!(copies.failed().all(|(tag, status, _)| (tag, status) == (23, Status::LOCAL_FAULT)));
        assert!(mem.is_faulted());
        for n in (0..40u32).filter(|n| *n != 23) {
            assert_eq!(self.peek(Granted { offset: (n * 4) as u16, ..page }, 4), n.to_le_bytes());
        }
    }
}

fn map(fd: OwnedFd, len: u64) -> Memory {
    Memory::map(vec![RegionSpec { guest_addr: 0, user_addr: 0, len, offset: 0, fd }]).unwrap()
}
