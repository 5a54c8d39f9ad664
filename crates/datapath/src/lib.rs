//! Workers that carry bursts of frames between queue pairs.
