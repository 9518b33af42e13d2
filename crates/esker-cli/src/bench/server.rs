//! x
use crate::failure::{Done, Failure};
pub(crate) fn server(_: super::arguments::ServerArguments) -> Result<Done, Failure> { Err(Failure::usage("todo")) }
