//! Frames in granted memory: their heads are fetched all at once.

use frame::{HEAD_LEN, Head, Headers, Offload};
use ring::copies::Status;
use ring::gather::{Chain, Gather};

use super::{Burst, MAX_FRAME};
use crate::count::DropReason;

/// A granted frame whose first piece has so many bytes is likely to have all of its headers there,
/// and nothing else: every copy of a piece more is one for the hypervisor to make. So many has the
/// shortest UDP datagram.
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

    /// Fetches the heads of the granted chains that were taken, all at once, and parses them.
    /// `check` says what the sender left to be done to the frame that was taken as number so
    /// many, and may finish its head; or why it is dropped.
    ///
    /// # Errors
    /// The status of the first head that could not be copied.
    pub fn examine_granted(
        &mut self,
        mut check: impl FnMut(usize, &mut Head, &Headers, u32) -> Result<Offload, DropReason>,
    ) -> Result<(), Status> {
        self.chains.truncate(self.room());
        self.fetch_heads();
        for i in 0..self.chains.len() {
            let chain = self.chains[i];
            let len = chain.len();
            if let Some(status) = self.granted.failure(i) {
                self.granted.clear();
                return Err(status);
            }
            let (frame, head) = (&mut self.frames[self.count], &mut self.heads[self.count]);
            head.fill(|room| self.granted.read(i, room));
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
        self.granted.clear();
        Ok(())
    }

    /// Fetches the heads of the granted chains that were taken: first pieces, and more where those
    /// do not hold all headers.
    fn fetch_heads(&mut self) {
        let (chains, heads) = (&self.chains, &mut self.granted);
        self.heads_watch.during(|| heads.fetch(&self.gather, chains, FIRST_PIECE, HEAD_LEN as u32));
        self.short.clear();
        for (i, chain) in chains.iter().enumerate() {
            let mut bytes = [0; HEAD_LEN];
            let len = heads.len(i);
            if len < HEAD_LEN && (len as u32) < chain.len() {
                heads.read(i, &mut bytes);
                let is_enough = |headers: &Headers| headers.is_whole() && !headers.claims_follow();
                if !frame::parse(&bytes[..len]).as_ref().is_some_and(is_enough) {
                    self.short.push(i);
                }
            }
        }
        if !self.short.is_empty() {
            self.heads_watch
                .during(|| heads.fetch_again(&self.gather, chains, &self.short, HEAD_LEN as u32));
        }
    }
}
