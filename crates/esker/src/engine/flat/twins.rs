//! Records that twins share: entries of one version, in two chunks, that point at one record.
//!
//! A copy that stays as its original was points at the same record. Once the original's chunk is free that is the copy's alone; but a crash amid
//! the chunk, or a pass that ends early, leaves both on media, and only one of them counts. What becomes of that one, the other one
//! may be what the next recovery finds: a checkpoint has it, or the copy's chunk is gone. So the record of twins is free only once the chunks of all
//! of them are (C4 of [`clean`](super::clean)): whose chunk comes free first leaves it to the other's.
//!
//! That of an entry that was overtaken is free at once all the same: recovery finds the newer one.
//!
//! # Concurrency
//! One short lock; nothing is locked under it. A chunk's twins are told, and forgotten, under the lock of its cleaner.
//!
//! # Failure
//! Nothing of this is on media: recovery finds the twins again. An image does not, so that a chunk with twins goes before one counts (T3 of
//! [`periodic`](super::periodic)).

use super::Flat;
use super::chunks::Chunk;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashSet};

/// All of them, by the chunks of those that do not count, with their generations. Nothing but after a crash, and while a chunk cannot be cleaned at once.
#[derive(Debug, Default)]
pub(super) struct Twins(Mutex<BTreeMap<(u32, u64), InChunk>>);

/// Twins in one chunk.
#[derive(Debug, Default)]
struct InChunk {
    /// The records that they share.
    shared: HashSet<u64>,
    /// Those of them to which nothing else points that is on media.
    left: Vec<u64>,
}

impl Twins {
    /// The chunks with twins, and whether records are left for them.
    pub(super) fn chunks(&self) -> Vec<(u32, bool)> {
        let twins = self.0.lock();
        twins.iter().map(|((number, _), twins)| (*number, !twins.left.is_empty())).collect()
    }
}

impl Flat {
    /// Remembers that entries of a chunk of a log that do not count share these records. With the lock of its cleaner, or alone.
    pub(super) fn share(&self, number: u32, lines: impl IntoIterator<Item = u64>) {
        let mut lines = lines.into_iter().peekable();
        if lines.peek().is_none() {
            return;
        }
        let generation = self.chunks.get(number).map_or(0, Chunk::generation);
        let mut twins = self.cleaners.twins.0.lock();
        twins.entry((number, generation)).or_default().shared.extend(lines);
    }

    /// Frees the records that were left for a chunk of a log, which has come free since it had this generation; those that
    /// twins elsewhere share are left to these.
    pub(super) fn free_left(&self, number: u32, generation: u64, mut left: Vec<u64>) {
        let mut twins = self.cleaners.twins.0.lock();
        let own = twins.remove(&(number, generation));
        left.extend(own.into_iter().flat_map(|own| own.left));
        if !twins.is_empty() {
            left.retain(|line| {
                let mut others = twins.iter_mut().filter(|(_, other)| other.shared.contains(line));
                // One that came free meanwhile is about to be forgotten.
                let stands = |(number, generation): (u32, u64)| {
                    let chunk = self.chunks.get(number);
                    chunk.is_some_and(|it| it.is_log() && it.generation() == generation)
                };
                let other = others.find(|(chunk, _)| stands(**chunk));
                other.map(|(_, other)| other.left.push(*line)).is_none()
            });
        }
        drop(twins);
        left.into_iter().for_each(|line| self.free_record(line));
    }
}
