#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ringmain_fuzz::coalesce::run(data));
