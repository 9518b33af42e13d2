//! Command lines that ask for nothing are refused.

use super::*;
use esker_base::SiteKind;

/// What is never explored, as nothing of it was chosen.
struct Nothing;

impl Exploration for Nothing {
    type Report = Report;
    const ENGINE: &'static str = "nothing";
    const EFFORT: Effort =
        Effort { states: [1, 0], gate: [1, 0], piece: 1, mutant_seeds: [1, 1], passes_all: false };

    fn scenarios() -> Result<(), String> {
        Err("it went on".to_owned())
    }

    fn explore(_: u64, _: Range<u64>, _: usize) -> Report {
        Report::default()
    }

    fn look(_: u64, _: u64, _: u64) -> Report {
        Report::default()
    }

    fn sites() -> Vec<Site> {
        vec![
            Site::new("test.command.flush", SiteKind::Flush),
            Site::new("test.command.write", SiteKind::Write),
        ]
    }

    fn passed() -> Vec<Site> {
        Vec::new()
    }
}

fn mutant_of(name: &str) -> Result<bool, String> {
    disable::<Nothing>(&Arguments::parse_from(["explorer", "--mutants", "--site", name]))
}

#[test]
fn the_mutant_of_a_site_that_is_none_or_cannot_be_disabled_is_refused() {
    for name in ["test.command.flash", "test.command.write"] {
        let refused = mutant_of(name).unwrap_err();
        assert!(refused.contains(name) && refused.contains("can be disabled"), "{refused}");
    }
    // One that can be is tried, for which this build may lack the feature.
    let tried = mutant_of("test.command.flush").unwrap_err();
    assert!(!tried.contains("can be disabled"), "{tried}");
}
