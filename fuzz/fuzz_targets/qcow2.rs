#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ringmain_fuzz::qcow2::run(data));
