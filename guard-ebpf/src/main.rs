//! The eBPF program: hooks that add written bytes to a ledger per file and a total per filesystem, and wake the
//! guard when a filesystem's budget is used up.
//!
//! `filter` tells whose file it is, `ledger` and `budget` are what is kept, `hooks` is where the kernel calls us.
#![cfg_attr(target_arch = "bpf", no_std, no_main, feature(asm_experimental_arch))]
#![cfg_attr(
    not(target_arch = "bpf"),
    expect(dead_code, reason = "for other targets it is only type-checked")
)]

mod atomic;
mod budget;
mod filter;
mod hooks;
mod kernel;
mod ledger;
mod maps;

use guard_ebpf::Offsets;

/// The guard overrides this before loading; the map it lies in is then frozen, so the verifier sees constants.
#[unsafe(no_mangle)]
static OFFSETS: aya_ebpf::Global<Offsets> = aya_ebpf::Global::new(Offsets::UNKNOWN);

/// The same for the brake.
#[unsafe(no_mangle)]
static BRAKE_OFFSETS: aya_ebpf::Global<guard_ebpf::BrakeOffsets> =
    aya_ebpf::Global::new(guard_ebpf::BrakeOffsets::UNKNOWN);

/// bpf_probe_read_kernel and others are for programs that the kernel regards as GPL-compatible.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

#[cfg(target_arch = "bpf")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // The verifier refuses a program that could get here.
    loop {}
}

#[cfg(not(target_arch = "bpf"))]
fn main() {}
