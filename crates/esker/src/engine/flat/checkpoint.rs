//! The image of a clean stop: index and counts, in free chunks, so that the next open reads no log (FlatStore §3.5).
//!
//! # Failure
//! The image counts if the session word says so, which the next open takes away before anything new is written, and if
//! all its parts are whole. Of an image that is torn or damaged nothing is used: the logs are read instead.

use super::chunks::{For, Use};
use super::index::Part;
use super::layout::Layout;
use super::recover::Root;
use super::replay::{Learned, LogEnd};
use super::{Flat, sites};
use crate::engine::Cursor;
use crate::options::Options;
use esker_base::{ErrorKind, Result};
use esker_format::flat::image::{
    CHUNK_STATE_SIZE, HASH_ENTRY_SIZE, key_entry_size, put_bits, put_hash_entry, put_key_entry,
    take_bits, take_hash_entry, take_key_entry,
};
use esker_format::flat::{
    CHUNK_START, ChunkHeader, ChunkKind, ChunkState, IMAGE_HEADER_SIZE, ImageHeader, ImageKind,
    SESSION_OFFSET, Session,
};
use esker_index::Word;
use esker_media::Pmem;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// In a state's tail: the log goes on in this chunk.
const OPEN: u32 = 1 << 31;

/// The parts of an image, by number.
pub(super) struct Image {
    pub(super) chunks: Vec<u32>,
    /// The header of its first part.
    pub(super) first: ImageHeader,
}

/// Reads bytes of an image; false if the medium has lost some of them: then it is not whole.
fn read_if_there(memory: &dyn Pmem, offset: u64, buffer: &mut [u8]) -> Result<bool> {
    match memory.read(offset, buffer) {
        Err(error) if error.kind() == ErrorKind::Corrupted => Ok(false),
        read => read.map(|()| true),
    }
}

impl Image {
    /// The newest image of the last session that is of a clean stop, if all its parts are there. They are checked as
    /// they are loaded.
    pub(super) fn find(memory: &dyn Pmem, layout: &Layout, root: &Root) -> Result<Option<Image>> {
        let found = Image::find_all(memory, layout, root)?;
        Ok(found.into_iter().find(|image| {
            image.first.kind == ImageKind::Chunks && image.first.session == root.session.number
        }))
    }

    /// All images whose parts are all there, the newest first.
    pub(super) fn find_all(memory: &dyn Pmem, layout: &Layout, root: &Root) -> Result<Vec<Image>> {
        let mut images: BTreeMap<u64, Vec<(u32, u32)>> = BTreeMap::new();
        for header in root.headers.iter().filter(|header| header.kind == ChunkKind::Image) {
            images.entry(header.born).or_default().push((header.chunks, header.number));
        }
        let mut found = Vec::new();
        for mut parts in images.into_values().rev() {
            parts.sort_unstable();
            let consecutive = parts.iter().zip(0..).all(|((part, _), number)| *part == number);
            let head = |chunk: u32| -> Result<Option<ImageHeader>> {
                let mut head = [0; IMAGE_HEADER_SIZE];
                let there = read_if_there(memory, layout.start_of(chunk) + CHUNK_START, &mut head)?;
                Ok(there.then(|| ImageHeader::peek(&head).ok()).flatten())
            };
            let (Some((_, first)), Some((last, end))) = (parts.first(), parts.last()) else {
                continue;
            };
            let whole = consecutive && head(*end)?.is_some_and(|head| head.parts == last + 1);
            if let Some(first) = head(*first)?.filter(|_| whole) {
                found
                    .push(Image { chunks: parts.iter().map(|(_, chunk)| *chunk).collect(), first });
            }
        }
        Ok(found)
    }
}

/// A part that is being filled.
pub(super) struct Writer<'a> {
    flat: &'a Flat,
    whom: For,
    /// Says which parts belong together.
    id: u64,
    next_version: u64,
    kind: ImageKind,
    pub(super) payload: Vec<u8>,
    pub(super) count: u32,
    room: usize,
    /// Chunks of the parts that are written.
    pub(super) chunks: Vec<u32>,
}

impl<'a> Writer<'a> {
    pub(super) fn new(flat: &'a Flat, whom: For, kind: ImageKind, next_version: u64) -> Self {
        let room = usize::try_from(flat.layout.room()).unwrap_or(0) - IMAGE_HEADER_SIZE;
        Writer {
            flat,
            whom,
            id: flat.chunks.next_epoch(),
            next_version,
            kind,
            payload: Vec::new(),
            count: 0,
            room,
            chunks: Vec::new(),
        }
    }
    /// Makes room for an item of so many bytes; false if there is no free chunk.
    pub(super) fn room_for(&mut self, kind: ImageKind, size: usize) -> Result<bool> {
        if self.kind == kind && self.payload.len() + size <= self.room {
            return Ok(true);
        }
        let done = self.payload.is_empty() || self.write(0)?;
        self.kind = kind;
        Ok(done && size <= self.room)
    }

    /// Writes the last part.
    pub(super) fn finish(&mut self) -> Result<bool> {
        let parts = u32::try_from(self.chunks.len()).unwrap_or(0) + 1;
        self.write(parts)
    }

    fn write(&mut self, parts: u32) -> Result<bool> {
        let flat = self.flat;
        let Some(number) = flat.take_free(1, self.whom)? else { return Ok(false) };
        let part = u32::try_from(self.chunks.len()).unwrap_or(0);
        self.chunks.push(number);
        let header = ChunkHeader {
            epoch: 0,
            born: self.id,
            kind: ChunkKind::Image,
            owner: 0,
            number,
            lines: 0,
            chunks: part,
            next_version: flat.versions.next(),
        };
        flat.chunks.begin(&*flat.memory, header)?;
        let header = ImageHeader {
            session: flat.session.load(Ordering::Relaxed),
            part,
            parts,
            kind: self.kind,
            count: self.count,
            payload_bytes: self.payload.len() as u64,
            next_version: self.next_version,
            tombstones: flat.tombstones.load(Ordering::Relaxed),
        };
        let head = header.encode(&self.payload, &flat.layout.store_id);
        let offset = flat.layout.start_of(number) + CHUNK_START;
        flat.memory.store(sites::IMAGE_STORE, offset, &head)?;
        flat.memory.store(sites::IMAGE_STORE, offset + head.len() as u64, &self.payload)?;
        let length = (head.len() + self.payload.len()) as u64;
        flat.memory.flush(sites::IMAGE_FLUSH, offset, length)?;
        self.payload.clear();
        self.count = 0;
        Ok(true)
    }
}

impl Flat {
    /// Writes the image, if there is room, and the mark that it counts. Nobody writes to the store meanwhile.
    pub(super) fn write_image(&self) -> Result<()> {
        // It takes the place of the last checkpoint.
        self.drop_checkpoint()?;
        let next = self.versions.meet();
        let mut writer = Writer::new(self, For::Cleaner, ImageKind::Chunks, next);
        if !(self.add_states(&mut writer)? && self.add_entries(&mut writer)?) {
            tracing::warn!("no room for an image of the index: the next open reads the logs");
            return Ok(());
        }
        if !writer.finish()? {
            return Ok(());
        }
        // PERSIST: one fence for the image and the word that says that it counts: parts validate themselves, so that of
        //          a torn image nothing is used.
        let session = Session { number: self.session.load(Ordering::Relaxed), clean: true };
        let word = session.encode(&self.layout.store_id);
        self.memory.store_u64(sites::SESSION_STORE, SESSION_OFFSET, word)?;
        self.memory.flush(sites::SESSION_FLUSH, SESSION_OFFSET, 8)?;
        self.memory.fence(sites::SESSION_FENCE)
    }

    fn add_states(&self, writer: &mut Writer<'_>) -> Result<bool> {
        let log_start = u32::try_from(CHUNK_START).unwrap_or(0);
        for (number, chunk) in self.chunks.iter() {
            let (entries, dead) = chunk.counts();
            let state = |tail, live| ChunkState { number, tail, entries, live };
            // Of one that was just begun nobody has told.
            let tail = chunk.tail.load(Ordering::Relaxed).max(log_start);
            let (state, bits) = match chunk.usage() {
                Use::OpenLog => (state(tail | OPEN, entries.saturating_sub(dead)), None),
                Use::Log => (state(tail, entries.saturating_sub(dead)), None),
                Use::Large => (state(0, chunk.live.load(Ordering::Relaxed)), None),
                Use::Blocks => (state(0, chunk.live.load(Ordering::Relaxed)), chunk.bits.get()),
                Use::Free | Use::Tail | Use::Other | Use::Bad => continue,
            };
            let words = bits.map_or(0, |bits| bits.len());
            if !writer.room_for(ImageKind::Chunks, CHUNK_STATE_SIZE + 8 * words)? {
                return Ok(false);
            }
            writer.payload.extend_from_slice(&state.encode());
            for word in bits.into_iter().flatten() {
                put_bits(&mut writer.payload, word.load(Ordering::Relaxed));
            }
            writer.count += 1;
        }
        Ok(true)
    }

    pub(super) fn add_entries(&self, writer: &mut Writer<'_>) -> Result<bool> {
        let mut cursor = Cursor::Start;
        while let Some((part, next)) = self.index.walk(&cursor) {
            cursor = next;
            match part {
                Part::Hashes(entries) => {
                    for (hash, word) in entries.into_iter().filter(|it| !self.is_cleared(it.1)) {
                        if !writer.room_for(ImageKind::Hashes, HASH_ENTRY_SIZE)? {
                            return Ok(false);
                        }
                        put_hash_entry(&mut writer.payload, hash, word.get());
                        writer.count += 1;
                    }
                }
                Part::Keys(entries) => {
                    for (key, word) in entries.into_iter().filter(|it| !self.is_cleared(it.1)) {
                        if !writer.room_for(ImageKind::Keys, key_entry_size(key.len()))? {
                            return Ok(false);
                        }
                        put_key_entry(&mut writer.payload, &key, word.get());
                        writer.count += 1;
                    }
                }
            }
        }
        Ok(true)
    }

    /// Takes over an image; false if a part is damaged: then the state in DRAM is of no use.
    pub(super) fn load_image(
        &self,
        image: &Image,
        learned: &Learned,
        options: &Options,
    ) -> Result<bool> {
        let load = |part: &ImageHeader, payload: &[u8]| match part.kind {
            ImageKind::Chunks => self.load_states(payload, part.count, learned),
            ImageKind::Hashes => self.load_hashes(payload, part.count, &|_| true),
            ImageKind::Keys => self.load_keys(payload, part.count, &|_| true),
            ImageKind::Tails => None,
        };
        self.versions.raise(image.first.next_version);
        self.tombstones.store(image.first.tombstones, Ordering::Relaxed);
        self.load_parts(image, 0, options, &load)
    }

    /// Reads the parts of an image from `first` on; false if one is damaged.
    pub(super) fn load_parts(
        &self,
        image: &Image,
        first: usize,
        options: &Options,
        load: &(dyn Fn(&ImageHeader, &[u8]) -> Option<()> + Sync),
    ) -> Result<bool> {
        let mut hashes = 0;
        for part in first..image.chunks.len() {
            let head = self.peek_part(image, part)?;
            let head = head.filter(|(_, head)| head.kind == ImageKind::Hashes);
            hashes += head.map_or(0, |(_, head)| {
                // It has not been verified: no more than there is room for.
                u64::from(head.count).min(head.payload_bytes / HASH_ENTRY_SIZE as u64)
            });
        }
        self.index.expect(hashes);
        let done = AtomicUsize::new(first);
        let whole = AtomicBool::new(true);
        let work = || {
            let mut buffer = Vec::new();
            loop {
                let step = done.fetch_add(1, Ordering::Relaxed);
                if step >= image.chunks.len() || !whole.load(Ordering::Relaxed) {
                    return Ok(());
                }
                let part = self.read_part(image, step, &mut buffer)?;
                if part.and_then(|(header, payload)| load(&header, payload)).is_none() {
                    whole.store(false, Ordering::Relaxed);
                    return Ok(());
                }
                options.progress.report(step as u64, image.chunks.len() as u64);
            }
        };
        self.in_parallel(image.chunks.len().saturating_sub(first), &work)?;
        Ok(whole.load(Ordering::Relaxed))
    }

    /// Where a part of an image begins, and its header, which is not verified; `None` if that cannot be one.
    fn peek_part(&self, image: &Image, part: usize) -> Result<Option<(u64, ImageHeader)>> {
        let Some(chunk) = image.chunks.get(part) else { return Ok(None) };
        let offset = self.layout.start_of(*chunk) + CHUNK_START;
        let mut head = [0; IMAGE_HEADER_SIZE];
        if !read_if_there(&*self.memory, offset, &mut head)? {
            return Ok(None);
        }
        let room = self.layout.room() - IMAGE_HEADER_SIZE as u64;
        let peeked = ImageHeader::peek(&head).ok().filter(|head| head.payload_bytes <= room);
        Ok(peeked.map(|head| (offset, head)))
    }

    /// A part of an image; `None` if it is damaged, or another's.
    pub(super) fn read_part<'b>(
        &self,
        image: &Image,
        part: usize,
        buffer: &'b mut Vec<u8>,
    ) -> Result<Option<(ImageHeader, &'b [u8])>> {
        let Some((offset, peeked)) = self.peek_part(image, part)? else { return Ok(None) };
        let length = IMAGE_HEADER_SIZE + usize::try_from(peeked.payload_bytes).unwrap_or(0);
        buffer.resize(length, 0);
        if !read_if_there(&*self.memory, offset, buffer)? {
            return Ok(None);
        }
        let sound = || sites::IMAGE_CHECKSUM.disabled();
        let found = ImageHeader::decode(buffer, &self.layout.store_id, sound).ok();
        let Some((header, payload)) = found else { return Ok(None) };
        let ImageHeader { session, next_version, .. } = image.first;
        let own = header.session == session && header.next_version == next_version;
        let right = usize::try_from(header.part).is_ok_and(|number| number == part);
        Ok((own && right).then_some((header, payload)))
    }

    fn load_states(&self, payload: &[u8], count: u32, learned: &Learned) -> Option<()> {
        let mut rest = payload;
        for _ in 0..count {
            let state = ChunkState::decode(rest).ok()?;
            rest = rest.get(CHUNK_STATE_SIZE..)?;
            let chunk = self.chunks.get(state.number)?;
            match chunk.usage() {
                Use::Log => {
                    let tail = state.tail & !OPEN;
                    if !self.layout.is_tail(tail) {
                        return None;
                    }
                    let dead = state.entries.checked_sub(state.live)?;
                    chunk.restore_counts(state.entries, dead, tail);
                    if state.tail & OPEN != 0 && !self.resume(state.number, u64::from(tail)) {
                        let end = self.layout.start_of(state.number) + u64::from(tail);
                        learned.note_end(LogEnd { chunk: state.number, last: end..end });
                    }
                }
                Use::Large => chunk.live.store(state.live, Ordering::Relaxed),
                Use::Blocks => {
                    self.bits(chunk);
                    let mut live = 0;
                    for word in chunk.bits.get().into_iter().flatten() {
                        let bits = take_bits(&mut rest).ok()?;
                        live += bits.count_ones();
                        word.store(bits, Ordering::Relaxed);
                    }
                    if live != state.live {
                        return None;
                    }
                    chunk.live.store(state.live, Ordering::Relaxed);
                }
                _ => return None,
            }
        }
        Some(())
    }

    /// Lets the log of a chunk's core go on there; false if there is no such core any more, or it goes on elsewhere.
    fn resume(&self, number: u32, tail: u64) -> bool {
        let Some(chunk) = self.chunks.get(number) else { return false };
        let owner = usize::try_from(chunk.owner.load(Ordering::Relaxed)).unwrap_or(0);
        let Some(log) = self.logs.get(owner) else { return false };
        let mut log = log.0.lock();
        let resumes = log.open.is_none();
        if resumes {
            log.open = Some((number, tail));
            chunk.set_usage(Use::OpenLog);
        }
        resumes
    }

    /// Adds those entries whose words `counts` says count.
    pub(super) fn load_hashes(
        &self,
        payload: &[u8],
        count: u32,
        counts: &dyn Fn(Word) -> bool,
    ) -> Option<()> {
        let mut rest = payload;
        let mut entries = Vec::with_capacity(payload.len() / HASH_ENTRY_SIZE);
        for _ in 0..count {
            let (hash, word) = take_hash_entry(&mut rest).ok()?;
            let word = Word::new(word)?;
            if counts(word) {
                entries.push((hash, word));
            }
        }
        self.index.load_hashes(&entries);
        Some(())
    }

    /// As before.
    pub(super) fn load_keys(
        &self,
        payload: &[u8],
        count: u32,
        counts: &dyn Fn(Word) -> bool,
    ) -> Option<()> {
        let mut rest = payload;
        let mut entries = Vec::new();
        for _ in 0..count {
            let (key, word) = take_key_entry(&mut rest).ok()?;
            let word = Word::new(word)?;
            if counts(word) {
                entries.push((key, word));
            }
        }
        self.index.load_keys(&entries);
        Some(())
    }
}
