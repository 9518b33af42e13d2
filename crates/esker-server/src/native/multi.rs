//! `multi_get`: several reads at the same time, answered together.
//!
//! It answers for as many of its first keys as fit in what was charged for it (D3). A key is read only
//! if what the index says that reading takes still fits, so that no value is read for nothing. Small
//! values are copied out of the buffers that they were read into, which are far larger. What others make longer meanwhile is read
//! whole, and left out where it would make the reply longer than clients were told.
//!
//! # Failure
//! An error at the first key is the answer; an error at a later one ends the answer before it, so that
//! the client meets it when it asks for the rest.

use super::connection::head_of;
use super::duplex::Duplex;
use super::run::{Job, Told};
use super::{MULTI_GET_BYTES_MAX, MULTI_GET_READS};
use crate::budget::Share;
use crate::counters::Counter;
use crate::limits::ZERO_COPY_BYTES_MIN;
use crate::place::TaskPlace;
use crate::shared::Shared;
use esker::{Error, Value};
use esker_base::units::KIB;
use esker_format::native::{ITEM_HEAD_SIZE_MAX, ItemHead, Keys, MULTI_GET_ENTRY_SIZE};
use esker_trt::JoinHandle;
use std::sync::Arc;

/// What one read comes to, with the memory that its value took beyond what was foreseen.
type Read = Result<(Option<Value>, Option<Share>), Error>;

/// What is charged for a key besides its value.
const KEY_BYTES: u64 = KIB / 4;
const _: () = {
    // Its place among the items and those of its pieces in the reply, and what stands before its value there, in text that grows.
    let places = size_of::<Option<Found>>() + 3 * size_of::<&[u8]>();
    assert!((places + 2 * (MULTI_GET_ENTRY_SIZE + ITEM_HEAD_SIZE_MAX)) as u64 <= KEY_BYTES);
};

/// What a key holds.
pub(super) struct Found {
    pub(super) head: ItemHead,
    pub(super) value: FoundValue,
}

/// A value, in the buffer that it was read into only if it fills that well.
pub(super) enum FoundValue {
    Copied(Vec<u8>),
    Read(Value),
}

impl Found {
    fn new(value: Value) -> Found {
        let head = head_of(&value);
        let copied = value.len() < ZERO_COPY_BYTES_MIN;
        let value =
            if copied { FoundValue::Copied(value.to_vec()) } else { FoundValue::Read(value) };
        Found { head, value }
    }

    /// The bytes of the value.
    pub(super) fn bytes(&self) -> &[u8] {
        match &self.value {
            FoundValue::Copied(bytes) => bytes,
            FoundValue::Read(value) => value,
        }
    }

    fn memory_bytes(&self) -> u64 {
        match &self.value {
            FoundValue::Copied(bytes) => bytes.len() as u64,
            FoundValue::Read(value) => value.memory_bytes(),
        }
    }
}

enum Begun {
    Done(Read),
    Task(JoinHandle<Read>),
}

/// What to charge for reading `keys`: all of them, or as many as `bytes_max` is for; at least the first.
pub(super) fn charge(shared: &Shared, keys: Keys<'_>, bytes_max: u64) -> u64 {
    // As many as will be read together.
    shared.store.prefetch(keys.iter().take(MULTI_GET_READS));
    let mut sizes = keys.iter().map(|key| read_bytes(shared, key));
    let first = sizes.next().unwrap_or(0);
    let mut rest = 0_u64;
    // Not further than it takes to know.
    while rest < bytes_max
        && let Some(more) = sizes.next()
    {
        rest = rest.saturating_add(more);
    }
    first.saturating_add(rest.min(bytes_max))
}

fn read_bytes(shared: &Shared, key: &[u8]) -> u64 {
    shared.store.read_size_bytes(key).saturating_add(KEY_BYTES)
}

impl<D: Duplex + 'static> Job<D> {
    pub(super) fn multi_get(&mut self, keys: Keys<'_>) -> Result<Told, Error> {
        let charged = self.asked.held_bytes;
        // A list that grows would take up to three times what its items do.
        let most = usize::try_from(charged / KEY_BYTES).unwrap_or(usize::MAX).saturating_add(1);
        let mut items: Vec<Option<Found>> = Vec::with_capacity(keys.iter().count().min(most));
        // Memory that the items take, and the bytes of their values beyond the first.
        let (mut kept_bytes, mut told_bytes) = (0_u64, 0_u64);
        let mut keys = keys.iter().peekable();
        loop {
            let (mut wave, mut reading) = (Vec::new(), kept_bytes);
            while wave.len() < MULTI_GET_READS
                && let Some(key) = keys.peek()
            {
                let left = charged.saturating_sub(reading);
                let bytes = read_bytes(&self.connection.shared, key);
                reading = reading.saturating_add(bytes);
                if reading > charged && !(items.is_empty() && wave.is_empty()) {
                    break;
                }
                // Of the first one some may not be charged: somebody else has made it longer by now.
                wave.push(self.begin(key, bytes.min(left).saturating_sub(KEY_BYTES)));
                keys.next();
            }
            if wave.is_empty() {
                return Ok(Told::Items(items));
            }
            let (mut failed, mut is_full) = (None, false);
            for begun in wave {
                let read = match begun {
                    Begun::Done(read) => read,
                    Begun::Task(task) => task.join().and_then(|read| read),
                };
                match read {
                    // The others of the wave are waited for, for they hold memory.
                    _ if failed.is_some() || is_full => {}
                    Ok((value, extra)) => {
                        if !items.is_empty() {
                            let bytes = value.as_ref().map_or(0, |value| value.len() as u64);
                            told_bytes = told_bytes.saturating_add(bytes);
                        }
                        if told_bytes > MULTI_GET_BYTES_MAX {
                            is_full = true;
                            continue;
                        }
                        if let (Some(share), Some(extra)) = (&mut self.share, extra) {
                            share.absorb(extra);
                        }
                        let found = value.map(Found::new);
                        let memory = found.as_ref().map_or(0, Found::memory_bytes);
                        kept_bytes = kept_bytes.saturating_add(memory).saturating_add(KEY_BYTES);
                        items.push(found);
                    }
                    Err(error) => failed = Some(error),
                }
            }
            match failed {
                Some(error) if items.is_empty() => return Err(error),
                Some(error) => {
                    self.ground().report(&error);
                    return Ok(Told::Items(items));
                }
                None if is_full => return Ok(Told::Items(items)),
                None => {}
            }
        }
    }

    /// Begins one read, as a task of its own if the core has a place for it. So many bytes have been charged for the value.
    fn begin(&self, key: &[u8], charged: u64) -> Begun {
        let shared = &self.connection.shared;
        match TaskPlace::take(shared, self.connection.core) {
            Some(place) => {
                let (key, shared, core) = (key.to_vec(), shared.clone(), self.connection.core);
                Begun::Task(esker_trt::spawn(move || {
                    let _place = place;
                    read(&shared, core, &key, charged)
                }))
            }
            None => Begun::Done(read(shared, self.connection.core, key, charged)),
        }
    }
}

/// Reads a value for which so many bytes have been charged; what it turns out to be more is taken here.
fn read(shared: &Arc<Shared>, core: usize, key: &[u8], charged: u64) -> Read {
    let ground = shared.ground(core);
    ground.counters.add(Counter::CmdGet, 1);
    let mut extra: Option<Share> = None;
    let value = shared.store.get_with(key, |bytes| {
        let held = charged.saturating_add(extra.as_ref().map_or(0, Share::bytes));
        let more = bytes.saturating_sub(held);
        if more == 0 {
            return Ok(());
        }
        let taken = shared.budget.try_take(more);
        let taken = taken.ok_or_else(|| Error::new(esker::ErrorKind::OutOfMemory, "read item"))?;
        match &mut extra {
            Some(extra) => extra.absorb(taken),
            none => *none = Some(taken),
        }
        Ok(())
    })?;
    let value =
        value.filter(|value| !crate::expiry::is_expired(value.attributes().expires_at, ground.now));
    let counter = if value.is_some() { Counter::GetHits } else { Counter::GetMisses };
    ground.counters.add(counter, 1);
    if value.is_some() {
        ground.access.note(key, ground.uptime, true);
    }
    Ok((value, extra))
}
