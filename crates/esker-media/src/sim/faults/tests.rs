//! Fault plans hit the calls that they name.

use super::*;

fn hits(plan: &mut FaultPlan, calls: &[Call]) -> Vec<Option<FaultKind>> {
    let mut rng = Rng::from_seed(3);
    calls.iter().map(|call| plan.next(*call, &mut rng)).collect()
}

#[test]
fn nth_counts_only_calls_that_the_fault_applies_to() {
    let mut plan = FaultPlan::none().with(FaultKind::WriteError, Trigger::Nth(2));
    let calls = [Call::Write, Call::Read, Call::Flush, Call::Write, Call::Write];
    let found = hits(&mut plan, &calls);
    assert_eq!(found, [None, None, None, Some(FaultKind::WriteError), None]);
}

#[test]
fn from_nth_lasts_and_any_error_counts_every_call() {
    let mut plan = FaultPlan::none().with(FaultKind::AnyError, Trigger::FromNth(3));
    let found = hits(&mut plan, &[Call::Read, Call::Write, Call::Flush, Call::Discard]);
    assert_eq!(found.iter().filter(|hit| hit.is_some()).count(), 2);
    assert!(found[2].is_some() && found[3].is_some());
}

#[test]
fn chance_comes_near_its_share() {
    let chance = Trigger::Chance { numerator: 1, denominator: 10 };
    let mut plan = FaultPlan::none().with(FaultKind::ReadFlip, chance);
    let count = hits(&mut plan, &[Call::Read; 10_000]).iter().flatten().count();
    assert!((800..1200).contains(&count), "{count} of 10000");
}
