//! A file with what a guest printed and the commands that ran in it, for finding the cause of a
//! failure or watching progress.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use parking_lot::Mutex;

/// The folder for these files. Without this variable of the environment, there are none.
const FOLDER: &str = "RINGMAIN_GUEST_LOGS";

/// One guest's file. Nothing depends on it, so errors of writing are ignored.
#[derive(Debug)]
pub(super) struct Transcript {
    began: Instant,
    file: Option<Mutex<File>>,
}

impl Transcript {
    /// A new file for a guest of this name, if files are to be written.
    pub(super) fn new(name: &str) -> Transcript {
        let folder = std::env::var_os(FOLDER);
        let file = folder.and_then(|folder| create(Path::new(&folder), name)).map(Mutex::new);
        Transcript { began: Instant::now(), file }
    }

    /// Adds a line, with the time since the guest was started.
    pub(super) fn note(&self, text: &str) {
        if let Some(file) = &self.file {
            let seconds = self.began.elapsed().as_secs_f64();
            let _ = writeln!(file.lock(), "[{seconds:8.2} s] {text}");
        }
    }

    /// Adds what the console printed, as it is.
    pub(super) fn console(&self, text: &[u8]) {
        if let Some(file) = &self.file {
            let _ = file.lock().write_all(text);
        }
    }
}

/// Guests of several tests have the same name, and each has a file of its own.
fn create(folder: &Path, name: &str) -> Option<File> {
    let names = (1..10_000).map(|n| format!("{name}-{n}.log"));
    names.map(|name| File::create_new(folder.join(name))).find_map(Result::ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_guest_has_a_file_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        for text in ["first", "second"] {
            create(folder.path(), "a").unwrap().write_all(text.as_bytes()).unwrap();
        }
        let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
        assert_eq!((read("a-1.log"), read("a-2.log")), ("first".into(), "second".into()));
    }
}
