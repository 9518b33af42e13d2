//! Batches of the log on their way to its file: one writer at a time, for all.
//!
//! # Concurrency
//! Whoever finds nobody `busy` writes what formed, without the lock of the state; the others wait for its gate.
//!
//! # Failure
//! As in the log: a write or flush that failed is the last one.

use super::{BATCH_BYTES, State, Tail, Wal, tell_failure};
use crate::engine::flex::memtable::MemTable;
use crate::engine::flex::sites;
use esker_base::{Error, Result};
use esker_format::flex_db::{Batch, WalWriter};
use esker_trt::sync::Gate;
use parking_lot::MutexGuard;
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Wal {
    /// Waits until a batch of the log is durable.
    pub(in crate::engine::flex) fn wait_durable(&self, batch: u64) -> Result<()> {
        self.bring(batch, true).map_err(|_| self.unknown())
    }

    /// Writes what forms if it is much.
    pub(in crate::engine::flex) fn write_if_much(&self) -> Result<()> {
        let state = self.state.lock();
        if state.forming.size_bytes() < BATCH_BYTES || state.busy.is_some() {
            return Ok(());
        }
        self.lead(state, false)
    }

    /// Writes everything that was appended, and makes it durable if `flush` says so.
    pub(in crate::engine::flex) fn write_all(&self, flush: bool) -> Result<()> {
        let batch = {
            let state = self.state.lock();
            if state.forming.is_empty() { state.formed - 1 } else { state.formed }
        };
        self.bring(batch, flush)
    }

    /// Waits until all of the log of this generation, whose table is sealed, is durable. A table is sealed in the moment in
    /// which writers go on with the next one, and that is before its last batch is written.
    pub(in crate::engine::flex) fn wait_sealed(&self, generation: u64) -> Result<()> {
        loop {
            let state = self.state.lock();
            if state.sealed >= generation {
                return Ok(());
            }
            self.check()?;
            // Whoever seals it is busy from before that moment until it is durable.
            let Some(gate) = state.busy.clone() else {
                return Err(Error::corrupted("commit table", "its log was not sealed"));
            };
            drop(state);
            gate.wait();
        }
    }

    pub(super) fn bring(&self, batch: u64, durable: bool) -> Result<()> {
        loop {
            let mut state = self.state.lock();
            if (if durable { state.durable } else { state.written }) >= batch {
                return Ok(());
            }
            self.check()?;
            match &state.busy {
                Some(gate) => {
                    let gate = Arc::clone(gate);
                    if durable {
                        state.wanted = state.wanted.max(batch);
                    }
                    drop(state);
                    gate.wait();
                }
                None => self.lead(state, durable)?,
            }
        }
    }

    /// Writes what forms, for everybody; also makes it durable if somebody waits for that, who else could come too late each time.
    fn lead(&self, mut state: MutexGuard<'_, State>, flush: bool) -> Result<()> {
        let flush = flush || state.durable < state.wanted;
        let gate = Arc::new(Gate::new());
        state.busy = Some(Arc::clone(&gate));
        let taken = self.take_forming(&mut state);
        let generation = state.tail.generation;
        drop(state);
        let done = self.write(taken, generation, flush);
        self.end(&gate, done, |state| {
            if flush {
                state.durable = state.written;
                state.durable_sequence = state.tail.sequence;
            }
        })
    }

    /// Others write from now on; `note` says in the state what became durable.
    fn end(
        &self,
        gate: &Gate,
        done: Result<(u64, Option<WalWriter>)>,
        note: impl FnOnce(&mut State),
    ) -> Result<()> {
        let mut state = self.state.lock();
        let result = match done {
            Ok((number, writer)) => {
                if let Some(writer) = writer {
                    state.spare = writer;
                }
                state.written = state.written.max(number);
                note(&mut state);
                Ok(())
            }
            Err(error) => Err(error),
        };
        let is_told = result.as_ref().is_err_and(|error| self.note_failure(error));
        state.busy = None;
        drop(state);
        gate.open();
        if let (true, Err(error)) = (is_told, &result) {
            tell_failure(error);
        }
        result
    }

    /// Takes the batch that forms, and its place; the next one forms from now on.
    fn take_forming(&self, state: &mut State) -> Option<(u64, Batch, WalWriter)> {
        if state.forming.is_empty() {
            return None;
        }
        let spare = std::mem::take(&mut state.spare);
        let writer = std::mem::replace(&mut state.forming, spare);
        let number = state.formed;
        state.formed += 1;
        let Tail { generation, position, sequence, previous_checksum } = state.tail;
        let total = writer.size_bytes().next_multiple_of(self.block);
        let batch = Batch {
            generation,
            sequence,
            position,
            first_version: state.first_version,
            previous_checksum,
            durable_sequence: state.durable_sequence,
            ..Batch::default()
        };
        state.tail.position += total as u64;
        state.tail.sequence += 1;
        Some((number, batch, writer))
    }

    fn write(
        &self,
        taken: Option<(u64, Batch, WalWriter)>,
        generation: u64,
        flush: bool,
    ) -> Result<(u64, Option<WalWriter>)> {
        let device = self.device(generation);
        let mut done = (0, None);
        if let Some((number, batch, mut writer)) = taken {
            let (bytes, checksum) = self.finish(&mut writer, batch)?;
            device.write_at(sites::WAL_WRITE, batch.position, &[IoSlice::new(bytes)])?;
            self.state.lock().tail.previous_checksum = checksum;
            writer.clear();
            done = (number, Some(writer));
        }
        if flush {
            // PERSIST: a batch, before anybody hears of it.
            device.flush(sites::WAL_FLUSH)?;
        }
        Ok(done)
    }

    /// Seals this generation and begins the next one with a table that `make` makes of its generation and first version;
    /// `switch` is called in the moment of the change. Only while the other file is free (L3). Not `logged`: there is nothing
    /// to flush.
    pub(in crate::engine::flex) fn rotate(
        &self,
        logged: bool,
        make: impl Fn(u64, u64) -> Arc<MemTable>,
        switch: impl Fn(&Arc<MemTable>, &Arc<MemTable>),
    ) -> Result<()> {
        let (mut state, gate) = loop {
            let mut state = self.state.lock();
            self.check()?;
            match &state.busy {
                Some(gate) => {
                    let gate = Arc::clone(gate);
                    drop(state);
                    gate.wait();
                }
                None => {
                    let gate = Arc::new(Gate::new());
                    state.busy = Some(Arc::clone(&gate));
                    break (state, gate);
                }
            }
        };
        let taken = self.take_forming(&mut state);
        let old = state.tail.generation;
        let table = make(old + 1, state.next_version);
        switch(&state.table, &table);
        self.note_limits(&table);
        state.table = table;
        let previous_checksum = state.tail.previous_checksum;
        state.tail = Tail { generation: old + 1, previous_checksum, ..Tail::default() };
        state.durable_sequence = 0;
        state.reserved = 0;
        self.claimed.store(0, Ordering::Relaxed);
        drop(state);
        // PERSIST: the end of the generation, before its table goes to the space, and before the next one begins (L2).
        let done = self.write(taken, old, logged && !sites::SEAL_WAIT.disabled());
        self.end(&gate, done, |state| {
            state.durable = state.written;
            state.sealed = old;
        })
    }
}
