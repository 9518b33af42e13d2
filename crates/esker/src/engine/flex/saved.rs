//! The saved index: where intervals begin, what is known of their runs, and what expires when, written at a clean stop, so that
//! the next open knows each of them, gets read no more than they did before, and what has expired is found without a read.
//!
//! # Invariants
//! - I1: it counts only for the very state of the space that it was made of: that of a checkpoint, by its generation and
//!   the checksum of its map, with nothing in the space's log.
//! - I2: its anchors are those that intervals have on the device, but for what is damaged there: none is saved while an anchor is a
//!   guess because the device refuses it (D3 of `damage`).
//!
//! # Failure
//! Nobody depends on it: without it, or with one that does not count or that the device refuses to read, an open looks intervals up
//! (FlexSpace §5.4). One that counts and does not fit the space is damage, and told.

use super::index::{Entry, Fresh, Leaves, is_tail_of};
use super::{Flex, ROOT_BYTES, sites};
use crate::engine::expiries::Expiries;
use crate::flex::Space;
use esker_base::{Error, ErrorKind, Result};
use esker_format::flex_db::{
    INDEX_BODY_OFFSET, INDEX_HEAD_SIZE, IndexEntry, IndexHead, IndexWriter,
};
use esker_media::{BlockDevice, BufferPool, IoBuf};
use std::io::IoSlice;

/// Bytes that are read and written with one call.
const STEP: usize = 1 << 20;

impl Flex {
    /// Writes the index of the space as the last checkpoint has it. The committer's lock is held.
    pub(super) fn save_index(&self) -> Result<()> {
        let Some((generation, map_checksum)) = self.space.stored_as() else { return Ok(()) };
        let mut writer = IndexWriter::default();
        let mut is_guessed = false;
        self.index.visit(|anchor, entry, tail, lapsing| {
            let expiries = lapsing.without_snapshots();
            let size = u64::from(entry.size);
            let known = IndexEntry {
                size,
                pairs: Some(u64::from(entry.pairs)),
                appended: u64::from(entry.appended),
                runs: u64::from(entry.runs),
                tail,
                expiries: expiries.moments(),
            };
            // Such an interval has another anchor once the device reads it: the next open has to see that.
            is_guessed |= entry.is_unread() && entry.runs == 0;
            // Into what cannot be read the next open looks again.
            let is_known = !entry.is_coarse() && !entry.is_unread();
            let unknown =
                IndexEntry { size, expiries: expiries.moments(), ..IndexEntry::default() };
            writer.push(anchor, if is_known { &known } else { &unknown });
        });
        if is_guessed {
            return Ok(());
        }
        let of =
            IndexHead { store_id: self.store_id, generation, map_checksum, ..IndexHead::default() };
        let (head, body) = writer.finish(&of);
        let device = &*self.saved;
        let block = u64::from(device.geometry().block_size_bytes);
        let (size, end) = (device.geometry().size_bytes, INDEX_BODY_OFFSET + body.len() as u64);
        let end = end.next_multiple_of(block);
        if end > size {
            device.reserve(sites::INDEX_RESERVE, size, end - size)?;
        }
        let write = |offset: u64, bytes: &[u8]| {
            let mut whole = BufferPool::new(0)
                .get_zeroed(bytes.len().next_multiple_of(usize::try_from(block).unwrap_or(512)));
            if let Some(to) = whole.get_mut(..bytes.len()) {
                to.copy_from_slice(bytes);
            }
            device.write_at(sites::INDEX_WRITE, offset, &[IoSlice::new(&whole)])
        };
        for (part, offset) in body.chunks(STEP).zip((INDEX_BODY_OFFSET..).step_by(STEP)) {
            write(offset, part)?;
        }
        write(0, &head)
    }
}

/// The identity of the store that an index was saved of, whether or not it counts. An error if the device refuses to read it: logs of
/// another store than the one that is made anew would be given up, and may count once it reads.
pub(super) fn identity(device: &dyn BlockDevice) -> Result<Option<[u8; 16]>> {
    let Some((first, head)) = read_head(device)? else { return Ok(None) };
    let Some(body) = read_body(device, &head)? else { return Ok(None) };
    let body = body.get(..usize::try_from(head.body_bytes).unwrap_or(0)).unwrap_or_default();
    Ok(IndexHead::check(&first, body).is_ok().then_some(head.store_id))
}

/// What was read of the index; one that the device refuses to read is as if there were none.
fn if_read<T>(read: Result<Option<T>>) -> Result<Option<T>> {
    match read {
        Err(error) if error.is_unread() => {
            tracing::warn!(%error, "the saved index cannot be read");
            Ok(None)
        }
        read => read,
    }
}

/// The head of what was saved, with its bytes.
fn read_head(device: &dyn BlockDevice) -> Result<Option<(IoBuf, IndexHead)>> {
    let geometry = device.geometry();
    if geometry.size_bytes < INDEX_BODY_OFFSET {
        return Ok(None);
    }
    let block = geometry.block_size_bytes as usize;
    let mut first = BufferPool::new(0).get(INDEX_HEAD_SIZE.next_multiple_of(block));
    device.read_at(sites::INDEX_READ, 0, &mut first)?;
    Ok(IndexHead::peek(&first).ok().map(|head| (first, head)))
}

/// The entries behind a head, and zeros behind them; `None` if the device is shorter.
fn read_body(device: &dyn BlockDevice, head: &IndexHead) -> Result<Option<IoBuf>> {
    let geometry = device.geometry();
    let block = u64::from(geometry.block_size_bytes);
    let whole = head.body_bytes.checked_next_multiple_of(block).unwrap_or(u64::MAX);
    if INDEX_BODY_OFFSET.saturating_add(whole) > geometry.size_bytes {
        return Ok(None);
    }
    let mut body = BufferPool::new(0).get(usize::try_from(whole).unwrap_or(0));
    for (part, offset) in body.chunks_mut(STEP).zip((INDEX_BODY_OFFSET..).step_by(STEP)) {
        device.read_at(sites::INDEX_READ, offset, part)?;
    }
    Ok(Some(body))
}

/// The intervals of the saved index, if it counts for the space as it is, whose intervals end where `ends_at` agrees.
pub(super) fn load(
    device: &dyn BlockDevice,
    space: &Space,
    store_id: [u8; 16],
    ends_at: &mut dyn FnMut(u64) -> bool,
) -> Result<Option<Leaves>> {
    let Some((first, head)) = if_read(read_head(device))? else { return Ok(None) };
    let as_stored = Some((head.generation, head.map_checksum)) == space.stored_as();
    if head.store_id != store_id || (!as_stored && !sites::INDEX_GENERATION.disabled()) {
        return Ok(None);
    }
    let Some(body) = if_read(read_body(device, &head))? else { return Ok(None) };
    let body = body.get(..usize::try_from(head.body_bytes).unwrap_or(0)).unwrap_or_default();
    let unsound = IndexHead::check(&first, body).is_err();
    if unsound && !sites::INDEX_CHECKSUM.disabled() {
        return Ok(None);
    }
    let damaged = || {
        Error::new(ErrorKind::Corrupted, "open store")
            .device(device.name())
            .context("the saved index does not fit the space")
    };
    let (mut leaves, mut last) = (Leaves::default(), Vec::new());
    let (mut total, mut is_ordered) = (ROOT_BYTES, true);
    let read = head.entries(body, |anchor, found| {
        let IndexEntry { size, pairs, appended, runs, tail, .. } = found;
        total = total.saturating_add(size);
        let size = u32::try_from(size).unwrap_or(u32::MAX);
        let entry = match pairs {
            Some(pairs) => {
                Entry::new(size, pairs, appended, u32::try_from(runs).unwrap_or(u32::MAX))
            }
            None => Entry::coarse(size),
        };
        let tail = if is_tail_of(tail, size, runs) { tail.to_vec() } else { Vec::new() };
        let mut expiries = Expiries::default();
        found.expiries.iter().for_each(|(at, bytes)| expiries.add(*at, *bytes));
        is_ordered &= leaves.is_empty() || *last < *anchor;
        last.clear();
        last.extend_from_slice(anchor);
        // What is out of order makes no leaf.
        if is_ordered {
            leaves.push(Fresh { anchor: anchor.to_vec(), entry, tail, lapsing: expiries.into() });
        }
    });
    if read.is_err() || !is_ordered || leaves.is_empty() || !ends_at(total) {
        return Err(damaged());
    }
    Ok(Some(leaves))
}
