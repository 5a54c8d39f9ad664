//! A disk: an image, and its presentation to a guest.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use runtime::SlowSignals;

use crate::command::{Bounds, SERIAL};
use crate::image::Image;
use crate::limits::{DiskRates, LimitsCell};

/// State that all queues of a disk share.
#[derive(Debug)]
pub struct Disk {
    image: Arc<Image>,
    serial: [u8; SERIAL],
    /// Each write is stable before it is completed.
    write_through: AtomicBool,
    /// The interrupts of the disk's queues that took long.
    pub(crate) slow_signals: SlowSignals,
    pub(crate) limits: LimitsCell,
}

impl Disk {
    /// A disk with a serial number, of which the guest sees the first 20 bytes.
    pub fn new(image: Arc<Image>, serial: &str) -> Disk {
        let mut padded = [0; SERIAL];
        padded.iter_mut().zip(serial.bytes()).for_each(|(to, from)| *to = from);
        // Writes are stable until a guest has negotiated flushes.
        Disk {
            image,
            serial: padded,
            write_through: AtomicBool::new(true),
            slow_signals: SlowSignals::default(),
            limits: LimitsCell::default(),
        }
    }

    /// The image.
    pub fn image(&self) -> &Arc<Image> {
        &self.image
    }

    /// The serial number, padded with zeros.
    pub fn serial(&self) -> &[u8; SERIAL] {
        &self.serial
    }

    /// Whether each write is stable before it is completed.
    pub fn is_write_through(&self) -> bool {
        self.write_through.load(Ordering::Acquire)
    }

    /// Sets whether each write is stable before it is completed, or only after a flush. If `on`,
    /// all writes that were completed before are stable when this returns.
    ///
    /// # Errors
    /// When earlier writes cannot be made stable. New writes are stable nevertheless.
    pub fn set_write_through(&self, on: bool) -> io::Result<()> {
        let was = self.write_through.swap(on, Ordering::AcqRel);
        if on && !was && !self.image.is_read_only() { self.image.sync() } else { Ok(()) }
    }

    /// Sets the limits of the disk. Workers that already serve the disk follow after a call of
    /// [`Disks::follow_limits`](crate::Disks::follow_limits).
    pub fn set_limits(&self, rates: DiskRates) {
        self.limits.set(rates);
    }

    /// The bounds that requests must keep.
    pub(crate) fn bounds(&self) -> Bounds {
        let image = &self.image;
        Bounds { bytes: image.bytes(), read_only: image.is_read_only(), block: image.block() }
    }
}
