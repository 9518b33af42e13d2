//! Garbage collection: live bytes move to other segments (FlexSpace §4.1).
//!
//! # Invariants
//! - G1: a victim has a byte that nothing points at, and what it holds is moved without gaps: so each round
//!   frees more than it fills. The cap on live bytes makes sure that there is a victim, the collector's own
//!   segments that there is room.
//! - G2: before others come to their turn, no more is moved than a bound says, however large the space is.
//!
//! # Failure
//! A crash leaves copies that nothing points at, or that the log points at; the originals stay until then. What
//! cannot be read, tried twice, stays where it is, and is named once: its segment is no victim any more until the space is opened
//! again.

use super::nodes::LEAVES_OF_A_LOAD;
use super::read::{Outcome, Part};
use super::{Inner, Writer};
use esker_base::{Error, ErrorKind, Result};
use esker_format::flex::Record;
use esker_index::flex_tree::{Extent, MARK, Missing};
use std::collections::HashMap;

/// Bytes of extents that are read at once.
const BYTES_AT_ONCE: u64 = 2 << 20;
/// Blocks between two extents that are read along: one long read costs less than many short ones.
const BLOCKS_BETWEEN: u64 = 16;
/// Bytes of extents that a walk over the tree looks at under one lock.
const WALK_STEP: u64 = 64 << 20;
/// Bytes of extents that a part of a round looks at.
pub(super) const WALK_OF_A_PART: u64 = 8 << 30;

/// How often others are chosen in a round where nothing of those before could be read.
const TRIES: u32 = 64;

/// Segments that are collected together, for one walk over the tree. A large space takes many parts for it, and others change the
/// space between them: what they move past the walk stays where it is, for another round.
#[derive(Debug)]
pub(super) struct Round {
    /// With their salts: one that was taken anew is none of them.
    victims: HashMap<u64, u64>,
    /// Where in the space the walk goes on.
    at: u64,
    /// Whether it has one part.
    is_whole: bool,
    /// Segments that became free, less those that were filled.
    gained: i64,
    /// What was said of nodes that the walk could not read: of damage only if that was all.
    gap: Option<ErrorKind>,
}

impl Round {
    fn new(victims: HashMap<u64, u64>, is_whole: bool) -> Self {
        Round { victims, at: 0, is_whole, gained: 0, gap: None }
    }
}

impl Inner {
    /// Moves what is in the emptiest segments, until `segments` more are free, there is no more room to move to, or much was moved.
    /// How many bytes that were.
    pub(super) fn collect(&self, writer: &mut Writer, segments: u64) -> Result<u64> {
        self.write_filled()?;
        writer.stuck.begin_round();
        let (mut moved, mut tries) = (0, 0);
        // Where nothing of the emptiest could be read, others are.
        while moved == 0 && tries < TRIES {
            let notes = writer.stuck.notes();
            let mut round = self.new_round(writer, segments, false)?;
            moved = self.collect_part(writer, &mut round)?;
            self.note_stuck(writer, &round);
            tries = if writer.stuck.notes() == notes { TRIES } else { tries + 1 };
        }
        Ok(moved)
    }

    /// Does a part of the round that is under way, or begins another one, which is to free so many segments. How many bytes were
    /// moved, and whether there may be more to do.
    ///
    /// A round of many parts fills segments long before it frees some. It leaves alone those that only the collector may take, so
    /// that whoever needs room meanwhile can do a round of one part (G1).
    pub(super) fn collect_some(&self, writer: &mut Writer, segments: u64) -> Result<(u64, bool)> {
        let reserve = self.reserve() * self.shape.segment_payload();
        let left = writer.round.as_ref().map_or(0, |round| self.valid_of(round));
        let mut round = match writer.round.take() {
            // No more than is left of it.
            Some(round) if self.back_bytes(writer, left.min(self.moved_at_once()) + reserve)? => {
                round
            }
            _ => {
                self.write_filled()?;
                writer.stuck.begin_round();
                self.new_round(writer, segments, true)?
            }
        };
        let free = |writer: &Writer| i64::try_from(writer.free.len()).unwrap_or(i64::MAX);
        let before = free(writer);
        let moved = self.collect_part(writer, &mut round)?;
        round.gained += free(writer) - before;
        if !round.victims.is_empty() && round.at < self.shared.read().tree.size_bytes() {
            writer.round = Some(round);
            return Ok((moved, true));
        }
        self.note_stuck(writer, &round);
        Ok((moved, round.gained > 0))
    }

    /// Another round, of many parts if it may be and there is much room. What it moves before others come to their turn finds allocated
    /// segments: a round that ends half way would leave all victims half empty, and none free.
    fn new_round(&self, writer: &mut Writer, segments: u64, in_parts: bool) -> Result<Round> {
        let at_once = self.moved_at_once();
        let reserve = self.reserve() * self.shape.segment_payload();
        loop {
            let all = self.room_to_move(writer);
            let room = all.saturating_sub(reserve);
            let is_whole = !in_parts || room < at_once;
            let most = if is_whole { all.min(at_once) } else { room };
            let (victims, bytes) = self.victims(writer, segments, most);
            let kept = if is_whole { 0 } else { reserve };
            if self.back_bytes(writer, bytes.min(at_once) + kept)? {
                return Ok(Round::new(victims, is_whole));
            }
            // Fewer segments are free now, and all are allocated.
        }
    }

    /// Bytes that are left in the victims of a round.
    fn valid_of(&self, round: &Round) -> u64 {
        let shared = self.shared.read();
        let of_victim = |(number, salt): (&u64, &u64)| {
            let segment = shared.segments.get(usize::try_from(*number).ok()?)?;
            (segment.salt == *salt).then_some(u64::from(segment.valid_bytes))
        };
        round.victims.iter().filter_map(of_victim).sum()
    }

    /// B1: allocates free segments until so many bytes can be moved. Whether they can.
    fn back_bytes(&self, writer: &mut Writer, bytes: u64) -> Result<bool> {
        let room = self.shared.read().open.room(&self.shape);
        self.back(writer, bytes.saturating_sub(room).div_ceil(self.shape.segment_payload()))
    }

    /// Moves the next extents of victims, and makes that durable. How many bytes.
    fn collect_part(&self, writer: &mut Writer, round: &mut Round) -> Result<u64> {
        let found = self.find(writer, round)?;
        if found.is_empty() {
            return Ok(0);
        }
        let mut moved = 0;
        let mut rest = &found[..];
        while !rest.is_empty() {
            let mut bytes = 0;
            let of_batch = rest.iter().take_while(|extent| {
                bytes += u64::from(extent.length);
                bytes <= BYTES_AT_ONCE
            });
            let (batch, more) = rest.split_at(of_batch.count().max(1));
            rest = more;
            let done = self.move_batch(writer, batch);
            moved += done.or_else(|error| self.fail_on(Err(error)))?;
        }
        writer.moved_bytes += moved;
        // New places are durable before the old ones are written again.
        let done = self.commit(writer, false);
        self.fail_on(done)?;
        Ok(moved)
    }

    /// Segments that still hold something that was below a node which cannot be read: little is gained by another try.
    fn note_stuck(&self, writer: &mut Writer, round: &Round) {
        let Some(gap) = round.gap else { return };
        let shared = self.shared.read();
        for (number, salt) in &round.victims {
            if !shared.is_empty(*number) {
                writer.stuck.note(*number, *salt, gap);
            }
        }
    }

    /// The next extents of victims, as many as are moved at once, and those of a round of one part all.
    fn find(&self, writer: &Writer, round: &mut Round) -> Result<Vec<Extent>> {
        let payload = self.shape.segment_payload();
        {
            let shared = self.shared.read();
            let is_as_it_was = |number: u64, salt: u64| {
                shared.salt(number) == Some(salt) && !shared.is_empty(number)
            };
            round.victims.retain(|number, salt| is_as_it_was(*number, *salt));
        }
        let mut found = Vec::new();
        if round.victims.is_empty() {
            return Ok(found);
        }
        let (most, walked) = match round.is_whole {
            true => (u64::MAX, u64::MAX),
            false => (self.moved_at_once(), WALK_OF_A_PART),
        };
        let mut bytes = 0;
        let from = self.start_of_extent(round.at)?;
        let visit = |extent: Extent| {
            let is_found =
                !extent.is_hole() && round.victims.contains_key(&(extent.place() / payload));
            let more = if is_found { u64::from(extent.length) } else { 0 };
            let is_enough = bytes > 0 && bytes + more > most || extent.offset - from > walked;
            if is_found && !is_enough {
                bytes += more;
                found.push(extent);
            }
            !is_enough
        };
        let mut gap = round.gap;
        round.at = self.walk(writer, from, visit, &mut |error| {
            if !error.is_unread() {
                return Err(error);
            }
            tracing::error!(%error, "the collector goes on behind a node that it cannot read");
            if gap != Some(ErrorKind::Io) {
                gap = Some(error.kind());
            }
            Ok(())
        })?;
        round.gap = gap;
        Ok(found)
    }

    /// Bytes that are moved at once; a segment in any case.
    pub(super) fn moved_at_once(&self) -> u64 {
        self.options.testing.moved_at_once.max(self.shape.segment_payload())
    }

    /// Bytes that the collector finds room for, if the file system has some for all free segments.
    fn room_to_move(&self, writer: &Writer) -> u64 {
        let free = writer.free.len() as u64 * self.shape.segment_payload();
        self.shared.read().open.room(&self.shape) + free
    }

    /// The emptiest segments, with their salts: as few as free so many, and with no more than `room` bytes; how many they have.
    fn victims(&self, writer: &Writer, segments: u64, room: u64) -> (HashMap<u64, u64>, u64) {
        let payload = self.shape.segment_payload();
        let shared = self.shared.read();
        let mut all: Vec<(u64, u64, u64)> = (0..)
            .zip(&shared.segments)
            .map(|(number, segment)| (u64::from(segment.valid_bytes), number, segment.salt))
            .filter(|(valid, number, salt)| {
                let is_stuck = writer.stuck.has(*number, *salt);
                let is_in_memory = shared.buffer_of(*number).is_some();
                *valid > 0 && *valid < payload && !is_in_memory && !is_stuck
            })
            .collect();
        all.sort_unstable();
        let (mut gain, mut bytes) = (0, 0);
        let mut victims = HashMap::new();
        for (valid, number, salt) in all {
            if bytes + valid > room || gain >= segments.saturating_mul(payload) {
                break;
            }
            bytes += valid;
            gain += payload - valid;
            victims.insert(number, salt);
        }
        (victims, bytes)
    }

    /// Where the extent begins that holds the byte at `offset`, or behind a node that cannot be read, or the end of the space.
    pub(super) fn start_of_extent(&self, offset: u64) -> Result<u64> {
        loop {
            let shared = self.shared.read();
            let found = shared.tree.lookup(offset);
            let size = shared.tree.size_bytes();
            drop(shared);
            match found {
                Ok(extent) => return Ok(extent.map_or(size, |extent| extent.offset)),
                Err(missing) => match self.load(&missing) {
                    Err(error) if error.is_unread() => return Ok(self.end_of(&missing, offset)),
                    done => done?,
                },
            }
        }
    }

    /// Calls `visit` with all extents from the one on that begins at `from`, each as a whole, until it says that one is too much:
    /// where that one begins, or the end. The writer's lock is held, so they stay as they are; leaves make way for those that are
    /// loaded, and none is taken for used. `unread` decides of a node that cannot be loaded whether to go on behind it.
    pub(super) fn walk(
        &self,
        writer: &Writer,
        from: u64,
        mut visit: impl FnMut(Extent) -> bool,
        unread: &mut dyn FnMut(Error) -> Result<()>,
    ) -> Result<u64> {
        let mut offset = from;
        let size = self.shared.read().tree.size_bytes();
        while offset < size {
            let (mut last, mut end) = (None, None);
            let mut meet = |extent: Extent| {
                if end.is_none() && !visit(extent) {
                    end = Some(extent.offset);
                }
            };
            let shared = self.shared.read();
            let done = shared.tree.pass(offset, WALK_STEP, |extent| {
                if let Some(before) = last.replace(extent) {
                    meet(before);
                }
            });
            // The step may have cut it.
            if let Some(whole) = last.and_then(|cut| shared.tree.lookup(cut.offset).ok().flatten())
            {
                meet(whole);
                offset = whole.end();
            }
            drop(shared);
            if let Some(end) = end {
                return Ok(end);
            }
            if let Err(missing) = done {
                if let Err(error) = self.load(&missing) {
                    unread(error)?;
                    offset = self.end_of(&missing, offset);
                }
                self.forget_idle(writer, LEAVES_OF_A_LOAD);
            }
        }
        Ok(offset)
    }

    /// Where the extents end that are below an absent node, of which those from `offset` on are.
    pub(super) fn end_of(&self, missing: &Missing, offset: u64) -> u64 {
        let shared = self.shared.read();
        let (mut low, mut high) = (offset + 1, shared.tree.size_bytes());
        while low < high {
            let middle = low + (high - low) / 2;
            let is_below =
                shared.tree.lookup(middle).is_err_and(|other| other.is_same_node(missing));
            if is_below { low = middle + 1 } else { high = middle }
        }
        low
    }

    /// Moves extents that are on the device, which are read at once; how many bytes that were.
    fn move_batch(&self, writer: &mut Writer, batch: &[Extent]) -> Result<u64> {
        let payload = self.shape.segment_payload();
        let mut parts = Vec::with_capacity(batch.len());
        let mut end = 0;
        {
            let shared = self.shared.read();
            for extent in batch {
                let (segment, position) = (extent.place() / payload, extent.place() % payload);
                let salt = shared.salt(segment).unwrap_or(0);
                let counts = !shared.is_empty(segment);
                let range = end..end + extent.length as usize;
                end = range.end;
                parts.push(Part { segment, salt, counts, position, range });
            }
        }
        let mut bytes = self.pool.get(end);
        match self.read_parts(&mut parts, &mut bytes, (BLOCKS_BETWEEN, false)) {
            Ok(Outcome::Done) => {}
            Ok(Outcome::Stale) => return self.move_each(writer, batch),
            Err(error) if error.is_unread() => return self.move_each(writer, batch),
            Err(error) => return Err(error),
        }
        let mut rest = &bytes[..];
        let mut moved = 0;
        for extent in batch {
            let (own, behind) = rest.split_at_checked(extent.length as usize).unwrap_or_default();
            rest = behind;
            if self.may_move(writer, extent)? {
                self.put_elsewhere(writer, extent.offset, own, extent.is_marked())?;
                moved += u64::from(extent.length);
            }
        }
        Ok(moved)
    }

    /// Whether an extent can stand elsewhere: for that the nodes of its neighbours are needed, too. If one cannot be read, the
    /// segment stays as it is.
    fn may_move(&self, writer: &mut Writer, extent: &Extent) -> Result<bool> {
        let segment = extent.place() / self.shape.segment_payload();
        let salt = self.shared.read().salt(segment);
        if salt.is_some_and(|salt| writer.stuck.has(segment, salt)) {
            // Another extent stays, and with it the segment.
            return Ok(false);
        }
        match self.load_range(extent.offset, u64::from(extent.length)) {
            Err(error) if error.is_unread() => {
                self.leave_stuck(writer, extent, &error);
                Ok(false)
            }
            loaded => loaded.map(|()| true),
        }
    }

    /// Nothing is gained by another try in this round.
    fn leave_stuck(&self, writer: &mut Writer, extent: &Extent, error: &Error) {
        tracing::error!(%error, "the collector leaves what it cannot read");
        let segment = extent.place() / self.shape.segment_payload();
        if let Some(salt) = self.shared.read().salt(segment) {
            writer.stuck.note(segment, salt, error.kind());
        }
    }

    /// Moves extents one by one, but for those that cannot be read.
    fn move_each(&self, writer: &mut Writer, batch: &[Extent]) -> Result<u64> {
        let mut moved = 0;
        for extent in batch {
            let mut bytes = self.pool.get(extent.length as usize);
            match self.read(extent.offset, &mut bytes) {
                Ok(_) if self.may_move(writer, extent)? => {
                    self.put_elsewhere(writer, extent.offset, &bytes, extent.is_marked())?;
                    moved += u64::from(extent.length);
                }
                Ok(_) => {}
                Err(error) if error.is_unread() => self.leave_stuck(writer, extent, &error),
                Err(error) => return Err(error),
            }
        }
        Ok(moved)
    }

    /// Lets what is at `offset`, which has these bytes, stand at another place.
    pub(super) fn put_elsewhere(
        &self,
        writer: &mut Writer,
        offset: u64,
        bytes: &[u8],
        marked: bool,
    ) -> Result<()> {
        self.load_range(offset, bytes.len() as u64)?;
        let pieces = self.place(writer, bytes)?;
        let mut records = Vec::with_capacity(pieces.len());
        let mut at = offset;
        for (address, length) in pieces {
            let address = if marked && at == offset { address | MARK } else { address };
            records.push(Record::Map { offset: at, length, address });
            at += length;
        }
        self.apply_all(writer, &records)
    }
}
