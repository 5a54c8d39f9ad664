//! Hand-off of a TAP to another process: the descriptors of its queues, and the frames that were
//! read from them and not delivered. A device whose queues stay open keeps its place in a bridge.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use network::fabric::{Fabric, PairChange};
use network::port::QueuePair;
use parking_lot::MutexGuard;

use super::{BUFFER, Landed, Place, Tap, TapConfig, TapError, TapQueue, name_of, place, tun};

/// Frames of one queue, with their headers, oldest first.
pub type Frames = Vec<Vec<u8>>;

impl Tap {
    /// The descriptors of the queues, for another process.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub fn files(&self) -> io::Result<Vec<OwnedFd>> {
        self.files.iter().map(|file| file.try_clone()).collect()
    }

    /// Takes all queues from the fabric. Returns the frames that each queue holds.
    pub fn hold(&self) -> Vec<Frames> {
        let mut queues = self.queues();
        let attached: Vec<_> = queues
            .iter()
            .filter_map(|place| match place {
                Place::Attached(queue) => Some(*queue),
                Place::Detached(..) => None,
            })
            .collect();
        let pairs = self.fabric.take_out(&attached);
        for (queue, pair) in attached.into_iter().zip(pairs) {
            let pair = pair.and_then(|pair| pair.into_any().downcast::<TapQueue>().ok());
            let at = queues.iter().position(|at| matches!(at, Place::Attached(id) if *id == queue));
            if let Some((pair, at)) = pair.zip(at) {
                queues[at] = Place::Detached(Some(queue), pair);
            }
        }
        let frames = queues.iter().map(|place| match place {
            Place::Detached(_, queue) => queue.frames(),
            Place::Attached(_) => Frames::new(),
        });
        frames.collect()
    }

    /// Attaches all queues that are detached to the fabric.
    pub fn put_back(&self) {
        let mut queues = self.queues();
        let mut changes = Vec::new();
        for (index, place) in (0..).zip(std::mem::take(&mut *queues)) {
            match place {
                Place::Attached(_) => queues.push(place),
                Place::Detached(queue, pair) => {
                    let pair: Option<(Box<dyn QueuePair>, bool)> = Some((pair, true));
                    changes.push(PairChange { index, queue, pair });
                }
            }
        }
        // The fabric returns no queues for a removed port.
        let back = self.fabric.put_back(self.port, changes).into_iter();
        queues.extend(back.flatten().map(Place::Attached));
    }

    /// Adds a port whose queues another process has opened. They are detached until
    /// [`put_back`](Self::put_back).
    ///
    /// # Errors
    /// When a descriptor is no queue of the device, or the fabric refuses the port.
    pub fn restore(
        fabric: Arc<Fabric>,
        config: TapConfig,
        files: Vec<OwnedFd>,
    ) -> Result<Tap, TapError> {
        let name = name_of(&config)?;
        let foreign = || TapError::Foreign(config.device.clone());
        if files.len() != usize::from(config.queues.max(1)) {
            return Err(foreign());
        }
        let mut queues = Vec::new();
        for file in files {
            let device = tun::device_of(&file).map_err(|_| foreign())?;
            if device != name {
                return Err(foreign());
            }
            let unset =
                |error| TapError::Set { name: config.device.clone(), what: "offloads", error };
            let accepts = tun::set_offloads(&file).map_err(unset)?;
            // The other process shares the queue, and could have made it block.
            rustix::io::ioctl_fionbio(&file, true).map_err(|_| foreign())?;
            queues.push(TapQueue::new(file, accepts)?);
        }
        Tap::add(fabric, name, config, queues)
    }

    /// Puts frames into the queues that are detached: the other process has read them.
    pub fn insert(&self, frames: &[Frames]) {
        for (place, frames) in self.queues().iter_mut().zip(frames) {
            if let Place::Detached(_, queue) = place {
                frames.iter().for_each(|frame| queue.insert(frame));
            }
        }
    }

    fn queues(&self) -> MutexGuard<'_, Vec<Place>> {
        self.queues.lock()
    }
}

impl TapQueue {
    fn frames(&self) -> Frames {
        let frame = |landed: &Landed| {
            let mut bytes = vec![0; landed.len as usize];
            self.memory.read(place(landed.buffer), &mut bytes).ok()?;
            Some(bytes)
        };
        self.frames.iter().filter_map(frame).collect()
    }

    fn insert(&mut self, frame: &[u8]) {
        let Some(&buffer) = self.free.last().filter(|_| frame.len() as u64 <= BUFFER) else {
            return;
        };
        if self.memory.write(place(buffer), frame).is_ok() {
            self.free.pop();
            self.frames.push_back(Landed { buffer, len: frame.len() as u32 });
        }
    }
}
