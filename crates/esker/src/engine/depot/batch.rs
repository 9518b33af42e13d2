//! A batch in memory: records side by side, and what is noted of them.
//!
//! It belongs to whoever fills it. Records have no checksums, and in the clients' stream no versions, until
//! the batch has its place ([`super::place`]); so they can be taken out again and go into another batch.

use super::layout::Layout;
use esker_base::ids::{Sequence, Version};
use esker_format::depot::{
    BATCH_HEADER_SIZE, LargeRef, Record, RecordKind, RecordMeta, Shape, SummarySize, VersionForm,
    encode_record,
};
use esker_media::{BufferPool, IoBuf};

/// A record of a batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) hash: u64,
    pub(super) version: Version,
    pub(super) kind: RecordKind,
    pub(super) collides: bool,
    pub(super) replaces: bool,
    pub(super) start: usize,
    pub(super) size: usize,
}

impl Entry {
    fn shape(&self) -> Shape {
        let Entry { kind, collides, replaces, size, .. } = *self;
        Shape { kind, collides, replaces, size_bytes: size as u64 }
    }

    /// Offset in the batch in bytes.
    pub(super) fn start(&self) -> u64 {
        self.start as u64
    }

    /// Bytes of the record.
    pub(super) fn size(&self) -> u64 {
        self.size as u64
    }

    /// Whether the record counts as live as soon as its log has it. An extent may be dead when it is entered.
    pub(super) fn is_live_at_once(&self) -> bool {
        !matches!(self.kind, RecordKind::Clear | RecordKind::Extent)
    }
}

/// Records that are written together.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) buffer: IoBuf,
    pub(super) used: usize,
    pub(super) entries: Vec<Entry>,
    pub(super) first: Sequence,
    pub(super) form: VersionForm,
    grain: usize,
    /// Numbers of the records that expire, and when.
    expiring: Vec<(usize, u64)>,
    /// Where records of large values start, and what they say of them.
    pieces: Vec<(usize, LargeRef)>,
    /// What the batch adds to the summary.
    pub(super) summary: SummarySize,
}

/// Room of a fresh batch buffer in bytes.
const BATCH_BUFFER_SIZE: usize = 64 << 10;

impl Batch {
    pub(super) fn new(
        pool: &BufferPool,
        layout: &Layout,
        first: Sequence,
        form: VersionForm,
    ) -> Self {
        Batch {
            buffer: pool.get(BATCH_BUFFER_SIZE),
            used: BATCH_HEADER_SIZE,
            entries: Vec::new(),
            first,
            form,
            grain: usize::try_from(layout.grain).unwrap_or(1),
            expiring: Vec::new(),
            pieces: Vec::new(),
            summary: SummarySize::new(form),
        }
    }

    /// What a record would be here, and its version, which counts in the streams of moved records.
    pub(super) fn shape(&self, meta: &RecordMeta, key: &[u8], value: &[u8]) -> (Shape, Version) {
        let size_bytes = meta.size_bytes(self.form, key.len(), value.len()) as u64;
        let RecordMeta { kind, version, collides, replaces, .. } = *meta;
        (Shape { kind, collides, replaces, size_bytes }, version)
    }

    /// What the batch needs with these records added.
    pub(super) fn need(&self, added: impl IntoIterator<Item = (Shape, Version)>) -> Need {
        let (mut used, mut summary) = (self.used as u64, self.summary);
        for (shape, version) in added {
            used = used.next_multiple_of(self.grain as u64) + shape.size_bytes;
            summary.add(shape, version);
        }
        Need { used, summary: summary.bytes() }
    }

    /// Adds a record; returns what is noted of it.
    pub(super) fn push(
        &mut self,
        pool: &BufferPool,
        hash: u64,
        meta: &RecordMeta,
        key: &[u8],
        value: &[u8],
    ) -> Entry {
        let (shape, _) = self.shape(meta, key, value);
        let size = usize::try_from(shape.size_bytes).unwrap_or(usize::MAX);
        let start = self.begin(pool, size);
        if let Some(out) = self.buffer.get_mut(start..start + size) {
            encode_record(out, meta, self.form, key, value);
        }
        if let Some(expires_at) = meta.expires_at {
            self.expiring.push((self.entries.len(), expires_at));
        }
        let RecordMeta { kind, version, collides, replaces, .. } = *meta;
        let entry = Entry { hash, version, kind, collides, replaces, start, size };
        self.end_record(entry, LargeRef::of(kind, key, value).unwrap_or_default());
        entry
    }

    /// Room for a record of so many bytes; returns where it starts.
    fn begin(&mut self, pool: &BufferPool, size: usize) -> usize {
        let start = self.used.next_multiple_of(self.grain);
        // With room for the padding to whole blocks.
        self.reserve(pool, (start + size).next_multiple_of(64 << 10));
        if let Some(gap) = self.buffer.get_mut(self.used..start) {
            gap.fill(0);
        }
        start
    }

    fn end_record(&mut self, entry: Entry, piece: LargeRef) {
        if matches!(entry.kind, RecordKind::Large | RecordKind::Extent) {
            self.pieces.push((entry.start, piece));
        }
        self.entries.push(entry);
        self.used = entry.start + entry.size;
        self.summary.add(entry.shape(), entry.version);
    }

    fn reserve(&mut self, pool: &BufferPool, needed: usize) {
        if self.buffer.len() < needed {
            let mut larger = pool.get(needed.next_power_of_two());
            if let (Some(to), Some(from)) =
                (larger.get_mut(..self.used), self.buffer.get(..self.used))
            {
                to.copy_from_slice(from);
            }
            self.buffer = larger;
        }
    }

    /// Where to cut the batch so that it ends near the end of a block, if that helps: the number of the first record that
    /// goes into the next one. One of `share` records goes, at most, and the first one that goes is among `starts`.
    pub(super) fn cut(&self, block: usize, share: usize, starts: &[usize]) -> Option<usize> {
        let least = self.entries.len() - self.entries.len() / share.max(1);
        let may = starts.get(starts.partition_point(|start| *start < least.max(1))..)?;
        let whole = self.used - self.used % block;
        let fits = |first: &usize| self.entries.get(*first).is_some_and(|next| next.start <= whole);
        let first = *may.get(may.partition_point(fits).checked_sub(1)?)?;
        let slack = |used: usize| used.next_multiple_of(block) - used;
        (slack(self.entries.get(first)?.start) < slack(self.used)).then_some(first)
    }

    /// What two batches need, the second of which begins with the record with this number.
    pub(super) fn needs_of_parts(&self, from: usize) -> [Need; 2] {
        let (one, other) = self.entries.split_at(from.min(self.entries.len()));
        [one, other].map(|entries| {
            let (mut used, mut summary) = (BATCH_HEADER_SIZE, SummarySize::new(self.form));
            for entry in entries {
                used = used.next_multiple_of(self.grain) + entry.size;
                summary.add(entry.shape(), entry.version);
            }
            Need { used: used as u64, summary: summary.bytes() }
        })
    }

    /// Takes out the records from the one with this number on.
    pub(super) fn split_off(&mut self, pool: &BufferPool, layout: &Layout, from: usize) -> Batch {
        let first = Sequence(self.first.0 + from as u64);
        let mut rest = Batch::new(pool, layout, first, self.form);
        for entry in self.entries.split_off(from) {
            let start = rest.begin(pool, entry.size);
            if let Some(out) = rest.buffer.get_mut(start..start + entry.size) {
                out.copy_from_slice(self.bytes(&entry));
            }
            rest.end_record(Entry { start, ..entry }, self.piece(&entry));
        }
        let expiring = self.expiring.partition_point(|(number, _)| *number < from);
        let expiring = self.expiring.split_off(expiring).into_iter();
        rest.expiring = expiring.map(|(number, at)| (number - from, at)).collect();
        self.used = self.entries.last().map_or(BATCH_HEADER_SIZE, |last| last.start + last.size);
        self.pieces.retain(|(start, _)| *start < self.used);
        self.summary = SummarySize::new(self.form);
        self.entries.iter().for_each(|entry| self.summary.add(entry.shape(), entry.version));
        rest
    }

    /// Whether a record of this kind must not join the batch: an extent stands alone, so that its
    /// value is aligned.
    pub(super) fn keeps_apart(&self, mut kinds: impl Iterator<Item = RecordKind>) -> bool {
        let extent = |kind| kind == RecordKind::Extent;
        !self.entries.is_empty()
            && (kinds.any(extent) || self.entries.last().is_some_and(|last| extent(last.kind)))
    }

    /// What a record says of a large value.
    pub(super) fn piece(&self, entry: &Entry) -> LargeRef {
        let place = self.pieces.binary_search_by_key(&entry.start, |(start, _)| *start);
        let found = place.ok().and_then(|place| self.pieces.get(place));
        found.map_or(LargeRef::default(), |(_, piece)| *piece)
    }

    /// The records that expire, and when, in Unix seconds.
    pub(super) fn expiring(&self) -> impl ExactSizeIterator<Item = (Option<&Entry>, u64)> {
        self.expiring.iter().map(|(number, at)| (self.entries.get(*number), *at))
    }

    /// Sequence number behind the last record.
    pub(super) fn end(&self) -> Sequence {
        Sequence(self.first.0 + self.entries.len() as u64)
    }

    /// The bytes of a record.
    pub(super) fn bytes(&self, entry: &Entry) -> &[u8] {
        self.buffer.get(entry.start..entry.start + entry.size).unwrap_or(&[])
    }

    /// The record that starts at `start`.
    ///
    /// Looked for around where it stands if all records are of one length: a piece of the log in memory has ten thousands,
    /// and each step of a search among all of them misses the cache.
    pub(super) fn entry_at(&self, start: u64) -> Option<&Entry> {
        let start = usize::try_from(start).ok()?;
        let at = |place: usize| self.entries.get(place).map(|entry| entry.start);
        let last = self.entries.len().checked_sub(1)?;
        let guess = start.checked_mul(last)?.checked_div(at(last)?).map_or(0, |at| at.min(last));
        // Neither is wrong by more than a step that doubles.
        let (mut low, mut high, mut step) = (guess, guess, 1);
        while at(low)? > start {
            high = low;
            low = low.checked_sub(step).or((low > 0).then_some(0))?;
            step *= 2;
        }
        while at(high).is_some_and(|there| there < start) {
            low = high;
            high += step;
            step *= 2;
        }
        let among = self.entries.get(low..=high.min(last))?;
        let place = among.binary_search_by_key(&start, |entry| entry.start).ok()?;
        among.get(place)
    }

    /// The same records in memory of their own.
    pub(super) fn copy(&self, pool: &BufferPool) -> Self {
        let mut buffer = pool.get(self.buffer.len());
        if let (Some(to), Some(from)) = (buffer.get_mut(..self.used), self.buffer.get(..self.used))
        {
            to.copy_from_slice(from);
        }
        let Batch { used, first, form, grain, summary, .. } = *self;
        let (entries, pieces) = (self.entries.clone(), self.pieces.clone());
        let expiring = self.expiring.clone();
        Batch { buffer, used, entries, first, form, grain, expiring, pieces, summary }
    }

    pub(super) fn record(&self, entry: &Entry, base: Sequence) -> Option<Record<'_>> {
        let bytes = self.buffer.get(entry.start..entry.start + entry.size)?;
        Record::decode(bytes, Version(base.0), None).ok()
    }
}

/// What a batch needs of a segment, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Need {
    pub(super) used: u64,
    pub(super) summary: u64,
}

#[cfg(test)]
mod tests;
