//! What was done and found.

use crate::media::Subject;
use crate::run::Seen;
use crate::watch::Run;
use esker_media::sim::SiteVisits;
use esker_testkit::command::Figures;
use std::collections::BTreeMap;
use std::fmt;

/// Figures of some runs of one subject.
#[derive(Default)]
pub(crate) struct Report {
    pub(crate) runs: u64,
    /// Of these, runs in which checksums count.
    pub(crate) strict_runs: u64,
    /// Groups without an image to begin with.
    pub(crate) without_base: u64,
    /// Groups with an image of which there was to be a backup.
    pub(crate) backups: u64,
    seen: Seen,
    /// Stores that opened where checksums count.
    strict_opened: u64,
    /// The most memory that a run took.
    pub(crate) peak_bytes: u64,
    /// What went wrong, how often, and how to see it again.
    violations: BTreeMap<String, (u64, String)>,
    visits: SiteVisits,
}

impl Report {
    /// Counts what a run came to.
    pub(crate) fn see(&mut self, seen: Seen, strict: bool) {
        self.seen.opened += seen.opened;
        self.seen.reopened += seen.reopened;
        self.seen.repaired += seen.repaired;
        self.seen.restored += seen.restored;
        self.seen.formatted += seen.formatted;
        self.strict_opened += if strict { seen.opened } else { 0 };
    }

    /// Something is wrong. `words` say more of this time.
    pub(crate) fn violation(&mut self, what: &str, run: Run, words: &str) {
        let first = || (0, format!("{} [{words}]", run.again()));
        self.violations.entry(what.to_owned()).or_insert_with(first).0 += 1;
    }

    /// The first one of which this is said.
    pub(crate) fn find(&self, words: &str) -> Option<String> {
        let mut found = self.violations.iter().filter(|(what, _)| what.contains(words));
        found.next().map(|(what, (_, first))| format!("{what}: {first}"))
    }

    /// Stores that opened, of those whose checksums did not count: (opened, tried).
    pub(crate) fn loose(&self) -> (u64, u64) {
        (self.seen.opened - self.strict_opened, self.runs - self.strict_runs)
    }

    /// What never came about in whole groups: then nothing is known of what is behind it.
    pub(crate) fn never(&self, subject: Subject) -> impl Iterator<Item = &'static str> {
        [
            ("opened where checksums count", self.strict_opened, true),
            ("reopened", self.seen.reopened, true),
            ("repaired", self.seen.repaired, true),
            ("formatted", self.seen.formatted, subject != Subject::Space),
            ("restored", self.seen.restored, self.backups > 0),
        ]
        .into_iter()
        .filter_map(|(what, count, is_tried)| (is_tried && count == 0).then_some(what))
    }
}

impl Figures for Report {
    fn add(&mut self, other: Self) {
        self.runs += other.runs;
        self.strict_runs += other.strict_runs;
        self.without_base += other.without_base;
        self.backups += other.backups;
        self.strict_opened += other.strict_opened;
        self.see(other.seen, false);
        self.peak_bytes = self.peak_bytes.max(other.peak_bytes);
        for (what, (count, first)) in other.violations {
            self.violations.entry(what).or_insert_with(|| (0, first)).0 += count;
        }
    }

    fn distinct_states(&self) -> u64 {
        self.runs
    }

    fn violation_count(&self) -> u64 {
        self.violations.values().map(|(count, _)| count).sum()
    }

    fn visits(&self) -> &SiteVisits {
        &self.visits
    }

    fn fields(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("images", self.runs),
            ("strict", self.strict_runs),
            ("opened", self.seen.opened),
            ("strict_opened", self.strict_opened),
            ("reopened", self.seen.reopened),
            ("repaired", self.seen.repaired),
            ("restored", self.seen.restored),
            ("formatted", self.seen.formatted),
            ("peak_bytes", self.peak_bytes),
        ]
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, figure) in self.fields() {
            write!(f, "{name} {figure}, ")?;
        }
        write!(f, "{} groups without an image, ", self.without_base)?;
        write!(f, "{} violations", self.violation_count())?;
        self.violations.iter().try_for_each(|(what, (count, first))| {
            write!(f, "\n  {count} times: {what}\n    {first}")
        })
    }
}
