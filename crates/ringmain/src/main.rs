//! The `ringmain` command.
fn main() {}
