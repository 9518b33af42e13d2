//! Tests of the tests: each flush, check and wait is turned off in turn, and the suite must notice.
//!
//! Needs the feature `mutants`. A site that no run reaches, or whose loss nobody notices, is a hole
//! in the suite, or the site is not needed.

use esker_base::{Result, Site};
use std::fmt;

/// What became of the mutant without one site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The suite failed, as it must.
    Killed,
    /// The suite passed although the site was reached.
    Survived,
    /// The suite passed and never came there.
    NeverReached,
    /// The suite failed, but never came there: of something else.
    FailedElsewhere,
}

/// The mutants of a list of sites.
#[derive(Clone, Debug, Default)]
pub struct MutantReport {
    /// Each site with its mutant's fate and how often it was reached.
    pub mutants: Vec<(Site, Fate, u64)>,
}

impl MutantReport {
    /// The sites whose loss nobody noticed.
    #[must_use]
    pub fn missed(&self) -> Vec<Site> {
        let missed = self.mutants.iter().filter(|(_, fate, _)| *fate != Fate::Killed);
        missed.map(|(site, ..)| *site).collect()
    }
}

impl fmt::Display for MutantReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (site, fate, reached) in &self.mutants {
            writeln!(f, "{site:?}: {fate:?} ({reached} times reached)")?;
        }
        write!(f, "{} of {} missed", self.missed().len(), self.mutants.len())
    }
}

/// Runs `suite` once whole and then once without each site that can be disabled. `suite` answers
/// whether everything passed; a panic counts as failed.
///
/// # Errors
/// `Unsupported` without the feature `mutants`; `Corrupted` if the whole suite fails already.
#[cfg(feature = "mutants")]
pub fn run(sites: &[Site], mut suite: impl FnMut() -> bool) -> Result<MutantReport> {
    use esker_base::site::switch;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    judge(sites, |site| {
        switch::disable(site);
        let passed = catch_unwind(AssertUnwindSafe(&mut suite)).unwrap_or(false);
        let reached = switch::reached();
        switch::disable(None);
        (passed, reached)
    })
}

/// Judges by whether the suite passes without a site, and how often it comes there.
#[cfg(any(test, feature = "mutants"))]
fn judge(
    sites: &[Site],
    mut passes: impl FnMut(Option<Site>) -> (bool, u64),
) -> Result<MutantReport> {
    use esker_base::{Error, ErrorKind};

    if !passes(None).0 {
        let context = "the suite fails with every site in place";
        return Err(Error::new(ErrorKind::Corrupted, "run mutants").context(context));
    }
    let mut report = MutantReport::default();
    for site in sites.iter().filter(|site| site.kind().can_be_disabled()) {
        let (passed, reached) = passes(Some(*site));
        let fate = match (passed, reached) {
            (false, 0) => Fate::FailedElsewhere,
            (false, _) => Fate::Killed,
            (true, 0) => Fate::NeverReached,
            (true, _) => Fate::Survived,
        };
        report.mutants.push((*site, fate, reached));
    }
    Ok(report)
}

/// Without the feature nothing can be turned off.
///
/// # Errors
/// Always `Unsupported`.
#[cfg(not(feature = "mutants"))]
pub fn run(_sites: &[Site], _suite: impl FnMut() -> bool) -> Result<MutantReport> {
    use esker_base::{Error, ErrorKind};
    let context = "build with the feature `mutants`";
    Err(Error::new(ErrorKind::Unsupported, "run mutants").context(context))
}

#[cfg(test)]
mod tests;
