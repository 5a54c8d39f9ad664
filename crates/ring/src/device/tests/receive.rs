//! Receive rings of both layouts against their models.

use super::*;

#[derive(Clone, Debug)]
enum RxOp {
    Add { lens: Vec<u16>, indirect: bool },
    Publish,
    Prepare(usize),
    Put { head: usize, body: usize },
    Tell,
    Remap,
}

fn rx_op() -> impl Strategy<Value = RxOp> {
    let add = (prop::collection::vec(0u16..600, 1..4), any::<bool>())
        .prop_map(|(lens, indirect)| RxOp::Add { lens, indirect });
    prop_oneof![
        6 => add,
        3 => Just(RxOp::Publish),
        2 => (0usize..40).prop_map(RxOp::Prepare),
        4 => (0usize..200, prop_oneof![0usize..100, 0usize..3000]).prop_map(|(head, body)| RxOp::Put { head, body }),
        2 => Just(RxOp::Tell),
        1 => Just(RxOp::Remap),
    ]
}

struct Buffer {
    id: u16,
    pieces: Vec<Piece>,
    len: u64,
}

/// Any driver that keeps to the rules finds each frame whole, in the buffers it gave, in their
/// order.
fn receives<M: Model>(size: u16, start: u32, mergeable: bool, net: usize, ops: Vec<RxOp>) {
    let fd = memory_file();
    let mem = remap(&fd);
    let mut model = M::new(mem.clone(), size, start);
    let mut device = model.device(&mem);
    let mut places = Places::new();
    let source = memory();
    let (mut added, mut free) = (VecDeque::new(), VecDeque::new());
    // What the driver should find: id, length and content of each buffer.
    let mut filled: Vec<(u16, u32, Vec<Piece>, Vec<u8>)> = Vec::new();
    for (n, op) in ops.into_iter().enumerate() {
        match op {
            RxOp::Add { lens, indirect } => {
                let pieces: Vec<_> = lens
                    .iter()
                    .map(|&len| Piece {
                        addr: places.take(len.into()),
                        len: len.into(),
                        write: true,
                    })
                    .collect();
                let layout = if indirect {
                    Layout::Indirect(0, places.table(lens.len()))
                } else {
                    Layout::Direct
                };
                if let Some(id) = model.add(&pieces, layout) {
                    added.push_back(Buffer {
                        id,
                        pieces,
                        len: lens.iter().map(|&len| u64::from(len)).sum(),
                    });
                }
            }
            RxOp::Publish => {
                model.publish();
                free.append(&mut added);
            }
            RxOp::Prepare(n) => {
                let ready = device.prepare(n).unwrap();
                assert!(ready >= n.min(free.len()) && ready <= free.len());
            }
            RxOp::Put { head, body } => {
                let mut header = noise(n as u32, net);
                let (head, body) = (noise(n as u32 + 1, head), noise(n as u32 + 2, body));
                let mut gather = Gather::new(0);
                source.write(BORDER - 50, &body).unwrap();
                let chain = gather.push_range(&source, BORDER - 50, body.len() as u32).unwrap();
                let total = (net + head.len() + body.len()) as u64;
                let mut room = 0;
                let count = free.iter().position(|buffer: &Buffer| {
                    room += buffer.len;
                    room >= total
                });
                let result = device
                    .put(
                        &mut header,
                        &head,
                        gather.body(chain),
                        mergeable,
                        &mut GrantCopyBatch::new(),
                    )
                    .unwrap();
                let expected = match (free.front(), count) {
                    (Some(_), Some(0)) => Put::Done,
                    (Some(_), Some(_)) if mergeable => Put::Done,
                    (Some(_), _) if !mergeable => Put::TooBig,
                    _ => Put::Full,
                };
                assert_eq!(result, expected);
                if result != Put::Done {
                    continue;
                }
                let taken: Vec<_> = free.drain(..=count.unwrap()).collect();
                if net == 12 {
                    header[10..12].copy_from_slice(&(taken.len() as u16).to_le_bytes());
                }
                let frame = [header, head, body].concat();
                let mut rest = &frame[..];
                for buffer in taken {
                    let (now, later) = rest.split_at(rest.len().min(buffer.len as usize));
                    filled.push((buffer.id, now.len() as u32, buffer.pieces, now.to_vec()));
                    rest = later;
                }
            }
            RxOp::Tell => {
                device.publish();
                let expected: Vec<_> = filled.iter().map(|(id, len, ..)| (*id, *len)).collect();
                assert_eq!(model.used(), expected);
                for (_, len, pieces, content) in filled.drain(..) {
                    let mut bytes = Vec::new();
                    for piece in pieces {
                        let mut part = vec![0; piece.len as usize];
                        mem.read(piece.addr, &mut part).unwrap();
                        bytes.extend(part);
                    }
                    assert_eq!(bytes[..len as usize], content);
                }
                assert_eq!(device.position(), model.position());
            }
            RxOp::Remap => device.set_memory(remap(&fd)).unwrap(),
        }
        assert_eq!(device.in_flight(), 0);
        assert_eq!(model.used(), []);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn split_receives(
        size in 1u32..7,
        start in starts(),
        mergeable in any::<bool>(),
        net in prop_oneof![Just(10usize), Just(12)],
        ops in prop::collection::vec(rx_op(), 0..80),
    ) {
        receives::<Split>(1 << size, start.into(), mergeable, net, ops);
    }

    #[test]
    fn packed_receives(
        size in 1u16..70,
        start in any::<u16>(),
        mergeable in any::<bool>(),
        net in prop_oneof![Just(10usize), Just(12)],
        ops in prop::collection::vec(rx_op(), 0..80),
    ) {
        receives::<Packed>(size, packed_start(start, size), mergeable, net, ops);
    }
}
