//! The `esker` program: see the library beside it.

fn main() -> std::process::ExitCode {
    esker_cli::main()
}
