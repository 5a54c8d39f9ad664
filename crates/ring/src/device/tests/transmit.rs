//! Transmit rings of both layouts against their models.

use super::*;

#[derive(Clone, Debug)]
enum Op {
    Add { lens: Vec<u16>, indirect: Option<usize> },
    Publish,
    Fetch(usize),
    Complete(usize),
    Rewind(usize),
    Tell,
    Remap,
    Restart,
}

fn op() -> impl Strategy<Value = Op> {
    let add = (prop::collection::vec(0u16..400, 1..6), prop::option::of(0usize..4))
        .prop_map(|(lens, indirect)| Op::Add { lens, indirect });
    prop_oneof![
        6 => add,
        3 => Just(Op::Publish),
        3 => (0usize..20).prop_map(Op::Fetch),
        2 => (0usize..20).prop_map(Op::Complete),
        1 => (0usize..20).prop_map(Op::Rewind),
        2 => Just(Op::Tell),
        1 => Just(Op::Remap),
        1 => Just(Op::Restart),
    ]
}

struct Sent {
    id: u16,
    bytes: Vec<u8>,
}

/// Any driver that keeps to the rules gets all its chains read exactly, in order, and back.
fn transmits<M: Model>(size: u16, start: u32, split: bool, ops: Vec<Op>) {
    let fd = memory_file();
    let mem = remap(&fd);
    let mut model = M::new(mem.clone(), size, start);
    let mut device = model.device(&mem);
    let (mut gather, mut chains, mut places) = (Gather::new(0), Vec::new(), Places::new());
    // Added, published, in flight, completed, told: in this order.
    let (mut added, mut waiting, mut flying, mut complete) =
        (VecDeque::new(), VecDeque::new(), VecDeque::new(), VecDeque::new());
    for (n, op) in ops.into_iter().enumerate() {
        match op {
            Op::Add { lens, indirect } => {
                let mut bytes = noise(n as u32, lens.iter().map(|&len| usize::from(len)).sum());
                let mut at = 0;
                let mut pieces = Vec::new();
                for &len in &lens {
                    let addr = places.take(len.into());
                    mem.write(addr, &bytes[at..at + usize::from(len)]).unwrap();
                    at += usize::from(len);
                    pieces.push(Piece { addr, len: len.into(), write: false });
                }
                let layout = match indirect {
                    Some(direct) if split => {
                        Layout::Indirect(direct.min(lens.len() - 1), places.table(lens.len()))
                    }
                    Some(_) => Layout::Indirect(0, places.table(lens.len())),
                    None => Layout::Direct,
                };
                if let Some(id) = model.add(&pieces, layout) {
                    added.push_back(Sent { id, bytes: std::mem::take(&mut bytes) });
                }
            }
            Op::Publish => {
                model.publish();
                waiting.append(&mut added);
            }
            Op::Fetch(max) => {
                gather.clear();
                chains.clear();
                let n = device.fetch(&mut gather, &mut chains, max).unwrap();
                assert_eq!(n, max.min(waiting.len()));
                assert_eq!(chains.len(), n);
                for chain in &chains {
                    let sent: Sent = waiting.pop_front().unwrap();
                    let mut bytes = vec![0; chain.len() as usize];
                    assert_eq!(gather.body(*chain).read(&mut bytes), bytes.len());
                    assert_eq!(bytes, sent.bytes);
                    flying.push_back(sent);
                }
            }
            Op::Complete(n) => {
                let n = n.min(device.in_flight());
                device.complete(n);
                complete.extend(flying.drain(..n));
            }
            Op::Rewind(n) => {
                let n = n.min(device.in_flight());
                device.rewind(n);
                for sent in flying.drain(flying.len() - n..).rev() {
                    waiting.push_front(sent);
                }
            }
            Op::Tell => {
                device.publish();
                let expected: Vec<_> = complete.drain(..).map(|sent: Sent| (sent.id, 0)).collect();
                assert_eq!(model.used(), expected);
                assert_eq!(device.position(), model.position());
            }
            Op::Remap => device.set_memory(remap(&fd)).unwrap(),
            Op::Restart => {
                device.publish();
                let expected: Vec<_> = complete.drain(..).map(|sent: Sent| (sent.id, 0)).collect();
                assert_eq!(model.used(), expected);
                let config = RingConfig { start: device.position(), ..model.config() };
                device = M::Device::new(mem.clone(), &config).unwrap();
                for sent in flying.drain(..).rev() {
                    waiting.push_front(sent);
                }
            }
        }
        assert_eq!(device.in_flight(), flying.len());
        assert_eq!(device.available().unwrap(), !waiting.is_empty());
        // Before it is told, the driver sees nothing.
        assert_eq!(model.used(), []);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn split_transmits(size in 1u32..7, start in starts(), ops in prop::collection::vec(op(), 0..80)) {
        transmits::<Split>(1 << size, start.into(), true, ops);
    }

    #[test]
    fn packed_transmits(size in 1u16..70, start in any::<u16>(), ops in prop::collection::vec(op(), 0..80)) {
        transmits::<Packed>(size, packed_start(start, size), false, ops);
    }
}
