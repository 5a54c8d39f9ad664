//! Traffic, guests, measurement and reports.

pub mod guest;
pub mod interrupt;
