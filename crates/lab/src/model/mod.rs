//! Predictions: how much more workers, queues and guests would carry, from what single things cost here.
//!
//! A discrete-event simulation ([`sim`]) of workers, queues, locks and streams ([`scene`]), fed with service times, lock
//! holding times and shoot-down costs that were measured on the machine at hand.

pub mod actor;
pub mod cpus;
pub mod event;
pub mod lock;
pub mod outcome;
pub mod place;
pub mod scene;
pub mod sim;
pub mod stage;
