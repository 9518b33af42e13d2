//! `esker bench compare`.

use crate::failure::{Done, Failure};
use esker_bench::compare::compare as compared;
use esker_bench::document::Document;
use std::io::Write;
use std::path::Path;

/// Prints how two results compare. Exit code 1 if more settings differ than noise explains.
pub(crate) fn compare(old: &Path, new: &Path) -> Result<Done, Failure> {
    let comparison = compared(&Document::read(old)?, &Document::read(new)?);
    write!(std::io::stdout().lock(), "{}", comparison.words())
        .map_err(|source| Failure::io("standard output", &source))?;
    Ok(if comparison.is_different() { Done::No } else { Done::Yes })
}
