//! x
use crate::failure::{Done, Failure};
pub(crate) fn raw(_: &super::arguments::RawArguments) -> Result<Done, Failure> { Err(Failure::usage("todo")) }
pub(crate) fn micro(_: u64) -> Result<Done, Failure> { Err(Failure::usage("todo")) }
