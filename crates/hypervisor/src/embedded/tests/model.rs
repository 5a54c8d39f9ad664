//! Random use of grants, against a model.

use super::*;

/// An action of a domain or its users.
#[derive(Clone, Debug)]
enum Step {
    Grant { to: u16, page: u32, part: Option<(u16, u16)>, writable: bool },
    Revoke(usize),
    Copy { by: usize, grant: usize, offset: u16, len: u16, write: bool },
    Map { by: usize, grants: Vec<usize> },
    Unmap(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let part = proptest::option::of(
        (0u16..4096, 0u16..4096).prop_map(|(a, b)| (a.min(b), a.max(b) - a.min(b))),
    );
    prop_oneof![
        3 => (0u16..3, 0u32..4, part, any::<bool>())
            .prop_map(|(to, page, part, writable)| Step::Grant { to: to * 2, page, part, writable }),
        2 => (0usize..12).prop_map(Step::Revoke),
        4 => (0usize..2, 0usize..12, 0u16..4000, 1u16..96, any::<bool>())
            .prop_map(|(by, grant, offset, len, write)| Step::Copy { by, grant, offset, len, write }),
        2 => (0usize..2, proptest::collection::vec(0usize..12, 1..4)).prop_map(|(by, grants)| Step::Map { by, grants }),
        2 => (0usize..6).prop_map(Step::Unmap),
    ]
}

/// A whole page: no part is as long.
const WHOLE: (u32, u32) = (0, 4096);

/// A grant as a simple model has it.
#[derive(Clone, Debug)]
struct Given {
    to: DomId,
    page: u32,
    range: (u32, u32),
    writable: bool,
    mapped: usize,
}

/// Runs random steps on a host and on a model; each has to give what the other does.
fn agree(design: Design, version: Version, steps: Vec<Step>) {
    let machine = Machine::new(design).unwrap();
    let users = [0, 2].map(|id| machine.hypervisor(DomId(id)).unwrap());
    let guest = machine.guest(DomId(1), 4, version).unwrap();
    let mut content = vec![0u8; 4 * PAGE];
    let mut given: HashMap<GrantRef, Given> = HashMap::new();
    let mut known: Vec<GrantRef> = Vec::new();
    let mut maps: Vec<(Arc<Memory>, Vec<GrantRef>)> = Vec::new();
    let mut tag = 0u8;
    for step in steps {
        let pick = |n: usize| known.get(n % known.len().max(1)).copied().unwrap_or(GrantRef(8));
        match step {
            Step::Grant { to, page, part, writable } => {
                let part = part.filter(|_| version == Version::V2);
                let extent =
                    part.map_or(Extent::Whole, |(offset, len)| Extent::SubPage { offset, len });
                let range =
                    part.map_or(WHOLE, |(offset, len)| (offset.into(), u32::from(offset + len)));
                let reference = guest.grant(DomId(to), page, extent, writable).unwrap();
                let new = Given { to: DomId(to), page, range, writable, mapped: 0 };
                assert!(given.insert(reference, new).is_none(), "given twice");
                known.push(reference);
            }
            Step::Revoke(n) => {
                let reference = pick(n);
                let used = given.get(&reference).is_some_and(|given| given.mapped > 0);
                assert_eq!(guest.revoke(reference), !used);
                if !used {
                    given.remove(&reference);
                }
            }
            Step::Copy { by, grant, offset, len, write } => {
                let reference = pick(grant);
                let user = &users[by];
                let (start, end) = (u32::from(offset), u32::from(offset) + u32::from(len));
                let expected = match given.get(&reference) {
                    Some(given) if given.to != user.domain || write && !given.writable => {
                        Err(Status::REFUSED)
                    }
                    Some(given) if start < given.range.0 || end > given.range.1 => Err(Status(-10)),
                    Some(given) => Ok(given.page as usize * PAGE + start as usize),
                    None => Err(Status::REFUSED),
                };
                if write {
                    tag = tag.wrapping_add(1);
                    let status = copy_in(user, DomId(1), reference, offset, &vec![tag; len.into()]);
                    assert_eq!(status, expected.err().unwrap_or(Status::DONE));
                    if let Ok(at) = expected {
                        content[at..at + usize::from(len)].fill(tag);
                    }
                } else {
                    let got = copy_out(user, DomId(1), reference, offset, len.into());
                    assert_eq!(got, expected.map(|at| content[at..at + usize::from(len)].to_vec()));
                }
            }
            Step::Map { by, grants } => {
                let references: Vec<GrantRef> = grants.iter().map(|n| pick(*n)).collect();
                let may = |given: &Given| {
                    given.to == users[by].domain && given.writable && given.range == WHOLE
                };
                let expected =
                    references.iter().all(|reference| given.get(reference).is_some_and(may));
                let got = users[by].grants.map(DomId(1), &references);
                assert_eq!(got.is_ok(), expected, "{references:?}");
                if let Ok(memory) = got {
                    references
                        .iter()
                        .for_each(|reference| given.get_mut(reference).unwrap().mapped += 1);
                    maps.push((memory, references));
                }
            }
            Step::Unmap(n) => {
                if !maps.is_empty() {
                    let at = n % maps.len();
                    let (memory, references) = maps.swap_remove(at);
                    for (n, reference) in references.iter().enumerate() {
                        let given = given.get_mut(reference).unwrap();
                        let mut bytes = vec![0; PAGE];
                        memory.read((n * PAGE) as u64, &mut bytes).unwrap();
                        let at = given.page as usize * PAGE;
                        assert!(bytes == content[at..at + PAGE], "what is mapped is the page");
                        given.mapped -= 1;
                    }
                }
            }
        }
        let mapped: usize = given.values().map(|given| given.mapped).sum();
        assert_eq!(machine.mapped(DomId(1)), mapped);
    }
    let mut bytes = vec![0; 4 * PAGE];
    guest.memory().read(0, &mut bytes).unwrap();
    assert!(bytes == content, "nothing else was written");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn random_use_agrees_with_a_model(
        design in 0usize..54,
        second in any::<bool>(),
        steps in proptest::collection::vec(step(), 1..60),
    ) {
        let design = Design::all().nth(design).unwrap();
        agree(design, if second { Version::V2 } else { Version::V1 }, steps);
    }
}
