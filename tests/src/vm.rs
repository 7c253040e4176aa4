//! What a test knows of the VM that `cargo xtask vm-test` runs it in.

/// The release of the VM's kernel, `6.12.117+deb13-cloud-amd64`; `None` on a machine that is no such VM.
pub fn kernel() -> Option<String> {
    std::env::var("CHECKPOINT_GUARD_VM").ok()
}
