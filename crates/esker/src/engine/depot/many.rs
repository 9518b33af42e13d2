//! Several keys at once, for threads that would wait for one read after the other.
//!
//! The records that the index offers are read together. What comes is taken if it is the key's record, whole; all else is looked up by itself: keys with several candidates or none, records in memory, large
//! values, and whatever could not be read.
//!
//! # Concurrency
//! As for single reads ([`super::read`]).

use super::layout::SIZE_UNIT_BYTES;
use super::read::{Bytes, Fetched};
use super::{Depot, sites};
use crate::value::Value;
use esker_base::Result;
use esker_base::ids::Version;
use esker_format::depot::{Place, RecordKind};
use esker_index::{Link, SizeHint};
use esker_media::IoBuf;

/// A record that is read with others.
struct Wanted {
    link: Link,
    place: Place,
    base: Version,
    /// Where the blocks around it begin.
    first: u64,
    buffer: IoBuf,
}

impl Depot {
    /// The values of several keys.
    pub(super) fn get_records(&self, keys: &[&[u8]]) -> Result<Vec<Option<Value>>> {
        self.begin("get")?;
        // As what the index offers for one key: of lives of segments in which it does.
        let mut wanted: Vec<Option<Wanted>> = loop {
            let generation = self.segments.generation();
            let wanted = keys.iter().map(|key| self.wanted(key)).collect();
            if !self.is_reused_since(generation) {
                break wanted;
            }
        };
        let reads = wanted.iter_mut().flatten();
        let mut reads: Vec<_> = reads.map(|read| (read.first, &mut *read.buffer)).collect();
        let is_read = self.device.read_many_at(sites::RECORD_READ, &mut reads).is_ok();
        let values = keys.iter().zip(wanted).map(|(key, wanted)| {
            let found = wanted.filter(|_| is_read).and_then(|wanted| self.found(key, wanted));
            match found {
                Some(value) => Ok(value),
                None => self.get_record(key, &mut |_| Ok(())),
            }
        });
        values.collect()
    }

    /// What to read for a key, if the index offers one record, of known size, on the device.
    fn wanted(&self, key: &[u8]) -> Option<Wanted> {
        let candidates = self.index.lookup(self.hash(key));
        let mut links = candidates.iter().filter(|link| !link.is_tombstone());
        let (link, None) = (links.next()?, links.next()) else { return None };
        let SizeHint::Grains(grains) = link.size() else { return None };
        let offset = self.layout.offset_of(link);
        let segment = self.layout.segment_of(offset)?;
        let (salt, base) = self.segments.place(segment);
        let is_kept =
            self.record_cache.as_ref().is_some_and(|cache| cache.peek((link, salt)).is_some());
        if is_kept || self.segments.is_unwritten(segment, offset) {
            return None;
        }
        let limit = self.layout.segment_offset(segment) + self.layout.segment_size;
        let (first, size) = self.blocks_of(offset, grains * SIZE_UNIT_BYTES, limit).ok()?;
        let (place, base) = (Place { salt, offset }, Version(base.0));
        Some(Wanted { link, place, base, first, buffer: self.pool.get(size) })
    }

    /// The value in what was read for a key, or that it has none; `None` if that is not the key's record.
    fn found(&self, key: &[u8], wanted: Wanted) -> Option<Option<Value>> {
        let Wanted { link, place, base, first, buffer } = wanted;
        let start = usize::try_from(place.offset - first).ok()?;
        let fetched = Fetched::decode(Bytes::Pooled(buffer), start, base, Some(place)).ok()?;
        let record = fetched.record();
        if record.key != key || record.meta.kind == RecordKind::Large {
            return None;
        }
        if let (Some(cache), Some(bytes)) = (&self.record_cache, fetched.on_media()) {
            cache.keep((link, place.salt), bytes);
        }
        if !self.is_valid(record.meta) {
            return Some(None);
        }
        self.touch(link);
        Some(Some(fetched.into_value()))
    }
}
