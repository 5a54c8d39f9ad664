//! The running daemon: configuration, ports, control socket.
