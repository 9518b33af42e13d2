//! A toy store, right and with planted bugs: the explorer must pass the one and catch the others.

use super::*;
use crate::command::sweep;
use crate::generator::{Entry, When};
use crate::mutants;
use esker_base::checksum::crc32c;
use esker_base::sites;
use esker_media::BlockDevice;
use esker_media::sim::FaultKind;
use esker_trt::sync::Mutex as TaskMutex;
use parking_lot::Mutex;
use std::cell::{Cell, RefCell};
use std::io::IoSlice;
use std::sync::Arc;

mod memory;

sites! {
    /// The superblock.
    pub FORMAT: DurableWrite = "toy.format.superblock";
    /// Reads of recovery.
    pub READ: Read = "toy.recover.read";
    /// A record.
    pub APPEND: Write = "toy.append.write";
    /// What makes it durable.
    pub COMMIT: Flush = "toy.append.flush";
    /// Whether a record is whole.
    pub CHECKSUM: Checksum = "toy.recover.checksum";
    /// Whether it belongs to this format of the device.
    pub EPOCH: Compare = "toy.recover.epoch";
}

const BLOCK: usize = 512;
const HEADER: usize = 32;
const MAGIC: u64 = 0x0079_6F74_7265_6B73;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    NoFlush,
    NoChecksum,
    NoEpoch,
    AckBeforeFlush,
    VisibleBeforeDurable,
    DeleteNotLogged,
    RecoveryPanics,
    RecoveryWrites,
    FlushErrorIgnored,
    ReadErrorEndsRecovery,
    FailedCallLeavesWaiters,
    NoFormatHangs,
}

/// A log of whole-block records behind a superblock; the map in memory answers reads.
#[derive(Clone, Copy, Debug)]
struct Toy(Bug);

struct Log {
    tail: u64,
    sequence: u64,
}

struct ToyStore {
    device: Arc<dyn BlockDevice>,
    epoch: u64,
    log: TaskMutex<Log>,
    map: RefCell<Map>,
    /// Whoever writes waits for somebody who has gone.
    is_leaderless: Cell<bool>,
    bug: Bug,
}

fn word(bytes: &[u8], index: usize) -> u64 {
    u64::from_le_bytes(bytes[index * 8..index * 8 + 8].try_into().unwrap())
}

fn read_block(device: &dyn BlockDevice, offset: u64) -> Result<Vec<u8>> {
    let mut block = vec![0; BLOCK];
    device.read_at(READ, offset, &mut block)?;
    Ok(block)
}

fn wait_for_ever() -> ! {
    let never = TaskMutex::new(());
    let _held = never.lock();
    let _again = never.lock();
    unreachable!("two have it")
}

fn superblock(epoch: u64) -> Vec<u8> {
    let mut block = vec![0; BLOCK];
    block[..8].copy_from_slice(&MAGIC.to_le_bytes());
    block[8..16].copy_from_slice(&epoch.to_le_bytes());
    let crc = crc32c(&block[..16]);
    block[16..20].copy_from_slice(&crc.to_le_bytes());
    block
}

/// Epoch of a valid superblock.
fn parse_superblock(block: &[u8]) -> Option<u64> {
    (superblock(word(block, 1))[..20] == block[..20]).then(|| word(block, 1))
}

fn length_word(bytes: &[u8]) -> [u8; 4] {
    u32::try_from(bytes.len()).unwrap().to_le_bytes()
}

fn encode(changes: &[(Vec<u8>, Option<Entry>)]) -> Vec<u8> {
    let mut bytes = vec![];
    for (key, entry) in changes {
        bytes.extend(length_word(key));
        bytes.extend(key);
        bytes.push(u8::from(entry.is_some()));
        if let Some(entry) = entry {
            bytes.extend(entry.flags.to_le_bytes());
            bytes.push(entry.state);
            bytes.extend(length_word(&entry.bytes));
            bytes.extend(&entry.bytes);
        }
    }
    bytes
}

fn decode(mut bytes: &[u8]) -> Option<Vec<(Vec<u8>, Option<Entry>)>> {
    fn take<'b>(bytes: &mut &'b [u8], count: usize) -> Option<&'b [u8]> {
        let (first, rest) = bytes.split_at_checked(count)?;
        *bytes = rest;
        Some(first)
    }
    fn number(bytes: &mut &[u8]) -> Option<u32> {
        Some(u32::from_le_bytes(take(bytes, 4)?.try_into().ok()?))
    }
    let mut changes = vec![];
    while !bytes.is_empty() {
        let length = number(&mut bytes)? as usize;
        let key = take(&mut bytes, length)?.to_vec();
        let entry = if take(&mut bytes, 1)? == [1] {
            let flags = number(&mut bytes)?;
            let state = *take(&mut bytes, 1)?.first()?;
            let length = number(&mut bytes)? as usize;
            Some(Entry { flags, state, ..Entry::plain(take(&mut bytes, length)?.to_vec()) })
        } else {
            None
        };
        changes.push((key, entry));
    }
    Some(changes)
}

impl ToyStore {
    /// Header: magic, epoch, sequence, payload length and checksum; all words of 8 bytes but the
    /// last two of 4.
    fn record(&self, sequence: u64, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; HEADER];
        bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[16..24].copy_from_slice(&sequence.to_le_bytes());
        bytes[24..28].copy_from_slice(&length_word(payload));
        bytes.extend(payload);
        let crc = crc32c(&bytes);
        bytes[28..32].copy_from_slice(&crc.to_le_bytes());
        bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
        bytes
    }

    /// The record at `offset`, if there is one that may stand there, and its length.
    fn read_record(&self, offset: u64, sequence: u64) -> Result<Option<(Vec<u8>, u64)>> {
        let end = self.device.geometry().size_bytes;
        if offset + BLOCK as u64 > end {
            return Ok(None);
        }
        let first = read_block(&*self.device, offset)?;
        let same_epoch =
            word(&first, 1) == self.epoch || self.bug == Bug::NoEpoch || EPOCH.disabled();
        if word(&first, 0) != MAGIC || !same_epoch || word(&first, 2) != sequence {
            return Ok(None);
        }
        let length = u32::from_le_bytes(first[24..28].try_into().unwrap()) as usize;
        let whole = (HEADER + length).next_multiple_of(BLOCK);
        if offset + whole as u64 > end {
            return Ok(None);
        }
        let mut bytes = vec![0; whole];
        self.device.read_at(READ, offset, &mut bytes)?;
        let stored = u32::from_le_bytes(bytes[28..32].try_into().unwrap());
        bytes[28..32].fill(0);
        let payload = bytes[HEADER..HEADER + length].to_vec();
        bytes.truncate(HEADER + length);
        let is_whole =
            crc32c(&bytes) == stored || self.bug == Bug::NoChecksum || CHECKSUM.disabled();
        Ok(is_whole.then_some((payload, whole as u64)))
    }

    fn change(&self, log: &mut Log, changes: Vec<(Vec<u8>, Option<Entry>)>) -> Result<()> {
        let forgotten = self.bug == Bug::DeleteNotLogged && changes.iter().all(|c| c.1.is_none());
        let record = self.record(log.sequence, &encode(&changes));
        if log.tail + record.len() as u64 > self.device.geometry().size_bytes {
            return Err(Error::new(ErrorKind::NoSpace, "append to toy"));
        }
        let apply = || {
            let mut map = self.map.borrow_mut();
            for (key, entry) in &changes {
                match entry {
                    Some(entry) => map.insert(key.clone(), entry.clone().into()),
                    None => map.remove(key),
                };
            }
        };
        if self.bug == Bug::VisibleBeforeDurable {
            apply();
        }
        if self.bug == Bug::AckBeforeFlush && !log.sequence.is_multiple_of(4) {
            // Every fourth flush covers the three before: group commit with early replies.
            self.device.write_at(APPEND, log.tail, &[IoSlice::new(&record)])?;
        } else if !forgotten {
            self.device.write_at(APPEND, log.tail, &[IoSlice::new(&record)])?;
            if self.bug == Bug::FlushErrorIgnored {
                let _ = self.device.flush(COMMIT);
            } else if self.bug != Bug::NoFlush {
                let leaves = self.bug == Bug::FailedCallLeavesWaiters;
                self.device.flush(COMMIT).inspect_err(|_| self.is_leaderless.set(leaves))?;
            }
        }
        if !forgotten {
            log.tail += record.len() as u64;
            log.sequence += 1;
        }
        if self.bug != Bug::VisibleBeforeDurable {
            apply();
        }
        Ok(())
    }
}

impl Subject for Toy {
    type Medium = Block;
    type Store = ToyStore;

    fn open(&self, device: Arc<dyn BlockDevice>, fresh: bool) -> Result<ToyStore> {
        let found = parse_superblock(&read_block(&*device, 0)?);
        let epoch = match found {
            Some(epoch) if fresh => epoch + 1,
            Some(epoch) => epoch,
            None if fresh => 1,
            None if self.0 == Bug::NoFormatHangs => wait_for_ever(),
            None => return Err(Error::new(ErrorKind::UnsupportedFormat, "open toy")),
        };
        if fresh {
            device.write_durable_at(FORMAT, 0, &[IoSlice::new(&superblock(epoch))])?;
        }
        let log = Log { tail: BLOCK as u64, sequence: 1 };
        let store = ToyStore {
            device,
            epoch,
            log: TaskMutex::new(log),
            map: RefCell::default(),
            is_leaderless: Cell::default(),
            bug: self.0,
        };
        if !fresh {
            let mut log = store.log.lock();
            loop {
                let read = store.read_record(log.tail, log.sequence);
                let read =
                    if self.0 == Bug::ReadErrorEndsRecovery { read.or(Ok(None)) } else { read };
                if read.is_err() && self.0 == Bug::FailedCallLeavesWaiters {
                    wait_for_ever();
                }
                let Some((payload, length)) = read? else { break };
                let changes = decode(&payload)
                    .ok_or_else(|| Error::corrupted("open toy", "a record does not parse"))?;
                let mut map = store.map.borrow_mut();
                for (key, entry) in changes {
                    match entry {
                        Some(entry) => map.insert(key, entry.into()),
                        None => map.remove(&key),
                    };
                }
                log.tail += length;
                log.sequence += 1;
            }
            if self.0 == Bug::RecoveryPanics {
                assert!(log.sequence < 10, "planted");
            }
            if self.0 == Bug::RecoveryWrites {
                // "Cleans" the log by moving its last record, over what is still needed.
                let last = store.map.borrow().clone().into_iter();
                let changes: Vec<_> = last.map(|(key, held)| (key, Some(held.entry))).collect();
                let record = store.record(1, &encode(&changes));
                if record.len() as u64 + (BLOCK as u64) < store.device.geometry().size_bytes {
                    store.device.write_at(APPEND, BLOCK as u64, &[IoSlice::new(&record)])?;
                    store.device.flush(COMMIT)?;
                    (log.tail, log.sequence) = (BLOCK as u64 + record.len() as u64, 2);
                }
            }
            drop(log);
        }
        Ok(store)
    }

    fn apply(&self, store: &ToyStore, op: &Op) -> Result<Reply> {
        let look = |key: &Vec<u8>| store.map.borrow().get(key).cloned();
        match op {
            Op::Get(key) => return Ok(Reply::Found(look(key))),
            Op::Iterate => return Ok(Reply::All(store.map.borrow().clone())),
            Op::Sync | Op::Check | Op::Reopen | Op::Clean => return Ok(Reply::Done),
            _ => {}
        }
        if store.is_leaderless.get() {
            wait_for_ever();
        }
        let mut log = store.log.lock();
        match op {
            Op::Put(key, entry) => {
                store.change(&mut log, vec![(key.clone(), Some(entry.clone()))])?;
                Ok(Reply::Done)
            }
            Op::PutIf(key, entry, when) => {
                let holds = look(key).is_some() == (*when == When::Present);
                if holds {
                    store.change(&mut log, vec![(key.clone(), Some(entry.clone()))])?;
                }
                Ok(Reply::Was(holds))
            }
            Op::Delete(key) => {
                let existed = look(key).is_some();
                if existed {
                    store.change(&mut log, vec![(key.clone(), None)])?;
                }
                Ok(Reply::Was(existed))
            }
            Op::Batch(changes) => {
                store.change(&mut log, changes.clone())?;
                Ok(Reply::Done)
            }
            _ => {
                let keys: Vec<_> = store.map.borrow().keys().map(|k| (k.clone(), None)).collect();
                store.change(&mut log, keys)?;
                Ok(Reply::Done)
            }
        }
    }

    fn dump(&self, store: &ToyStore) -> Result<Map> {
        Ok(store.map.borrow().clone())
    }
}

/// The switch of mutants is the whole process's: tests take turns.
static SWITCH: Mutex<()> = Mutex::new(());

fn config() -> Config {
    Config {
        size_bytes: 48 << 10,
        op_count: 40,
        states_per_point: 30,
        weights: Weights { batch: 8, ..Weights::USUAL },
        limits: Limits { value_size_bytes_max: 2000, key_count: 6, ..Limits::default() },
        ..Config::default()
    }
}

fn explore(bug: Bug, seeds: Range<u64>) -> Report {
    Explorer::new(Toy(bug), config()).seeds(seeds, 2)
}

#[test]
fn the_right_toy_passes_and_everything_is_reached() {
    let _turn = SWITCH.lock();
    let report = explore(Bug::None, 0..120);
    eprintln!("{report}");
    report.assert_clean();
    assert!(report.distinct_states > 3_000, "{report}");
    assert!(report.nested_states > 500, "{report}");
    assert!(report.recycled * 2 >= report.seeds, "{report}");
    assert!(report.replays_compared >= 1);
    for site in [FORMAT, APPEND, COMMIT] {
        let states = report.site_states.get(site.name()).copied().unwrap_or(0);
        assert!(states > 20, "{site:?}: {states}");
    }
}

/// Explores until the planted bug is found.
fn must_find(bug: Bug) -> Report {
    for first in (0..400).step_by(20) {
        let report = explore(bug, first..first + 20);
        if !report.violations.is_empty() {
            eprintln!("{bug:?}: {}", report.violations[0]);
            return report;
        }
    }
    panic!("{bug:?} was not found");
}

#[test]
fn each_planted_bug_is_caught() {
    let _turn = SWITCH.lock();
    for bug in [
        Bug::NoFlush,
        Bug::NoChecksum,
        Bug::NoEpoch,
        Bug::AckBeforeFlush,
        Bug::VisibleBeforeDurable,
        Bug::DeleteNotLogged,
        Bug::RecoveryPanics,
        Bug::RecoveryWrites,
        Bug::NoFormatHangs,
    ] {
        must_find(bug);
    }
}

#[test]
fn a_violation_is_found_again_from_its_seed_and_point() {
    let _turn = SWITCH.lock();
    let found = must_find(Bug::NoFlush).violations[0].clone();
    let explorer = Explorer::new(Toy(Bug::NoFlush), config());
    assert_eq!(explorer.seed(found.seed).violations[0], found);
    let narrow = Config { only_point: Some(found.path[0].0), ..config() };
    let again = Explorer::new(Toy(Bug::NoFlush), narrow).seed(found.seed);
    assert!(!again.violations.is_empty() && again.points == 1);
    let words = found.to_string();
    assert!(words.contains("seed") && words.contains("crash at point"), "{words}");
}

#[test]
fn reports_of_pieces_add_up_to_the_report_of_the_whole() {
    let _turn = SWITCH.lock();
    let whole = explore(Bug::None, 0..8);
    let mut pieces = explore(Bug::None, 0..3);
    pieces.merge(&explore(Bug::None, 3..8));
    assert_eq!(pieces.to_string(), whole.to_string());
}

#[test]
fn sweeps_fail_every_call_and_pass_the_right_toy() {
    let _turn = SWITCH.lock();
    let explorer = Explorer::new(Toy(Bug::None), Config { op_count: 20, ..config() });
    for lasting in [false, true] {
        for kind in [FaultKind::AnyError, FaultKind::FlushError, FaultKind::NoSpace] {
            let report = explorer.sweep_workload(3, kind, lasting, 500);
            assert!(report.violations.is_empty(), "{kind:?} {report}");
            assert!(report.complete && report.failures > 5, "{kind:?} {report}");
        }
        let report = explorer.sweep_recovery(3, FaultKind::AnyError, lasting, 500);
        assert!(report.violations.is_empty(), "{report}");
        assert!(report.complete && report.failures > 5, "{report}");
    }
}

#[test]
fn sweeps_catch_errors_that_are_swallowed() {
    let _turn = SWITCH.lock();
    let explorer = Explorer::new(Toy(Bug::FlushErrorIgnored), config());
    let report = explorer.sweep_workload(3, FaultKind::FlushError, false, 500);
    assert!(!report.violations.is_empty(), "{report}");
    let explorer = Explorer::new(Toy(Bug::ReadErrorEndsRecovery), config());
    let report = explorer.sweep_recovery(3, FaultKind::ReadError, false, 500);
    assert!(!report.violations.is_empty(), "{report}");
}

#[test]
fn sweeps_catch_calls_that_never_end_and_judge_what_was_acknowledged_before() {
    let _turn = SWITCH.lock();
    let explorer = Explorer::new(Toy(Bug::FailedCallLeavesWaiters), config());
    let hangs = |report: &SweepReport| {
        let hangs = report.violations.iter().filter(|it| it.what.contains("deadlock"));
        hangs.count() as u64
    };
    let report = explorer.sweep_workload(3, FaultKind::FlushError, false, 500);
    assert!(hangs(&report) > report.failures / 2, "{report}");
    assert!(report.recoveries >= report.failures, "{report}");
    let report = explorer.sweep_recovery(3, FaultKind::ReadError, false, 500);
    assert!(hangs(&report) > 0, "{report}");
}

#[test]
fn a_kind_of_which_no_call_failed_is_told_whatever_others_do() {
    let _turn = SWITCH.lock();
    let explorer = Explorer::new(Toy(Bug::None), Config { op_count: 0, ..config() });
    assert!(sweep(&explorer, &[FaultKind::AnyError]).unwrap() > 0);
    let words = sweep(&explorer, &[FaultKind::AnyError, FaultKind::FlushError]).unwrap_err();
    assert!(words.contains("FlushError: no call"), "{words}");
}

#[cfg(feature = "mutants")]
#[test]
fn every_site_of_the_toy_is_needed() {
    let _turn = SWITCH.lock();
    let suite = || explore(Bug::None, 0..40).violations.is_empty();
    let report = mutants::run(ALL, suite).unwrap();
    eprintln!("{report}");
    assert_eq!(report.missed(), []);
    assert_eq!(report.mutants.len(), 4);
}

#[cfg(not(feature = "mutants"))]
#[test]
fn mutants_need_the_feature() {
    assert_eq!(mutants::run(ALL, || true).unwrap_err().kind(), ErrorKind::Unsupported);
}
