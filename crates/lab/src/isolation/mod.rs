//! Attacks of one guest on others on the same workers.
//!
//! Two innocent guests exchange frames while a neighbour does something on ports of its own. Each
//! [`Case`] is one attack with two neighbours: a hostile one, and a fair one with the same rings
//! and about the same load but without the trick. The innocents' performance beside the hostile
//! neighbour, compared with that beside the fair one, shows how well the daemon isolates its ports.
//!
//! `ringmain-lab bench-isolation` measures all cases; a test runs each of them for a moment, and
//! checks that every frame is accounted for.

pub mod case;
pub mod config;
mod connections;
pub mod disks;
pub mod innocents;
mod messages;
pub mod neighbour;
mod receivers;
mod senders;
pub mod station;
