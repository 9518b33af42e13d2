//! x
use crate::failure::{Done, Failure};
use std::path::Path;
pub(crate) fn compare(_: &Path, _: &Path) -> Result<Done, Failure> { Err(Failure::usage("todo")) }
