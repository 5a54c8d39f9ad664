//! Standard output.

use std::io::{self, ErrorKind, Write};

use crate::failure::Failure;

/// Writes to standard output. A reader that has gone away, as `head` does, is no failure.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => Err(Failure::Output(error)),
        Ok(()) => Ok(()),
    }
}
