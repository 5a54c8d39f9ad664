//! The tests of the device mapper, in a stock guest: many hosts have no device mapper, as
//! containers and small virtual machines. The daemon, and this program, run in the guest.

use std::path::Path;
use std::time::Duration;

use lab::guest::{Accel, Extras, Guest, Image, Shell, Spec};

/// Ends a test that would hang.
const LIMIT: Duration = Duration::from_secs(300);

#[test]
#[ignore = "boots a guest"]
fn the_device_mapper_of_a_stock_guest() {
    let cache = lab::folders::cache(env!("CARGO_MANIFEST_DIR"));
    let this = std::env::current_exe().unwrap();
    let extras = Extras {
        programs: &["dmsetup", "losetup", "setpriv"],
        at_their_paths: &[&this, Path::new(env!("CARGO_BIN_EXE_ringmain"))],
        modules: &["loop", "dm-mod", "dm-flakey"],
    };
    let kernel = Image::prepare_with(&cache, "initramfs-faults", &extras).unwrap();
    let accel = Accel::probe(&kernel, &cache).unwrap();
    let spec = Spec { cpus: 2, memory: 512, ..Spec::new("faults") };
    let guest = Guest::start(&kernel, accel, &spec).unwrap();
    guest.ready(LIMIT).unwrap();
    let tests = format!("{} mapper:: --test-threads=1 2>&1", this.display());
    let said = guest.must(&tests, LIMIT).unwrap_or_else(|error| panic!("{error}"));
    assert!(said.contains("3 passed") && !said.contains("not tested"), "{said}");
}
