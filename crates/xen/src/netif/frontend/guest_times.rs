//! A frontend's report on its time.

use super::FrontError;
use super::interface::Frontend;
use crate::netif::guest_times::{GuestTimes, KEY};

impl Frontend {
    /// The number of the backend's request for the times; zero: there is no request.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn profile_request(&self) -> Result<u64, FrontError> {
        let number = self.bus().nodes().find(&format!("{}/{KEY}", self.bus().backend_path()))?;
        Ok(number.and_then(|number| number.parse().ok()).unwrap_or(0))
    }

    /// Reports the times to the backend, as the answer to request `number`. A first report without
    /// a request shows the backend that this frontend answers requests.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn report_times(&self, number: u64, times: &GuestTimes) -> Result<(), FrontError> {
        Ok(self
            .bus()
            .nodes()
            .put(&format!("{}/{KEY}", self.bus().path()), format!("{number} {times}"))?)
    }
}
