//! A mutant is dead only if the suite failed, and came to its site.

use super::*;
use esker_base::{ErrorKind, SiteKind};

const FLUSH: Site = Site::new("test.mutants.flush", SiteKind::Flush);
const WRITE: Site = Site::new("test.mutants.write", SiteKind::Write);

/// What becomes of the mutant of a suite that passes, or not, without the flush, and comes there so often.
fn fate(passes: bool, reached: u64) -> MutantReport {
    let suite = |site: Option<Site>| site.map_or((true, 0), |_| (passes, reached));
    let report = judge(&[WRITE, FLUSH], suite).unwrap();
    assert_eq!(report.mutants.len(), 1, "a write is no mutant");
    report
}

#[test]
fn a_mutant_is_dead_only_if_the_suite_failed_and_came_to_its_site() {
    let killed = fate(false, 3);
    assert_eq!((killed.mutants[0], killed.missed()), ((FLUSH, Fate::Killed, 3), vec![]));
    for (passes, reached, fate_of_it) in [
        (true, 3, Fate::Survived),
        (true, 0, Fate::NeverReached),
        (false, 0, Fate::FailedElsewhere),
    ] {
        let report = fate(passes, reached);
        assert_eq!(report.mutants[0], (FLUSH, fate_of_it, reached));
        assert_eq!(report.missed(), [FLUSH]);
        assert!(report.to_string().ends_with("1 of 1 missed"), "{report}");
    }
}

#[test]
fn a_suite_that_fails_with_every_site_in_place_judges_nothing() {
    let error = judge(&[FLUSH], |_| (false, 1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupted, "{error}");
}
