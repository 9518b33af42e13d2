//! A toy log in persistent memory: the same demands, with lines and fences for blocks and flushes.

use super::*;
use crate::model::Model;
use esker_media::Pmem;

sites! {
    /// Invalidates an older store.
    pub FORMAT_FLUSH: Flush = "pmtoy.format.flush";
    /// Makes each step of the format durable.
    pub FORMAT_FENCE: Fence = "pmtoy.format.fence";
    /// A record.
    pub RECORD: Write = "pmtoy.append.store";
    /// Its lines.
    pub RECORD_FLUSH: Flush = "pmtoy.append.flush";
    /// Record before tail.
    pub RECORD_FENCE: Fence = "pmtoy.append.fence";
    /// The tail, which commits.
    pub TAIL: Write = "pmtoy.commit.store";
    /// Its line.
    pub TAIL_FLUSH: Flush = "pmtoy.commit.flush";
    /// Tail before the reply.
    pub TAIL_FENCE: Fence = "pmtoy.commit.fence";
}

const MAGIC_AT: u64 = 0;
const TAIL_AT: u64 = 64;
const START: u64 = 128;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PmBug {
    None,
    LastLineNotFlushed,
    TailInTheSameFence,
    TornTail,
    NoTemporalFence,
}

#[derive(Clone, Copy, Debug)]
struct PmToy(PmBug);

struct PmStore {
    memory: Arc<dyn Pmem>,
    tail: TaskMutex<u64>,
    map: RefCell<Map>,
    bug: PmBug,
}

/// Stores a word and makes it durable.
fn settle(memory: &dyn Pmem, at: u64, value: u64) -> Result<()> {
    memory.store_u64(RECORD, at, value)?;
    memory.flush(FORMAT_FLUSH, at, 8)?;
    memory.fence(FORMAT_FENCE)
}

impl PmStore {
    fn change(&self, tail: &mut u64, changes: Vec<(Vec<u8>, Option<Entry>)>) -> Result<()> {
        let mut record = encode(&changes);
        let length = record.len() as u64;
        record.resize(record.len().next_multiple_of(8), 0);
        let end = *tail + 8 + record.len() as u64;
        if end > self.memory.size_bytes() {
            return Err(Error::new(ErrorKind::NoSpace, "append to toy"));
        }
        let memory = &*self.memory;
        memory.store_u64(RECORD, *tail, length)?;
        if record.len() > 256 {
            memory.ntstore(RECORD, *tail + 8, &record)?;
            memory.flush(RECORD_FLUSH, *tail, 8)?;
        } else {
            memory.store(RECORD, *tail + 8, &record)?;
            let last = if self.bug == PmBug::LastLineNotFlushed { end - 64 } else { end };
            memory.flush(RECORD_FLUSH, *tail, last.max(*tail + 1) - *tail)?;
        }
        esker_trt::yield_now();
        let skip = self.bug == PmBug::TailInTheSameFence
            || self.bug == PmBug::NoTemporalFence && record.len() > 256;
        if !skip {
            memory.fence(RECORD_FENCE)?;
        }
        if self.bug == PmBug::TornTail {
            // Four bytes at a time, with something else between.
            let bytes = end.to_le_bytes();
            memory.store(TAIL, TAIL_AT, &bytes[..1])?;
            memory.store(TAIL, TAIL_AT + 1, &bytes[1..])?;
        } else {
            memory.store_u64(TAIL, TAIL_AT, end)?;
        }
        esker_trt::yield_now();
        memory.flush(TAIL_FLUSH, TAIL_AT, 8)?;
        memory.fence(TAIL_FENCE)?;
        *tail = end;
        apply_changes(&mut self.map.borrow_mut(), changes);
        Ok(())
    }
}

fn apply_changes(map: &mut Map, changes: Vec<(Vec<u8>, Option<Entry>)>) {
    for (key, entry) in changes {
        match entry {
            Some(entry) => map.insert(key, entry.into()),
            None => map.remove(&key),
        };
    }
}

impl Subject for PmToy {
    type Medium = Memory;
    type Store = PmStore;

    fn open(&self, memory: Arc<dyn Pmem>, fresh: bool) -> Result<PmStore> {
        if fresh {
            settle(&*memory, MAGIC_AT, 0)?;
            settle(&*memory, TAIL_AT, START)?;
            settle(&*memory, MAGIC_AT, MAGIC)?;
        } else if memory.load_u64(MAGIC_AT)? != MAGIC {
            return Err(Error::new(ErrorKind::UnsupportedFormat, "open toy"));
        }
        let end = memory.load_u64(TAIL_AT)?;
        let corrupted = || Error::corrupted("open toy", "the log does not parse");
        if end > memory.size_bytes() || end < START {
            return Err(corrupted());
        }
        let (mut at, mut map) = (START, Map::new());
        while at < end {
            let length = memory.load_u64(at)?;
            let whole = length.checked_next_multiple_of(8).ok_or_else(corrupted)?;
            if whole > end - at - 8 {
                return Err(corrupted());
            }
            let mut record = vec![0; usize::try_from(length).unwrap()];
            memory.read(at + 8, &mut record)?;
            apply_changes(&mut map, decode(&record).ok_or_else(corrupted)?);
            at += 8 + whole;
        }
        let (tail, map) = (TaskMutex::new(end), RefCell::new(map));
        Ok(PmStore { memory, tail, map, bug: self.0 })
    }

    fn apply(&self, store: &PmStore, op: &Op) -> Result<Reply> {
        let mut tail = store.tail.lock();
        let before = store.map.borrow().clone();
        let mut model = Model { map: before.clone(), ..Model::default() };
        let reply = model.apply(op);
        let mut changes: Vec<_> = before
            .keys()
            .filter(|key| !model.map.contains_key(*key))
            .map(|key| (key.clone(), None))
            .collect();
        changes.extend(
            model
                .map
                .into_iter()
                .filter(|(key, held)| before.get(key) != Some(held))
                .map(|(key, held)| (key, Some(held.entry))),
        );
        if !changes.is_empty() {
            store.change(&mut tail, changes)?;
        }
        Ok(reply)
    }

    fn dump(&self, store: &PmStore) -> Result<Map> {
        Ok(store.map.borrow().clone())
    }
}

fn explore_memory(bug: PmBug, seeds: Range<u64>) -> Report {
    Explorer::new(PmToy(bug), Config { size_bytes: 32 << 10, ..config() }).seeds(seeds, 2)
}

#[test]
fn the_right_toy_in_memory_passes() {
    let _turn = SWITCH.lock();
    let report = explore_memory(PmBug::None, 0..40);
    eprintln!("{report}");
    report.assert_clean();
    assert!(report.distinct_states > 10_000, "{report}");
    assert!(report.site_states.len() >= ALL.len(), "{report}");
}

#[test]
fn each_planted_bug_in_memory_is_caught() {
    let _turn = SWITCH.lock();
    for bug in [
        PmBug::LastLineNotFlushed,
        PmBug::TailInTheSameFence,
        PmBug::TornTail,
        PmBug::NoTemporalFence,
    ] {
        let report = (0..200)
            .step_by(20)
            .map(|first| explore_memory(bug, first..first + 20))
            .find(|report| !report.violations.is_empty());
        let report = report.unwrap_or_else(|| panic!("{bug:?} was not found"));
        eprintln!("{bug:?}: {}", report.violations[0]);
    }
}

#[cfg(feature = "mutants")]
#[test]
fn every_site_of_the_toy_in_memory_is_needed() {
    let _turn = SWITCH.lock();
    let suite = || explore_memory(PmBug::None, 0..30).violations.is_empty();
    let report = mutants::run(ALL, suite).unwrap();
    eprintln!("{report}");
    assert_eq!(report.missed(), []);
    assert_eq!(report.mutants.len(), 6);
}
