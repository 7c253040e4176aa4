//! See `guard::fuzzing`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| guard::fuzzing::run("cgroups", bytes));
