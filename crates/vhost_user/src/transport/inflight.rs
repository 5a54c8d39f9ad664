//! Memory for in-flight records (`GET_INFLIGHT_FD`, `SET_INFLIGHT_FD`).
//!
//! A front-end asks for such memory once, and shows it to the back-end of each later connection. In
//! between, a hostile front-end may have changed anything, including the length. So each record is
//! checked when a ring is started, and a ring without a valid record is started without one.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use ring::inflight::RingRecord;
use ring::{MapError, Memory, MemoryAccount, RegionSpec};

use super::error::SessionError;
use super::message::Inflight;
use super::saved::{Files, HandOverError, SavedInflight};

/// Alignment of the records of different rings, in bytes: a cache line.
const ALIGN: u64 = 64;

/// Most bytes of records that are made for one front-end: 16 MiB. Rings of 1024 entries, the most
/// that QEMU allows, need 32 KiB each.
const MAX_LEN: u64 = 16 << 20;

/// The records of all rings of a device.
#[derive(Debug)]
pub(super) struct InflightRecords {
    memory: Arc<Memory>,
    packed: bool,
    described: Inflight,
    /// Kept for a process that takes over.
    file: OwnedFd,
}

/// Bytes from one record to the next.
fn stride(packed: bool, queue_size: u16) -> u64 {
    RingRecord::len(packed, queue_size).next_multiple_of(ALIGN)
}

impl InflightRecords {
    /// Makes empty records for as many rings as are `wanted`, at most `most`. Returns them with
    /// their description and their file.
    ///
    /// # Errors
    /// When such rings are impossible, or there is no memory.
    pub(super) fn create(
        wanted: &Inflight,
        most: usize,
        packed: bool,
    ) -> Result<(InflightRecords, Inflight, OwnedFd), SessionError> {
        let Inflight { queues, queue_size, .. } = *wanted;
        let refused = || SessionError::Inflight { queues, queue_size };
        let len = stride(packed, queue_size) * u64::from(queues);
        if queue_size == 0 || queues == 0 || usize::from(queues) > most || len > MAX_LEN {
            return Err(refused());
        }
        let (memory, file) = Memory::shared(len as usize).map_err(SessionError::Records)?;
        let described = Inflight { len, offset: 0, queues, queue_size };
        let own = file.try_clone().map_err(MapError::Os).map_err(SessionError::Records)?;
        let records = InflightRecords { memory: Arc::new(memory), packed, described, file: own };
        for ring in 0..queues.into() {
            let made = records.at(ring).and_then(|at| {
                RingRecord::create(Arc::clone(&records.memory), at, packed, queue_size)
            });
            made.ok_or_else(refused)?;
        }
        Ok((records, described, file))
    }

    /// Records that a back-end made before. Pages of them that this process allocates are charged
    /// to `account`, since the front-end may choose any file.
    ///
    /// # Errors
    /// When they are too long or too short, the file is none that can be mapped, or the account is
    /// exhausted.
    pub(super) fn adopt(
        described: &Inflight,
        file: OwnedFd,
        packed: bool,
        account: &Arc<MemoryAccount>,
    ) -> Result<InflightRecords, SessionError> {
        let Inflight { len, offset, queues, queue_size } = *described;
        let needed = stride(packed, queue_size) * u64::from(queues);
        if needed == 0 || len < needed || len > MAX_LEN {
            return Err(SessionError::Inflight { queues, queue_size });
        }
        let fd = file.try_clone().map_err(MapError::Os).map_err(SessionError::Records)?;
        let spec = RegionSpec { guest_addr: 0, user_addr: 0, len, offset, fd };
        let memory = Memory::map_charged(vec![spec], Arc::clone(account));
        let memory = Arc::new(memory.map_err(SessionError::Records)?);
        Ok(InflightRecords { memory, packed, described: *described, file })
    }

    /// Where the record of ring number `ring` begins.
    fn at(&self, ring: usize) -> Option<u64> {
        let ring = u64::try_from(ring).ok()?;
        let Inflight { queues, queue_size, .. } = self.described;
        (ring < u64::from(queues)).then(|| ring * stride(self.packed, queue_size))
    }

    /// The records' memory, for another process.
    pub(super) fn save(&self, files: &mut Files) -> io::Result<SavedInflight> {
        let Inflight { len, offset, queues, queue_size } = self.described;
        let (packed, file) = (self.packed, files.add(&self.file)?);
        Ok(SavedInflight { len, offset, queues, queue_size, packed, file })
    }

    /// Records that another process had in use.
    pub(super) fn restore(
        saved: &SavedInflight,
        files: &mut Files,
        account: &Arc<MemoryAccount>,
    ) -> Result<InflightRecords, HandOverError> {
        let &SavedInflight { len, offset, queues, queue_size, packed, file } = saved;
        let described = Inflight { len, offset, queues, queue_size };
        InflightRecords::adopt(&described, files.take(file)?, packed, account)
            .map_err(|error| HandOverError::Unusable(error.to_string()))
    }

    /// The record of ring number `ring`, if there is a valid one for a ring of this layout and
    /// size.
    pub(super) fn record(&self, ring: usize, packed: bool, size: u16) -> Option<RingRecord> {
        let at = self.at(ring).filter(|_| self.packed == packed)?;
        RingRecord::open(Arc::clone(&self.memory), at, size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adopt(
        described: &Inflight,
        file: OwnedFd,
        packed: bool,
    ) -> Result<InflightRecords, SessionError> {
        InflightRecords::adopt(described, file, packed, &Arc::new(MemoryAccount::new(u64::MAX)))
    }

    const WANTED: Inflight = Inflight { len: 0, offset: 0, queues: 3, queue_size: 256 };

    #[test]
    fn records_are_found_again_in_their_file() {
        for packed in [false, true] {
            let (made, described, file) = InflightRecords::create(&WANTED, 4, packed).unwrap();
            assert!(made.record(2, packed, 256).is_some());
            let found = adopt(&described, file, packed).unwrap();
            assert!((0..3).all(|ring| found.record(ring, packed, 256).is_some()));
            assert!(found.record(3, packed, 256).is_none());
            assert!(found.record(0, packed, 128).is_none());
            assert!(found.record(0, !packed, 256).is_none());
        }
    }

    /// A front-end that truncates the file, or writes into it, only loses records.
    #[test]
    fn what_a_front_end_does_to_records_harms_them_only() {
        let (_, described, file) = InflightRecords::create(&WANTED, 4, true).unwrap();
        let theirs = tempfile::tempfile_in("/dev/shm").unwrap();
        std::io::copy(&mut std::fs::File::from(file), &mut &theirs).unwrap();
        let records = adopt(&described, theirs.try_clone().unwrap().into(), true).unwrap();
        assert!(records.record(0, true, 256).is_some());
        theirs.set_len(0).unwrap();
        assert!(records.record(0, true, 256).is_none());
    }

    #[test]
    fn impossible_records_are_refused() {
        for wanted in [
            Inflight { queues: 0, ..WANTED },
            Inflight { queues: 5, ..WANTED },
            Inflight { queue_size: 0, ..WANTED },
        ] {
            assert!(InflightRecords::create(&wanted, 4, true).is_err());
        }
        let many = Inflight { queues: u16::MAX, queue_size: u16::MAX, ..WANTED };
        assert!(InflightRecords::create(&many, usize::MAX, true).is_err());

        let file = || Memory::shared(4096).unwrap().1;
        let described = |len, offset| Inflight { len, offset, queues: 1, queue_size: 16 };
        assert!(adopt(&described(4096, 0), file(), true).is_ok());
        for (len, offset) in
            [(100, 0), (4096, 1), (4096, u64::MAX), (8192, 0), (u64::MAX, 0), (MAX_LEN + 1, 0)]
        {
            assert!(adopt(&described(len, offset), file(), true).is_err());
        }
        let disk = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        assert!(adopt(&described(0, 0), disk.into(), true).is_err());
    }
}
