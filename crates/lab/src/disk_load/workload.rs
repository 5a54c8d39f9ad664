//! The workload: the requests that are sent.

use serde::Serialize;

/// The type of the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// The device fills the buffer.
    Read,
    /// The device takes the buffer's content.
    Write,
}

/// The order of the blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Any block of the disk is as likely as any other.
    Random,
    /// Each queue has a part of the disk, and goes through it again and again.
    Serial,
}

/// The requests that are sent.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Reads or writes.
    pub operation: Operation,
    /// Random or serial.
    pub order: Order,
    /// Bytes of each request, a multiple of 512.
    pub bytes: u32,
    /// Queues that the requests are spread over.
    pub queues: u16,
    /// Requests under way in each queue, at most.
    pub depth: u16,
    /// Requests per second in sum, with random gaps; `None`: as many as are answered; 0: none.
    pub rate: Option<u64>,
    /// Whether the generator sleeps until it is interrupted, as a guest does; otherwise it polls
    /// the rings.
    pub sleeps: bool,
    /// The data: writes write the pattern of this generation, and reads compare with it. `None`:
    /// the content of buffers does not matter.
    pub generation: Option<u32>,
}

impl Workload {
    /// Requests of one queue at full rate, by a generator that polls.
    pub const fn new(operation: Operation, order: Order, bytes: u32, depth: u16) -> Workload {
        Workload {
            operation,
            order,
            bytes,
            queues: 1,
            depth,
            rate: None,
            sleeps: false,
            generation: None,
        }
    }
}
