//! Locking of images: one program that writes an image, or any number that read it.
//!
//! Raw images are locked only while they are used, so that a guest can migrate to another process'
//! disk with the same image. qcow2 images stay locked, because their tables are in memory.

use std::io;
use std::time::{Duration, Instant};

use super::options::ImageError;
use super::{Data, Image};
use crate::image_lock::{Part, try_lock};

/// How long to wait for an image's lock: as long as requests of a killed process may take.
pub(super) const LOCK_WAIT: Duration = Duration::from_secs(1);
pub(super) const LOCK_INTERVAL: Duration = Duration::from_millis(2);

impl Image {
    /// Locks the image until it is [unlocked](Self::unlock) as many times, or closed and its last
    /// request has ended. Waits a second for requests of a killed process.
    ///
    /// # Errors
    /// When another user has locked it.
    pub fn lock(&self) -> Result<(), ImageError> {
        let until = Instant::now() + LOCK_WAIT;
        loop {
            match self.lock_now() {
                Err(ImageError::Locked(_)) if Instant::now() < until => {
                    std::thread::sleep(LOCK_INTERVAL);
                }
                outcome => return outcome,
            }
        }
    }

    /// Locks the image without waiting.
    ///
    /// # Errors
    /// As for [`lock`](Self::lock).
    pub fn lock_now(&self) -> Result<(), ImageError> {
        let mut locked = self.locked.lock();
        if *locked > 0 {
            *locked += 1;
            return Ok(());
        }
        match self.try_lock() {
            Ok(true) => self.qcow2().map_or(Ok(()), |qcow2| qcow2.start(self.read_only))?,
            Ok(false) => return Err(ImageError::Locked(self.path.clone())),
            Err(error) => return Err(ImageError::System { path: self.path.clone(), error }),
        }
        *locked = 1;
        Ok(())
    }

    /// Whether it is locked here.
    pub fn is_locked(&self) -> bool {
        *self.locked.lock() > 0
    }

    /// Whether other programs may change it while it is open and not locked here. A qcow2 image
    /// cannot be shared, because its tables in memory would be out of date.
    pub fn can_be_shared(&self) -> bool {
        matches!(self.data, Data::Raw(_))
    }

    /// Releases one lock. Once none is left, others can lock an image that [can be
    /// shared](Self::can_be_shared). The caller must have no request in flight.
    ///
    /// # Errors
    /// When the system does not unlock it. In that case others cannot use it until it is
    /// closed.
    pub fn unlock(&self) -> io::Result<()> {
        let mut locked = self.locked.lock();
        *locked = locked.saturating_sub(1);
        match &self.data {
            Data::Raw(handles) if *locked == 0 => handles.unlock(),
            _ => Ok(()),
        }
    }

    fn try_lock(&self) -> io::Result<bool> {
        let shared = self.read_only;
        let first = try_lock(&self.handles().buffered, Part::First, shared)?;
        match &self.handles().direct {
            Some((file, _)) if first => try_lock(file, Part::Second, shared),
            _ => Ok(first),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::Image;
    use crate::image::{ImageError, ImageOptions};

    /// The kernel and processes that were just forked may refer to the files of a closed image.
    #[test]
    fn other_references_do_not_keep_a_closed_image_locked() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let options = ImageOptions::new(file.path().to_owned());
        let image = Image::open(&options).unwrap();
        image.lock().unwrap();
        let other = Image::open(&options).unwrap();
        let reference = image.handles().buffered.try_clone().unwrap();
        assert!(other.lock_now().is_err());
        drop(image);
        other.lock_now().unwrap();
        drop(reference);
    }

    #[test]
    fn a_second_opener_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let options = ImageOptions::new(file.path().to_owned());
        let first = Image::open(&options).unwrap();
        first.lock().unwrap();
        let second = Image::open(&options).unwrap();
        assert!(matches!(second.lock(), Err(ImageError::Locked(_))));
        let read_only = ImageOptions { read_only: true, ..options.clone() };
        let reader = Image::open(&read_only).unwrap();
        assert!(matches!(reader.lock(), Err(ImageError::Locked(_))));
        drop(first);
        reader.lock().unwrap();
        Image::open(&read_only).unwrap().lock().unwrap();
        assert!(matches!(second.lock_now(), Err(ImageError::Locked(_))));
        assert!(!second.is_locked());
        reader.unlock().unwrap();
        second.lock().unwrap();
        assert!(second.is_locked() && reader.lock_now().is_err());
    }
}
