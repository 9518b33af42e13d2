//! Operations that change the space. Each is: room, data at its place, then tree and records at once.
//!
//! # Invariants
//! - W1: an operation's records are in one group: groups end between operations.
//! - W2: nothing is visible before all data of the operation is placed.

use super::place::Piece;
use super::{Inner, Writer, sites};
use crate::flex::state::{SIZE_END, Unfit};
use esker_base::{Error, Result};
use esker_format::flex::{HOLE, Record};
use esker_index::flex_tree::MARK;

/// A change of a range at once: bytes go, and others come in their place.
#[derive(Clone, Copy, Debug)]
pub struct Splice<'a> {
    /// Where.
    pub offset: u64,
    /// Bytes that go.
    pub remove: u64,
    /// Bytes that come.
    pub data: &'a [u8],
    /// Places in `data`, each behind the one before, that are marked ([`Space::next_mark`](super::Space::next_mark)).
    pub marks: &'a [usize],
}

impl Inner {
    fn check_size(operation: &'static str, end: Option<u64>) -> Result<()> {
        match end {
            Some(end) if end < SIZE_END => Ok(()),
            _ => Err(Error::invalid(operation, format!("a space ends below {SIZE_END} bytes"))),
        }
    }

    pub(super) fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        const OPERATION: &str = "write space";
        let length = data.len() as u64;
        Inner::check_size(OPERATION, offset.checked_add(length))?;
        let mut writer = self.begin(OPERATION)?;
        if data.is_empty() {
            return Ok(());
        }
        let size = self.shared.read().tree.size_bytes();
        self.change(&mut writer, data, (offset, length), |pieces| {
            let mut records = Vec::with_capacity(pieces.len() + 2);
            if offset > size {
                records.push(Record::Insert { offset: size, length: offset - size, address: HOLE });
            }
            let mut offset = offset;
            for (address, length) in pieces {
                // Over what is there, and then behind it.
                let over = size.saturating_sub(offset).min(*length);
                if over > 0 {
                    records.push(Record::Map { offset, length: over, address: *address });
                }
                if over < *length {
                    let (offset, address) = (offset + over, address + over);
                    records.push(Record::Insert { offset, length: length - over, address });
                }
                offset += length;
            }
            records
        })
    }

    pub(super) fn append(&self, data: &[u8]) -> Result<u64> {
        let mut writer = self.begin("append to space")?;
        let offset = self.shared.read().tree.size_bytes();
        self.insert_with(&mut writer, offset, data)?;
        Ok(offset)
    }

    pub(super) fn insert_range(&self, offset: u64, data: &[u8]) -> Result<()> {
        let mut writer = self.begin("insert range")?;
        self.insert_with(&mut writer, offset, data)
    }

    fn insert_with(&self, writer: &mut Writer, offset: u64, data: &[u8]) -> Result<()> {
        self.check_insert(offset, data.len() as u64)?;
        if data.is_empty() {
            return Ok(());
        }
        self.change(writer, data, (offset, 0), |pieces| inserts(offset, pieces))
    }

    pub(super) fn insert_hole(&self, offset: u64, length: u64) -> Result<()> {
        let mut writer = self.begin("insert range")?;
        self.check_insert(offset, length)?;
        if length == 0 {
            return Ok(());
        }
        self.change(&mut writer, &[], (offset, 0), |_| {
            vec![Record::Insert { offset, length, address: HOLE }]
        })
    }

    fn check_insert(&self, offset: u64, length: u64) -> Result<()> {
        let size = self.shared.read().tree.size_bytes();
        if offset > size {
            return Err(Error::invalid("insert range", format!("the space ends at {size}")));
        }
        Inner::check_size("insert range", size.checked_add(length))
    }

    pub(super) fn collapse_range(&self, offset: u64, length: u64) -> Result<()> {
        const OPERATION: &str = "collapse range";
        let mut writer = self.begin(OPERATION)?;
        let size = self.shared.read().tree.size_bytes();
        if offset.checked_add(length).is_none_or(|end| end > size) {
            return Err(Error::invalid(OPERATION, format!("the space ends at {size}")));
        }
        if length == 0 {
            return Ok(());
        }
        self.change(&mut writer, &[], (offset, length), |_| {
            vec![Record::Collapse { offset, length }]
        })
    }

    /// The course of every operation. Whatever fails before `records` are done leaves the space as it was,
    /// unless a device failed.
    fn change(
        &self,
        writer: &mut Writer,
        data: &[u8],
        (offset, length): (u64, u64),
        records: impl FnOnce(&[Piece]) -> Vec<Record>,
    ) -> Result<()> {
        self.prepare(writer, data, (offset, length))?;
        let done =
            self.place(writer, data).and_then(|pieces| self.apply_all(writer, &records(&pieces)));
        self.fail_on(done)
    }

    /// Sees to it that nodes of a range are there, and room for `data`.
    fn prepare(
        &self,
        writer: &mut Writer,
        data: &[u8],
        (offset, length): (u64, u64),
    ) -> Result<()> {
        // Nodes first: one that cannot be read refuses this operation only.
        self.load_range(offset, length)?;
        let done = self
            .commit_if_due(writer)
            .and_then(|()| self.make_room(writer, data.len() as u64, (offset, length)));
        self.fail_on(done)?;
        // Checkpoints and the collector may have forgotten some. Nothing is placed yet, so that this is as before.
        self.load_range(offset, length)
    }

    pub(super) fn splice(
        &self,
        locate: &dyn Fn() -> u64,
        splice: &Splice<'_>,
        publish: &mut dyn FnMut(),
    ) -> Result<()> {
        const OPERATION: &str = "splice range";
        let Splice { remove, data, marks, .. } = *splice;
        let is_place = |mark: &usize| *mark < data.len();
        if !marks.iter().all(is_place) || !marks.is_sorted_by(|one, next| one < next) {
            return Err(Error::invalid(
                OPERATION,
                "a mark that is no place in the data, or not behind the one before",
            ));
        }
        let mut writer = self.begin(OPERATION)?;
        let offset = locate();
        // Usually everything is there, and it takes one look to see that.
        let (size, is_there) = {
            let shared = self.shared.read();
            let is_loaded = shared.tree.missing(offset, remove).is_none();
            let has_room = data.len() as u64 <= shared.open.room(&self.shape);
            (shared.tree.size_bytes(), is_loaded && has_room && !self.is_commit_due(&writer))
        };
        if offset.checked_add(remove).is_none_or(|end| end > size) {
            return Err(Error::invalid(OPERATION, format!("the space ends at {size}")));
        }
        Inner::check_size(OPERATION, (size - remove).checked_add(data.len() as u64))?;
        if !is_there {
            self.prepare(&mut writer, data, (offset, remove))?;
        }
        let mut place_and_apply = || {
            let mut records = Vec::with_capacity(4);
            if remove > 0 {
                records.push(Record::Collapse { offset, length: remove });
            }
            // Each mark begins an extent.
            let mut at = 0;
            let ends = marks.iter().copied().filter(|mark| *mark > 0).chain([data.len()]);
            for end in ends {
                let part = data.get(at..end).unwrap_or_default();
                let mut mark = if marks.binary_search(&at).is_ok() { MARK } else { 0 };
                for (address, length) in self.place(&mut writer, part)? {
                    let offset = offset + at as u64;
                    records.push(Record::Insert { offset, length, address: address | mark });
                    mark = 0;
                    at += usize::try_from(length).unwrap_or(0);
                }
            }
            self.apply_with(&mut writer, &records, publish)
        };
        let done = place_and_apply();
        self.fail_on(done)
    }

    /// Does records to the tree, all under one lock, and keeps them for the log.
    pub(super) fn apply_all(&self, writer: &mut Writer, records: &[Record]) -> Result<()> {
        self.apply_with(writer, records, &mut || ())
    }

    /// As `apply_all`, and calls `publish` under the same lock, behind the last record.
    fn apply_with(
        &self,
        writer: &mut Writer,
        records: &[Record],
        publish: &mut dyn FnMut(),
    ) -> Result<()> {
        let mut shared = self.shared.write();
        for record in records {
            shared.apply(&self.shape, *record).map_err(|unfit| match unfit {
                Unfit::Missing(missing) => {
                    Error::corrupted("change space", format!("a node is not there: {missing:?}"))
                }
                Unfit::Wrong(words) => Error::corrupted("change space", words),
            })?;
        }
        writer.records.extend(records.iter().copied());
        publish();
        if sites::SEGMENT_WAIT.disabled() {
            let dying = std::mem::take(&mut shared.dying);
            drop(shared);
            self.release(writer, dying);
        }
        Ok(())
    }
}

/// Records that insert pieces one behind the other.
fn inserts(mut offset: u64, pieces: &[Piece]) -> Vec<Record> {
    let insert = |(address, length): &Piece| {
        let record = Record::Insert { offset, length: *length, address: *address };
        offset += length;
        record
    };
    pieces.iter().map(insert).collect()
}
