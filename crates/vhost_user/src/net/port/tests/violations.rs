//! Front-ends that break the protocol.

use super::*;

/// A violation of a front-end, and the complaint about it.
type ViolationCase = (&'static str, fn(&mut Plugged<SplitDriver>));

fn raw(at: &mut Plugged<SplitDriver>, code: u32, body: &[u8], fds: usize) {
    let file = at.guest.file();
    at.front.send_raw(code, 1, body, &vec![file; fds]).unwrap();
}

static VIOLATIONS: [ViolationCase; 16] = [
    ("ended in the middle of a message", |at| {
        at.front.stream().write_all(&[2, 0, 0, 0, 1, 0, 0, 0, 8, 0, 0, 0, 1]).unwrap();
        at.front.stream().shutdown(std::net::Shutdown::Both).unwrap();
    }),
    ("announces 4294967295 bytes", |at| {
        at.front.stream().write_all(&[5, 0, 0, 0, 1, 0, 0, 0, 255, 255, 255, 255]).unwrap();
    }),
    ("protocol version 3", |at| at.front.send_raw(1, 3, &[], &[]).unwrap()),
    ("calls itself a reply", |at| at.front.send_raw(1, 5, &[], &[]).unwrap()),
    ("unknown request 77", |at| raw(at, 77, &[], 0)),
    ("SET_LOG_BASE, which is not offered", |at| raw(at, 6, &[0; 16], 1)),
    ("SET_FEATURES with a payload of 4 bytes", |at| raw(at, 2, &[0; 4], 0)),
    ("SET_MEM_TABLE with 9 regions", |at| raw(at, 5, &[9, 0, 0, 0, 0, 0, 0, 0], 0)),
    ("ADD_MEM_REG with 0 file descriptors", |at| raw(at, 37, &[0; 40], 0)),
    ("SET_OWNER with 2 file descriptors", |at| raw(at, 3, &[], 2)),
    ("more than 8 file descriptors", |at| raw(at, 5, &[0; 264], 20)),
    ("is empty", |at| raw(at, 37, &[0; 40], 1)),
    ("no eventfd", |at| raw(at, 13, &[0; 8], 1)),
    ("SET_VRING_NUM for ring 1, which is started", |at| raw(at, 8, &[1, 0, 0, 0, 32, 0, 0, 0], 0)),
    ("queue 0: available index jumped", |at| {
        let avail = at.driver.tx.config().driver;
        at.guest.memory().write(avail + 2, &[0xff, 0x7f]).unwrap();
        at.driver.tx.kick();
    }),
    ("queue 0: address 0xdead0000", |at| {
        at.driver.tx.ring.add(&[Piece { addr: 0xdead_0000, len: 100 }], Direction::Out).unwrap();
        at.driver.tx.publish();
        at.driver.tx.kick();
    }),
];

#[test]
fn every_violation_has_a_name_and_the_next_front_end_is_served() {
    let lab = Lab::new();
    let _witness = lab.device("witness");
    let mut witness = guest(&lab, "witness");
    for (number, (reason, violation)) in VIOLATIONS.iter().enumerate() {
        let name = format!("port{number}");
        let device = lab.device(&name);
        let mut hostile = guest(&lab, &name);
        hostile.reaches(&mut witness, 1);
        violation(&mut hostile);
        eventually(reason, || device.status().violations == 1);
        let status = device.status();
        assert!(
            status.reason.as_ref().is_some_and(|told| told.contains(reason)),
            "{reason}: {status:?}"
        );
        // Broken or not, the socket is closed by us.
        eventually("the connection ends", || hostile.front.receive_u64("end").is_err());
        let mut next = guest(&lab, &name);
        next.reaches(&mut witness, 2);
        witness.driver.rx.ring.collect(&mut [Used::default(); 64]).unwrap();
        // The witness needs buffers for the next round.
        for _ in 0..2 {
            let addr = witness.guest.alloc(2048, 64).unwrap();
            witness.driver.rx.ring.add(&[Piece { addr, len: 2048 }], Direction::In).unwrap();
        }
        witness.driver.rx.publish();
        drop(next);
        device.stop();
    }
}
