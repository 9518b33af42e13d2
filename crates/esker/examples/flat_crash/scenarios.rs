//! Scenarios that an exploration by chance reaches too rarely: one for each subtle rule.
//!
//! Each builds the state that the rule is for and says in words what went wrong. They run with every
//! crash exploration and with every mutant.

use super::subject::{CHUNK_SIZE, options};
use super::{backups, checkpoints, races, rooms, stories};
use esker::{EngineKind, ErrorKind, Options, Result, Store};
use esker_base::{Site, SiteKind};
use esker_media::Pmem;
use esker_media::sim::{Image, Initial, SimPm, SimPmOptions};
use std::collections::HashSet;
use std::sync::Arc;

/// Size of a scenario's memory in bytes.
pub(super) const SIZE: u64 = 28 * CHUNK_SIZE;
/// What a scenario says of itself.
pub(super) type Verdict = std::result::Result<(), String>;
type Scenario = (&'static str, fn() -> Verdict);

/// Runs them, each in a simulation of its own, and tells what went wrong.
pub(crate) fn failures() -> impl Iterator<Item = String> {
    let scenarios: [Scenario; 36] = [
        ("a format is whole or none", a_format_is_whole_or_none),
        ("a first write survives", a_first_write_survives),
        ("a clean stop survives", a_clean_stop_survives),
        ("a clean stop counts once", a_clean_stop_counts_once),
        ("what a killed process left survives", what_a_killed_process_left_survives),
        ("a damaged image is not used", a_damaged_image_is_not_used),
        ("damage is no torn tail", damage_is_no_torn_tail),
        ("a damaged record is an error", a_damaged_record_is_an_error),
        ("a damaged header is not used", a_damaged_header_is_not_used),
        ("cleared entries stay gone", cleared_entries_stay_gone),
        ("equal hashes are told apart", equal_hashes_are_told_apart),
        ("the newest entry counts", the_newest_entry_counts),
        ("a few keys split the index", a_few_keys_split_the_index),
        ("one copy of a header is whole", stories::one_copy_of_a_header_is_whole),
        ("a torn header is mended first", stories::a_torn_header_is_mended_first),
        ("a header is durable for others", stories::a_header_is_durable_for_others),
        ("copies go before originals", stories::copies_go_before_originals),
        ("a cleaner's log has one torn end", stories::a_cleaners_log_has_one_torn_end),
        ("a tombstone outlives older entries", stories::a_tombstone_outlives_older_entries),
        ("a record goes after its tombstone", stories::a_record_goes_after_its_tombstone),
        ("a record moves whole", rooms::a_record_moves_whole),
        ("a moved record stays", rooms::a_record_that_moved_stays_while_both_entries_do),
        ("what expired leaves nothing older", rooms::what_has_expired_leaves_nothing_older),
        ("a tombstone under way is seen", races::a_tombstone_under_way_is_seen),
        ("a slow read survives reuse", races::a_slow_read_survives_reuse),
        ("a late read survives reuse", races::a_late_read_survives_reuse),
        ("a slow write survives reuse", races::a_slow_write_survives_reuse),
        ("a checkpoint survives", checkpoints::a_checkpoint_survives),
        ("a checkpoint counts for what stands", checkpoints::a_checkpoint_counts_for_what_stands),
        ("what was cleared is not covered", checkpoints::what_was_cleared_is_not_covered),
        ("a checkpoint waits for writes", checkpoints::a_checkpoint_waits_for_writes_under_way),
        ("what is copied is not overwritten", backups::what_is_copied_is_not_overwritten),
        ("a backup is there, or the one before", backups::a_backup_is_there_or_the_one_before),
        ("a chunk that changed is copied again", backups::a_chunk_that_changed_is_copied_again),
        ("a damaged backup is refused", backups::a_damaged_backup_is_refused),
        ("a restore is whole or none", backups::a_restore_is_whole_or_none),
    ];
    scenarios.into_iter().filter_map(|(name, scenario)| {
        match esker_trt::sim::run(7, scenario).outcome {
            Ok(verdict) => verdict.err().map(|words| format!("{name}: {words}")),
            Err(error) => Some(format!("{name}: {error}")),
        }
    })
}

pub(super) fn memory_of(size_bytes: u64, initial: Initial) -> Arc<SimPm> {
    Arc::new(SimPm::new(SimPmOptions::new(size_bytes, 7).initial(initial)))
}

pub(super) fn memory(initial: Initial) -> Arc<SimPm> {
    memory_of(SIZE, initial)
}

/// Options of scenarios in which the index does not matter.
pub(super) fn usual() -> Options {
    options(EngineKind::FlatCceh, u64::MAX, false)
}

pub(super) fn open(memory: &Arc<SimPm>, options: &Options) -> std::result::Result<Store, String> {
    Store::open_on_memory(Arc::clone(memory) as Arc<dyn Pmem>, options)
        .map_err(|error| format!("open: {error}"))
}

/// What is there if the power fails now and nothing survives that need not.
pub(super) fn cut(memory: &SimPm) -> Arc<SimPm> {
    let trace = memory.trace();
    let mut replay = trace.replay();
    replay.advance_to(u64::MAX);
    memory_of(memory.size_bytes(), Initial::Recycled(replay.durable().clone()))
}

/// Calls `visit` with what a crash at any moment from position `from` on may leave, each state once.
pub(super) fn each_state(
    memory: &SimPm,
    from: u64,
    states: usize,
    mut visit: impl FnMut(Image) -> Verdict,
) -> Verdict {
    let trace = memory.trace();
    let mut replay = trace.replay();
    let mut seen = HashSet::new();
    loop {
        if replay.position() >= from {
            for state in replay.states(states, replay.position()) {
                if seen.insert(state.hash()) {
                    let site = replay.last_site();
                    visit(state.image()).map_err(|words| {
                        format!("{words} [crash after {site:?}; {}]", state.describe())
                    })?;
                }
            }
        }
        if !replay.step() {
            return Ok(());
        }
    }
}

/// Opens what a crash at any moment from position `from` on may leave, and judges it.
pub(super) fn each_crash(
    memory: &SimPm,
    from: u64,
    states: usize,
    judge: impl Fn(&Store) -> Verdict,
) -> Verdict {
    each_state(memory, from, states, |image| {
        judge(&open(&memory_of(memory.size_bytes(), Initial::Recycled(image)), &usual())?)
    })
}

pub(super) fn expect(store: &Store, key: &str, value: Option<&[u8]>) -> Verdict {
    match store.get(key.as_bytes()) {
        Ok(found) if found.as_deref() == value => Ok(()),
        Ok(found) => Err(format!(
            "{key} holds {:?} bytes, expected {:?}",
            found.map(|value| value.len()),
            value.map(<[u8]>::len)
        )),
        Err(error) => Err(format!("{key}: {error}")),
    }
}

pub(super) fn put(store: &Store, key: &str, value: &[u8]) -> Verdict {
    store.put(key.as_bytes(), value).map(drop).map_err(|error| format!("put {key}: {error}"))
}

pub(super) fn words(error: esker::Error) -> String {
    error.to_string()
}

/// Turns a bit over, as if the medium had.
pub(super) fn flip(memory: &SimPm, offset: u64) -> Verdict {
    const SITE: Site = Site::new("scenario.damage", SiteKind::Write);
    let mut byte = [0];
    memory.read(offset, &mut byte).map_err(words)?;
    memory.store(SITE, offset, &byte.map(|byte| byte ^ 16)).map_err(words)
}

/// Where some bytes stand.
pub(super) fn find(memory: &SimPm, bytes: &[u8]) -> std::result::Result<u64, String> {
    let all = memory.image().to_vec();
    let place = all.windows(bytes.len()).position(|window| window == bytes);
    place.map(|place| place as u64).ok_or_else(|| "the bytes are not in the memory".to_owned())
}

/// A process is killed before the fence of a put: what it stored is there for the next one, and a power cut later takes nothing of
/// what that one has read.
fn what_a_killed_process_left_survives() -> Verdict {
    const WORD: usize = 8;
    const LEFT: Site = Site::new("scenario.left", SiteKind::Write);
    let memory = memory(Initial::Zeros);
    let store = open(&memory, &usual())?;
    put(&store, "key", b"1")?;
    let left = cut(&memory);
    let durable = left.image().to_vec();
    put(&store, "key", b"2")?;
    let stored = memory.image().to_vec();
    let words = durable.chunks(WORD).zip(stored.chunks(WORD));
    for ((before, after), offset) in words.zip((0..).step_by(WORD)) {
        if before != after {
            left.store(LEFT, offset, after).map_err(self::words)?;
        }
    }
    let store = open(&left, &usual())?;
    expect(&store, "key", Some(b"2"))?;
    put(&store, "other", b"3")?;
    let store = open(&cut(&left), &usual())?;
    expect(&store, "key", Some(b"2"))?;
    expect(&store, "other", Some(b"3"))
}

/// An older store is replaced: until the new one is whole, there is the old one or none.
fn a_format_is_whole_or_none() -> Verdict {
    const SMALL: u64 = 12 * CHUNK_SIZE;
    let old = memory_of(SMALL, Initial::Zeros);
    let store = open(&old, &usual())?;
    put(&store, "old", b"1")?;
    put(&store, "other", &[2; 300])?;
    let memory = memory_of(SMALL, Initial::Recycled(old.image()));
    let store = open(&memory, &options(EngineKind::FlatCceh, u64::MAX, true))?;
    expect(&store, "old", None)?;
    let mut number = 0_u32;
    each_state(&memory, 0, 30, |image| {
        // More than enough states: a part of them.
        number += 1;
        if !number.is_multiple_of(3) {
            return Ok(());
        }
        let store = open(&memory_of(SMALL, Initial::Recycled(image)), &usual())?;
        let items = store.iter().collect::<Result<Vec<_>>>().map_err(words)?;
        match items.len() {
            0 => Ok(()),
            2 => expect(&store, "old", Some(b"1")),
            count => Err(format!("{count} items of 2")),
        }
    })
}

/// Nothing is written but what makes a new store.
fn a_first_write_survives() -> Verdict {
    let memory = memory(Initial::Ones);
    let store = open(&memory, &options(EngineKind::FlatCceh, u64::MAX, true))?;
    put(&store, "a", b"1")?;
    expect(&open(&cut(&memory), &usual())?, "a", Some(b"1"))
}

/// A stop that was clean is found so after a power cut: the logs, one of them damaged, are not read.
fn a_clean_stop_survives() -> Verdict {
    let memory = memory(Initial::Zeros);
    let store = open(&memory, &usual())?;
    put(&store, "key00001", b"value of 1")?;
    put(&store, "key00001", b"value of 2")?;
    store.close().map_err(words)?;
    let memory = cut(&memory);
    let mut batches = memory.image().to_vec();
    let first = find(&memory, b"value of 1")?;
    batches.truncate(usize::try_from(first).unwrap_or(0));
    flip(&memory, first)?;
    let store = open(&memory, &usual())?;
    expect(&store, "key00001", Some(b"value of 2"))
}

/// What is written after a clean stop is not hidden by its image, whichever stores of the session word survive.
fn a_clean_stop_counts_once() -> Verdict {
    let memory = memory(Initial::Zeros);
    let store = open(&memory, &usual())?;
    put(&store, "a", b"1")?;
    store.close().map_err(words)?;
    let store = open(&memory, &usual())?;
    put(&store, "a", b"2")?;
    each_crash(&memory, memory.position(), 64, |store| expect(store, "a", Some(b"2")))
}

fn a_damaged_image_is_not_used() -> Verdict {
    let memory = memory(Initial::Zeros);
    let store = open(&memory, &usual())?;
    put(&store, "key00001", b"value of 1")?;
    put(&store, "key00002", b"value of 2")?;
    store.close().map_err(words)?;
    // In a word of the index: the place of an entry.
    let image = find(&memory, b"ESKI")?;
    let all = memory.image().to_vec();
    let parts: Vec<usize> = all
        .windows(4)
        .enumerate()
        .filter(|(at, window)| *window == b"ESKI" && *at as u64 >= image)
        .map(|(at, _)| at)
        .collect();
    let entries = parts.iter().find(|at| all.get(**at + 24) == Some(&2));
    let Some(entries) = entries else { return Err("the image has no entries".to_owned()) };
    flip(&memory, *entries as u64 + 64 + 8 + 3)?;
    let store = open(&memory, &usual())?;
    expect(&store, "key00001", Some(b"value of 1"))?;
    expect(&store, "key00002", Some(b"value of 2"))
}

fn damage_is_no_torn_tail() -> Verdict {
    let memory = memory(Initial::Zeros);
    let store = open(&memory, &usual())?;
    // One core, so that all batches stand in one log.
    for number in 0..6 {
        put(&store, "a", format!("value {number} of a").as_bytes())?;
    }
    let memory = cut(&memory);
    flip(&memory, find(&memory, b"value 2 of a")?)?;
    match open(&memory, &usual()) {
        Err(_) => Ok(()),
        Ok(_) => Err("a batch was damaged, and recovery dropped what follows it".to_owned()),
    }
}

fn a_damaged_record_is_an_error() -> Verdict {
    let memory = memory(Initial::Zeros);
    let store = open(&memory, &usual())?;
    put(&store, "a", &[7; 400])?;
    flip(&memory, find(&memory, &[7; 400])? + 77)?;
    match store.get(b"a") {
        Err(error) if error.kind() == ErrorKind::Corrupted => Ok(()),
        other => Err(format!("a damaged record was read as {other:?}")),
    }
}

/// The first copy of a log's header claims another epoch, whose batches would have other checksums.
fn a_damaged_header_is_not_used() -> Verdict {
    let memory = memory(Initial::Zeros);
    let store = open(&memory, &usual())?;
    put(&store, "a", b"value of a")?;
    let memory = cut(&memory);
    let chunk = find(&memory, b"value of a")? / CHUNK_SIZE * CHUNK_SIZE;
    flip(&memory, chunk + 8)?;
    expect(&open(&memory, &usual())?, "a", Some(b"value of a"))
}

fn cleared_entries_stay_gone() -> Verdict {
    let memory = memory(Initial::Zeros);
    let store = open(&memory, &usual())?;
    put(&store, "a", b"1")?;
    store.clear().map_err(words)?;
    expect(&open(&cut(&memory), &usual())?, "a", None)?;
    put(&store, "b", b"2")?;
    let store = open(&cut(&memory), &usual())?;
    expect(&store, "a", None)?;
    expect(&store, "b", Some(b"2"))
}

fn equal_hashes_are_told_apart() -> Verdict {
    let memory = memory(Initial::Zeros);
    let options = options(EngineKind::FlatCceh, 0, false);
    let store = open(&memory, &options)?;
    put(&store, "a", b"1")?;
    put(&store, "b", b"2")?;
    put(&store, "c", b"3")?;
    put(&store, "a", b"4")?;
    store.delete(b"b").map_err(words)?;
    for _ in 0..2 {
        let store = open(&memory, &options)?;
        expect(&store, "a", Some(b"4"))?;
        expect(&store, "b", None)?;
        expect(&store, "c", Some(b"3"))?;
        expect(&store, "d", None)?;
    }
    Ok(())
}

/// Chunks are read in the order of their numbers, which is not that of their use for ever.
fn the_newest_entry_counts() -> Verdict {
    let memory = memory(Initial::Zeros);
    let store = open(&memory, &usual())?;
    for round in 0..120_u32 {
        put(&store, "a", &[&round.to_le_bytes()[..], &[7; 200]].concat())?;
        let last = [&round.to_le_bytes()[..], &[7; 200]].concat();
        if round % 12 == 0 {
            expect(&open(&cut(&memory), &usual())?, "a", Some(&last))?;
        }
    }
    Ok(())
}

/// Segments of the hash index are so small that workloads of some dozen keys meet splits; else the explorations show less than they say.
fn a_few_keys_split_the_index() -> Verdict {
    let memory = memory(Initial::Zeros);
    let store = open(&memory, &usual())?;
    let slots = store.stats().index_capacity;
    for number in 0..60_u8 {
        put(&store, &format!("key{number:05}"), &[number; 20])?;
    }
    let store = open(&cut(&memory), &usual())?;
    (0..60_u8)
        .try_for_each(|number| expect(&store, &format!("key{number:05}"), Some(&[number; 20])))?;
    match (cfg!(feature = "small"), slots, store.stats().index_capacity) {
        (true, 16, 32..) | (false, 1024, _) => Ok(()),
        (_, before, after) => Err(format!("{before} slots at first, then {after}")),
    }
}
