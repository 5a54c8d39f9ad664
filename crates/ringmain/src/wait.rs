//! `ringmain wait`: waits until a daemon answers.

use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use control::api::Request;
use control::client::{Client, ClientError};

use crate::cli::Wait;
use crate::failure::Failure;

/// How often the daemon is asked.
const INTERVAL: Duration = Duration::from_millis(20);

/// Returns as soon as a daemon answers.
pub fn run(control: &Path, args: &Wait) -> Result<(), Failure> {
    let client = Client::new(control);
    let until = Instant::now() + Duration::from_secs(args.timeout);
    loop {
        match client.ask(&Request::Mac) {
            Ok(_) => return Ok(()),
            // Waiting longer does not resolve these errors.
            Err(error @ (ClientError::Denied(_) | ClientError::Version(_))) => {
                return Err(error.into());
            }
            Err(error) if Instant::now() >= until => return Err(error.into()),
            Err(_) => sleep(INTERVAL),
        }
    }
}
