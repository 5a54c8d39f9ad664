//! Xen, through the devices that Linux has for it.
