//! One operation that changes what a store holds, done with the store and with what is known of it: both must say the same.

use crate::content::{Content, Held};
use crate::scenarios::words;
use crate::workload::{LIFE_MAX, Running};
use esker::{Attributes, Batch, Condition, Direction, Outcome, PutOptions};
use esker_base::rng::Rng;

/// Changes that are made together, of one key each.
pub(crate) type Changes = Vec<(Vec<u8>, Option<Held>)>;

type Verdict = std::result::Result<(), String>;

/// Longest value of this operation: of long values, some stand by themselves, and some of these in several pieces.
fn longest(rng: &mut Rng) -> usize {
    match rng.below(40) {
        0 => 3000,
        1..6 => 600,
        _ => 60,
    }
}

/// A new value that has no version yet, with attributes or without.
pub(crate) fn held(rng: &mut Rng, time: u64) -> Held {
    let most = longest(rng);
    let mut value = vec![0; rng.index(most)];
    rng.fill(&mut value);
    let mut attributes = Attributes::default();
    if rng.chance(1, 3) {
        attributes.flags = if rng.chance(1, 2) { rng.next_u64() as u32 } else { 1 };
        attributes.state = rng.below(16) as u8;
    }
    if rng.chance(1, 6) {
        attributes.expires_at = Some(time + 1 + rng.below(LIFE_MAX));
    }
    Held { value, attributes, version: 0 }
}

/// What a conditional write of a key that has `current` says.
pub(crate) fn refusal(condition: Condition, current: Option<&Held>) -> Option<Outcome> {
    match (condition, current) {
        (Condition::Absent, Some(_)) => Some(Outcome::KeyExists),
        (Condition::Present | Condition::VersionIs(_), None) => Some(Outcome::KeyMissing),
        (Condition::VersionIs(version), Some(held)) => {
            (version.0 != held.version).then_some(Outcome::VersionDiffers)
        }
        _ => None,
    }
}

/// Changes of a batch, the last one of each key, in the order of their keys, which is that of their versions.
pub(crate) fn changes(rng: &mut Rng, time: u64) -> Changes {
    let mut changes = std::collections::BTreeMap::new();
    for _ in 0..1 + rng.below(5) {
        let key = format!("key/{:02}", rng.below(40)).into_bytes();
        let mut held = held(rng, time);
        // A batch has up to a quarter of a log; large values are not in it.
        if held.value.len() <= 300 {
            held.value.truncate(200);
        }
        changes.insert(key, (!rng.chance(1, 4)).then_some(held));
    }
    changes.into_iter().collect()
}

pub(crate) fn batch_of(changes: &[(Vec<u8>, Option<Held>)]) -> Batch {
    let mut batch = Batch::new();
    for (key, held) in changes {
        match held {
            Some(held) => batch.put_with(key, &held.value, held.attributes),
            None => batch.delete(key),
        };
    }
    batch
}

/// Does one of them.
pub(crate) fn any(run: &mut Running) -> Verdict {
    match run.rng.below(20) {
        0..10 => put(run),
        10 => modify(run),
        11..15 => delete(run),
        15..18 => {
            let changes = changes(&mut run.rng, run.model.time);
            let (begun, store) = (begin(run, &changes), run.store.clone());
            let last = store.write(&batch_of(&changes)).map_err(words)?;
            done(run, begun, changes, last.0)
        }
        18 => delete_range(run),
        _ => tidy(run),
    }
}

/// What is in many places is read, until that has paid for it to be brought together, as the store does while it rests.
fn tidy(run: &mut Running) -> Verdict {
    for _ in 0..run.rng.below(3) {
        run.store.scan(.., Direction::Forward, usize::MAX).map_err(words)?;
    }
    run.store.tidy().map_err(words)
}

/// A change begins: what the store holds when it is done, but for versions.
fn begin(run: &mut Running, changes: &[(Vec<u8>, Option<Held>)]) -> Content {
    let mut next = run.model.clone();
    apply(&mut next, changes);
    run.timeline.begin(run.devices.position(), next.clone());
    next
}

pub(crate) fn apply(content: &mut Content, changes: &[(Vec<u8>, Option<Held>)]) {
    changes.iter().for_each(|(key, held)| content.set(key, held.clone()));
}

/// It is done, and the last change has this version.
fn done(run: &mut Running, mut next: Content, mut changes: Changes, last: u64) -> Verdict {
    number(&mut changes, last);
    let position = run.devices.position();
    for (key, held) in &changes {
        if let Some(held) = held {
            run.told.add(position, key, held.version)?;
        }
    }
    apply(&mut next, &changes);
    run.timeline.amend(next.clone());
    run.model = next;
    Ok(())
}

/// Gives changes that were made together their versions.
pub(crate) fn number(changes: &mut [(Vec<u8>, Option<Held>)], last: u64) {
    for ((_, held), version) in changes.iter_mut().rev().zip((0..=last).rev()) {
        if let Some(held) = held {
            held.version = version;
        }
    }
}

/// A version that the key has, had, or never had.
fn some_version(run: &mut Running, key: &[u8]) -> esker::Version {
    let known: Vec<u64> = run.told.versions(key).collect();
    let current = run.model.get(key).map(|held| held.version);
    esker::Version(match (run.rng.below(4), current, known.as_slice()) {
        (0, ..) | (_, None, []) => run.rng.below(1 << 24),
        (1, _, [_, ..]) | (_, None, _) => known[run.rng.index(known.len())],
        (_, Some(version), _) => version,
    })
}

fn put(run: &mut Running) -> Verdict {
    let (key, held) = (run.key(), held(&mut run.rng, run.model.time));
    let condition = match run.rng.below(12) {
        0 => Condition::Absent,
        1 => Condition::Present,
        2..5 => Condition::VersionIs(some_version(run, &key)),
        _ => Condition::Always,
    };
    let refusal = refusal(condition, run.model.get(&key));
    let options = PutOptions { attributes: held.attributes, condition };
    let changes = vec![(key.clone(), Some(held.clone()))];
    let begun = refusal.is_none().then(|| begin(run, &changes));
    let outcome = run.store.put_with(&key, &held.value, options).map_err(words)?;
    match (outcome, begun) {
        (Outcome::Stored(version), Some(begun)) => done(run, begun, changes, version.0),
        (outcome, None) if Some(outcome) == refusal => Ok(()),
        (outcome, _) => Err(format!("a put that is {condition:?} says {outcome:?}")),
    }
}

fn modify(run: &mut Running) -> Verdict {
    let key = run.key();
    let current = run.model.get(&key).cloned();
    let mut next = held(&mut run.rng, run.model.time);
    if let Some(current) = &current {
        next.value.extend_from_slice(&current.value);
        next.value.truncate(3000);
    }
    let changes_it = run.rng.chance(3, 4);
    let changes = vec![(key.clone(), Some(next.clone()))];
    let begun = changes_it.then(|| begin(run, &changes));
    let mut seen = Vec::new();
    let version = run.store.modify(&key, |old| {
        seen.push(old.map(Held::of));
        changes_it.then(|| (next.value.clone(), next.attributes))
    });
    let version = version.map_err(words)?;
    if seen != [current] {
        return Err(format!("a change began with {seen:?}"));
    }
    match (version, begun) {
        (Some(version), Some(begun)) => done(run, begun, changes, version.0),
        (None, None) => Ok(()),
        (version, _) => Err(format!("a change says {version:?}")),
    }
}

fn delete(run: &mut Running) -> Verdict {
    let key = run.key();
    let wanted = run.rng.chance(1, 4).then(|| some_version(run, &key));
    let current = run.model.get(&key);
    let goes = current.is_some_and(|held| wanted.is_none_or(|wanted| wanted.0 == held.version));
    let begun = goes.then(|| begin(run, &[(key.clone(), None)]));
    let deleted = match wanted {
        Some(wanted) => run.store.compare_and_delete(&key, wanted),
        None => run.store.delete(&key),
    };
    if deleted.map_err(words)? != goes {
        return Err(format!("a delete of version {wanted:?} says {}", !goes));
    }
    run.model = begun.unwrap_or_else(|| run.model.clone());
    Ok(())
}

fn delete_range(run: &mut Running) -> Verdict {
    let mut next = run.model.clone();
    if run.rng.chance(1, 8) {
        next.remove(|_| true);
        run.timeline.begin(run.devices.position(), next.clone());
        run.store.clear().map_err(words)?;
    } else {
        let (a, b) = (run.key(), run.key());
        let (from, to) = if a < b { (a, b) } else { (b, a) };
        let to = if run.rng.chance(1, 6) { None } else { Some(to) };
        next.remove(|key| *key >= *from && to.as_ref().is_none_or(|to| *key < **to));
        run.timeline.begin(run.devices.position(), next.clone());
        run.store.delete_range(&from, to.as_deref()).map_err(words)?;
    }
    run.model = next;
    Ok(())
}
