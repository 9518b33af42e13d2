//! `esker bench compare`.

use crate::failure::{Done, Failure};
use crate::output::tell;
use esker_bench::compare::compare as compared;
use esker_bench::document::Document;
use std::path::Path;

/// Prints how two results compare. Exit code 1 if more settings differ than noise explains, or the newer one lacks some.
pub(crate) fn compare(old: &Path, new: &Path) -> Result<Done, Failure> {
    let comparison = compared(&Document::read(old)?, &Document::read(new)?);
    tell(comparison.words().trim_end())?;
    Ok(if comparison.is_different() { Done::No } else { Done::Yes })
}
