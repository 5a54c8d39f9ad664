use std::net::UdpSocket;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use super::*;
use crate::gather::{Body, Gather};
use crate::region::Memory;

/// Sockets of all lanes, a socket that receives, and a batch for it.
fn pair() -> ([OwnedFd; LANES], UdpSocket, SendBatch) {
    let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
    receiver.set_nonblocking(true).unwrap();
    let sockets = std::array::from_fn(|_| UdpSocket::bind("127.0.0.1:0").unwrap().into());
    let batch = SendBatch::new(Peer::new(receiver.local_addr().unwrap()));
    (sockets, receiver, batch)
}

/// What comes, datagram by datagram.
fn received(receiver: &UdpSocket) -> Vec<Vec<u8>> {
    let mut batch = ReceiveBatch::new(32, 65536).unwrap();
    let (mut free, mut all) = ((0..32).collect::<Vec<u16>>(), Vec::new());
    let memory = Arc::clone(batch.memory());
    let mut found = Vec::new();
    while batch.receive(receiver.as_fd(), &mut free, |one| found.push(one)).is_ok() {
        for one in found.drain(..) {
            assert_eq!(one.source, Some("127.0.0.1".parse().unwrap()));
            assert!(!one.truncated);
            let mut bytes = vec![0; one.len as usize];
            memory.read(batch.place(one.buffer), &mut bytes).unwrap();
            all.extend(bytes.chunks(one.segment as usize).map(<[u8]>::to_vec));
            free.push(one.buffer);
        }
    }
    all
}

#[test]
fn bytes_come_out_of_their_senders_memory() {
    let (sockets, receiver, mut batch) = pair();
    let memory = Arc::new(Memory::anonymous(8192).unwrap());
    memory.write(100, b"payload").unwrap();
    let mut gather = Gather::new(8);
    let chain = gather.push_ranges(&memory, [(100, 3), (103, 4)]).unwrap();
    assert_eq!(batch.push(3, b"vx", b"head", gather.body(chain)), Some(true));
    assert_eq!(batch.push(5, b"vx", b"alone", Body::empty()), Some(true));
    let outcome = batch.send(&sockets);
    assert_eq!((outcome.sent, outcome.bytes, outcome.calls), (2, 13 + 7, 2));
    assert!(batch.is_empty());
    let mut all = received(&receiver);
    all.sort();
    assert_eq!(all, [b"vxalone".to_vec(), b"vxheadpayload".to_vec()]);
}

#[test]
fn datagrams_of_one_length_are_one_message() {
    let (sockets, receiver, mut batch) = pair();
    let bytes = [7u8; 1000];
    for number in 0..40u8 {
        assert_eq!(batch.push(1, &[number], &bytes, Body::empty()), Some(true));
    }
    assert_eq!(batch.push(1, &[40], &bytes[..10], Body::empty()), Some(true));
    assert_eq!(batch.push(1, &[41], &bytes, Body::empty()), Some(true));
    let outcome = batch.send(&sockets);
    assert_eq!((outcome.sent, outcome.calls), (42, 1), "{outcome:?}");
    let all = received(&receiver);
    assert_eq!(all.iter().map(|it| it[0]).collect::<Vec<_>>(), (0..42).collect::<Vec<u8>>());
    assert!(all.iter().all(|it| it.len() == if it[0] == 40 { 11 } else { 1001 }));
}

#[test]
fn a_batch_is_full_before_it_breaks() {
    let (sockets, receiver, mut batch) = pair();
    let mut pushed = 0;
    while batch.push(pushed as u8, b"", &[1; 60], Body::empty()) == Some(true) {
        pushed += 1;
    }
    assert_eq!(pushed, 256);
    assert_eq!(batch.send(&sockets).sent, 256);
    // A socket's buffer may hold fewer; those that come are complete.
    let got = received(&receiver);
    assert!(!got.is_empty() && got.iter().all(|it| it == &[1; 60]));
    assert_eq!(batch.push(0, &[0; 65_508], b"", Body::empty()), None, "longer than a datagram");
}

#[test]
fn what_the_kernel_refuses_is_counted() {
    let (sockets, _, _) = pair();
    // No IPv4 socket reaches an IPv6 address.
    let mut batch = SendBatch::new(Peer::new("[2001:db8::1]:4789".parse().unwrap()));
    batch.push(0, b"", &[0; 60], Body::empty());
    batch.push(0, b"", &[0; 61], Body::empty());
    let outcome = batch.send(&sockets);
    assert_eq!((outcome.sent, outcome.refused), (0, 2), "{outcome:?}");
}

#[test]
fn memory_stays_mapped_until_it_is_sent() {
    let (sockets, receiver, mut batch) = pair();
    let memory = Arc::new(Memory::anonymous(4096).unwrap());
    memory.write(0, &[9; 64]).unwrap();
    let mut gather = Gather::new(8);
    let chain = gather.push_range(&memory, 0, 64).unwrap();
    batch.push(0, b"", b"", gather.body(chain));
    drop(gather);
    assert_eq!(Arc::strong_count(&memory), 2);
    let weak = Arc::downgrade(&memory);
    drop(memory);
    assert_eq!(batch.send(&sockets).sent, 1);
    assert_eq!(received(&receiver), [vec![9; 64]]);
    assert!(weak.upgrade().is_none());
}
