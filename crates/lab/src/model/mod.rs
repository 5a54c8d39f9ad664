//! Predictions: the rates of more workers, queues and guests, from the costs of single operations
//! here.
//!
//! A discrete-event simulation of workers, queues, locks and streams (the crate `simulation`), fed
//! ([`costs`]) with service times, lock holding times and shoot-down costs that were measured on
//! the machine at hand ([`measure`], [`inputs`]). [`check`] compares measurements on this machine
//! with the simulation of them.

pub mod advise;
mod args;
pub mod check;
pub mod costs;
pub mod curves;
mod error;
pub mod fit;
pub mod inputs;
pub mod measure;
pub mod results;
pub mod rounds;

pub use args::{Args, run};
pub use error::ModelError;

/// The assumptions of a prediction.
pub const ASSUMPTIONS: &str = include_str!("assumptions.txt");
