//! The device side of a packed virtqueue.

use std::sync::Arc;

use crate::device::{DeviceRing, Put, RingConfig};
use crate::gather::{Body, Chain, Gather};
use crate::region::Memory;
use crate::violation::Violation;

/// The device side of a packed virtqueue.
#[derive(Debug)]
pub struct PackedDevice {}

impl DeviceRing for PackedDevice {
    fn new(_mem: Arc<Memory>, _config: &RingConfig) -> Result<Self, Violation> {
        todo!()
    }

    fn set_memory(&mut self, _mem: Arc<Memory>) -> Result<(), Violation> {
        todo!()
    }

    fn fetch(&mut self, _gather: &mut Gather, _chains: &mut Vec<Chain>, _max: usize) -> Result<usize, Violation> {
        todo!()
    }

    fn in_flight(&self) -> usize {
        todo!()
    }

    fn complete(&mut self, _n: usize) {
        todo!()
    }

    fn rewind(&mut self, _n: usize) {
        todo!()
    }

    fn prepare(&mut self, _n: usize) -> Result<usize, Violation> {
        todo!()
    }

    fn put(&mut self, _net: &mut [u8], _head: &[u8], _body: Body<'_>, _mergeable: bool) -> Result<Put, Violation> {
        todo!()
    }

    fn publish(&mut self) -> bool {
        todo!()
    }

    fn arm(&mut self) -> Result<bool, Violation> {
        todo!()
    }

    fn disarm(&mut self) {
        todo!()
    }

    fn available(&mut self) -> Result<bool, Violation> {
        todo!()
    }

    fn position(&self) -> u32 {
        todo!()
    }
}
