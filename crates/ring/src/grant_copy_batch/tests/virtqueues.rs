//! Granted frames in the buffers of virtqueues.

use super::*;

fn ring<D: DeviceRing, G: DriverRing>() -> (Arc<Memory>, D, G) {
    let mem = Arc::new(Memory::anonymous(1 << 20).unwrap());
    let config = RingConfig {
        size: 32,
        desc: 0x1000,
        driver: 0x2000,
        device: 0x3000,
        event_idx: false,
        indirect: false,
        start: if std::any::type_name::<D>().contains("Packed") { 0x8000_8000 } else { 0 },
    };
    (
        Arc::clone(&mem),
        D::new(Arc::clone(&mem), &config).unwrap(),
        G::new(mem, &config, None).unwrap(),
    )
}

/// Granted frames in a virtqueue's buffers, some of them in several, one of them spoiled.
fn virtqueue<D: DeviceRing, G: DriverRing>() {
    let (pages, engine, bytes) = pages();
    pages.withheld.lock().push(13);
    let (mem, mut device, mut driver) = ring::<D, G>();
    for n in 0..12 {
        let pieces = [
            Piece { addr: 0x8000 + n * 0x1000, len: 100 },
            Piece { addr: 0x8800 + n * 0x1000, len: 200 },
        ];
        driver.add(&pieces[..1 + n as usize % 2], Direction::In);
        if n % 2 == 1 {
            driver.publish();
        }
    }
    driver.publish();
    let (mut gather, mut grant_copies) = (Gather::new(0), GrantCopyBatch::new());
    let frames =
        [vec![(at(1, 5), 30)], vec![(at(13, 0), 600)], vec![(at(2, 4000), 96), (at(3, 0), 404)]];
    for frame in &frames {
        let chain = gather.push_granted(&engine, frame.iter().copied()).unwrap();
        assert_eq!(
            device.put(&mut [0; 12], b"head", gather.body(chain), true, &mut grant_copies),
            Ok(Put::Done)
        );
    }
    for failure in grant_copies.flush() {
        assert_eq!((failure.faulty, failure.frame.unwrap().1), (FaultyEnd::Sender, 604));
        device.invalidate(failure.frame.unwrap().0);
    }
    device.publish();
    let mut used = vec![Used::default(); 32];
    let count = driver.collect(&mut used).unwrap();
    let lens: Vec<u32> = used[..count].iter().map(|used| used.len).collect();
    // The first frame in one buffer; the second in three, all empty; the third in two and a bit.
    assert_eq!(lens[..4], [46, 0, 0, 0]);
    assert_eq!(lens[4..].iter().sum::<u32>(), 12 + 4 + 500);
    let mut got = vec![0; 30];
    mem.read(0x8000 + 16, &mut got).unwrap();
    assert_eq!(got, expected(&bytes, &frames[0]));
    // The third frame's first buffer is number 4, of 100 bytes in one piece.
    let mut got = vec![0; 84];
    mem.read(0x8000 + 4 * 0x1000 + 16, &mut got).unwrap();
    assert_eq!(got, expected(&bytes, &frames[2])[..84]);
    let mut got = vec![0; 100];
    mem.read(0x8000 + 5 * 0x1000, &mut got).unwrap();
    assert_eq!(got, expected(&bytes, &frames[2])[84..184]);
}

#[test]
fn granted_frames_fill_split_rings() {
    virtqueue::<SplitDevice, SplitDriver>();
}

#[test]
fn granted_frames_fill_packed_rings() {
    virtqueue::<PackedDevice, PackedDriver>();
}
