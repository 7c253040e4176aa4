//! Builds, tests, shows and measures checkpoint-guard. One file per task; this one only dispatches.

use std::path::Path;

use clap::Parser;

mod bench;
mod build_ebpf;
mod command;
mod demo;
mod ebpf_artifact;
mod fuzz;
mod image;
mod kube_apiserver;
mod kubernetes_tools;
mod setup;
mod tally;
mod test;
mod vm_test;

/// Builds, tests, shows and measures checkpoint-guard.
#[derive(Parser)]
#[command(name = "cargo xtask")]
enum Task {
    /// Builds the eBPF object that the guard embeds.
    BuildEbpf(build_ebpf::Options),
    /// Installs what building and testing need, as far as it is missing.
    Setup(setup::Options),
    /// Shows the guard keeping a small disk from filling up.
    Demo(demo::Options),
    /// Measures the guard beside its alternatives.
    Bench(bench::Options),
    /// Runs the guard's tests on other kernels, in an emulator.
    VmTest(vm_test::Options),
    /// Makes the container image, without a container engine.
    Image(image::Options),
    /// Builds the API server that some tests need, from Debian's source.
    KubeApiserver(kube_apiserver::Options),
    /// Fetches helm and the schemas of Kubernetes, which tests of deploy/ need.
    KubernetesTools(kubernetes_tools::Options),
    /// Throws bytes at what reads input from outside (needs the nightly toolchain).
    Fuzz(fuzz::Options),
    /// Runs all tests, formatting and lints: what CI runs.
    Test(test::Options),
}

fn main() -> anyhow::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace");
    match Task::parse() {
        Task::BuildEbpf(options) => build_ebpf::run(options, root),
        Task::Setup(options) => setup::run(options, root),
        Task::Demo(options) => demo::run(options, root),
        Task::Bench(options) => bench::run(options, root),
        Task::VmTest(options) => vm_test::run(options, root),
        Task::Image(options) => image::run(options, root),
        Task::KubeApiserver(options) => kube_apiserver::run(options, root),
        Task::KubernetesTools(options) => kubernetes_tools::run(options, root),
        Task::Fuzz(options) => fuzz::run(options, root),
        Task::Test(options) => test::run(options, root),
    }
}
