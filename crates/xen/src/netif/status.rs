//! How a vif is doing, for those who ask.

use switch::PortId;

use crate::netif::device_queue::DeviceQueueStatus;
use crate::netif::negotiation::FrontendFeatures;
use crate::netif::settings::Settings;
use crate::xenbus::{self, DeviceId, DeviceStatus};

/// How it stands with a vif's frontend.
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

/// How it stands with a frontend's pages that stay mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedPagesStatus {
    /// How many they are.
    pub pages: usize,
    /// How many they may be.
    pub most: usize,
    /// Pages to be copied from or to, since it connected, that were among them.
    pub hits: u64,
    /// Pages that were not among them.
    pub misses: u64,
}

/// A vif.
#[derive(Clone, Debug)]
pub struct VifStatus {
    /// Its name.
    pub id: DeviceId,
    /// Its number in the datapath, since it was first connected.
    pub port: Option<PortId>,
    /// How it stands.
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
    /// Connections that ended because the frontend broke the rules, or were refused.
    pub violations: u64,
    /// Changes of its state that waited because it had used up what they may cost the workers.
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
