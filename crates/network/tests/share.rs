//! Guests that send as much as they can beside others: what each gets of the worker.

mod peer;

use std::ops::Range;

use frame::Accepts;
use network::fabric::{Fabric, Workers};
use peer::{Peer, port, wait};
use switch::{PortId, PortRule};

/// A frame from station `src` to station `dst`.
fn frame(dst: u8, src: u8, len: usize) -> Vec<u8> {
    let mut frame = [&[2, 0, 0, 0, 0, dst][..], &[2, 0, 0, 0, 0, src], &[0x88, 0xb5]].concat();
    frame.resize(len, src);
    frame
}

fn fabric(ports: Range<u8>) -> (Fabric, Vec<PortId>) {
    let fabric = Fabric::start(&Workers { count: 1, ..Workers::default() }).unwrap();
    let ports = ports.map(|_| port(&fabric, PortRule::default()).0).collect();
    (fabric, ports)
}

fn queue(fabric: &Fabric, port: PortId, index: u16) -> Peer {
    Peer::attach(fabric, port, index, Accepts::ALL, usize::MAX)
}

/// What station 1 got done in the order of arrival at `sink`, from station 2's first frame to its
/// last: frames of each.
fn while_second_sends(received: &[Vec<u8>]) -> [usize; 2] {
    let from = |src| move |frame: &&Vec<u8>| frame[11] == src;
    let first = received.iter().position(|f| from(2)(&f)).unwrap();
    let last = received.iter().rposition(|f| from(2)(&f)).unwrap();
    [1, 2].map(|src| received[first..=last].iter().filter(from(src)).count())
}

#[test]
fn long_frames_do_not_crowd_out_short_ones() {
    let (fabric, ports) = fabric(0..3);
    let [sink, loud, quiet] = [0, 1, 2].map(|at| queue(&fabric, ports[at], 0));
    sink.send([frame(9, 0, 60)]);
    wait(|| sink.completed() == 1);
    let long = vec![frame(0, 1, 30_000); 1200];
    let short = vec![frame(0, 2, 60); 4000];
    loud.send(long);
    quiet.send(short);
    let [long, short] = while_second_sends(&sink.expect(5200));
    // An equal share of the cost would be 263 of them; with equal numbers of frames it would be
    // all.
    assert_eq!(short, 4000);
    assert!((150..400).contains(&long), "{long} long frames");
}

#[test]
fn many_queues_do_not_crowd_out_one() {
    let (fabric, ports) = fabric(0..3);
    let sink = queue(&fabric, ports[0], 0);
    let loud: Vec<Peer> = (0..4).map(|index| queue(&fabric, ports[1], index)).collect();
    let quiet = queue(&fabric, ports[2], 0);
    sink.send([frame(9, 0, 60)]);
    wait(|| sink.completed() == 1);
    let many = vec![vec![frame(0, 1, 60); 8000]; 4];
    let few = vec![frame(0, 2, 60); 8000];
    loud.iter().zip(many).for_each(|(queue, frames)| queue.send(frames));
    quiet.send(few);
    let [loud, quiet] = while_second_sends(&sink.expect(40_000));
    assert_eq!(quiet, 8000);
    // Four times as many without shares for ports.
    assert!((4000..12_000).contains(&loud), "{loud} frames of the port with four queues");
}

#[test]
fn flows_of_one_frame_do_not_crowd_out_one_flow() {
    let (fabric, ports) = fabric(0..3);
    let [sink, loud, quiet] = [0, 1, 2].map(|at| queue(&fabric, ports[at], 0));
    sink.send([frame(9, 0, 60)]);
    wait(|| sink.completed() == 1);
    let new = |number: u32| {
        let mut frame = frame(0, 1, 60);
        frame[7..11].copy_from_slice(&number.to_be_bytes());
        frame
    };
    let flood: Vec<_> = (0..12_000).map(new).collect();
    let one = vec![frame(0, 2, 60); 12_000];
    loud.send(flood);
    quiet.send(one);
    let [flood, one] = while_second_sends(&sink.expect(24_000));
    // A third of them; all, if asking the switch cost nothing.
    assert_eq!(one, 12_000);
    assert!((2000..8000).contains(&flood), "{flood} frames of new flows");
}
