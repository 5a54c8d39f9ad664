//! How guests run here: on KVM where a guest really boots on it, else in software.

use super::image::write_whole;
use super::{Accel, Guest, GuestError, Image, Spec};
use parking_lot::Mutex;
use std::path::Path;
use std::time::Duration;

/// A KVM that works boots a guest in about a second. One that does not (a nested one, often) hangs
/// or ends.
const KVM_LIMIT: Duration = Duration::from_secs(10);

impl Accel {
    /// Finds out by booting a guest. The answer is kept in the folder `cache` until the host
    /// reboots.
    ///
    /// # Errors
    /// When the cache cannot be written. A KVM that does not work is no error.
    pub fn probe(image: &Image, cache: &Path) -> Result<Accel, GuestError> {
        if std::fs::OpenOptions::new().read(true).write(true).open("/dev/kvm").is_err() {
            return Ok(Accel::Tcg);
        }
        // One thread at a time: the others take the first one's answer.
        static PROBES: Mutex<()> = Mutex::new(());
        let _one = PROBES.lock();
        let kept = cache.join("accel");
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        if let Ok(text) = std::fs::read_to_string(&kept)
            && let Some(known) = Self::recall(&text, boot.trim())
        {
            return Ok(known);
        }
        let found = match Guest::start(image, Accel::Kvm, &Spec::new("probe"))
            .and_then(|guest| guest.ready(KVM_LIMIT))
        {
            Ok(()) => Accel::Kvm,
            Err(GuestError::Interrupted) => return Err(GuestError::Interrupted),
            Err(_) => Accel::Tcg,
        };
        write_whole(&kept, format!("{} {}\n", found.name(), boot.trim()).as_bytes())?;
        Ok(found)
    }

    fn recall(text: &str, boot: &str) -> Option<Accel> {
        let (name, of) = text.trim().split_once(' ')?;
        [Accel::Kvm, Accel::Tcg].into_iter().find(|accel| accel.name() == name && of == boot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_from_before_the_start_is_ignored() {
        assert_eq!(Accel::recall("kvm abc\n", "abc"), Some(Accel::Kvm));
        assert_eq!(Accel::recall("tcg abc\n", "abc"), Some(Accel::Tcg));
        assert_eq!(Accel::recall("kvm abc\n", "def"), None);
        assert_eq!(Accel::recall("", "def"), None);
    }
}
