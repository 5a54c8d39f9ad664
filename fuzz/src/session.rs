//! A connection: messages in any order, with any descriptors, and in between work on the rings that
//! they started.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;

use network::action::Action;
use network::burst::Burst;
use network::fabric::PairChange;
use network::port::{QueueError, QueuePair};
use network::topology::QueueId;
use ring::{GrantCopyBatch, MemoryAccount, Put};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use vhost_user::net::device::{NetDevice, Offer, QueueHost};
use vhost_user::net::feature::{ALL_PROTOCOL, bit};
use vhost_user::transport::message::Header;
use vhost_user::transport::session::Session;

use crate::input::Input;
use crate::requests::{FILE, body, longs, words};

/// Most steps of one run.
const STEPS: usize = 200;

#[derive(Default)]
struct Attached {
    next: u64,
    /// A pair that reported a breach is kept, and not called any more.
    pairs: BTreeMap<QueueId, (Box<dyn QueuePair>, bool)>,
}

/// Where pairs wait to be worked on.
#[derive(Clone, Default)]
struct TestHost(Rc<RefCell<Attached>>);

impl QueueHost for TestHost {
    fn take_out(&self, queues: &[QueueId]) -> Vec<Option<Box<dyn QueuePair>>> {
        let take = |queue| {
            let (mut pair, sound) = self.0.borrow_mut().pairs.remove(queue)?;
            if sound {
                let _ = pair.flush();
            }
            Some(pair)
        };
        queues.iter().map(take).collect()
    }

    fn put_back(&self, changes: Vec<PairChange>) -> Vec<Option<QueueId>> {
        let mut attached = self.0.borrow_mut();
        let mut put = |PairChange { queue, pair, .. }| {
            let (pair, _) = pair?;
            attached.next += 1;
            let id = queue.unwrap_or(QueueId(attached.next));
            attached.pairs.insert(id, (pair, true));
            Some(id)
        };
        changes.into_iter().map(&mut put).collect()
    }
}

/// One front-end's life.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let host = TestHost::default();
    let mut session = Session::new(
        NetDevice::new(host.clone(), Offer { queues: 2, mtu: Some(1500) }),
        Arc::new(MemoryAccount::new(u64::MAX)),
    );
    let front = Front::new();
    let mut burst = Burst::new();
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        match input.below(16) {
            0..8 => {
                if front.speak(&mut input, &mut session) {
                    break;
                }
            }
            8..11 => front.scribble(&mut input),
            11 => front.ready(&mut session),
            12 if input.u8() < 8 => front.truncate(&mut input),
            13 if input.u8() < 64 => front.log(&mut session),
            _ => work(&host, &mut burst, &mut input),
        }
    }
    session.close(input.u8() & 1 == 0);
    assert!(session.active_vrings().is_empty());
    assert!(host.0.borrow().pairs.is_empty());
}

struct Front {
    files: [OwnedFd; 2],
    event: OwnedFd,
}

impl Front {
    fn new() -> Front {
        let file = || {
            let fd = memfd_create(c"fuzz", MemfdFlags::CLOEXEC).expect("a memory file");
            ftruncate(&fd, FILE).expect("room");
            fd
        };
        Front {
            files: [file(), file()],
            event: eventfd(0, EventfdFlags::CLOEXEC).expect("an event"),
        }
    }

    /// Sends one message. True: the connection is over.
    fn speak(&self, input: &mut Input<'_>, session: &mut Session<NetDevice<TestHost>>) -> bool {
        let code = input.below(46);
        let mut payload = body(code, input);
        if input.u8() == 0 {
            payload.truncate(usize::from(input.u8()));
        }
        let fds = match (code, input.u8()) {
            (_, 0..4) => usize::from(input.u8() % 9),
            (5, _) => 2,
            (12..=14, _) if payload.get(1) == Some(&0) => 1,
            (6 | 7 | 32 | 37, _) => 1,
            _ => 0,
        };
        let kind = input.u8();
        let fds = (0..fds).map(|i| self.descriptor(code, i, kind)).collect();
        let header = Header { code, need_reply: input.u8() & 1 == 1, size: payload.len() };
        session.answer(&header, &payload, fds).closes
    }

    /// Mostly a descriptor of the kind that the request needs.
    fn descriptor(&self, code: u32, i: usize, kind: u8) -> OwnedFd {
        let event = (12..=14).contains(&code) != (kind < 4);
        let fd = if event { &self.event } else { &self.files[i % 2] };
        fd.as_fd().try_clone_to_owned().expect("a descriptor")
    }

    /// Begins a migration: the log lies in the guest's own memory.
    fn log(&self, session: &mut Session<NetDevice<TestHost>>) {
        let features = session.features().0 | bit::LOG_ALL;
        say(session, 16, &[&longs(&[ALL_PROTOCOL])], vec![]);
        say(session, 6, &[&longs(&[FILE - 4096, 4096])], vec![self.descriptor(6, 1, 9)]);
        say(session, 2, &[&longs(&[features])], vec![]);
    }

    /// Sends what a good front-end sends, all of it.
    fn ready(&self, session: &mut Session<NetDevice<TestHost>>) {
        let mut say = |code, payload: &[&[u8]], fds| say(session, code, payload, fds);
        let file = |i| self.descriptor(5, i, 9);
        say(
            5,
            &[&words(&[2, 0]), &longs(&[0, FILE, 0, 0, FILE, FILE, FILE, 0])],
            vec![file(0), file(1)],
        );
        for ring in 0..4u32 {
            let at = 0x2000 * u64::from(ring);
            say(8, &[&words(&[ring, 16])], vec![]);
            say(9, &[&words(&[ring, 0]), &longs(&[at, at + 0x1000, at + 0x800, 0])], vec![]);
            say(12, &[&longs(&[ring.into()])], vec![self.descriptor(12, 0, 9)]);
            say(18, &[&words(&[ring, 1])], vec![]);
        }
    }

    /// Writes to the memory.
    fn scribble(&self, input: &mut Input<'_>) {
        let ring = u64::from(input.u8() % 4);
        let part = [0, 0x10, 0x800, 0x802, 0x1000, 0x1800][input.below(6) as usize];
        let len = usize::from(input.u8() % 64);
        // Fails where the file was cut off.
        let _ = rustix::io::pwrite(&self.files[0], input.take(len), 0x2000 * ring + part);
    }

    fn truncate(&self, input: &mut Input<'_>) {
        let file = &self.files[usize::from(input.u8() % 2)];
        ftruncate(file, u64::from(input.u16())).expect("cut");
    }
}

/// Sends a message that is whole.
fn say(
    session: &mut Session<NetDevice<TestHost>>,
    code: u32,
    payload: &[&[u8]],
    fds: Vec<OwnedFd>,
) {
    let payload = payload.concat();
    session.answer(&Header { code, need_reply: false, size: payload.len() }, &payload, fds);
}

/// One turn of a worker: a burst from one pair to another, or to itself.
fn work(host: &TestHost, burst: &mut Burst, input: &mut Input<'_>) {
    let ids: Vec<QueueId> = host.0.borrow().pairs.keys().copied().collect();
    if ids.is_empty() {
        return;
    }
    let (from, to) =
        (ids[usize::from(input.u8()) % ids.len()], ids[usize::from(input.u8()) % ids.len()]);
    burst.reset();
    on(host, from, |pair| pair.fetch(burst));
    let frames = burst.frames().len();
    let finished = frames.min(usize::from(input.u8()));
    on(host, to, |pair| {
        pair.prepare(finished)?;
        for i in 0..finished {
            let undecided = matches!(burst.frames()[i].action, Action::Unclassified);
            if undecided && pair.put(&burst.packet(i), &mut GrantCopyBatch::new())? != Put::Done {
                break;
            }
        }
        pair.flush().map(drop)
    });
    burst.reset();
    let rest = input.u8();
    on(host, from, |pair| {
        pair.rewind(frames - finished);
        pair.complete(finished);
        pair.flush()?;
        if pair.arm(rest & 1 == 0)? && rest & 2 == 0 {
            pair.disarm();
        }
        Ok(())
    });
}

/// Does something with a pair that has not broken the protocol yet.
fn on(
    host: &TestHost,
    queue: QueueId,
    work: impl FnOnce(&mut dyn QueuePair) -> Result<(), QueueError>,
) {
    let mut attached = host.0.borrow_mut();
    if let Some((pair, sound)) = attached.pairs.get_mut(&queue).filter(|(_, sound)| *sound) {
        *sound = work(&mut **pair).is_ok();
    }
}
