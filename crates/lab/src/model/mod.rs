//! Predictions: the rates of more workers, queues and guests, from the costs of single operations
//! here.
//!
//! A discrete-event simulation ([`sim`]) of workers, queues, locks and streams ([`scene`]), fed
//! ([`costs`]) with service times, lock holding times and shoot-down costs that were measured on
//! the machine at hand ([`measure`], [`inputs`]). [`check`] compares measurements on this machine
//! with the simulation of them.

pub mod actor;
pub mod advise;
mod args;
pub mod check;
pub mod costs;
pub mod cpus;
pub mod curves;
mod error;
pub mod event;
pub mod fit;
pub mod inputs;
pub mod lock;
pub mod measure;
pub mod outcome;
pub mod place;
pub mod results;
pub mod rounds;
pub mod scene;
pub mod sim;
pub mod stage;

pub use args::{Args, run};
pub use error::ModelError;

/// The assumptions of a prediction.
pub const ASSUMPTIONS: &str = include_str!("assumptions.txt");
