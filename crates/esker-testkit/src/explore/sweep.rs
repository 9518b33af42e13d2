//! Sweeps of failures: call 1 of the device fails, then call 2, and so on, until a scenario passes
//! untouched (reliability T12).
//!
//! After each failure the store must not have panicked, nobody may wait for ever, it must have replied nothing false, and must
//! open again on a healthy device with everything that it acknowledged.
//!
//! # Invariants
//! - I1: a sweep ends by itself when the numbered call no longer exists, or at `nth_max`.
//! - I2: errors are answers: a store may refuse, fail or turn read-only. A wrong reply, a lost
//!   acknowledged write, or a recovery that leaves out what it could not read, is a violation.

use super::run::{self, Begin};
use super::{CrashReplay, Crashed, Explorer, Medium, Subject, Violation};
use crate::model::{Allowed, Oracle};
use esker_media::sim::{FaultKind, FaultPlan, Image, Initial, Trigger};
use std::fmt;

/// States of a crash tried after each failure.
const STATES: usize = 6;

/// What a sweep did and found.
#[derive(Clone, Debug, Default)]
pub struct SweepReport {
    /// Runs in which a call failed.
    pub failures: u64,
    /// Whether the last run passed untouched, so that every call was failed once.
    pub complete: bool,
    /// Recoveries on a healthy device.
    pub recoveries: u64,
    /// What went wrong; the path of each holds the number of the failed call.
    pub violations: Vec<Violation>,
}

impl fmt::Display for SweepReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} failures, {} recoveries, complete: {}, {} violations",
            self.failures,
            self.recoveries,
            self.complete,
            self.violations.len()
        )?;
        self.violations.iter().try_for_each(|violation| writeln!(f, "  {violation}"))
    }
}

fn plan(kind: FaultKind, nth: u64, lasting: bool) -> FaultPlan {
    let trigger = if lasting { Trigger::FromNth(nth) } else { Trigger::Nth(nth) };
    FaultPlan::none().with(kind, trigger)
}

impl<S: Subject> Explorer<S> {
    /// Runs the workload of `seed` with the n-th call that `kind` applies to failing, for n from 1;
    /// `lasting`: and every later one. `kind` is one that reports an error.
    #[must_use]
    pub fn sweep_workload(
        &self,
        seed: u64,
        kind: FaultKind,
        lasting: bool,
        nth_max: u64,
    ) -> SweepReport {
        let mut report = SweepReport::default();
        for nth in 1..=nth_max {
            let faults = plan(kind, nth, lasting);
            let workload = run::run_tasks(
                &self.subject,
                &self.config,
                seed,
                Initial::Zeros,
                Begin::Anew,
                faults,
            );
            if workload.faults_fired == 0 {
                report.complete = true;
                break;
            }
            report.failures += 1;
            let mut wrong = |what| {
                let what = format!("call {nth} failing with {kind:?}: {what}");
                report.violations.push(Violation { seed, path: vec![(nth, 0)], what });
            };
            if let Err(failure) = &workload.outcome
                && !failure.is_answer
            {
                wrong(failure.to_string());
            }
            if workload.opened_at == u64::MAX {
                continue;
            }
            let mut oracle = Oracle::new(&workload.history).forgetting(self.config.forgets);
            match oracle.advance_to(u64::MAX).and_then(|()| oracle.allowed()) {
                Ok(allowed) => {
                    let end = (&workload.trace, workload.time);
                    self.judge_end(end, &allowed, seed, nth, &mut report);
                }
                Err(words) => wrong(words),
            }
        }
        report
    }

    /// Recovers from what the workload of `seed` leaves, with the n-th call failing, for n from 1.
    /// A recovery may fail; if it does not, it has found everything; and after it a healthy one
    /// must.
    #[must_use]
    pub fn sweep_recovery(
        &self,
        seed: u64,
        kind: FaultKind,
        lasting: bool,
        nth_max: u64,
    ) -> SweepReport {
        let mut report = SweepReport::default();
        let workload = run::run_tasks(
            &self.subject,
            &self.config,
            seed,
            Initial::Zeros,
            Begin::Anew,
            FaultPlan::none(),
        );
        let (image, time) = (final_image::<S::Medium>(&workload.trace, seed), workload.time);
        let recover = |faults| {
            let image = (image.clone(), time);
            run::recover_with_faults(&self.subject, &self.config, image, seed, faults)
        };
        let healthy = recover(FaultPlan::none());
        let map = match healthy.0 {
            Ok(map) => map,
            Err(failure) => {
                let what = format!("without a failing call: {failure}");
                report.violations.push(Violation { seed, path: Vec::new(), what });
                return report;
            }
        };
        let allowed = Allowed::exactly(&map);
        for nth in 1..=nth_max {
            let faults = plan(kind, nth, lasting);
            let (outcome, trace, fired) = recover(faults);
            if fired == 0 {
                report.complete = true;
                break;
            }
            report.failures += 1;
            let what = match outcome {
                Ok(found) => allowed.check(&found, time).err(),
                Err(failure) => (!failure.is_answer).then(|| failure.to_string()),
            };
            if let Some(what) = what {
                let what = format!("recovery with call {nth} failing with {kind:?}: {what}");
                report.violations.push(Violation { seed, path: vec![(nth, 0)], what });
            }
            self.judge_end((&trace, time), &allowed, seed, nth, &mut report);
        }
        report
    }

    /// Recovers on a healthy device from states that a cut at the end of `trace` leaves.
    fn judge_end(
        &self,
        (trace, time): (&<S::Medium as Medium>::Trace, u64),
        allowed: &Allowed,
        seed: u64,
        nth: u64,
        report: &mut SweepReport,
    ) {
        let mut replay = S::Medium::replay(trace);
        replay.advance_to(u64::MAX);
        let (states, _) = replay.states(STATES, seed ^ nth);
        let step = states.len().div_ceil(STATES).max(1);
        for (state, number) in states.iter().zip(0_u64..).step_by(step) {
            report.recoveries += 1;
            let task = run::Task::plain(time);
            let recovery = run::recover(&self.subject, &self.config, state.image(), seed, task);
            let what = match &recovery.outcome {
                Ok(map) => allowed.check(map, time).err(),
                Err(failure) => Some(failure.to_string()),
            };
            if let Some(what) = what {
                let what = format!("reopened after the failure of call {nth}: {what}");
                report.violations.push(Violation { seed, path: vec![(nth, number)], what });
            }
        }
    }
}

/// What a cut at the end of `trace` leaves, in one state.
fn final_image<M: Medium>(trace: &M::Trace, seed: u64) -> Image {
    let mut replay = M::replay(trace);
    replay.advance_to(u64::MAX);
    replay.random_image(seed)
}
