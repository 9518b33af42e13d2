//! Every order in which a small store is cleaned: what is deleted stays so.
//!
//! Records of a few keys lie in three segments: a value, a newer one, a tombstone. They are cleaned one after the other, in every order,
//! with a purge of tombstones and a checkpoint at every place between; after each step the power is cut.

use super::scenarios::{Verdict, cut, device, expect, open, put, words};
use super::subject::options;
use esker::Store;
use esker_media::sim::{Initial, SimBlock};
use std::sync::Arc;

/// What is done with a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Cleans the full segment with this number among them.
    Clean(usize),
    Purge,
    Checkpoint,
}

/// What became of the first values before newer ones were written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moved {
    No,
    /// They were moved, and where they are now is being filled.
    Open,
    /// They were moved, and where they are now is full.
    Full,
}

/// What happened before, and beside.
#[derive(Clone, Copy, Debug)]
struct Story {
    moved: Moved,
    /// Space goes back after each step: of what is free nothing is left.
    is_trimmed: bool,
}

/// Keys, and what they hold in the end.
const KEYS: [(&str, Option<&[u8]>); 6] = [
    ("written twice and deleted", None),
    ("written and deleted", None),
    ("deleted and written", Some(b"3")),
    ("deleted twice", None),
    ("kept from the first", Some(b"1")),
    ("kept from the second", Some(b"2")),
];

pub(super) fn what_is_deleted_stays_so() -> Verdict {
    // Three full segments or two, a purge, a checkpoint.
    for (moved, ways) in [(Moved::No, 120), (Moved::Open, 24), (Moved::Full, 120)] {
        for is_trimmed in [false, true] {
            let story = Story { moved, is_trimmed };
            let count = each_order(story, &mut Vec::new())?;
            if count < ways {
                return Err(format!("{story:?}: {count} orders"));
            }
        }
    }
    Ok(())
}

/// Goes on behind these steps in every way; returns the number of ways.
fn each_order(story: Story, steps: &mut Vec<Step>) -> std::result::Result<u32, String> {
    let mut count = 0;
    let once = [Step::Purge, Step::Checkpoint].into_iter().filter(|step| !steps.contains(step));
    let once: Vec<Step> = once.collect();
    for step in once.into_iter().chain((0..).map(Step::Clean)) {
        steps.push(step);
        let done = after(story, steps).map_err(|words| format!("{story:?} {steps:?}: {words}"))?;
        if done {
            count += each_order(story, steps)?;
        }
        steps.pop();
        if !done {
            break;
        }
    }
    Ok(count.max(1))
}

/// Cuts the power behind these steps; false if the last one cannot be done.
fn after(story: Story, steps: &[Step]) -> std::result::Result<bool, String> {
    let (device, store) = begin(story)?;
    for step in steps {
        match step {
            Step::Clean(number) => {
                if !store.clean_full(*number).map_err(words)? {
                    return Ok(false);
                }
            }
            Step::Purge => drop(store.clean(0).map_err(words)?),
            Step::Checkpoint => drop(store.checkpoint().map_err(words)?),
        }
        if story.is_trimmed {
            store.trim().map_err(words)?;
        }
    }
    // Nothing survives that need not, or everything.
    for image in [cut(&device), device.image()] {
        let survived = super::scenarios::device(Initial::Recycled(image));
        let store = open(&survived, &options(u64::MAX, false))?;
        KEYS.iter().try_for_each(|(key, value)| expect(&store, key, *value))?;
    }
    Ok(true)
}

/// The store before the first step.
fn begin(story: Story) -> std::result::Result<(Arc<SimBlock>, Store), String> {
    let device = device(Initial::Zeros);
    let mut store = open(&device, &options(u64::MAX, false))?;
    let [twice, once, anew, again, first, second] = KEYS.map(|(key, _)| key);
    let delete = |store: &Store, key: &str| store.delete(key.as_bytes()).map(drop).map_err(words);
    [twice, once, anew, again, first].iter().try_for_each(|key| put(&store, key, b"1"))?;
    fill(&store)?;
    if story.moved != Moved::No && !store.clean_full(0).map_err(words)? {
        return Err("nothing was full".to_owned());
    }
    if story.moved == Moved::Full {
        store.close().map_err(words)?;
        store = open(&device, &options(u64::MAX, false))?;
    }
    [twice, second].iter().try_for_each(|key| put(&store, key, b"2"))?;
    [once, anew, again].iter().try_for_each(|key| delete(&store, key))?;
    fill(&store)?;
    delete(&store, twice)?;
    put(&store, anew, b"3")?;
    put(&store, again, b"3")?;
    delete(&store, again)?;
    fill(&store)?;
    Ok((device, store))
}

/// Fills the open segment, so that the log goes on in another one.
fn fill(store: &Store) -> Verdict {
    let free = |store: &Store| store.stats().free_segments;
    let before = free(store);
    while free(store) == before {
        put(store, "filler", &[9; 900])?;
    }
    Ok(())
}
