//! A wire between two split rings: the baseline for measurements, without a switch.
//!
//! Each chain's buffer is copied to the next buffer of the other ring as it is: no header is read,
//! no address looked up, nothing counted, prefetched or checked. Other paths are measured against
//! the wire; no port is served by it. Only the checks that protect this process remain: indices are
//! masked, and a buffer has to lie in one region of its guest's memory. A guest that breaks other
//! rules gets nonsense, and only the first descriptor of a chain is followed.
//!
//! Guests have to poll, unless the caller sends the [interrupts](Wire::interrupts) that they want.
//! Notifications are only requested [while the caller waits](Wire::want_notifications).

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering, fence};

use crate::copy::{copy, load16};
use crate::device::RingConfig;
use crate::region::Memory;
use crate::split::{
    AVAIL_ALIGN, AVAIL_NO_INTERRUPT, DESC_ALIGN, DESC_SIZE, MAX_SIZE, RING_ENTRIES, RING_INDEX,
    USED_ALIGN, USED_NO_NOTIFY, avail_len, desc_len, used_len,
};
use crate::violation::Violation;

/// Where a `virtio_net_hdr` says how many buffers its frame lies in (virtio 1.2, 5.1.6).
const NUM_BUFFERS: u32 = 10;

/// Frames go from one guest's Tx ring to another guest's Rx ring.
#[derive(Debug)]
pub struct Wire {
    from: End,
    to: End,
}

/// One ring.
#[derive(Debug)]
struct End {
    mem: Arc<Memory>,
    /// The region where the last buffer was.
    hint: usize,
    desc: NonNull<u8>,
    avail: NonNull<u8>,
    used: NonNull<u8>,
    mask: u16,
    /// Next entry to take, and to answer: never apart for longer than a call.
    next: u16,
}

// SAFETY: the areas are mapped for the whole process as long as `mem` lives, and are only reached
// through raw copies and atomics.
unsafe impl Send for End {}

/// A buffer: its address, the bytes from there on, and its descriptor's number.
type Buffer = (NonNull<u8>, u32, u16);

impl Wire {
    /// From a Tx ring to an Rx ring, each in its guest's memory. Packed rings, indirect tables and
    /// events are not supported.
    ///
    /// # Errors
    /// When a ring does not lie within its guest's memory.
    pub fn new(
        from: (Arc<Memory>, &RingConfig),
        to: (Arc<Memory>, &RingConfig),
    ) -> Result<Self, Violation> {
        Ok(Self { from: End::new(from)?, to: End::new(to)? })
    }

    /// Carries up to `max` frames, as far as there are frames and buffers; returns how many.
    ///
    /// # Errors
    /// When a buffer lies outside its guest's memory.
    #[inline]
    pub fn carry(&mut self, max: u16) -> Result<u16, Violation> {
        let sent = self.from.ready().min(max);
        if sent == 0 {
            return Ok(0);
        }
        let mut room = self.to.ready();
        let mut carried = 0;
        while carried < sent {
            let frame = self.from.buffer()?;
            let taken = self.lay(frame, room)?;
            if taken == 0 {
                break;
            }
            self.from.answer(frame.2, 0);
            room -= taken;
            carried += 1;
        }
        if carried > 0 {
            self.from.publish();
            self.to.publish();
        }
        Ok(carried)
    }

    /// Asks both guests for notifications, or no longer. True: there are frames that can be carried
    /// now. The caller must carry these before it waits.
    pub fn want_notifications(&self, wanted: bool) -> bool {
        for end in [&self.from, &self.to] {
            end.set_used_flags(if wanted { 0 } else { USED_NO_NOTIFY });
        }
        // Flags before indices: a guest that sees the old flags has published its index before.
        fence(Ordering::SeqCst);
        self.from.ready() > 0 && self.to.ready() > 0
    }

    /// Which guests want an interrupt for what was carried to them: the sender, the receiver.
    pub fn interrupts(&self) -> [bool; 2] {
        // Indices before flags, as above.
        fence(Ordering::SeqCst);
        [&self.from, &self.to].map(|end| end.avail_flags() & AVAIL_NO_INTERRUPT == 0)
    }

    /// Copies a frame into the next of `room` buffers, or into as many as it takes; returns how
    /// many it took, or 0 when there are too few.
    #[inline]
    fn lay(&mut self, (frame, len, _): Buffer, room: u16) -> Result<u16, Violation> {
        if room == 0 {
            return Ok(0);
        }
        let (to, capacity, id) = self.to.buffer()?;
        if len > capacity {
            return self.spread(frame, len, room);
        }
        // SAFETY: both buffers lie in memory that is mapped as long as the ends live, `len` bytes
        // of each.
        unsafe { copy(frame.as_ptr(), to.as_ptr(), len as usize) };
        number(to, len, 1);
        self.to.answer(id, len);
        Ok(1)
    }

    /// Copies a frame of `len` bytes into several buffers.
    fn spread(&mut self, frame: NonNull<u8>, len: u32, room: u16) -> Result<u16, Violation> {
        let (first, capacity, _) = self.to.buffer()?;
        let (mut done, mut taken) = (0, 0);
        while done < len && taken < room {
            let (to, capacity, id) = self.to.buffer()?;
            let now = capacity.min(len - done);
            // SAFETY: as in `lay`: `done + now` bytes of the frame, `now` bytes of the buffer.
            unsafe { copy(frame.as_ptr().add(done as usize), to.as_ptr(), now as usize) };
            self.to.answer(id, now);
            done += now;
            taken += 1;
        }
        if done < len {
            // These buffers are not published yet, so they can be taken again.
            self.to.next = self.to.next.wrapping_sub(taken);
            return Ok(0);
        }
        number(first, capacity, taken);
        Ok(taken)
    }
}

/// Writes the number of a frame's buffers into its first one, of `len` bytes.
#[inline]
fn number(first: NonNull<u8>, len: u32, buffers: u16) {
    if len >= NUM_BUFFERS + 2 {
        // SAFETY: within the buffer, as just checked; any bytes may be written there.
        unsafe { first.as_ptr().add(NUM_BUFFERS as usize).cast::<u16>().write_unaligned(buffers) };
    }
}

impl End {
    fn new((mem, config): (Arc<Memory>, &RingConfig)) -> Result<Self, Violation> {
        let size = config.size;
        if !size.is_power_of_two() || size > MAX_SIZE {
            return Err(Violation::QueueSize(size));
        }
        let next = u16::try_from(config.start).map_err(|_| Violation::Start(config.start))?;
        let end = Self {
            desc: mem.host(config.desc, desc_len(size), DESC_ALIGN)?,
            avail: mem.host(config.driver, avail_len(size), AVAIL_ALIGN)?,
            used: mem.host(config.device, used_len(size), USED_ALIGN)?,
            mem,
            hint: 0,
            mask: size - 1,
            next,
        };
        end.set_used_flags(USED_NO_NOTIFY);
        Ok(end)
    }

    fn set_used_flags(&self, flags: u16) {
        // SAFETY: the first two bytes of the used ring, which is mapped and aligned to 4.
        unsafe { AtomicU16::from_ptr(self.used.as_ptr().cast()) }.store(flags, Ordering::Relaxed);
    }

    fn avail_flags(&self) -> u16 {
        // SAFETY: the first two bytes of the available ring, which is mapped and aligned to 2.
        unsafe { AtomicU16::from_ptr(self.avail.as_ptr().cast()) }.load(Ordering::Relaxed)
    }

    /// Entries that can be taken, according to the guest's unchecked index.
    #[inline]
    fn ready(&self) -> u16 {
        // SAFETY: the third and fourth byte of the available ring, which is mapped and aligned to
        // 2.
        let index =
            unsafe { AtomicU16::from_ptr(self.avail.as_ptr().add(RING_INDEX as usize).cast()) };
        index.load(Ordering::Acquire).wrapping_sub(self.next)
    }

    /// The buffer of the next entry.
    #[inline]
    fn buffer(&mut self) -> Result<Buffer, Violation> {
        let slot = usize::from(self.next & self.mask);
        // SAFETY: a slot of the ring, since it is masked; then a descriptor of the table, for the
        // same reason.
        let (id, [addr, rest]) = unsafe {
            let entry = self.avail.as_ptr().add(RING_ENTRIES as usize + 2 * slot).cast::<u16>();
            let id = entry.read_volatile() & self.mask;
            (id, load16(self.desc.as_ptr().add(DESC_SIZE as usize * usize::from(id))))
        };
        let len = rest as u32;
        match self.mem.run(addr, &mut self.hint) {
            Some((at, left)) if left >= u64::from(len) => Ok((at, len, id)),
            _ => Err(Violation::Outside { addr, len: len.into() }),
        }
    }

    /// Answers the next entry: buffer `id` is used, with `len` bytes in it.
    #[inline]
    fn answer(&mut self, id: u16, len: u32) {
        let slot = usize::from(self.next & self.mask);
        let entry = u64::from(id) | u64::from(len) << 32;
        // SAFETY: a slot of the used ring, since it is masked; entries are aligned to 4.
        unsafe {
            self.used
                .as_ptr()
                .add(RING_ENTRIES as usize + 8 * slot)
                .cast::<u64>()
                .write_unaligned(entry)
        };
        self.next = self.next.wrapping_add(1);
    }

    #[inline]
    fn publish(&self) {
        // SAFETY: the third and fourth byte of the used ring, which is mapped and aligned to 4.
        let index =
            unsafe { AtomicU16::from_ptr(self.used.as_ptr().add(RING_INDEX as usize).cast()) };
        index.store(self.next, Ordering::Release);
    }
}

#[cfg(test)]
mod tests;
