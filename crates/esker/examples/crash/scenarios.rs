//! Scenarios that an exploration by chance reaches too rarely: one for each subtle rule.
//!
//! Each builds the state that the rule is for and says in words what went wrong. They run with every
//! crash exploration and with every mutant.

use super::subject::{SEGMENT_SIZE, options};
use super::{backups, checkpoints, evictions, expiries, members, orders, stories};
use esker::{Durability, ErrorKind, Options, Store};
use esker_base::hash::KeyHasher;
use esker_base::ids::{SegmentId, Version};
use esker_base::{Result, Site, SiteKind};
use esker_format::depot::{SUPERBLOCK_SIZE, SegmentHeader, Superblock};
use esker_media::BlockDevice;
use esker_media::sim::{Asking, Image, Initial, SimBlock, SimBlockOptions};
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const SIZE: u64 = 8192 + 16 * SEGMENT_SIZE;
pub(super) type Verdict = std::result::Result<(), String>;
type Scenario = (&'static str, fn() -> Verdict);

/// Runs them all, each in a simulation of its own.
pub(crate) fn all() -> Verdict {
    let scenarios: [Scenario; 39] = [
        ("sync makes durable", sync_makes_durable),
        ("recovery makes durable what it shows", recovery_makes_durable_what_it_shows),
        ("a lost session cannot come back", a_lost_session_cannot_come_back),
        ("a close vouches for the last batch", a_close_vouches_for_the_last_batch),
        ("damage is no torn tail", damage_is_no_torn_tail),
        ("a damaged record is an error", a_damaged_record_is_an_error),
        ("equal hashes are told apart", equal_hashes_are_told_apart),
        ("a deleted key stays gone beside equal hashes", deleted_stays_gone_beside_equal_hashes),
        ("a slow read survives the reuse of its segment", a_slow_read_survives_reuse),
        ("a slow write survives the reuse of its segment", a_slow_write_survives_reuse),
        ("cleared records stay gone", cleared_records_stay_gone),
        ("a summary vouches for durable records", stories::a_summary_vouches_for_durable_records),
        ("a tombstone outlives older records", stories::a_tombstone_outlives_older_records),
        (
            "a tombstone outlives what is about to go",
            stories::a_tombstone_outlives_what_is_about_to_go,
        ),
        ("what is deleted stays so in every order", orders::what_is_deleted_stays_so),
        ("a header goes after what made it free", stories::a_header_goes_after_what_made_it_free),
        ("space goes after what made it free", stories::space_goes_after_what_made_it_free),
        (
            "each header goes after what made it free",
            stories::each_header_goes_after_what_made_it_free,
        ),
        ("a move follows no later record", stories::a_move_follows_no_later_record),
        ("an evicted key has no older value", evictions::an_evicted_key_has_no_older_value),
        (
            "an evicted key has no older value beside equal hashes",
            evictions::an_evicted_key_has_no_older_value_beside_equal_hashes,
        ),
        ("an evicted key stays gone", evictions::an_evicted_key_stays_gone),
        (
            "what was overtaken in memory only",
            evictions::what_was_overtaken_in_memory_has_no_older_value,
        ),
        (
            "what was replaced in memory only",
            evictions::what_was_replaced_in_memory_has_no_older_value,
        ),
        (
            "an expired value goes after what was written before it",
            expiries::an_expired_value_goes_after_what_was_written_before_it,
        ),
        ("an expired value leaves no older one", expiries::an_expired_value_leaves_no_older_one),
        ("a checkpoint survives", checkpoints::a_checkpoint_survives),
        ("a checkpoint counts for what stands", checkpoints::a_checkpoint_counts_for_what_stands),
        ("what was cleared is not covered", checkpoints::what_was_cleared_is_not_covered),
        ("a checkpoint waits for writes", checkpoints::a_checkpoint_waits_for_writes_under_way),
        ("what is covered is durable", checkpoints::what_is_covered_is_durable),
        ("a half written value", checkpoints::a_value_that_is_half_written_is_whole_later),
        ("a backup is a prefix", backups::a_backup_is_a_prefix),
        ("what is copied is not overwritten", backups::what_is_copied_is_not_overwritten),
        ("a backup is there, or the one before", backups::a_backup_is_there_or_the_one_before),
        ("a damaged backup is refused", backups::a_damaged_backup_is_refused),
        ("a restore is whole or none", backups::a_restore_is_whole_or_none),
        ("members survive a cut apart", members::survive_a_cut_apart),
        ("members are told apart", members::are_told_apart),
    ];
    for (name, scenario) in scenarios {
        let report = esker_trt::sim::run(7, scenario);
        match report.outcome {
            Ok(verdict) => verdict.map_err(|words| format!("{name}: {words}"))?,
            Err(error) => return Err(format!("{name}: {error}")),
        }
    }
    Ok(())
}

pub(super) fn device(initial: Initial) -> Arc<SimBlock> {
    Arc::new(SimBlock::new(SimBlockOptions::new(SIZE, 7).initial(initial)))
}

pub(super) fn open(
    device: &Arc<SimBlock>,
    options: &Options,
) -> std::result::Result<Store, String> {
    Store::open_on(Arc::clone(device) as Arc<dyn BlockDevice>, options)
        .map_err(|error| format!("open: {error}"))
}

/// What is on the medium if the power fails now and nothing survives that need not.
pub(super) fn cut(device: &SimBlock) -> Image {
    let trace = device.trace();
    let mut replay = trace.replay();
    replay.advance_to(u64::MAX);
    // The first state of a point is the one in which nothing pending survives.
    let image = replay.states(4, 0).next().map(|state| state.image());
    image.unwrap_or_else(|| device.image())
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

fn flip(device: &SimBlock, offset: u64) -> Verdict {
    const SITE: Site = Site::new("scenario.damage", SiteKind::DurableWrite);
    let mut block = [0; 512];
    device.read_at(SITE, offset / 512 * 512, &mut block).map_err(words)?;
    block[usize::try_from(offset % 512).unwrap_or(0)] ^= 16;
    device.write_durable_at(SITE, offset / 512 * 512, &[IoSlice::new(&block)]).map_err(words)
}

/// Device offset of a value's bytes.
pub(super) fn find(device: &SimBlock, value: &[u8]) -> std::result::Result<u64, String> {
    let bytes = device.image().to_vec();
    let place = bytes.windows(value.len()).position(|window| window == value);
    place.map(|place| place as u64).ok_or_else(|| "the value is not on the device".to_owned())
}

pub(super) fn without_flushes() -> Options {
    let mut options = options(u64::MAX, false);
    options.durability = Durability::None;
    options
}

fn sync_makes_durable() -> Verdict {
    let device = device(Initial::Zeros);
    let store = open(&device, &without_flushes())?;
    put(&store, "a", b"1")?;
    store.sync().map_err(words)?;
    let survived = self::device(Initial::Recycled(cut(&device)));
    expect(&open(&survived, &options(u64::MAX, false))?, "a", Some(b"1"))
}

/// The process ends, the machine goes on, the store is opened and read; then the power fails.
fn recovery_makes_durable_what_it_shows() -> Verdict {
    let device = device(Initial::Zeros);
    let ended = open(&device, &without_flushes())?;
    put(&ended, "a", b"1")?;
    ended.write_out().map_err(words)?;
    let store = open(&device, &options(u64::MAX, false))?;
    expect(&store, "a", Some(b"1"))?;
    let survived = self::device(Initial::Recycled(cut(&device)));
    expect(&open(&survived, &options(u64::MAX, false))?, "a", Some(b"1"))
}

/// Headers of this segment that tell no version that was given in it, as if its session had told none ahead.
fn tell_no_version(image: &mut Image, base: u64) -> Verdict {
    let mut bytes = [0; SUPERBLOCK_SIZE];
    image.read(0, &mut bytes);
    let superblock = Superblock::decode(&bytes).map_err(|flaw| flaw.to_string())?;
    let number = (base - superblock.data_offset) / SEGMENT_SIZE;
    let id = SegmentId(u32::try_from(number).map_err(|error| error.to_string())?);
    let mut patched = 0;
    for offset in (base..base + SEGMENT_SIZE).step_by(512) {
        image.read(offset, &mut bytes);
        if let Ok(header) = SegmentHeader::decode(&bytes, superblock.store_id, id) {
            let next_version = Version(header.first_sequence.0);
            let header = SegmentHeader { next_version, ..header };
            image.write(offset, &header.encode(superblock.store_id));
            patched += 1;
        }
    }
    if patched == 2 { Ok(()) } else { Err(format!("{patched} headers")) }
}

/// A session without flushes loses its first batch and keeps the second; the next session's first
/// batch, with its barrier, ends exactly where the lost session's second one begins.
fn a_lost_session_cannot_come_back() -> Verdict {
    let device = device(Initial::Zeros);
    let store = open(&device, &without_flushes())?;
    put(&store, "kept", b"0")?;
    store.sync().map_err(words)?;
    let before = device.image();
    put(&store, "lost", &[1; 600])?;
    store.write_out().map_err(words)?;
    put(&store, "stale", b"2")?;
    store.write_out().map_err(words)?;
    // The first batch (two blocks) is lost, the second one is kept.
    let mut survived = device.image();
    let lost = find(&device, &[1; 600])? / 512 * 512;
    let mut old = [0; 1024];
    before.read(lost, &mut old);
    survived.write(lost, &old);
    tell_no_version(&mut survived, lost / SEGMENT_SIZE * SEGMENT_SIZE)?;
    let device = self::device(Initial::Recycled(survived));
    let store = open(&device, &options(u64::MAX, false))?;
    expect(&store, "stale", None)?;
    put(&store, "new", b"3")?;
    let device = self::device(Initial::Recycled(cut(&device)));
    let store = open(&device, &options(u64::MAX, false))?;
    expect(&store, "kept", Some(b"0"))?;
    expect(&store, "new", Some(b"3"))?;
    expect(&store, "stale", None)
}

fn a_close_vouches_for_the_last_batch() -> Verdict {
    let device = device(Initial::Zeros);
    let store = open(&device, &options(u64::MAX, false))?;
    put(&store, "a", b"first value")?;
    put(&store, "a", b"second value")?;
    // Nobody writes a checkpoint then, which would vouch as well.
    drop(store);
    let device = self::device(Initial::Recycled(cut(&device)));
    flip(&device, find(&device, b"second value")?)?;
    match open(&device, &options(u64::MAX, false)) {
        Err(words) if words.contains("missing") => Ok(()),
        Err(words) => Err(format!("refused for another reason: {words}")),
        Ok(_) => Err("the last value was damaged, and nobody noticed".to_owned()),
    }
}

fn damage_is_no_torn_tail() -> Verdict {
    let device = device(Initial::Zeros);
    let store = open(&device, &options(u64::MAX, false))?;
    put(&store, "a", b"value of a")?;
    put(&store, "b", b"value of b")?;
    put(&store, "c", b"value of c")?;
    let device = self::device(Initial::Recycled(cut(&device)));
    flip(&device, find(&device, b"value of a")?)?;
    match open(&device, &options(u64::MAX, false)) {
        Err(_) => Ok(()),
        Ok(_) => Err("a batch was damaged, and recovery dropped what follows it".to_owned()),
    }
}

fn a_damaged_record_is_an_error() -> Verdict {
    let device = device(Initial::Zeros);
    let store = open(&device, &options(u64::MAX, false))?;
    put(&store, "a", b"value of a")?;
    flip(&device, find(&device, b"value of a")?)?;
    match store.get(b"a") {
        Err(error) if error.kind() == ErrorKind::Corrupted => Ok(()),
        other => Err(format!("a damaged record was read as {other:?}")),
    }
}

fn equal_hashes_are_told_apart() -> Verdict {
    let device = device(Initial::Zeros);
    let store = open(&device, &options(0, false))?;
    put(&store, "a", b"1")?;
    put(&store, "b", b"2")?;
    put(&store, "c", b"3")?;
    put(&store, "a", b"4")?;
    store.delete(b"b").map_err(words)?;
    for _ in 0..2 {
        let store = open(&device, &options(0, false))?;
        expect(&store, "a", Some(b"4"))?;
        expect(&store, "b", None)?;
        expect(&store, "c", Some(b"3"))?;
        expect(&store, "d", None)?;
    }
    Ok(())
}

/// A tombstone that recovery forgets beside a key with an equal hash: once it is overwritten, the
/// older record that it stood for comes back. Only the keys of the story share a hash; what keeps
/// and what churns the segments has the other one.
fn deleted_stays_gone_beside_equal_hashes() -> Verdict {
    const ONE_BIT: u64 = 1;
    let device = device(Initial::Zeros);
    let store = open(&device, &options(ONE_BIT, false))?;
    let superblock = Superblock::decode(&device.image().to_vec()).map_err(|f| f.to_string())?;
    let hasher = KeyHasher::new(superblock.hash_key).weakened(ONE_BIT);
    let (mut zeros, mut ones): (Vec<_>, Vec<_>) = (0..64)
        .map(|number| format!("key{number}"))
        .partition(|name| hasher.hash(name.as_bytes()) == 0);
    let [Some(a), Some(b), Some(c)] = [zeros.pop(), zeros.pop(), zeros.pop()] else {
        return Err("too few keys have hash 0".to_owned());
    };
    let [Some(kept), Some(filler)] = [ones.pop(), ones.pop()] else {
        return Err("too few keys have hash 1".to_owned());
    };
    let churn = |store: &Store, rounds: usize| {
        (0..rounds).try_for_each(|_| put(store, &filler, &[9; 1200]))
    };
    put(&store, &kept, b"0")?;
    put(&store, &a, b"1")?;
    churn(&store, 2)?;
    store.delete(a.as_bytes()).map_err(words)?;
    churn(&store, 2)?;
    put(&store, &b, b"2")?;
    churn(&store, 2)?;
    let store = open(&device, &options(ONE_BIT, false))?;
    put(&store, &c, b"3")?;
    put(&store, &b, b"4")?;
    churn(&store, 60)?;
    let store = open(&device, &options(ONE_BIT, false))?;
    expect(&store, &a, None)?;
    expect(&store, &b, Some(b"4"))?;
    expect(&store, &c, Some(b"3"))
}

/// A device whose next call at `site`, once it is armed, takes long.
pub(super) fn slow_at(site: Site) -> (Arc<Asking>, Arc<AtomicBool>) {
    let armed = Arc::new(AtomicBool::new(false));
    let is_due = Arc::clone(&armed);
    let device = Asking::new(device(Initial::Zeros), move |call| {
        if call.site == site && is_due.swap(false, Ordering::SeqCst) {
            esker_trt::sleep(Duration::from_secs(10));
        }
        Ok(())
    });
    (device, armed)
}

/// A store in which a task does `slow` on key `a` with a slow first read, while another overwrites
/// everything until the segment of that read holds other records.
fn beside_reuse<T: 'static>(
    slow: impl FnOnce(&Store) -> std::result::Result<T, String> + 'static,
) -> std::result::Result<(T, Store), String> {
    let (device, armed) = slow_at(esker::sites::depot::RECORD_READ);
    let store = Store::open_on(device, &options(u64::MAX, false)).map_err(words)?;
    put(&store, "a", b"old value of a")?;
    armed.store(true, Ordering::SeqCst);
    let shared = store.clone();
    let task = esker_trt::spawn(move || slow(&shared));
    esker_trt::yield_now();
    while armed.load(Ordering::SeqCst) {
        esker_trt::yield_now();
    }
    for round in 0..200_u32 {
        put(&store, "a", format!("new value of a {round}").as_bytes())?;
        put(&store, "b", &[7; 300])?;
    }
    let result = task.join().map_err(|error| error.to_string())??;
    Ok((result, store))
}

fn a_slow_read_survives_reuse() -> Verdict {
    let (found, _) = beside_reuse(|store| {
        let found = store.get(b"a").map_err(words)?;
        Ok(found.map(|value| value.to_vec()))
    })?;
    match found {
        Some(value) if value == b"new value of a 199" => Ok(()),
        other => Err(format!("the slow read found {other:?}")),
    }
}

fn a_slow_write_survives_reuse() -> Verdict {
    let ((), store) = beside_reuse(|store| put(store, "a", b"slow value of a"))?;
    expect(&store, "a", Some(b"slow value of a"))?;
    let items = store.iter().collect::<Result<Vec<_>>>().map_err(words)?;
    if items.len() != 2 || store.stats().items != 2 {
        return Err(format!("{} items of 2 after the slow write", items.len()));
    }
    let report = store.check().map_err(words)?;
    report.problems.first().map_or(Ok(()), |problem| Err(problem.clone()))
}

fn cleared_records_stay_gone() -> Verdict {
    let device = device(Initial::Zeros);
    let store = open(&device, &options(u64::MAX, false))?;
    put(&store, "a", b"1")?;
    store.clear().map_err(words)?;
    put(&store, "b", b"2")?;
    let store = open(&device, &options(u64::MAX, false))?;
    expect(&store, "a", None)?;
    expect(&store, "b", Some(b"2"))
}
