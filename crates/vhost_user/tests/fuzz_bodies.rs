//! The bodies of the fuzz targets on random bytes, so that they are kept working, and find what is
//! easy to find, wherever the tests run. `scripts/fuzz` lets a fuzzer choose the bytes.

#[path = "../../../fuzz/src/bpf.rs"]
mod bpf;
#[path = "../../../fuzz/src/disk.rs"]
mod disk;
#[path = "../../../fuzz/src/frame.rs"]
mod frame_body;
#[path = "../../../fuzz/src/guard.rs"]
mod guard_body;
#[path = "../../../fuzz/src/inflight.rs"]
mod inflight;
#[path = "../../../fuzz/src/input.rs"]
mod input;
#[path = "../../../fuzz/src/messages.rs"]
mod messages;
#[path = "../../../fuzz/src/requests.rs"]
mod requests;
#[path = "../../../fuzz/src/rings.rs"]
mod rings;
#[path = "../../../fuzz/src/session.rs"]
mod session;
#[path = "../../../fuzz/src/vxlan.rs"]
mod vxlan_body;

use proptest::prelude::*;
use ring::{PackedDevice, PackedRequests, SplitDevice, SplitRequests};

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn messages_of_random_bytes(data in prop::collection::vec(any::<u8>(), 0..600)) {
        messages::run(&data);
    }

    #[test]
    fn frames_of_random_bytes(data in prop::collection::vec(any::<u8>(), 0..200)) {
        frame_body::run(&data);
    }

    #[test]
    fn encapsulated_frames_of_random_bytes(data in prop::collection::vec(any::<u8>(), 0..200)) {
        vxlan_body::run(&data);
    }

    #[test]
    fn claims_of_random_bytes(data in prop::collection::vec(any::<u8>(), 0..200)) {
        guard_body::run(&data);
    }

    #[test]
    fn packet_filters_of_random_bytes(data in prop::collection::vec(any::<u8>(), 0..300)) {
        bpf::run(&data);
    }

    #[test]
    fn sessions_of_random_bytes(data in prop::collection::vec(any::<u8>(), 0..1500)) {
        session::run(&data);
    }

    #[test]
    fn split_rings_of_random_bytes(data in prop::collection::vec(any::<u8>(), 0..1500)) {
        rings::run::<SplitDevice>(&data);
    }

    #[test]
    fn packed_rings_of_random_bytes(data in prop::collection::vec(any::<u8>(), 0..1500)) {
        rings::run::<PackedDevice>(&data);
    }

    #[test]
    fn disks_of_random_bytes(data in prop::collection::vec(any::<u8>(), 0..1500)) {
        disk::run::<SplitRequests>(false, &data);
        disk::run::<PackedRequests>(true, &data);
    }

    #[test]
    fn records_of_random_bytes(data in prop::collection::vec(any::<u8>(), 0..1500)) {
        inflight::run::<SplitRequests>(false, &data);
        inflight::run::<PackedRequests>(true, &data);
    }
}
