//! Links to the host: TAP.
