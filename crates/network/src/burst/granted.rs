//! Frames in granted memory: their heads are fetched all at once.

use frame::{HEAD_LEN, Head, Headers, Offload};
use ring::copies::Status;
use ring::gather::{Chain, Gather};
use ring::heads::Heads;

use super::{BURST, Burst, MAX_FRAME};
use crate::count::DropReason;
use crate::stage_profiler::Stopwatch;

/// The least length of a granted frame's first piece at which only that piece is fetched for the
/// head: a piece of this length is likely to hold all headers, and each further piece is one more
/// copy for the hypervisor. The shortest UDP datagram has this length.
const FIRST_PIECE: u32 = 42;

impl Burst {
    /// Lets `take` fill the scatter lists with up to [`room`](Self::room) granted chains, each of
    /// them a frame. [`examine_granted`](Self::examine_granted) has to follow.
    pub fn take_granted<E>(
        &mut self,
        take: impl FnOnce(&mut Gather, &mut Vec<Chain>, usize) -> Result<(), E>,
    ) -> Result<(), E> {
        self.chains.clear();
        take(&mut self.gather, &mut self.chains, self.limit.saturating_sub(self.count))
    }

    /// Fetches the heads of the granted chains that were taken, all at once, and parses them. For
    /// each frame, by its number among those taken, `check` returns the offloads that the sender
    /// left to do, and may complete the head; or it returns why the frame is dropped.
    ///
    /// # Errors
    /// The status of the first head that could not be copied.
    pub fn examine_granted(
        &mut self,
        mut check: impl FnMut(usize, &mut Head, &Headers, u32) -> Result<Offload, DropReason>,
    ) -> Result<(), Status> {
        self.chains.truncate(self.room());
        self.granted.fetch(&self.gather, &self.chains);
        for i in 0..self.chains.len() {
            let chain = self.chains[i];
            let len = chain.len();
            if let Some(status) = self.granted.heads.failure(i) {
                self.granted.heads.clear();
                return Err(status);
            }
            let (frame, head) = (&mut self.frames[self.count], &mut self.heads[self.count]);
            head.fill(|room| self.granted.heads.read(i, room));
            frame.start(chain, len, |frame| {
                if len > MAX_FRAME {
                    return Err(DropReason::Oversized);
                }
                let whole = frame::parse_into(head.as_slice(), &mut frame.headers);
                if !whole && len > 0 {
                    return Err(DropReason::Runt);
                }
                if !whole {
                    frame.headers = Headers::default();
                }
                frame.offload = check(i, head, &frame.headers, len)?;
                self.facts.offloads |= !frame.offload.is_plain();
                self.facts.bodies |= len > head.len() as u32;
                frame.skip = head.len() as u32;
                if len > 0 { Ok(()) } else { Err(DropReason::Runt) }
            });
            self.count += 1;
        }
        self.granted.heads.clear();
        Ok(())
    }

    /// The time that fetching the heads of granted frames takes.
    pub(crate) fn heads_watch(&mut self) -> &mut Stopwatch {
        &mut self.granted.watch
    }
}

/// Heads of granted frames on their way from their senders' memory.
pub(super) struct GrantedHeads {
    heads: Heads,
    /// Which of them are too short.
    short: Vec<usize>,
    /// Time that fetching takes, while a profile is taken.
    watch: Stopwatch,
}

impl Default for GrantedHeads {
    fn default() -> Self {
        let (heads, watch) = (Heads::new(), Stopwatch::default());
        GrantedHeads { heads, short: Vec::with_capacity(BURST), watch }
    }
}

impl GrantedHeads {
    /// Fetches the heads of `chains`: first pieces, and more where those do not hold all headers.
    fn fetch(&mut self, gather: &Gather, chains: &[Chain]) {
        let (heads, short) = (&mut self.heads, &mut self.short);
        self.watch.during(|| heads.fetch(gather, chains, FIRST_PIECE, HEAD_LEN as u32));
        short.clear();
        for (i, chain) in chains.iter().enumerate() {
            let mut bytes = [0; HEAD_LEN];
            let len = heads.len(i);
            if len < HEAD_LEN && (len as u32) < chain.len() {
                heads.read(i, &mut bytes);
                let is_enough = |headers: &Headers| headers.is_whole() && !headers.claims_follow();
                if !frame::parse(&bytes[..len]).as_ref().is_some_and(is_enough) {
                    short.push(i);
                }
            }
        }
        if !short.is_empty() {
            self.watch.during(|| heads.fetch_again(gather, chains, short, HEAD_LEN as u32));
        }
    }
}
