//! The bus's part of a device's status.

use super::DeviceId;

/// Whether a device is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Not connected.
    Waiting,
    /// Connected.
    Connected,
    /// Stopped: the frontend broke the rules, and has not begun anew.
    Stopped,
}

/// The bus's state of a device.
#[derive(Clone, Debug)]
pub struct DeviceStatus {
    /// The id of the device.
    pub id: DeviceId,
    /// Whether it is connected.
    pub condition: Condition,
    /// Why it was stopped.
    pub reason: Option<String>,
    /// Connections so far.
    pub connections: u64,
    /// Connections that were refused, or that ended because the frontend broke the protocol.
    pub violations: u64,
    /// Changes of the store, and events, that waited because the device had overdrawn its control
    /// budget.
    pub control_delayed: u64,
}

impl DeviceStatus {
    /// The state of a device that was just found.
    pub fn new(id: DeviceId) -> Self {
        let condition = Condition::Waiting;
        let (connections, violations, control_delayed) = (0, 0, 0);
        DeviceStatus { id, condition, reason: None, connections, violations, control_delayed }
    }
}
