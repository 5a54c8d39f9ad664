//! The published experiments as a suite: its command line, runs, and the report.

mod args;
mod report;
mod runner;

pub use args::{Command, command};
