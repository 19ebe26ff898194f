//! `ftl-serve`, see the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    ftl_serve::main()
}
