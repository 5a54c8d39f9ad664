//! The lock of a grant table, in three generations ([`Locking`]). The lock does not contain the
//! data that it guards: as in Xen, it only controls access to a table's size and layout.

use super::config::Locking;
use super::sync::{
    AtomicBool, AtomicUsize, Mutex, MutexGuard, Ordering, RwLock, RwLockReadGuard,
    RwLockWriteGuard, fence, lock, pause, read, write,
};
use super::vcpu::Vcpu;

/// The lock that each virtual CPU of a host reads at the moment: the number of a per-CPU lock, or
/// 0. A place belongs to one virtual CPU, and has a cache line of its own.
#[derive(Debug)]
pub struct Readers {
    places: Box<[Place]>,
    /// The number of the last lock that was made.
    last: AtomicUsize,
}

#[derive(Debug)]
#[repr(align(128))]
struct Place(AtomicUsize);

impl Readers {
    /// Places for `vcpus` virtual CPUs.
    pub fn new(vcpus: usize) -> Self {
        Readers {
            places: (0..vcpus).map(|_| Place(AtomicUsize::new(0))).collect(),
            last: AtomicUsize::new(0),
        }
    }

    fn place(&self, vcpu: usize) -> Option<&AtomicUsize> {
        self.places.get(vcpu).map(|place| &place.0)
    }
}

/// A read-write lock whose readers write only to a place of their own virtual CPU.
///
/// A reader announces the lock that it reads, and then checks for a writer; a writer announces
/// itself, and then checks for readers. With a full barrier between the two steps on both sides, at
/// least one of them sees the other.
#[derive(Debug)]
pub struct PerCpuLock {
    /// The number of the lock: not 0, and unique in the host.
    number: usize,
    writing: AtomicBool,
    /// Held by a writer, and by readers that could not take the fast path.
    slow: RwLock<()>,
}

/// Proof that there is no writer.
#[derive(Debug)]
pub enum Reading<'a> {
    /// The table's only lock is held.
    Alone(#[expect(dead_code, reason = "kept to be dropped")] MutexGuard<'a, ()>),
    /// A read-write lock is held for reading.
    Shared(#[expect(dead_code, reason = "kept to be dropped")] RwLockReadGuard<'a, ()>),
    /// The reader is noted in this place.
    Noted(&'a AtomicUsize),
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        if let Reading::Noted(place) = self {
            place.store(0, Ordering::Release);
        }
    }
}

/// Proof that there are no other readers or writers.
#[derive(Debug)]
#[expect(dead_code, reason = "kept to be dropped")]
pub enum Writing<'a> {
    /// The table's only lock is held.
    Alone(MutexGuard<'a, ()>),
    /// A read-write lock is held for writing.
    Sole(RwLockWriteGuard<'a, ()>),
    /// As before, and announced to readers.
    Announced(Announced<'a>, RwLockWriteGuard<'a, ()>),
}

/// Readers take the slow path as long as this lives.
#[derive(Debug)]
pub struct Announced<'a>(&'a AtomicBool);

impl Drop for Announced<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl PerCpuLock {
    /// A lock among those whose readers are noted in `readers`.
    pub fn new(readers: &Readers) -> Self {
        let number = readers.last.fetch_add(1, Ordering::Relaxed) + 1;
        PerCpuLock { number, writing: AtomicBool::new(false), slow: RwLock::new(()) }
    }

    /// Takes it for reading, on virtual CPU `vcpu`.
    #[inline]
    pub fn read<'a>(&'a self, readers: &'a Readers, vcpu: usize) -> Reading<'a> {
        let Some(place) = readers.place(vcpu) else { return Reading::Shared(read(&self.slow)) };
        if place.load(Ordering::Relaxed) != 0 {
            // The place notes another lock already, and has room for only one.
            return Reading::Shared(read(&self.slow));
        }
        place.store(self.number, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.writing.load(Ordering::Acquire) {
            place.store(0, Ordering::Release);
            return Reading::Shared(read(&self.slow));
        }
        Reading::Noted(place)
    }

    /// Takes the lock for writing: waits until there are no readers.
    pub fn write<'a>(&'a self, readers: &Readers) -> Writing<'a> {
        let guard = write(&self.slow);
        self.writing.store(true, Ordering::Relaxed);
        let announced = Announced(&self.writing);
        fence(Ordering::SeqCst);
        for place in &readers.places {
            let mut round = 0;
            while place.0.load(Ordering::Acquire) == self.number {
                round += 1;
                pause(round);
            }
        }
        Writing::Announced(announced, guard)
    }
}

/// The lock of a table.
#[derive(Debug)]
pub enum TableLock {
    /// See [`Locking::Table`].
    Table(Mutex<()>),
    /// See [`Locking::Entries`].
    Entries(RwLock<()>),
    /// See [`Locking::PerCpu`].
    PerCpu(PerCpuLock),
}

impl TableLock {
    /// One of that generation.
    pub fn new(locking: Locking, readers: &Readers) -> Self {
        match locking {
            Locking::Table => TableLock::Table(Mutex::new(())),
            Locking::Entries => TableLock::Entries(RwLock::new(())),
            Locking::PerCpu => TableLock::PerCpu(PerCpuLock::new(readers)),
        }
    }

    /// Takes it to work on single entries, each under the entry's own lock.
    #[inline]
    pub fn read<'a>(&'a self, readers: &'a Readers, vcpu: &Vcpu) -> Reading<'a> {
        match self {
            TableLock::Table(table) => Reading::Alone(lock(table)),
            TableLock::Entries(entries) => Reading::Shared(read(entries)),
            TableLock::PerCpu(percpu) => percpu.read(readers, vcpu.number()),
        }
    }

    /// Takes it to change the table as a whole.
    pub fn write<'a>(&'a self, readers: &Readers) -> Writing<'a> {
        match self {
            TableLock::Table(table) => Writing::Alone(lock(table)),
            TableLock::Entries(entries) => Writing::Sole(write(entries)),
            TableLock::PerCpu(percpu) => percpu.write(readers),
        }
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    struct Shared {
        readers: Readers,
        lock: PerCpuLock,
        /// Loom detects a read during a write.
        value: UnsafeCell<u32>,
    }

    // SAFETY: the models check that this is true.
    unsafe impl Sync for Shared {}

    fn model(read: impl Fn(&Shared, usize) + Copy + Send + Sync + 'static) {
        loom::model(move || {
            let readers = Readers::new(2);
            let lock = PerCpuLock::new(&readers);
            let shared = Arc::new(Shared { readers, lock, value: UnsafeCell::new(0) });
            let reader = |vcpu| {
                let shared = shared.clone();
                thread::spawn(move || read(&shared, vcpu))
            };
            let readers = [reader(0), reader(1)];
            let writing = shared.lock.write(&shared.readers);
            // SAFETY: the lock is held.
            shared.value.with_mut(|value| unsafe { *value += 1 });
            drop(writing);
            readers.into_iter().for_each(|reader| reader.join().unwrap());
        });
    }

    #[test]
    fn loom_a_writer_is_alone() {
        model(|shared, vcpu| {
            let reading = shared.lock.read(&shared.readers, vcpu);
            // SAFETY: the lock is held.
            let value = shared.value.with(|value| unsafe { *value });
            assert!(value <= 1);
            drop(reading);
        });
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_readers_have_to_look_for_a_writer_after_they_said_so() {
        model(|shared, vcpu| {
            let writing = shared.lock.writing.load(Ordering::Acquire);
            let place = shared.readers.place(vcpu).unwrap();
            if !writing {
                place.store(shared.lock.number, Ordering::Relaxed);
                fence(Ordering::SeqCst);
                // SAFETY: this is deliberately wrong, and loom detects it.
                shared.value.with(|value| unsafe { *value });
                place.store(0, Ordering::Release);
            }
        });
    }

    #[test]
    fn loom_one_cpu_reads_two_tables() {
        loom::model(|| {
            let readers = Readers::new(1);
            let locks = [PerCpuLock::new(&readers), PerCpuLock::new(&readers)];
            let shared = Arc::new((readers, locks));
            let writer = {
                let shared = shared.clone();
                thread::spawn(move || drop(shared.1[1].write(&shared.0)))
            };
            let outer = shared.1[0].read(&shared.0, 0);
            let inner = shared.1[1].read(&shared.0, 0);
            assert!(matches!(inner, Reading::Shared(_)), "the place is taken");
            drop((inner, outer));
            writer.join().unwrap();
        });
    }
}
