//! Scenarios of calls that are held up while others go on: a chunk or a block is used anew meanwhile.

use super::scenarios::{Verdict, cut, expect, find, memory, open, put, usual, words};
use super::subject::CHUNK_SIZE;
use esker::{Batch, Options, Store};
use esker_base::Site;
use esker_media::Pmem;
use esker_media::sim::{AskingMemory, Initial, MemoryCall, SimPm};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Memory of which one call takes long, once it is armed: a read of so many bytes, or a fence at a site.
pub(super) struct Slow {
    memory: Arc<AskingMemory>,
    call: Arc<SlowCall>,
}

struct SlowCall {
    read_bytes_min: AtomicU64,
    armed: AtomicBool,
}

impl Slow {
    pub(super) fn new(inner: &Arc<SimPm>, fence: Option<Site>) -> Slow {
        let call = Arc::new(SlowCall {
            read_bytes_min: AtomicU64::new(u64::MAX),
            armed: AtomicBool::new(false),
        });
        let shared = Arc::clone(&call);
        let memory = AskingMemory::new(Arc::clone(inner), move |call| {
            let is_slow = match call {
                MemoryCall::Read(bytes) => {
                    bytes.end - bytes.start >= shared.read_bytes_min.load(Ordering::SeqCst)
                }
                MemoryCall::Fenced(site) => fence == Some(*site),
            };
            if is_slow && shared.armed.swap(false, Ordering::SeqCst) {
                esker_trt::sleep(Duration::from_secs(10));
            }
            Ok(())
        });
        Slow { memory, call }
    }

    /// The next such call takes long.
    pub(super) fn arm(&self) {
        self.call.armed.store(true, Ordering::SeqCst);
    }

    /// The next read of so many bytes takes long.
    pub(super) fn arm_read(&self, bytes_min: u64) {
        self.call.read_bytes_min.store(bytes_min, Ordering::SeqCst);
        self.arm();
    }

    pub(super) fn open(&self, options: &Options) -> std::result::Result<Store, String> {
        Store::open_on_memory(Arc::clone(&self.memory) as Arc<dyn Pmem>, options).map_err(words)
    }

    /// Lets the task that was spawned go on until it rests.
    pub(super) fn wait(&self) -> Verdict {
        for _ in 0..10_000 {
            if !self.call.armed.load(Ordering::SeqCst) {
                return Ok(());
            }
            esker_trt::yield_now();
        }
        Err("the slow call was never made".to_owned())
    }
}

pub(super) fn one_core() -> Options {
    let mut options = usual();
    options.testing.cores = Some(1);
    options
}

/// Writes until the chunk in which `value` stood holds other entries.
fn reuse(store: &Store, memory: &SimPm, value: &[u8]) -> Verdict {
    let place = find(memory, value)?;
    let mut salt = [0; 8];
    memory.read(place / CHUNK_SIZE * CHUNK_SIZE + 8, &mut salt).map_err(words)?;
    for round in 0..400_u32 {
        put(store, &format!("b{:07}", round % 7), &[7; 40])?;
        put(store, "a0000000", format!("new value of a {round}").as_bytes())?;
        if round % 16 == 15 {
            store.clean(64).map_err(words)?;
        }
        let mut now = vec![0; value.len()];
        memory.read(place, &mut now).map_err(words)?;
        if now != value {
            // And some more, so that whole batches stand there.
            return (0..30).try_for_each(|_| {
                put(store, "b0000000", &[8; 40])?;
                put(store, "a0000000", b"last value of a")
            });
        }
    }
    Err("the chunk was never used anew".to_owned())
}

/// Reads of an entry, and of a record, during which others get the place.
pub(super) fn a_slow_read_survives_reuse() -> Verdict {
    let memory = memory(Initial::Zeros);
    let slow = Slow::new(&memory, None);
    let store = slow.open(&one_core())?;
    put(&store, "a0000000", b"old value of a")?;
    slow.arm_read(96);
    let shared = store.clone();
    let task = esker_trt::spawn(move || shared.get(b"a0000000").map_err(words));
    slow.wait()?;
    reuse(&store, &memory, b"old value of a")?;
    let found = task.join().map_err(|error| error.to_string())??;
    if found.as_deref() != Some(b"last value of a") {
        return Err(format!("the slow read of an entry found {found:?}"));
    }
    put(&store, "a0000000", &[1; 1000])?;
    slow.arm_read(1000);
    let shared = store.clone();
    let task = esker_trt::spawn(move || shared.get(b"a0000000").map_err(words));
    slow.wait()?;
    put(&store, "a0000000", &[2; 1000])?;
    put(&store, "b0000000", &[3; 1000])?;
    let found = task.join().map_err(|error| error.to_string())??;
    if found.as_deref() != Some(&[2; 1000]) {
        let byte = found.and_then(|value| value.first().copied());
        return Err(format!("the slow read of a record found bytes {byte:?}"));
    }
    Ok(())
}

/// A read that knows the word and is held up before it looks at the entry.
pub(super) fn a_late_read_survives_reuse() -> Verdict {
    let memory = memory(Initial::Zeros);
    let store = open(&memory, &one_core())?;
    put(&store, "a0000000", b"old value of a")?;
    let mut reused = None;
    let found = store.get_with(b"a0000000", &mut |_| {
        if reused.is_none() {
            reused = Some(reuse(&store, &memory, b"old value of a"));
        }
        Ok(())
    });
    reused.unwrap_or_else(|| Err("the read was not held up".to_owned()))?;
    match found.map_err(words)?.as_deref() {
        Some(b"last value of a") => Ok(()),
        other => Err(format!("the late read found {other:?}")),
    }
}

/// A write with a condition, which knows the word of its key and is held up before its entry is appended; the cleaner moves the old entry
/// meanwhile.
pub(super) fn a_slow_write_survives_reuse() -> Verdict {
    let memory = memory(Initial::Zeros);
    let slow = Slow::new(&memory, Some(esker::sites::flat::RECORD_FENCE));
    let store = slow.open(&one_core())?;
    put(&store, "a0000000", b"old value of a")?;
    // Not where an entry begins when the chunk is used anew.
    let mut batch = Batch::new();
    batch.put(b"first", &[4; 30]);
    batch.put(b"slow0000", &[5; 300]);
    store.write(&batch).map_err(words)?;
    slow.arm();
    let shared = store.clone();
    let task =
        esker_trt::spawn(move || shared.put_if_present(b"slow0000", &[6; 300]).map_err(words));
    slow.wait()?;
    reuse(&store, &memory, b"old value of a")?;
    task.join().map_err(|error| error.to_string())??;
    expect(&store, "slow0000", Some(&[6; 300]))?;
    expect(&store, "a0000000", Some(b"last value of a"))?;
    let report = store.check().map_err(words)?;
    report.problems.first().map_or(Ok(()), |problem| Err(problem.clone()))
}

/// A tombstone has its version and is not in the index yet, while the cleaner copies the entry that it will overtake:
/// the copy must count as older than the tombstone.
pub(super) fn a_tombstone_under_way_is_seen() -> Verdict {
    let memory = memory(Initial::Zeros);
    let slow = Slow::new(&memory, Some(esker::sites::flat::COMMIT_FENCE));
    let store = slow.open(&one_core())?;
    put(&store, "gone", b"1")?;
    for number in 0..7 {
        put(&store, &format!("kept{number}"), &[1; 200])?;
    }
    // In the next chunk, so that the cleaner gains something in the first.
    put(&store, "kept0", &[2; 200])?;
    slow.arm();
    let shared = store.clone();
    let task = esker_trt::spawn(move || shared.delete(b"gone").map(drop).map_err(words));
    slow.wait()?;
    if store.clean(1).map_err(words)? != 1 {
        return Err("the first chunk was not cleaned".to_owned());
    }
    task.join().map_err(|error| error.to_string())??;
    for number in 0..8 {
        put(&store, &format!("more{number}"), &[3; 200])?;
    }
    store.clean(1).map_err(words)?;
    let store = open(&cut(&memory), &one_core())?;
    expect(&store, "gone", None)?;
    expect(&store, "kept0", Some(&[2; 200]))
}
