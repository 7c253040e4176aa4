#![no_std]
//! Types and names that the eBPF program and the guard share.
