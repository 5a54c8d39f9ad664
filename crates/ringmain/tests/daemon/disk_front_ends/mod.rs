//! Front-ends of disks that share an image, that migrate their guests, and that are hostile.

mod front;
mod lock;
mod storms;
