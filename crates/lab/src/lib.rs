//! Traffic, guests, measurement and reports.
