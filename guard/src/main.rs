//! The command `checkpoint-guard`. Arguments, wiring, exit codes; everything else is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    guard::cli::main()
}
