//! What an exploration did and found.

use esker_media::sim::SiteVisits;
use std::collections::BTreeMap;
use std::fmt;

/// A store that held what it must not, or did not open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Seed of the workload.
    pub seed: u64,
    /// Crash point and number of the state there; for crashes inside recoveries, one after another.
    pub path: Vec<(u64, u64)>,
    /// What was wrong.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}", self.seed)?;
        for (point, state) in &self.path {
            write!(f, ", crash at point {point} in state {state}")?;
        }
        write!(f, ": {}", self.what)
    }
}

/// Figures of an exploration. A state is counted as distinct once per trace, by a 128-bit hash of
/// the image.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Seeds explored.
    pub seeds: u64,
    /// Of these, seeds on recycled media.
    pub recycled: u64,
    /// Operations of all workloads.
    pub operations: u64,
    /// Crash points.
    pub points: u64,
    /// Points whose states were all enumerated.
    pub exhaustive_points: u64,
    /// States.
    pub states: u64,
    /// Distinct states.
    pub distinct_states: u64,
    /// States inside recoveries, each as often as it was tried.
    pub nested_states: u64,
    /// Recoveries that ran.
    pub recoveries: u64,
    /// Workloads that were run twice and compared.
    pub replays_compared: u64,
    /// Visits of sites, by workloads and recoveries.
    pub visits: SiteVisits,
    /// States at points just before or after each site.
    pub site_states: BTreeMap<&'static str, u64>,
    /// What went wrong.
    pub violations: Vec<Violation>,
}

impl Report {
    /// Counts one state beside a site.
    pub(super) fn cover(&mut self, site: &'static str) {
        *self.site_states.entry(site).or_default() += 1;
    }

    /// Adds another exploration's figures.
    pub fn merge(&mut self, other: &Report) {
        self.seeds += other.seeds;
        self.recycled += other.recycled;
        self.operations += other.operations;
        self.points += other.points;
        self.exhaustive_points += other.exhaustive_points;
        self.states += other.states;
        self.distinct_states += other.distinct_states;
        self.nested_states += other.nested_states;
        self.recoveries += other.recoveries;
        self.replays_compared += other.replays_compared;
        self.visits.merge(&other.visits);
        for (site, count) in &other.site_states {
            *self.site_states.entry(site).or_default() += count;
        }
        self.violations.extend(other.violations.iter().cloned());
        self.violations.sort_by_key(|violation| violation.seed);
    }

    /// Panics with every violation, if there is one.
    ///
    /// # Panics
    /// If there are violations.
    pub fn assert_clean(&self) {
        assert!(self.violations.is_empty(), "{self}");
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = |part: u64, whole: u64| (part * 100).checked_div(whole).unwrap_or(0);
        writeln!(
            f,
            "{} seeds ({} % on recycled media), {} operations, {} crash points ({} % exhaustive)",
            self.seeds,
            share(self.recycled, self.seeds),
            self.operations,
            self.points,
            share(self.exhaustive_points, self.points)
        )?;
        writeln!(
            f,
            "{} states, {} distinct, {} inside recoveries, {} recoveries; {} sites covered, {} \
             replays compared",
            self.states,
            self.distinct_states,
            self.nested_states,
            self.recoveries,
            self.site_states.len(),
            self.replays_compared
        )?;
        for (site, count) in &self.site_states {
            writeln!(f, "  {site}: {count} states")?;
        }
        writeln!(f, "{} violations", self.violations.len())?;
        for violation in &self.violations {
            writeln!(f, "  {violation}")?;
        }
        Ok(())
    }
}
