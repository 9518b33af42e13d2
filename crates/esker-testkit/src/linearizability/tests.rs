//! The checker accepts what some order explains and nothing else.

use super::*;
use esker_base::clock::{Clock, SystemClock};
use esker_base::rng::Rng;

fn call(action: Action, begin: u64, end: u64) -> Call {
    Call { key: 1, action, begin, end: Some(end) }
}

fn read(seen: State, begin: u64, end: u64) -> Call {
    call(Action::Read(Some(seen)), begin, end)
}

#[test]
fn replies_in_real_time_order_pass_and_stale_reads_do_not() {
    let write = call(Action::Write(7), 1, 2);
    assert_eq!(check(&[write, read(Some(7), 3, 4)]), Verdict::Linearizable);
    assert_eq!(check(&[write, read(None, 3, 4)]), Verdict::Violation { key: 1, call: 1 });
    assert_eq!(check(&[write, read(Some(8), 3, 4)]), Verdict::Violation { key: 1, call: 1 });
}

#[test]
fn overlapping_calls_may_take_effect_in_either_order_but_in_one() {
    let writes = [call(Action::Write(1), 1, 10), call(Action::Write(2), 1, 10)];
    let mut history = writes.to_vec();
    history.extend([read(Some(1), 2, 3), read(Some(2), 4, 5)]);
    assert_eq!(check(&history), Verdict::Linearizable);
    history.push(read(Some(1), 6, 7));
    assert_eq!(check(&history), Verdict::Violation { key: 1, call: 4 });
}

#[test]
fn a_call_without_a_return_may_take_effect_late_or_never() {
    let lost = Call { key: 1, action: Action::Write(5), begin: 1, end: None };
    let before = read(None, 2, 3);
    let after = read(Some(5), 10, 11);
    assert_eq!(check(&[lost, before]), Verdict::Linearizable);
    assert_eq!(check(&[lost, before, after]), Verdict::Linearizable);
    let again = read(None, 12, 13);
    assert_eq!(check(&[lost, after, again]), Verdict::Violation { key: 1, call: 2 });
}

#[test]
fn conditional_calls_are_held_to_their_replies() {
    let set = |expected, new, done, begin| {
        call(Action::CompareAndSet { expected, new, done: Some(done) }, begin, begin + 1)
    };
    let good = [set(None, Some(1), true, 1), set(Some(2), Some(3), false, 3)];
    assert_eq!(check(&good), Verdict::Linearizable);
    let both = [
        call(Action::WriteIf { present: false, value: 1, done: Some(true) }, 1, 5),
        call(Action::WriteIf { present: false, value: 2, done: Some(true) }, 1, 5),
    ];
    assert!(matches!(check(&both), Verdict::Violation { .. }), "two cannot both be first");
    let deletes = [
        call(Action::Write(1), 1, 2),
        call(Action::Delete(Some(true)), 3, 6),
        call(Action::Delete(Some(true)), 3, 6),
    ];
    assert!(matches!(check(&deletes), Verdict::Violation { .. }), "one value, one delete");
}

#[test]
fn states_say_what_an_observer_may_find() {
    let mut checker = KeyChecker::new(None);
    checker.begin(1, Action::Write(1)).unwrap();
    checker.end(1).unwrap();
    checker.begin(2, Action::Write(2)).unwrap();
    checker.begin(3, Action::Set(None)).unwrap();
    assert_eq!(checker.states(&[], &[]).unwrap(), [None, Some(1), Some(2)]);
    assert_eq!(checker.states(&[], &[2, 3]).unwrap(), [Some(1)]);
    assert_eq!(checker.states(&[2], &[3]).unwrap(), [Some(2)]);
    checker.begin(4, Action::Read(Some(Some(2)))).unwrap();
    checker.end(4).unwrap();
    let found = checker.states(&[], &[]).unwrap();
    assert_eq!(found, [None, Some(2)], "what was read stays or is deleted, and is not undone");
}

#[test]
fn what_has_expired_is_nothing_and_may_be_found_by_who_is_behind() {
    let expiries = Arc::new(HashMap::from([(1, 10)]));
    let mut checker = KeyChecker::new(Some(9)).expiring(expiries);
    let mut next = 0;
    let mut call = |checker: &mut KeyChecker, action| {
        next += 1;
        checker.begin(next, action)?;
        checker.end(next)
    };
    call(&mut checker, Action::Write(1)).unwrap();
    call(&mut checker, Action::Time(9)).unwrap();
    call(&mut checker, Action::Read(Some(Some(1)))).unwrap();
    assert_eq!(checker.states(&[], &[]).unwrap(), [Some(1)]);
    call(&mut checker, Action::Time(10)).unwrap();
    assert_eq!(checker.states(&[], &[]).unwrap(), [None, Some(1)]);
    let refusal = call(&mut checker.clone(), Action::Read(Some(Some(1))));
    assert_eq!(refusal, Err(Refusal::NotLinearizable));
    call(&mut checker, Action::Delete(Some(false))).unwrap();
    assert_eq!(checker.states(&[], &[]).unwrap(), [None, Some(1)], "nothing was written");
    let absent = Action::WriteIf { present: false, value: 2, done: Some(true) };
    let mut written = checker.clone();
    call(&mut written, absent).unwrap();
    assert_eq!(written.states(&[], &[]).unwrap(), [Some(2)]);
    call(&mut checker, Action::Set(None)).unwrap();
    assert_eq!(checker.states(&[], &[]).unwrap(), [None]);
    // What is written with a time that has come is gone at once.
    call(&mut checker, Action::Write(1)).unwrap();
    call(&mut checker, Action::Read(Some(None))).unwrap();
}

#[test]
fn too_many_open_calls_are_not_decided() {
    let mut history: Vec<Call> = (0..40)
        .map(|value| Call { key: 1, action: Action::Write(value), begin: 1, end: None })
        .collect();
    history.push(read(Some(99), 2, 3));
    assert_eq!(check(&history), Verdict::TooHard { key: 1 });
}

/// A history of a real register, with the effect somewhere inside each call.
fn generate(count: u64, keys: u64, seed: u64) -> Vec<Call> {
    let mut rng = Rng::from_seed(seed);
    let mut states: HashMap<u64, State> = HashMap::new();
    (1..=count)
        .map(|number| {
            // Effects are at multiples of 10 in this order; calls reach up to 15 to each side.
            let (key, at) = (rng.below(keys), number * 10);
            let state = states.entry(key).or_default();
            let action = match rng.below(4) {
                0 => Action::Write(number),
                1 => Action::Delete(Some(state.is_some())),
                2 => {
                    let expected = if rng.chance(1, 2) { *state } else { Some(number) };
                    let done = Some(expected == *state);
                    Action::CompareAndSet { expected, new: Some(number), done }
                }
                _ => Action::Read(Some(*state)),
            };
            *state = action.apply(*state).unwrap();
            let end = (!rng.chance(1, 1_000_000)).then(|| at + rng.below(15));
            Call { key, action, begin: at - rng.below(10).min(at), end }
        })
        .collect()
}

#[test]
fn a_million_true_calls_pass_in_about_a_second() {
    let history = generate(1_000_000, 100, 5);
    let start = SystemClock.monotonic();
    assert_eq!(check(&history), Verdict::Linearizable);
    let time = SystemClock.monotonic() - start;
    eprintln!("1,000,000 calls in {time:?}");
    assert!(time.as_secs() < 120, "{time:?}");
}

#[test]
fn one_wrong_reply_among_many_is_found() {
    let mut found = 0;
    for seed in 0..50 {
        let mut history = generate(2000, 10, seed);
        let mut rng = Rng::from_seed(seed);
        let reads: Vec<usize> = (0..history.len())
            .filter(|index| matches!(history[*index].action, Action::Read(_)))
            .collect();
        let victim = reads[rng.index(reads.len())];
        history[victim].action = Action::Read(Some(Some(u64::MAX)));
        found += usize::from(check(&history) != Verdict::Linearizable);
    }
    assert!(found >= 49, "{found} of 50 (one may have lost its return)");
}
