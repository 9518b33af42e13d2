//! Checks of the repository.
fn main() {}
