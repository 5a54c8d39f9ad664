//! A guest made of two lists: what it sends, and what it received.

#![allow(dead_code)] // Not every test that has this module uses all of it.

pub mod host;

use std::any::Any;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use frame::{Accepts, Offload, VNET_LEN};
use network::burst::Burst;
use network::coalescing::CoalescingLimits;
use network::fabric::{Fabric, NewPort};
use network::packet::Packet;
use network::port::{Coalescing, Notified, QueueError, QueuePair, RxProgress};
use network::restrictions::Restrictions;
use network::topology::QueueId;
use parking_lot::Mutex;
use ring::GrantCopyBatch;
use ring::device::Put;
use ring::region::Memory;
use rustix::event::{EventfdFlags, eventfd};
use switch::{PortId, PortRule};

#[derive(Default)]
struct State {
    sending: VecDeque<Vec<u8>>,
    fetched: usize,
    received: Vec<Vec<u8>>,
    /// When each of those came: its number among all frames of all guests, and the time.
    stamps: Vec<Stamp>,
    left_to_do: Vec<Offload>,
    room: usize,
    completed: usize,
    kick: [bool; 2],
    breaks: bool,
    /// What is sent is sent again and again.
    repeats: bool,
    /// Frames that come are not kept.
    discards: bool,
    /// Pieces of memory that each frame is put into, beyond the first.
    pieces: u32,
    put: u32,
    /// Its Rx ring shows that it takes what lies there; `None`: it has no ring.
    takes: Option<bool>,
    /// Frames that were there at each interrupt for the Rx ring that was not sent at once.
    told: Vec<usize>,
}

/// The test's end of a queue.
#[derive(Clone)]
pub struct Peer {
    state: Arc<Mutex<State>>,
    bells: Arc<[OwnedFd; 2]>,
    pub id: QueueId,
}

/// The datapath's end.
pub struct Pair {
    peer: Peer,
    memory: Arc<Memory>,
    accepts: Accepts,
}

/// When a frame came.
pub type Stamp = (u64, Instant);

/// Frames that all guests have received.
static ARRIVED: AtomicU64 = AtomicU64::new(0);

const SLOT: u64 = 72 * 1024;

/// Bytes of a queue's memory.
pub const MEMORY: usize = SLOT as usize * 64;

impl Peer {
    /// A queue number `index` of `port` that receives up to `room` frames.
    pub fn attach(
        fabric: &Fabric,
        port: PortId,
        index: u16,
        accepts: Accepts,
        room: usize,
    ) -> Peer {
        let memory = Memory::anonymous(MEMORY).unwrap();
        Self::attach_in(memory, fabric, port, index, accepts, room)
    }

    /// The same, whose frames lie in `memory`, of [`MEMORY`] bytes.
    pub fn attach_in(
        memory: Memory,
        fabric: &Fabric,
        port: PortId,
        index: u16,
        accepts: Accepts,
        room: usize,
    ) -> Peer {
        let bell = || eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let state = Arc::new(Mutex::new(State { room, ..State::default() }));
        let mut peer = Peer { state, bells: Arc::new([bell(), bell()]), id: QueueId(0) };
        let pair = Pair { peer: peer.clone(), memory: Arc::new(memory), accepts };
        peer.id = fabric.attach(port, index, Box::new(pair), true).unwrap();
        peer
    }

    /// Sends frames, and kicks if the datapath asked for it.
    pub fn send(&self, frames: impl IntoIterator<Item = Vec<u8>>) {
        let mut state = self.state.lock();
        state.sending.extend(frames.into_iter().map(|frame| [vec![0; VNET_LEN], frame].concat()));
        self.kick(&mut state, 0);
    }

    /// Sends a frame with an offload header.
    pub fn send_with(&self, vnet: [u8; VNET_LEN], frame: &[u8]) {
        let mut state = self.state.lock();
        state.sending.push_back([&vnet, frame].concat());
        self.kick(&mut state, 0);
    }

    fn kick(&self, state: &mut State, which: usize) {
        if std::mem::take(&mut state.kick[which]) {
            rustix::io::write(&self.bells[which], &1u64.to_ne_bytes()).unwrap();
        }
    }

    /// Posts room for `n` more frames.
    pub fn post(&self, n: usize) {
        let mut state = self.state.lock();
        state.room += n;
        self.kick(&mut state, 1);
    }

    /// Has room for `room` frames from now on, with those received so far.
    pub fn limit(&self, room: usize) {
        self.state.lock().room = room;
    }

    /// Its buffers lie in so many pieces each, beyond the first.
    pub fn scatter(&self, pieces: u32) {
        self.state.lock().pieces = pieces;
    }

    /// Sends what it sends again as soon as the datapath has it, from now on, or does so no longer.
    pub fn repeat(&self, repeats: bool) {
        self.state.lock().repeats = repeats;
    }

    /// Keeps none of the frames that it receives from now on.
    pub fn discard(&self) {
        self.state.lock().discards = true;
    }

    /// Has an Rx ring from now on, whose frames it takes or leaves there.
    pub fn take(&self, takes: bool) {
        self.state.lock().takes = Some(takes);
    }

    /// Keeps the worker of the queue from going on while `during` runs.
    pub fn stall<T>(&self, fabric: &Fabric, during: impl FnOnce() -> T) -> T {
        let mut state = self.state.lock();
        self.kick(&mut state, 0);
        wait(|| !fabric.workers_answer(Duration::from_millis(100)));
        during()
    }

    /// Breaks the protocol at the next fetch.
    pub fn misbehave(&self) {
        let mut state = self.state.lock();
        state.breaks = true;
        self.kick(&mut state, 0);
    }

    /// Frames received so far; they are taken.
    pub fn received(&self) -> Vec<Vec<u8>> {
        self.arrived().into_iter().map(|(_, frame)| frame).collect()
    }

    /// Frames received so far, and when each came; they are taken.
    pub fn arrived(&self) -> Vec<(Stamp, Vec<u8>)> {
        let mut state = self.state.lock();
        let stamps = std::mem::take(&mut state.stamps);
        stamps.into_iter().zip(std::mem::take(&mut state.received)).collect()
    }

    /// Takes the offloads that were left to do for the frames received so far.
    pub fn left_to_do(&self) -> Vec<Offload> {
        std::mem::take(&mut self.state.lock().left_to_do)
    }

    /// Waits until `n` frames are there, and takes them.
    pub fn expect(&self, n: usize) -> Vec<Vec<u8>> {
        wait(|| self.state.lock().received.len() >= n);
        self.received()
    }

    /// How many frames it had at each interrupt that had waited.
    pub fn told(&self) -> Vec<usize> {
        self.state.lock().told.clone()
    }

    /// Frames sent that are complete.
    pub fn completed(&self) -> usize {
        self.state.lock().completed
    }
}

/// Waits for something that must come; a minute is for ever.
pub fn wait(mut there: impl FnMut() -> bool) {
    let start = Instant::now();
    while !there() {
        assert!(start.elapsed() < Duration::from_secs(60), "waited for a minute in vain");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// A UDP frame of a flow from station `src` to station `dst`, with a number.
pub fn udp(dst: u8, src: u8, flow: u16, number: u32, len: usize) -> Vec<u8> {
    let mut frame = [&[2, 0, 0, 0, 0, dst][..], &[2, 0, 0, 0, 0, src], &[8, 0, 0x45, 0]].concat();
    let total = (len - 14) as u16;
    frame.extend(total.to_be_bytes());
    frame.extend([0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, src, 10, 0, 0, dst]);
    frame.extend(flow.to_be_bytes());
    frame.extend([0, 9]);
    frame.extend((total - 20).to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(number.to_be_bytes());
    frame.resize(len, number as u8);
    frame
}

/// The sender and its flow that a frame of [`udp`] is of, and its number.
pub fn flow_and_number(frame: &[u8]) -> ((u8, u16), u32) {
    let flow = u16::from_be_bytes([frame[34], frame[35]]);
    ((frame[11], flow), u32::from_be_bytes(frame[42..46].try_into().unwrap()))
}

/// A port without VLANs whose errors are noted.
pub fn port(fabric: &Fabric, rule: PortRule) -> (PortId, Arc<Mutex<Vec<QueueError>>>) {
    coalescing_port(fabric, rule, None)
}

/// The same, with interrupts that wait.
pub fn coalescing_port(
    fabric: &Fabric,
    rule: PortRule,
    coalescing: Option<CoalescingLimits>,
) -> (PortId, Arc<Mutex<Vec<QueueError>>>) {
    let errors: Arc<Mutex<Vec<QueueError>>> = Arc::default();
    let note = Arc::clone(&errors);
    let on_error = Arc::new(move |_, error| note.lock().push(error));
    let restrictions = Restrictions::default();
    let name = "peer".into();
    let spec = NewPort { name, rule, mtu: None, on_error, coalescing, policy: None, restrictions };
    (fabric.add_port(spec).unwrap(), errors)
}

impl RxProgress for Pair {
    fn position(&self) -> u32 {
        0
    }

    fn has_consumed(&self, _: u32) -> bool {
        self.peer.state.lock().takes == Some(true)
    }
}

impl QueuePair for Pair {
    fn fetch(&mut self, burst: &mut Burst) -> Result<(), QueueError> {
        let mut state = self.peer.state.lock();
        if state.breaks {
            return Err(QueueError::Gone);
        }
        let memory = &self.memory;
        burst.fill(VNET_LEN, |gather, chains, room| {
            let free = 64 - state.fetched;
            for (at, frame) in
                state.sending.iter().enumerate().skip(state.fetched).take(room.min(free))
            {
                let at = (state.completed + at) as u64 % 64 * SLOT;
                memory.write(at, frame).unwrap();
                chains.push(gather.push_range(memory, at, frame.len() as u32)?);
            }
            state.fetched += chains.len();
            Ok(chains.len())
        })
    }

    fn complete(&mut self, n: usize) {
        let mut state = self.peer.state.lock();
        assert!(n <= state.fetched, "completed {n} of {}", state.fetched);
        if state.repeats {
            state.sending.rotate_left(n);
        } else {
            state.sending.drain(..n);
        }
        state.fetched -= n;
        state.completed += n;
    }

    fn rewind(&mut self, n: usize) {
        let mut state = self.peer.state.lock();
        assert!(n <= state.fetched);
        state.fetched -= n;
    }

    fn accepts(&self) -> Accepts {
        self.accepts
    }

    fn prepare(&mut self, _: usize) -> Result<(), QueueError> {
        Ok(())
    }

    fn put(&mut self, packet: &Packet<'_>, _: &mut GrantCopyBatch) -> Result<Put, QueueError> {
        let mut state = self.peer.state.lock();
        if state.received.len() >= state.room {
            return Ok(Put::Full);
        }
        state.put += state.pieces;
        if state.discards {
            return Ok(Put::Done);
        }
        let mut frame = packet.head.to_vec();
        let mut body = vec![0; packet.body.len() as usize];
        assert_eq!(packet.body.read(&mut body), body.len());
        frame.extend(body);
        state.received.push(frame);
        state.stamps.push((ARRIVED.fetch_add(1, Ordering::Relaxed), Instant::now()));
        state.left_to_do.push(*packet.offload);
        Ok(Put::Done)
    }

    fn rx_progress(&self) -> Option<&dyn RxProgress> {
        self.peer.state.lock().takes.map(|_| self as &dyn RxProgress)
    }

    fn take_extra_pieces(&mut self) -> u32 {
        std::mem::take(&mut self.peer.state.lock().put)
    }

    fn room(&mut self) -> Result<usize, QueueError> {
        let state = self.peer.state.lock();
        Ok(if state.received.len() < state.room { usize::MAX } else { 0 })
    }

    fn flush(&mut self) -> Result<[Notified; 2], QueueError> {
        Ok([Notified::Sent; 2])
    }

    fn arm(&mut self, rx: bool) -> Result<bool, QueueError> {
        let mut state = self.peer.state.lock();
        state.kick = [true, rx];
        Ok(state.sending.len() > state.fetched
            || rx && state.received.len() < state.room
            || state.breaks)
    }

    fn disarm(&mut self) {
        self.peer.state.lock().kick = [false; 2];
    }

    fn wakers(&self) -> [Option<BorrowedFd<'_>>; 2] {
        self.peer.bells.each_ref().map(|bell| Some(bell.as_fd()))
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }

    fn coalescing(&mut self) -> Option<&mut dyn Coalescing> {
        Some(self)
    }
}

impl Coalescing for Pair {
    fn flush_deferred(&mut self) -> Result<[Notified; 2], QueueError> {
        Ok([Notified::Sent, Notified::Deferred])
    }

    fn interrupt(&mut self) -> Result<(), QueueError> {
        let mut state = self.peer.state.lock();
        let there = state.received.len();
        state.told.push(there);
        Ok(())
    }
}
