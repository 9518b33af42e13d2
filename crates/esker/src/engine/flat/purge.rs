//! The purge of tombstones: where keys come and go for long, nothing but these would be left.
//!
//! A tombstone is needed while a chunk that was begun before it has entries that do not count ([`clean`](super::clean)). A chunk of which hardly
//! anything came free is nobody's victim, and while there is room nobody cleans at all: so one old entry that was overtaken would keep every
//! later tombstone. A purge cleans such chunks in the order of their births, up to its own: each drops nearly all tombstones of its own, since
//! what they delete stood in those before. Then it cleans the chunks of which tombstones are a good part, and nothing else is to gain.
//!
//! Tombstones are dropped when they are many beside the items, in the background; and when somebody finds no room, and their entries are
//! worth some.
//!
//! # Concurrency
//! A chunk at a time, under the purge's lock and then that of the chunk's cleaner. Writers go on: what they delete meanwhile is the next purge's.
//!
//! # Failure
//! A crash leaves what it leaves of any cleaning. Nobody knows of the purge after it, and it begins anew.

use super::Flat;
use super::chunks::{Chunk, Use};
use super::clean::Cleaner;
use super::victims::Search;
use esker_base::{ErrorKind, Result};
use esker_format::flat::LINE;
use std::sync::atomic::Ordering;

/// Tombstones are many if they are more than this, and than this share of the items.
const MANY_MIN: u64 = if cfg!(test) { 64 } else { 1 << 16 };
const MANY_SHARE: u64 = 4;
/// What a tombstone takes on media, about; and so many chunks of them are worth it for who finds no room.
const SIZE: u64 = LINE as u64 / 2;
const ROOM_CHUNKS: u64 = 2;
/// A chunk is cleaned for its tombstones alone if these are so large a share of its entries.
const WORTH_SHARE: u32 = 32;

/// Why a purge is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// Tombstones are many.
    Many,
    /// Somebody finds no room.
    Room,
}

/// The purge under way, and what the last one left.
#[derive(Debug, Default)]
pub(super) struct Purge {
    under_way: Option<UnderWay>,
    /// Tombstones that the last one left.
    left: u64,
}

#[derive(Debug)]
struct UnderWay {
    /// Chunks that were born before this version do not stay.
    birth: u64,
    /// Chunks that it may still clean: writers who overtake entries everywhere do not keep it at work for ever.
    most: u32,
    /// Chunks of tombstones, with their generations, once nothing else keeps these.
    rest: Option<Vec<(u32, u64)>>,
}

/// What a purge does next.
enum Next {
    Clean(u32),
    /// It has learnt of a chunk what it has to know.
    Again,
    /// Nothing: it is over.
    End,
}

/// What became of a chunk that is to be cleaned.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Became {
    Free,
    /// Somebody writes there, copies it, or there is no room for the copies.
    Later,
    Damaged,
}

impl Flat {
    /// Whether a purge is under way, or should be.
    pub(super) fn is_purge_due(&self, why: Why) -> bool {
        let tombstones = self.tombstones.load(Ordering::Relaxed);
        let mut purge = self.cleaners.purge.lock();
        // Others count anew, once those that were left are gone.
        purge.left = purge.left.min(tombstones);
        let least = match why {
            Why::Many => MANY_MIN.max(self.index.len().saturating_sub(tombstones) / MANY_SHARE),
            Why::Room => ROOM_CHUNKS * self.layout.chunk_size / SIZE,
        };
        purge.under_way.is_some() || tombstones > least && tombstones > purge.left / 4 * 5
    }

    /// Goes on with a purge, by a chunk; false if it is over, or has to wait for others.
    pub(super) fn purge_next(&self) -> Result<bool> {
        let mut purge = self.cleaners.purge.lock();
        self.refuse()?;
        let begin = || UnderWay {
            birth: self.versions.meet(),
            most: self.layout.chunk_count.saturating_mul(2),
            rest: None,
        };
        let under_way = purge.under_way.get_or_insert_with(begin);
        let number = match self.next_of_purge(under_way)? {
            Next::Clean(number) => Some(number),
            Next::Again => return Ok(true),
            Next::End => None,
        };
        let is_last_part = under_way.rest.is_some();
        match number.map(|number| self.clean_for_purge(number)).transpose()? {
            Some(Became::Free) => return Ok(true),
            // Others keep what they were kept by.
            Some(Became::Later) => return Ok(false),
            // It keeps no other chunk's tombstones.
            Some(Became::Damaged) if is_last_part => return Ok(true),
            Some(Became::Damaged) | None => {}
        }
        let left = self.tombstones.load(Ordering::Relaxed);
        *purge = Purge { under_way: None, left };
        Ok(false)
    }

    /// What the purge does next: what keeps most goes first; once nothing older than it keeps any, the chunks of tombstones.
    fn next_of_purge(&self, under_way: &mut UnderWay) -> Result<Next> {
        let Some(most) = under_way.most.checked_sub(1) else { return Ok(Next::End) };
        under_way.most = most;
        if under_way.rest.is_none() {
            let needed = self.tombstones_needed(|_| ());
            if needed.by_any < under_way.birth {
                return Ok(Next::Clean(needed.first.0));
            }
            // What was there when the store was opened, a chunk at a time, too.
            if self.learn_of_log(&Search::new(0..self.cleaners.count(), &|| false))? {
                under_way.most += 1;
                return Ok(Next::Again);
            }
        }
        let rest = under_way.rest.get_or_insert_with(|| {
            let logs = self.chunks.iter().filter(|(_, chunk)| chunk.is_worth_purging());
            logs.map(|(number, chunk)| (number, chunk.generation())).collect()
        });
        let generation = |number| self.chunks.get(number).map(Chunk::generation);
        while let Some((number, found)) = rest.pop() {
            if generation(number) == Some(found) {
                return Ok(Next::Clean(number));
            }
        }
        Ok(Next::End)
    }

    /// Cleans a chunk, whatever there is to gain of it.
    fn clean_for_purge(&self, number: u32) -> Result<Became> {
        let mut cleaner = self.cleaner_of_log(number);
        // With the lock: nothing may change once a close has written the image.
        self.refuse()?;
        let Some(chunk) = self.log_of(&cleaner, number) else { return Ok(Became::Free) };
        let generation = chunk.generation();
        if chunk.usage() == Use::OpenLog
            && !self.seal_logs(&mut cleaner, &mut |log, _| Ok(log == number))?
        {
            return Ok(Became::Later);
        }
        if !chunk.is_published() || self.hold.holds(number) {
            return Ok(Became::Later);
        }
        let is_damaged = |cleaner: &Cleaner| cleaner.damaged.contains(&number) && !chunk.is_dead();
        if !is_damaged(&cleaner) {
            // What the chunk before kept is not kept any more.
            cleaner.known = None;
            match self.clean_chunk(&mut cleaner, number) {
                Err(error) if error.kind() == ErrorKind::NoSpace => return Ok(Became::Later),
                cleaned => cleaned?,
            }
        }
        Ok(match chunk.generation() == generation && chunk.is_log() {
            true if is_damaged(&cleaner) => Became::Damaged,
            true => Became::Later,
            false => Became::Free,
        })
    }
}

impl Chunk {
    /// Whether tombstones are a good part of a full log, as far as anybody knows.
    fn is_worth_purging(&self) -> bool {
        let (entries, _) = self.counts();
        let tombstones = self.tombstones().saturating_mul(WORTH_SHARE);
        self.usage() == Use::Log && tombstones > 0 && tombstones >= entries
    }
}
