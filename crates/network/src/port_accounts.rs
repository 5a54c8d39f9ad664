//! The accounts of a port that outlive its queues: a port gains nothing by more queues, nor by
//! taking a queue away and adding it again.

use std::sync::Arc;

use runtime::SlowSignals;

use crate::backpressure::WaitCredit;
use crate::fault_wait::FaultWait;
use crate::passed_grants::PassCredit;
use crate::receive_debt::Debt;

/// The accounts of a port. Clones are the same accounts.
#[derive(Clone, Debug, Default)]
pub struct PortAccounts {
    /// How long others may wait for it while it is full.
    pub wait: Arc<WaitCredit>,
    /// How long frames that were passed to it may be outstanding.
    pub passing: Arc<PassCredit>,
    /// The cost of filling the port's buffers beyond the usual.
    pub debt: Arc<Debt>,
    /// The wait of the port for the cost of its page faults.
    pub fault_wait: Arc<FaultWait>,
    /// Its interrupts that took long.
    pub slow_signals: Arc<SlowSignals>,
}
