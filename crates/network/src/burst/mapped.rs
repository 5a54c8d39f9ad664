//! Frames in mapped memory: offload headers and heads are copied from where they lie.

use frame::{BadOffload, HEAD_LEN, Head, Headers, Offload, VNET_LEGACY_LEN, VNET_LEN, vnet};
use ring::gather::{Chain, Gather};

use super::{Burst, Facts, Frame, MAX_FRAME};
use crate::count::DropReason;

impl Burst {
    /// Lets `take` fill the scatter lists with up to [`room`](Self::room) chains, then copies and
    /// parses the head of each. Every chain starts with a virtio-net header of `vnet_len` bytes
    /// (10 or 12).
    pub fn fill<E>(
        &mut self,
        vnet_len: usize,
        take: impl FnOnce(&mut Gather, &mut Vec<Chain>, usize) -> Result<usize, E>,
    ) -> Result<(), E> {
        let room = self.room();
        self.chains.clear();
        take(&mut self.gather, &mut self.chains, room)?;
        let Burst { gather, frames, heads, chains, count, facts, .. } = self;
        let first = *count;
        let places = frames[first..].iter_mut().zip(&mut heads[first..]);
        for (&chain, (frame, head)) in chains.iter().take(room).zip(places) {
            let len = chain.len().saturating_sub(vnet_len as u32);
            frame.start(chain, len, |frame| examine(gather, chain, vnet_len, frame, head, facts));
            *count += 1;
        }
        Ok(())
    }
}

/// Copies the offload header and the head of the frame that `chain` holds, and checks both.
#[inline(always)]
fn examine(
    gather: &Gather,
    chain: Chain,
    vnet_len: usize,
    frame: &mut Frame,
    head: &mut Head,
    facts: &mut Facts,
) -> Result<(), DropReason> {
    let len = frame.len;
    if len > HEAD_LEN as u32 {
        if len > MAX_FRAME {
            return Err(DropReason::Oversized);
        }
        facts.bodies = true;
    }
    let mut vnet = [0; VNET_LEN];
    let alone =
        vnet_len == VNET_LEN && head.try_fill(|room| gather.read_alone(chain, &mut vnet, room));
    if !alone {
        vnet = read_pieces(gather, chain, vnet_len, head);
    }
    if !frame::parse_into(head.as_slice(), &mut frame.headers) {
        return Err(DropReason::Runt);
    }
    frame.skip = (vnet_len + head.len()) as u32;
    if vnet::asks_for_nothing(&vnet) {
        frame.offload = Offload::default();
        return Ok(());
    }
    facts.offloads = true;
    frame.offload =
        offload(vnet, vnet_len, &frame.headers, len).map_err(|_| DropReason::BadOffload)?;
    Ok(())
}

/// Copies the offload header and the head of a frame in any number of pieces.
#[inline(never)]
fn read_pieces(gather: &Gather, chain: Chain, vnet_len: usize, head: &mut Head) -> [u8; VNET_LEN] {
    let mut vnet = [0; VNET_LEN];
    let whole = gather.body(chain);
    whole.read_mapped(&mut vnet[..vnet_len]);
    let bytes = whole.slice(vnet_len as u32, chain.len().saturating_sub(vnet_len as u32));
    head.fill(|room| bytes.read_mapped(room));
    vnet
}

/// The meaning of an offload header of 12 or 10 bytes.
#[inline(never)]
fn offload(
    vnet: [u8; VNET_LEN],
    vnet_len: usize,
    headers: &Headers,
    len: u32,
) -> Result<Offload, BadOffload> {
    match &vnet {
        [legacy @ .., _, _] if vnet_len == VNET_LEGACY_LEN => {
            vnet::decode_legacy(legacy, headers, len)
        }
        whole => vnet::decode(whole, headers, len),
    }
}
