//! Vbds on a host for tests: their life, their faults and limits, and frontends that break the
//! rules.

mod blkfront;
mod faults;
mod hostile;
mod limits;
mod persistent_grants;
mod storms;
mod vbd;
