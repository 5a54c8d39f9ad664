//! What happens to a frame: learning, VLANs, source locking.
