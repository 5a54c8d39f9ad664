//! A discrete-event simulation of a datapath: guests, workers, their queues, the locks between
//! them, and the CPUs that they run on.
//!
//! A [`Scene`](scene::Scene) says what there is, and what each step costs. [`run`] carries out the
//! scene, and returns an [`Outcome`]. The simulation knows no frames and no measurements, and takes
//! no time of day: one scene gives one outcome.

#![forbid(unsafe_code)]

mod actor;
mod cpus;
pub mod event;
mod lock;
mod outcome;
pub mod place;
pub mod scene;
mod simulator;
mod stage;

pub use outcome::Outcome;
pub use simulator::run;
