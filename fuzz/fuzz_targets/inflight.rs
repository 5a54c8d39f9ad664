#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    ringmain_fuzz::inflight::run::<ring::SplitRequests>(false, data)
});
