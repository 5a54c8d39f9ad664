//! The status of a vif, for observers.

use switch::PortId;

use crate::netif::device_queue::DeviceQueueStatus;
use crate::netif::negotiation::FrontendFeatures;
use crate::netif::settings::Settings;
use crate::xenbus::{self, DeviceId, DeviceStatus};

/// The condition of a vif.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The vif is not connected.
    Waiting,
    /// The vif is connected.
    Connected,
    /// The vif is connected, and its frontend posts no buffers for the frames that come.
    Stalled,
    /// The frontend broke the protocol, and has not begun anew.
    Stopped,
}

/// The state of a frontend's pages that stay mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedPagesStatus {
    /// The number of mapped pages.
    pub pages: usize,
    /// The limit of that number.
    pub most: usize,
    /// Look-ups since the vif connected that found a mapped page.
    pub hits: u64,
    /// Look-ups that did not.
    pub misses: u64,
}

/// A vif.
#[derive(Clone, Debug)]
pub struct VifStatus {
    /// Its name.
    pub id: DeviceId,
    /// Its number in the datapath, since it was first connected.
    pub port: Option<PortId>,
    /// The condition of the vif.
    pub condition: Condition,
    /// Why it was stopped.
    pub reason: Option<String>,
    /// Queues that are connected.
    pub queues: usize,
    /// The features that the frontend supports.
    pub features: FrontendFeatures,
    /// Its pages that stay mapped, if any may.
    pub cache: Option<MappedPagesStatus>,
    /// Connections so far.
    pub connections: u64,
    /// Connections that were refused, or that ended because the frontend broke the protocol.
    pub violations: u64,
    /// Changes of the frontend's state that waited because its control budget was used up.
    pub control_delayed: u64,
    /// The operator's settings.
    pub settings: Option<Settings>,
    /// Its device queue, if it asked for one.
    pub device_queue: Option<DeviceQueueStatus>,
}

impl VifStatus {
    /// The status of a vif without a connection, from the bus's part.
    pub fn new(bus: &DeviceStatus, stalled: bool) -> Self {
        VifStatus {
            id: bus.id,
            port: None,
            condition: match bus.condition {
                xenbus::Condition::Waiting => Condition::Waiting,
                xenbus::Condition::Connected if stalled => Condition::Stalled,
                xenbus::Condition::Connected => Condition::Connected,
                xenbus::Condition::Stopped => Condition::Stopped,
            },
            reason: bus.reason.clone(),
            queues: 0,
            features: FrontendFeatures::default(),
            cache: None,
            connections: bus.connections,
            violations: bus.violations,
            control_delayed: bus.control_delayed,
            settings: None,
            device_queue: None,
        }
    }
}
