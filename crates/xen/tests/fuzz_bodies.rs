//! The bodies of the fuzz targets on random bytes, so that they are kept working, and find what is
//! easy to find, wherever the tests run. `scripts/fuzz` lets a fuzzer choose the bytes.

#[path = "../../../fuzz/src/blkif.rs"]
mod blkif;
#[path = "../../../fuzz/src/control.rs"]
mod control;
#[allow(dead_code)] // Others use the rest of it.
#[path = "../../../fuzz/src/input.rs"]
mod input;
#[path = "../../../fuzz/src/keys.rs"]
mod keys;
#[path = "../../../fuzz/src/slots.rs"]
mod slots;
#[path = "../../../fuzz/src/vbd.rs"]
mod vbd;
#[path = "../../../fuzz/src/vif.rs"]
mod vif;
#[path = "../../../fuzz/src/wire.rs"]
mod wire;

use proptest::prelude::*;

fn bytes(most: usize) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..most)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn slots_of_random_bytes(data in bytes(500)) {
        slots::run(&data);
    }

    #[test]
    fn slots_of_block_devices_of_random_bytes(data in bytes(2200)) {
        blkif::run(&data);
    }

    #[test]
    fn control_messages_of_random_bytes(data in bytes(600)) {
        control::run(&data);
    }

    #[test]
    fn keys_of_random_bytes(data in bytes(300)) {
        keys::run(&data);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn answers_of_the_store_of_random_bytes(data in bytes(400)) {
        wire::run(&data);
    }

    #[test]
    fn vbds_of_random_bytes(data in bytes(1500)) {
        vbd::run(&data);
    }

    #[test]
    fn vifs_of_random_bytes(data in bytes(1500)) {
        vif::run(&data);
    }
}
