//! virtio-net over vhost-user: sessions, devices and the driver side.
