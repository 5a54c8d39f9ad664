//! QEMU's monitor protocol, as far as the lab needs it: one command, one answer.

use serde_json::{Value, json};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// A connection to the monitor.
#[derive(Debug)]
pub(super) struct Qmp {
    stream: BufReader<UnixStream>,
    negotiated: bool,
}

impl Qmp {
    /// Wraps our end of the monitor's socket.
    pub(super) fn new(stream: UnixStream) -> io::Result<Qmp> {
        // Long, since the machine may be busy otherwise; a dead QEMU closes the socket.
        stream.set_read_timeout(Some(Duration::from_secs(600)))?;
        Ok(Qmp { stream: BufReader::new(stream), negotiated: false })
    }

    /// Executes a command and gives its answer: what it returned, or why it was refused.
    pub(super) fn execute(
        &mut self,
        command: &str,
        arguments: Value,
    ) -> io::Result<Result<Value, String>> {
        if !self.negotiated {
            self.message()?; // the greeting
            self.negotiated = true;
            let _ = self.exchange("qmp_capabilities", json!({}))?;
        }
        self.exchange(command, arguments)
    }

    fn exchange(&mut self, command: &str, arguments: Value) -> io::Result<Result<Value, String>> {
        writeln!(
            self.stream.get_mut(),
            "{}",
            json!({ "execute": command, "arguments": arguments })
        )?;
        loop {
            let mut message = self.message()?;
            if let Some(value) = message.get_mut("return") {
                return Ok(Ok(value.take()));
            }
            if let Some(error) = message.get("error") {
                return Ok(Err(error.to_string()));
            }
            // Anything else is an event.
        }
    }

    fn message(&mut self) -> io::Result<Value> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        serde_json::from_str(&line).map_err(io::Error::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_before_an_answer_are_skipped() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(b"{\"QMP\": {}}\n{\"return\": {}}\n{\"event\": \"RESET\"}\n{\"return\": 3}\n{\"error\": {\"class\": \"x\"}}\n").unwrap();
        let mut qmp = Qmp::new(ours).unwrap();
        assert_eq!(qmp.execute("one", json!({})).unwrap(), Ok(json!(3)));
        assert!(qmp.execute("two", json!({})).unwrap().is_err());
    }
}
