use std::os::fd::AsFd;
use std::ptr;

use rustix::mm::MapFlags;

use super::mapping::PROT;
use super::*;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

const PAGE: u64 = 4096;

fn file(len: u64) -> OwnedFd {
    let fd = memfd_create(c"test", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, len).unwrap();
    fd
}

fn region(guest_addr: u64, len: u64, offset: u64, fd: &OwnedFd) -> RegionSpec {
    RegionSpec {
        guest_addr,
        user_addr: guest_addr + (1 << 40),
        len,
        offset,
        fd: fd.try_clone().unwrap(),
    }
}

#[test]
fn reads_back_what_was_written_across_regions() {
    let fd = file(4 * PAGE);
    // The second region of the guest lies first in the file.
    let memory = Memory::map(vec![
        region(0x10_0000 + PAGE, 2 * PAGE, 0, &fd),
        region(0x10_0000, PAGE, 3 * PAGE, &fd),
    ])
    .unwrap();
    let bytes: Vec<u8> = (0..6000u32).map(|i| i as u8).collect();
    memory.write(0x10_0000 + 100, &bytes).unwrap();
    let mut back = vec![0; 6000];
    memory.read(0x10_0000 + 100, &mut back).unwrap();
    assert_eq!(back, bytes);
    let mut inside = vec![0u8; 6000 - 3996];
    rustix::io::pread(&fd, &mut inside, 0).unwrap();
    assert_eq!(inside, bytes[3996..]);
}

#[test]
fn refuses_addresses_outside_and_copies_nothing_then() {
    let fd = file(PAGE);
    let memory = Memory::map(vec![region(PAGE, PAGE, 0, &fd)]).unwrap();
    for addr in [0, PAGE - 1, 2 * PAGE - 3, 2 * PAGE, u64::MAX - 1] {
        assert_eq!(
            memory.write(addr, &[9; 4]),
            Err(Violation::Outside { addr, len: 4 }),
            "{addr:#x}"
        );
        assert_eq!(
            memory.read(addr, &mut [0; 4]),
            Err(Violation::Outside { addr, len: 4 }),
            "{addr:#x}"
        );
    }
    let mut all = [1; PAGE as usize];
    memory.read(PAGE, &mut all).unwrap();
    assert!(all.iter().all(|&byte| byte == 0));
}

#[test]
fn refuses_files_that_could_keep_us_waiting() {
    for path in ["/proc/self/exe", "/dev/zero", "/dev/shm", "/proc/self/mem"] {
        let fd =
            rustix::fs::open(path, rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty()).unwrap();
        let refused = Memory::map(vec![region(PAGE, PAGE, 0, &fd)]);
        assert!(matches!(refused, Err(MapError::NotMemory(PAGE))), "{path}: {refused:?}");
    }
}

#[test]
fn refuses_tables_that_cannot_be() {
    let fd = file(4 * PAGE);
    let table = |regions: &[(u64, u64, u64)]| {
        Memory::map(
            regions.iter().map(|&(addr, len, offset)| region(addr, len, offset, &fd)).collect(),
        )
    };
    assert!(matches!(table(&[(0, 0, 0)]), Err(MapError::Empty(0))));
    assert!(matches!(table(&[(0, PAGE, 0), (PAGE - 1, PAGE, 0)]), Err(MapError::Overlap(_))));
    assert!(matches!(table(&[(0, PAGE, u64::MAX)]), Err(MapError::Wraps(0))));
    assert!(matches!(
        table(&[(0, PAGE, 4 * PAGE - 1)]),
        Err(MapError::ShortFile { size: 16384, .. })
    ));
    assert!(matches!(table(&[(0, MAX_BYTES, 0)]), Err(MapError::ShortFile { .. })));
    assert!(matches!(table(&[(0, MAX_BYTES, 0), (MAX_BYTES, 1, 0)]), Err(MapError::TooBig(_))));
    let sparse = file(MAX_BYTES + PAGE);
    let half = MAX_BYTES / 2;
    let big = |more| {
        Memory::map(vec![region(0, half, 0, &sparse), region(half, half + more, 0, &sparse)])
    };
    assert!(big(0).is_ok());
    assert!(matches!(big(PAGE), Err(MapError::TooBig(bytes)) if bytes == MAX_BYTES + PAGE));
    let many: Vec<_> = (0..MAX_REGIONS as u64 + 1).map(|i| (i * PAGE, PAGE, 0)).collect();
    assert!(matches!(table(&many), Err(MapError::TooMany(510))));
    let wraps = RegionSpec {
        guest_addr: u64::MAX - 5,
        user_addr: 0,
        len: PAGE,
        offset: 0,
        fd: fd.try_clone().unwrap(),
    };
    assert!(matches!(Memory::map(vec![wraps]), Err(MapError::Wraps(_))));
    let same_user = |guest_addr| RegionSpec {
        guest_addr,
        user_addr: 0,
        len: PAGE,
        offset: 0,
        fd: fd.try_clone().unwrap(),
    };
    assert!(matches!(Memory::map(vec![same_user(0), same_user(PAGE)]), Err(MapError::Overlap(0))));
}

#[test]
fn maps_only_files_that_are_memory() {
    let executable = std::fs::File::open("/proc/self/exe").unwrap().into();
    assert!(matches!(
        Memory::map(vec![region(0, PAGE, 0, &executable)]),
        Err(MapError::NotMemory(0))
    ));
    let device = std::fs::File::open("/dev/zero").unwrap().into();
    assert!(matches!(Memory::map(vec![region(0, PAGE, 0, &device)]), Err(MapError::NotMemory(0))));
}

#[test]
fn takes_an_offset_that_is_not_a_page() {
    let fd = file(4 * PAGE);
    let memory = Memory::map(vec![region(0, PAGE, 100, &fd)]).unwrap();
    memory.write(0, b"here").unwrap();
    let mut bytes = [0; 4];
    rustix::io::pread(&fd, &mut bytes, 100).unwrap();
    assert_eq!(&bytes, b"here");
    assert_eq!(memory.host(0, 16, 16), Err(Violation::Misaligned { addr: 0, align: 16 }));
}

#[test]
fn translates_user_addresses() {
    let fd = file(4 * PAGE);
    let memory =
        Memory::map(vec![region(0, PAGE, 0, &fd), region(8 * PAGE, PAGE, PAGE, &fd)]).unwrap();
    assert_eq!(memory.user_to_guest((1 << 40) + 5), Some(5));
    assert_eq!(memory.user_to_guest((1 << 40) + 8 * PAGE + 7), Some(8 * PAGE + 7));
    assert_eq!(memory.user_to_guest((1 << 40) + PAGE), None);
    assert_eq!(memory.user_to_guest(5), None);
    let low = RegionSpec { user_addr: 0, ..region(1 << 40, PAGE, 0, &fd) };
    assert_eq!(Memory::map(vec![low]).unwrap().user_to_guest(u64::MAX), None);
}

#[test]
fn ring_areas_lie_within_one_region() {
    let fd = file(4 * PAGE);
    let memory =
        Memory::map(vec![region(0, PAGE, 0, &fd), region(PAGE, PAGE, 2 * PAGE, &fd)]).unwrap();
    assert!(memory.host(0, PAGE, 16).is_ok());
    assert_eq!(memory.host(16, PAGE, 16), Err(Violation::RingOutside { addr: 16, len: PAGE }));
    assert_eq!(memory.host(8, 64, 16), Err(Violation::Misaligned { addr: 8, align: 16 }));
}

#[test]
fn reads_from_a_file_descriptor_in_place() {
    let fd = file(PAGE);
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    rustix::io::write(&writer, b"frame").unwrap();
    let memory = Memory::map(vec![region(0, PAGE, 0, &fd)]).unwrap();
    assert_eq!(memory.read_from_fd(reader.as_fd(), 10, 100).unwrap(), 5);
    let mut bytes = [0; 5];
    memory.read(10, &mut bytes).unwrap();
    assert_eq!(&bytes, b"frame");
    let error = memory.read_from_fd(reader.as_fd(), 10, PAGE as usize).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
}

#[test]
fn shared_memory_cannot_shrink() {
    let (memory, fd) = Memory::shared(2 * PAGE as usize).unwrap();
    assert!(ftruncate(&fd, PAGE).is_err());
    memory.write(2 * PAGE - 1, &[7]).unwrap();
    let mut byte = [0];
    rustix::io::pread(&fd, &mut byte, 2 * PAGE - 1).unwrap();
    assert_eq!(byte, [7]);
}

#[test]
fn survives_a_file_truncated_under_it() {
    let (cut, whole) = (file(16 * PAGE), file(16 * PAGE));
    let memory = Memory::map(vec![region(0, 16 * PAGE, 0, &cut)]).unwrap();
    let other = Memory::map(vec![region(0, 16 * PAGE, 0, &whole)]).unwrap();
    memory.write(12 * PAGE, &[1; 8]).unwrap();
    other.write(12 * PAGE, &[1; 8]).unwrap();
    assert!(!memory.is_faulted());

    ftruncate(&cut, 4 * PAGE).unwrap();
    let mut bytes = [9; 8];
    memory.read(12 * PAGE, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 8]);
    assert!(memory.is_faulted());
    memory.write(15 * PAGE, &[3; 8]).unwrap();

    other.read(12 * PAGE, &mut bytes).unwrap();
    assert_eq!(bytes, [1; 8]);
    assert!(!other.is_faulted());
    // The slot is free again, without the mark.
    drop(memory);
    let next = Memory::map(vec![region(0, 4 * PAGE, 0, &cut)]).unwrap();
    assert!(!next.is_faulted());
}

/// A fault anywhere else ends the process, as it would without us. The child is this test in a
/// process of its own.
#[test]
fn leaves_foreign_faults_alone() {
    use std::os::unix::process::ExitStatusExt;
    const CHILD: &str = "RING_TEST_FOREIGN_FAULT";
    let fd = file(4 * PAGE);
    if std::env::var_os(CHILD).is_some() {
        let watched = Memory::map(vec![region(0, PAGE, 0, &fd)]).unwrap();
        // SAFETY: a new mapping of our own.
        let foreign = unsafe {
            rustix::mm::mmap(ptr::null_mut(), PAGE as usize, PROT, MapFlags::SHARED, &fd, PAGE)
        };
        ftruncate(&fd, PAGE).unwrap();
        // SAFETY: mapped; that it faults is the point.
        unsafe { foreign.unwrap().cast::<u8>().read_volatile() };
        unreachable!("{watched:?}");
    }
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "region::tests::leaves_foreign_faults_alone"])
        .env(CHILD, "1")
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .status()
        .unwrap();
    assert_eq!(status.signal(), Some(libc::SIGBUS));
}

#[test]
fn each_page_explains_two_faults_however_slow_others_were() {
    let memory = Memory::anonymous(10 * 4096).unwrap();
    assert_eq!(memory.excess_delays(15), 0);
    assert_eq!(memory.excess_delays(4000), 3995);
    assert_eq!(memory.excess_faults(15), 0);
    assert_eq!(memory.excess_faults(8), 3);
    assert_eq!(memory.excess_faults(7), 7);
    assert_eq!(memory.excess_delays(1), 1);
}

#[test]
fn bytes_are_copied_from_memory_to_memory() {
    let [a, b] = [(); 2].map(|()| Memory::anonymous(8192).unwrap());
    a.write(100, &[7; 300]).unwrap();
    a.copy_to(150, &b, 8192 - 200, 200).unwrap();
    let mut bytes = [0; 201];
    b.read(8192 - 201, &mut bytes).unwrap();
    assert_eq!((bytes[0], &bytes[1..]), (0, &[7; 200][..]));
    for (from, to) in [(8192 - 199, 0), (0, 8192 - 199), (u64::MAX, 0), (0, 1 << 40)] {
        let refused = a.copy_to(from, &b, to, 200);
        assert!(matches!(refused, Err(Violation::Outside { len: 200, .. })), "{from} {to}");
    }
    a.copy_to(0, &a, 100, 8).unwrap();
}
