//! The daemon as a process of its own: under load and under attack, killed, reloaded, watched and
//! taken over.

mod disk_front_ends;
mod disk_kill;
mod disk_memory;
mod full_log;
mod isolation;
mod kill;
mod load;
mod memory_group;
mod reload;
mod take_over;
mod take_over_refused;
mod watchdog;
