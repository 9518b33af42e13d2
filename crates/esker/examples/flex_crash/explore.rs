//! One seed: its workload, the states that cuts leave, and what is found in them.

use crate::workload::{
    self, Content, DEVICES, OPERATIONS, OPERATIONS_MORE, Told, Workload, allows,
};
use esker_base::rng::Rng;
use esker_media::sim::{Image, Initial, Replay, SimDevices, SiteVisits};
use esker_testkit::command::Figures;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

/// Most states of a point; up to so many, all are tried.
const STATES: u64 = 48;
/// One state of so many goes on after its recovery.
const FOLLOW_UP_ONE_IN: u64 = 6;
/// Opens what stood on recycled media, by a clock for which nothing has expired.
const SEED_OF_OLDER: u64 = 2;

/// What was done and found.
#[derive(Default)]
pub(crate) struct Report {
    seeds: u64,
    recycled: u64,
    operations: u64,
    points: u64,
    exhaustive: u64,
    states: u64,
    distinct: u64,
    recoveries: u64,
    follow_ups: u64,
    /// States in which what is made was none yet, or empty, or still what the media held before.
    made: [u64; 3],
    visits: SiteVisits,
    violations: Vec<String>,
}

impl Figures for Report {
    fn add(&mut self, other: Self) {
        self.seeds += other.seeds;
        self.recycled += other.recycled;
        self.operations += other.operations;
        self.points += other.points;
        self.exhaustive += other.exhaustive;
        self.states += other.states;
        self.distinct += other.distinct;
        self.recoveries += other.recoveries;
        self.follow_ups += other.follow_ups;
        self.made.iter_mut().zip(other.made).for_each(|(sum, other)| *sum += other);
        self.visits.merge(&other.visits);
        self.violations.extend(other.violations);
    }
    fn distinct_states(&self) -> u64 {
        self.distinct
    }

    fn violation_count(&self) -> u64 {
        self.violations.len() as u64
    }

    fn visits(&self) -> &SiteVisits {
        &self.visits
    }

    fn fields(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("operations", self.operations),
            ("points", self.points),
            ("states", self.states),
            ("recycled_seeds", self.recycled),
        ]
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} seeds ({} on recycled media), {} operations, {} crash points ({} exhaustive)",
            self.seeds, self.recycled, self.operations, self.points, self.exhaustive
        )?;
        writeln!(
            f,
            "{} states, {} distinct, {} recoveries, {} of them went on and were cut again",
            self.states, self.distinct, self.recoveries, self.follow_ups
        )?;
        let [none, empty, older] = self.made;
        writeln!(
            f,
            "while it is made: {none} states in which there is none, {empty} empty, {older} as before"
        )?;
        for (site, count) in self.visits.sorted() {
            writeln!(f, "  {site}: {count} visits")?;
        }
        write!(f, "{} violations", self.violations.len())?;
        self.violations.iter().try_for_each(|violation| write!(f, "\n  {violation}"))
    }
}

type Outcome = Result<Content, String>;

/// What is said of a recovery that is wrong whatever the media hold.
const PANICKED: &str = "recovery panicked";

/// Recovers these images and reads everything.
fn recover(images: &[Image], seed: u64) -> Outcome {
    let opened = catch_unwind(AssertUnwindSafe(|| workload::open_and_read(images, seed)));
    match opened {
        Ok(found) => found.map_err(|error| format!("recovery failed: {error}")),
        Err(_) => Err(PANICKED.to_owned()),
    }
}

/// What a cut left while it was made is none, which may take any error: then one is made over it, and used.
fn make_again(images: &[Image], seed: u64) -> Result<(), String> {
    let initial: Vec<_> = images.iter().cloned().map(Initial::Recycled).collect();
    let made = workload::run(&initial, seed, OPERATIONS_MORE, None).map(drop);
    made.map_err(|words| format!("made again: {words}"))
}

/// A second recovery, more operations, another cut, and what is found then. `told`: what clients know from before the first cut.
fn go_on(images: &[Image], first: &Content, told: Told, seed: u64) -> Result<(), String> {
    if recover(images, seed ^ 1)? != *first {
        return Err("a second recovery found something else".to_owned());
    }
    let initial: Vec<_> = images.iter().cloned().map(Initial::Recycled).collect();
    let workload = workload::run(&initial, seed, OPERATIONS_MORE, Some((first.clone(), told)))
        .map_err(|words| format!("after recovery: {words}"))?;
    let end = workload.devices.position();
    let mut rng = Rng::from_seed(seed);
    for number in 0..4 {
        // The first one amid the open.
        let cut = rng.below(if number == 0 { workload.opened_at } else { end } + 1);
        let images = SimDevices::cut(&workload.devices.traces(), cut, rng.next_u64());
        let found = recover(&images, seed ^ 2).map_err(|words| {
            format!("cut again at {cut} of {end}, open until {}: {words}", workload.opened_at)
        })?;
        workload
            .timeline
            .judge(cut, &found)
            .map_err(|words| format!("cut again at {cut}: {words}"))?;
    }
    Ok(())
}

struct Seed {
    seed: u64,
    report: Report,
    seen: HashMap<u128, Rc<Outcome>>,
    judged: HashSet<(u128, u64)>,
    rng: Rng,
}

pub(crate) fn explore_seed(seed: u64, only: Option<u64>) -> Report {
    let mut state = Seed {
        seed,
        report: Report { seeds: 1, ..Report::default() },
        seen: HashMap::new(),
        judged: HashSet::new(),
        rng: Rng::from_seed(seed ^ 0x3C6E_F372),
    };
    let made = catch_unwind(AssertUnwindSafe(|| make(seed)));
    match made {
        Ok(Ok((workload, recycled))) => {
            state.report.recycled = u64::from(recycled);
            state.report.operations = workload.operations;
            for device in workload.devices.devices() {
                state.report.visits.merge(&device.visits());
            }
            state.points(&workload, only);
        }
        Ok(Err(words)) => state.violation(0, &format!("without any crash: {words}")),
        Err(_) => state.violation(0, "without any crash: a panic"),
    }
    state.report.distinct = state.seen.len() as u64;
    state.report
}

fn make(seed: u64) -> Result<(Workload, bool), String> {
    let (initial, older) = match seed % 5 {
        0 => (vec![Initial::Zeros; DEVICES], None),
        1 => (vec![Initial::Random; DEVICES], None),
        _ => {
            let images = workload::recycled(seed ^ 0x5555)?;
            // None, if that one was cut while it was made.
            let older = match recover(&images, SEED_OF_OLDER) {
                Err(words) if words == PANICKED => return Err(words),
                found => found.ok(),
            };
            (images.into_iter().map(Initial::Recycled).collect(), older)
        }
    };
    let mut workload = workload::run(&initial, seed, OPERATIONS, None)?;
    if let Some(older) = older {
        workload.timeline.over(workload.opened_at, older);
    }
    Ok((workload, seed % 5 > 1))
}

impl Seed {
    fn violation(&mut self, point: u64, words: &str) {
        self.report.violations.push(format!("seed {}, point {point}: {words}", self.seed));
    }

    fn points(&mut self, workload: &Workload, only: Option<u64>) {
        let traces = workload.devices.traces();
        let mut replays: Vec<Replay<'_>> = traces.iter().map(|trace| trace.replay()).collect();
        // From before the first call: what was there may be an older one, which is written over.
        for point in 0..=workload.devices.position() {
            for replay in &mut replays {
                replay.advance_to(point);
            }
            if only.is_none_or(|only| only == point) {
                self.report.points += 1;
                self.point(&replays, workload, point);
            }
            if self.report.violations.len() >= 3 {
                return;
            }
        }
    }

    /// States of a point: any state of one device with any of the others.
    fn point(&mut self, replays: &[Replay<'_>], workload: &Workload, point: u64) {
        let timeline = &workload.timeline;
        let is_made = point >= workload.opened_at;
        let version = timeline.version(point);
        let mut states: Vec<_> = replays
            .iter()
            .map(|replay| replay.states(STATES as usize, self.seed ^ point))
            .collect();
        let counts: Vec<u64> = states.iter().map(|states| states.size_hint().0 as u64).collect();
        let all = counts.iter().product::<u64>();
        self.report.exhaustive += u64::from(all <= STATES);
        for number in 0..all.min(STATES) {
            let mut left = number;
            let mut hash = 0_u128;
            let mut chosen = Vec::with_capacity(DEVICES);
            for (states, count) in states.iter_mut().zip(&counts) {
                // Few: one after the other. Many: nothing, everything, or any, independently.
                let pick = if all <= STATES {
                    let pick = left % count;
                    left /= count;
                    pick
                } else {
                    match self.rng.below(4) {
                        0 => 0,
                        1 => states.whole(),
                        _ => self.rng.below(*count),
                    }
                };
                let state = states.state(pick);
                hash = hash.rotate_left(43).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39D) ^ state.hash();
                chosen.push(state);
            }
            self.report.states += 1;
            if !self.judged.insert((hash, version)) {
                continue;
            }
            let images = || chosen.iter().map(|state| state.image()).collect::<Vec<_>>();
            let is_new = !self.seen.contains_key(&hash);
            let seed = self.seed ^ hash as u64;
            let report = &mut self.report;
            let outcome = self.seen.entry(hash).or_insert_with(|| {
                report.recoveries += 1;
                Rc::new(recover(&images(), seed))
            });
            let outcome = Rc::clone(outcome);
            let judged = match &*outcome {
                Ok(found) => timeline.judge(point, found),
                Err(words) if !is_made && words != PANICKED => Ok(()),
                Err(words) => Err(words.clone()),
            };
            if !is_made {
                let kind = match &*outcome {
                    Err(_) => 0,
                    Ok(found) if allows(&Content::default(), found, 0) => 1,
                    Ok(_) => 2,
                };
                self.report.made[kind] += 1;
            }
            if let Err(words) = judged {
                let described: Vec<_> = chosen.iter().map(|state| state.describe()).collect();
                self.violation(point, &format!("{words} {described:?}"));
                return;
            }
            if is_new && self.rng.chance(1, FOLLOW_UP_ONE_IN) {
                self.report.follow_ups += 1;
                let went = catch_unwind(AssertUnwindSafe(|| match &*outcome {
                    Ok(found) => go_on(&images(), found, workload.told(point), seed),
                    Err(_) => make_again(&images(), seed),
                }));
                if let Err(words) = went.unwrap_or_else(|_| Err("a panic".to_owned())) {
                    self.violation(point, &words);
                    return;
                }
            }
        }
    }
}
