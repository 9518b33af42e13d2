//! Reads: where bytes are, of one moment, and then the bytes, each verified.
//!
//! # Concurrency
//! The tree is asked under the shared lock, and what stands in the open segment is copied under it. Devices
//! are read without a lock. A segment that is taken anew meanwhile has another salt, and one that is given back
//! has no valid bytes: then the checksums fail, the segment is not what was noted, and the read starts over.

use super::state::{Shared, blocks_of, copy_out};
use super::{Inner, sites};
use esker_base::{Error, ErrorKind, Result};
use esker_format::flex::block_is_sound;
use esker_index::flex_tree::{Extent, Missing};
use esker_media::IoBuf;
use smallvec::SmallVec;
use std::mem;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Blocks between two parts that are read along, rather than with another call.
const BLOCKS_BETWEEN: u64 = 4;
/// Parts, and requests, of a usual read: no memory is asked for to note so many.
const USUAL: usize = 4;
/// Most parts of one request.
const PARTS_OF_A_READ: usize = 256;
/// Most requests that a read has in flight, and bytes of them, but for the last one's: blocks, of which it may want little.
const REQUESTS_AT_ONCE: usize = 64;
const BYTES_AT_ONCE: usize = 16 << 20;

/// An extent as [`Space::read_extent`](super::Space::read_extent) finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceExtent {
    /// Where it begins in the space, in bytes.
    pub offset: u64,
    /// Its bytes.
    pub length: u64,
    /// How many of them were read.
    pub read: usize,
}

/// Bytes that are on the device.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) segment: u64,
    pub(super) salt: u64,
    /// Whether anything in the segment counted. It does wherever an extent stands, unless media lie.
    pub(super) counts: bool,
    /// In the segment's payload.
    pub(super) position: u64,
    /// In the caller's buffer.
    pub(super) range: Range<usize>,
}

/// The parts of a read.
pub(super) type Parts = SmallVec<[Part; USUAL]>;

/// Blocks that are to be read for some parts: each with what of it was in memory already.
struct Request<'a> {
    missing: SmallVec<[(&'a Part, usize); 2]>,
    /// In the segment.
    first: u64,
    /// On the device.
    offset: u64,
    bytes: IoBuf,
}

/// What a read cannot go on without.
enum Absent {
    /// A node of the tree, which is to be loaded, and the rest of the range, which begins there.
    Node(Missing, Range<u64>),
    /// Bytes from there on: nobody knows where they stand.
    Bytes(u64),
}

/// Whether a read has to start over.
pub(super) enum Outcome {
    Done,
    Stale,
}

impl Inner {
    pub(super) fn read(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let (mut parts, mut is_first) = (Parts::new(), true);
        loop {
            parts.clear();
            let planned = self.plan(&self.shared.read(), offset, buf, &mut parts);
            match planned {
                Ok(count) => {
                    if let Outcome::Done =
                        self.read_parts(&mut parts, buf, (BLOCKS_BETWEEN, true))?
                    {
                        return Ok(count);
                    }
                }
                Err(absent) => self.fetch(absent, mem::take(&mut is_first))?,
            }
        }
    }

    pub(super) fn read_where(
        &self,
        locate: &mut dyn FnMut() -> Option<(u64, usize)>,
        bytes: &mut Vec<u8>,
        keep: bool,
    ) -> Result<Option<usize>> {
        let (mut parts, mut is_first) = (Parts::new(), true);
        loop {
            parts.clear();
            let planned = {
                let shared = self.shared.read();
                let Some((offset, length)) = locate() else { return Ok(None) };
                bytes.resize(length, 0);
                self.plan(&shared, offset, bytes, &mut parts)
            };
            match planned {
                Ok(count) => {
                    if let Outcome::Done =
                        self.read_parts(&mut parts, bytes, (BLOCKS_BETWEEN, keep))?
                    {
                        // What is behind the end of the space is nothing that the buffer had before.
                        bytes.get_mut(count..).unwrap_or_default().fill(0);
                        return Ok(Some(count));
                    }
                }
                Err(absent) => self.fetch(absent, mem::take(&mut is_first))?,
            }
        }
    }

    pub(super) fn read_into_where(
        &self,
        locate: &mut dyn FnMut() -> Option<u64>,
        buf: &mut [u8],
    ) -> Result<Option<usize>> {
        let (mut parts, mut is_first) = (Parts::new(), true);
        loop {
            parts.clear();
            let planned = {
                let shared = self.shared.read();
                let Some(offset) = locate() else { return Ok(None) };
                self.plan(&shared, offset, buf, &mut parts)
            };
            match planned {
                Ok(count) => {
                    if let Outcome::Done =
                        self.read_parts(&mut parts, buf, (BLOCKS_BETWEEN, true))?
                    {
                        return Ok(Some(count));
                    }
                }
                Err(absent) => self.fetch(absent, mem::take(&mut is_first))?,
            }
        }
    }

    pub(super) fn next_mark(&self, offset: u64) -> Result<Option<u64>> {
        /// Extents that are looked at under one lock: not bytes, of which a hole may have any number.
        const AT_ONCE: usize = 1024;
        let mut at = offset;
        loop {
            let found = self.shared.read().next_marked(at, AT_ONCE);
            match found {
                Ok(Some(extent)) if extent.is_marked() => return Ok(Some(extent.offset)),
                Ok(Some(extent)) => at = extent.end(),
                Ok(None) => return Ok(None),
                Err(missing) => self.load(&missing)?,
            }
        }
    }

    /// Where extents begin in a range that are not the rest of a write that was cut, as far as nodes can be read.
    pub(super) fn begun(&self, range: Range<u64>) -> Result<Vec<u64>> {
        let (mut starts, mut at) = (Vec::new(), range.start);
        let mut is_whole = true;
        while at < range.end {
            let found = self.shared.read().tree.lookup(at);
            match found {
                Ok(Some(extent)) => {
                    let is_rest = extent.place().is_multiple_of(self.shape.segment_payload());
                    if extent.offset >= range.start && is_whole && !is_rest {
                        starts.push(extent.offset);
                    }
                    is_whole = extent.length < self.shape.extent_size_bytes_max;
                    at = extent.end();
                }
                Ok(None) => break,
                Err(missing) => match self.load(&missing) {
                    Err(error) if error.is_unread() => at = self.end_of(&missing, at),
                    done => done?,
                },
            }
        }
        Ok(starts)
    }

    /// A range in parts of which each stands in one block, in a hole, or where a node cannot be read.
    pub(super) fn in_blocks(&self, range: Range<u64>) -> Result<Vec<Range<u64>>> {
        let payload = self.shape.block_payload().max(1);
        let (mut parts, mut at) = (Vec::new(), range.start);
        while at < range.end {
            let found = self.shared.read().tree.lookup(at);
            let end = match found {
                Ok(Some(extent)) if extent.is_hole() => extent.end(),
                Ok(Some(extent)) => {
                    let place = extent.place() + (at - extent.offset);
                    extent.end().min(at + payload - place % payload)
                }
                Ok(None) => break,
                Err(missing) => match self.load(&missing) {
                    Err(error) if error.is_unread() => self.end_of(&missing, at),
                    done => {
                        done?;
                        continue;
                    }
                },
            };
            parts.push(at..end.min(range.end));
            at = end;
        }
        Ok(parts)
    }

    pub(super) fn read_extent(&self, offset: u64, buf: &mut [u8]) -> Result<Option<SpaceExtent>> {
        let mut is_first = true;
        loop {
            let mut parts = Parts::new();
            let planned = {
                let shared = self.shared.read();
                let absent = |missing| Absent::Node(missing, offset..offset);
                shared.tree.lookup(offset).map_err(absent).and_then(|found| {
                    let Some(extent) = found else { return Ok(None) };
                    let length = u64::from(extent.length);
                    let most = usize::try_from(length).unwrap_or(usize::MAX).min(buf.len());
                    let to = buf.get_mut(..most).unwrap_or_default();
                    let read = self.plan(&shared, extent.offset, to, &mut parts)?;
                    Ok(Some(SpaceExtent { offset: extent.offset, length, read }))
                })
            };
            match planned {
                Ok(found) => {
                    if let Outcome::Done =
                        self.read_parts(&mut parts, buf, (BLOCKS_BETWEEN, true))?
                    {
                        return Ok(found);
                    }
                }
                Err(absent) => self.fetch(absent, mem::take(&mut is_first))?,
            }
        }
    }

    /// Brings what a read cannot go on without. The first time all nodes that it needs: it starts over behind that. If some are gone
    /// by then it gets on node by node, as nobody forgets one that it has just been at.
    #[cold]
    fn fetch(&self, absent: Absent, is_first: bool) -> Result<()> {
        match absent {
            Absent::Node(missing, rest) if is_first => self.load_ahead(&missing, rest),
            Absent::Node(missing, _) => self.load(&missing),
            Absent::Bytes(offset) => {
                let words = format!("nobody knows where byte {offset} of the space stands");
                Err(Error::corrupted("read space", words).device(self.files.data.name()))
            }
        }
    }

    /// Fills what is a hole or in a segment that is in memory, and notes the rest.
    fn plan(
        &self,
        shared: &Shared,
        offset: u64,
        buf: &mut [u8],
        parts: &mut Parts,
    ) -> Result<usize, Absent> {
        let payload = self.shape.segment_payload();
        let mut done = 0;
        let mut lost = None;
        let end = offset.saturating_add(buf.len() as u64);
        let visited = shared.tree.visit(offset, buf.len() as u64, |extent: Extent| {
            let range = done..done + extent.length as usize;
            done = range.end;
            let Some(to) = buf.get_mut(range.clone()) else { return };
            if extent.is_hole() {
                to.fill(0);
                lost = lost.or(Some(extent.offset));
                return;
            }
            let (segment, position) = (extent.place() / payload, extent.place() % payload);
            if let Some(buffer) = shared.buffer_of(segment) {
                copy_out(buffer, &self.shape, position, to);
            } else {
                let salt = shared.salt(segment).unwrap_or(0);
                let counts = !shared.is_empty(segment);
                parts.push(Part { segment, salt, counts, position, range });
            }
        });
        visited.map_err(|missing| Absent::Node(missing, offset + done as u64..end))?;
        match lost.filter(|_| self.has_no_holes.load(Ordering::Relaxed)) {
            Some(offset) => Err(Absent::Bytes(offset)),
            None => Ok(done),
        }
    }

    /// Reads all parts: neighbours on the device with one request, and many requests at once. The cache gets what was read
    /// if `keep` says so. Parts up to `between` blocks apart are neighbours. What a device refuses is asked for once more, and then
    /// without what lies between.
    pub(super) fn read_parts(
        &self,
        parts: &mut [Part],
        buf: &mut [u8],
        (between, keep): (u64, bool),
    ) -> Result<Outcome> {
        match self.read_once(parts, buf, (between, keep)) {
            Err(error) if error.kind() == ErrorKind::Io => self.read_once(parts, buf, (0, keep)),
            done => done,
        }
    }

    fn read_once(
        &self,
        parts: &mut [Part],
        buf: &mut [u8],
        (between, keep): (u64, bool),
    ) -> Result<Outcome> {
        parts.sort_unstable_by_key(|part| (part.segment, part.position));
        let near = |a: &Part, b: &Part| {
            let (_, last) = self.blocks(a);
            let (first, _) = self.blocks(b);
            a.segment == b.segment && first <= last + between
        };
        let mut requests: SmallVec<[Request<'_>; USUAL]> = SmallVec::new();
        let mut bytes = 0;
        for run in parts.chunk_by(near).flat_map(|group| group.chunks(PARTS_OF_A_READ)) {
            let Some(request) = self.request(run, buf) else { continue };
            bytes += request.bytes.len();
            requests.push(request);
            if requests.len() >= REQUESTS_AT_ONCE || bytes >= BYTES_AT_ONCE {
                if let Outcome::Stale = self.read_requests(&mut requests, buf, keep)? {
                    return Ok(Outcome::Stale);
                }
                requests.clear();
                bytes = 0;
            }
        }
        self.read_requests(&mut requests, buf, keep)
    }

    /// Reads what these ask for at once, verifies it, and copies it to where their parts want it.
    fn read_requests(
        &self,
        requests: &mut [Request<'_>],
        buf: &mut [u8],
        keep: bool,
    ) -> Result<Outcome> {
        match &mut *requests {
            [] => {}
            [one] => self.files.data.read_at(sites::DATA_READ, one.offset, &mut one.bytes)?,
            many => {
                let mut reads: Vec<(u64, &mut [u8])> =
                    many.iter_mut().map(|request| (request.offset, &mut *request.bytes)).collect();
                self.files.data.read_many_at(sites::DATA_READ, &mut reads)?;
            }
        }
        for request in &*requests {
            if let Outcome::Stale = self.take_out(request, buf, keep)? {
                return Ok(Outcome::Stale);
            }
        }
        Ok(Outcome::Done)
    }

    /// First and last block of a part, in its segment.
    fn blocks(&self, part: &Part) -> (u64, u64) {
        let payload = self.shape.block_payload();
        let length = (part.range.len() as u64).max(1);
        (part.position / payload, (part.position + length - 1) / payload)
    }

    /// What has to be read for parts that lie close together in one segment, in order; what is in memory is copied.
    fn request<'a>(&self, run: &'a [Part], buf: &mut [u8]) -> Option<Request<'a>> {
        let first_of_segment = run.first().map_or(0, |part| part.segment * self.shape.blocks());
        let mut missing = SmallVec::with_capacity(run.len());
        let mut span: Option<(u64, u64)> = None;
        for part in run {
            let to = buf.get_mut(part.range.clone()).unwrap_or_default();
            // Blocks that are in memory; from the first one that is not, all are read.
            let mut absent: Option<(u64, u64, usize)> = None;
            blocks_of(&self.shape, part.position, to.len(), |block, range, at| {
                if let Some((_, last, _)) = &mut absent {
                    *last = block;
                    return;
                }
                let into = to.get_mut(at..at + range.len()).unwrap_or_default();
                let number = first_of_segment + block;
                if !self.cache.get(number, part.salt, range.start, into) {
                    absent = Some((block, block, at));
                }
            });
            if let Some((first, last, at)) = absent {
                let (low, high) = span.unwrap_or((first, last));
                span = Some((low.min(first), high.max(last)));
                missing.push((part, at));
            }
        }
        let (first, last) = span?;
        let size = self.shape.block_size_bytes as usize;
        let bytes = self.pool.get(usize::try_from(last + 1 - first).unwrap_or(0) * size);
        let offset = (first_of_segment + first) * size as u64;
        Some(Request { missing, first, offset, bytes })
    }

    /// Verifies what was read for parts, and copies it to where they want it.
    fn take_out(&self, request: &Request<'_>, buf: &mut [u8], keep: bool) -> Result<Outcome> {
        let size = self.shape.block_size_bytes as usize;
        let payload = usize::try_from(self.shape.block_payload()).unwrap_or(0);
        let mut verified: Range<u64> = 0..0;
        for (part, at) in &request.missing {
            let first_of_segment = part.segment * self.shape.blocks();
            let (_, to) = self.blocks(part);
            let from = (part.position + *at as u64) / self.shape.block_payload();
            // What lies between parts is nobody's affair: other bytes, or none.
            for block in from..=to {
                if verified.contains(&block) {
                    continue;
                }
                let start = usize::try_from(block - request.first).unwrap_or(0) * size;
                let bytes = request.bytes.get(start..start + size).unwrap_or_default();
                let number = first_of_segment + block;
                let sound = block_is_sound(bytes, part.salt, number);
                if !sound && !sites::BLOCK_CHECKSUM.disabled() {
                    return self.unsound(part, number);
                }
                if keep {
                    self.cache.put(number, part.salt, bytes.get(..payload).unwrap_or_default());
                }
                let start = if verified.end == block { verified.start } else { block };
                verified = start..block + 1;
            }
            let range = part.range.start + at..part.range.end;
            let to = buf.get_mut(range).unwrap_or_default();
            self.copy(&request.bytes, request.first, part.position + *at as u64, to);
        }
        Ok(Outcome::Done)
    }

    /// Copies what stands at `position` of a segment out of its blocks from `first` on.
    fn copy(&self, bytes: &[u8], first: u64, position: u64, to: &mut [u8]) {
        let size = self.shape.block_size_bytes as usize;
        blocks_of(&self.shape, position, to.len(), |block, range, at| {
            let start = usize::try_from(block - first).unwrap_or(0) * size;
            let from = bytes.get(start + range.start..start + range.end);
            if let (Some(to), Some(from)) = (to.get_mut(at..at + range.len()), from) {
                to.copy_from_slice(from);
            }
        });
    }

    /// A block that is not what was written there under the salt that was noted.
    #[cold]
    fn unsound(&self, part: &Part, block: u64) -> Result<Outcome> {
        let is_left = {
            let shared = self.shared.read();
            // What was the same before will be the same again.
            shared.salt(part.segment).unwrap_or(0) != part.salt
                || part.counts && shared.is_empty(part.segment)
        };
        if is_left && !sites::READ_SALT.disabled() {
            return Ok(Outcome::Stale);
        }
        let size = u64::from(self.shape.block_size_bytes);
        Err(Error::corrupted("read space", "the block does not have its checksum")
            .device(self.files.data.name())
            .at(block * size, size))
    }
}
