//! The image of a clean stop: index and counts, in free chunks, so that the next open reads no log (FlatStore §3.5).
//!
//! # Failure
//! The image counts if the session word says so, which is durable after the image is, and which the next open takes away
//! before anything new is written. Of an image that is damaged nothing is used: the logs are read instead.

use super::chunks::{For, Use};
use super::index::{Cursor, Part};
use super::layout::Layout;
use super::recover::Root;
use super::{Flat, sites};
use crate::options::Options;
use esker_base::Result;
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
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// In a state's tail: the log goes on in this chunk.
const OPEN: u32 = 1 << 31;
/// Bits of an epoch below the session's number.
const EPOCH_BITS: u32 = 32;

/// The parts of an image, by number.
pub(super) struct Image {
    chunks: Vec<u32>,
}

impl Image {
    /// The parts of the image of the last session, if all are there. They are checked as they are loaded.
    pub(super) fn find(memory: &dyn Pmem, layout: &Layout, root: &Root) -> Result<Option<Image>> {
        let mut parts: Vec<(u32, u32)> = root
            .headers
            .iter()
            .filter(|header| {
                header.kind == ChunkKind::Image && header.epoch >> EPOCH_BITS == root.session.number
            })
            .map(|header| (header.chunks, header.number))
            .collect();
        parts.sort_unstable();
        let consecutive = parts.iter().zip(0..).all(|((part, _), number)| *part == number);
        let Some((last, chunk)) = parts.last().filter(|_| consecutive) else { return Ok(None) };
        let mut head = [0; IMAGE_HEADER_SIZE];
        memory.read(layout.start_of(*chunk) + CHUNK_START, &mut head)?;
        let whole = ImageHeader::peek(&head).is_ok_and(|head| head.parts == last + 1);
        let chunks = parts.iter().map(|(_, chunk)| *chunk).collect();
        Ok(whole.then_some(Image { chunks }))
    }
}

/// A part that is being filled.
struct Writer<'a> {
    flat: &'a Flat,
    kind: ImageKind,
    payload: Vec<u8>,
    count: u32,
    part: u32,
    room: usize,
}

impl Writer<'_> {
    /// Makes room for an item of so many bytes; false if there is no free chunk.
    fn room_for(&mut self, kind: ImageKind, size: usize) -> Result<bool> {
        if self.kind == kind && self.payload.len() + size <= self.room {
            return Ok(true);
        }
        let done = self.payload.is_empty() || self.write(0)?;
        self.kind = kind;
        Ok(done && size <= self.room)
    }

    fn write(&mut self, parts: u32) -> Result<bool> {
        let flat = self.flat;
        let Some(number) = flat.chunks.take(1, For::Cleaner) else { return Ok(false) };
        let header = ChunkHeader {
            epoch: 0,
            born: 0,
            kind: ChunkKind::Image,
            owner: 0,
            number,
            lines: 0,
            chunks: self.part,
        };
        flat.chunks.begin(&*flat.memory, header)?;
        let header = ImageHeader {
            session: flat.session.load(Ordering::Relaxed),
            part: self.part,
            parts,
            kind: self.kind,
            count: self.count,
            payload_bytes: self.payload.len() as u64,
            next_version: flat.versions.last().0 + 1,
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
        self.part += 1;
        Ok(true)
    }
}

impl Flat {
    /// Writes the image, if there is room, and the mark that it counts. Nobody writes to the store meanwhile.
    pub(super) fn write_image(&self) -> Result<()> {
        let room = usize::try_from(self.layout.room()).unwrap_or(0) - IMAGE_HEADER_SIZE;
        let kind = ImageKind::Chunks;
        let mut writer = Writer { flat: self, kind, payload: Vec::new(), count: 0, part: 0, room };
        if !(self.add_states(&mut writer)? && self.add_entries(&mut writer)?) {
            tracing::warn!("no room for an image of the index: the next open reads the logs");
            return Ok(());
        }
        let parts = writer.part + 1;
        if !writer.write(parts)? {
            return Ok(());
        }
        // PERSIST: the image before the word that says that it counts.
        self.memory.fence(sites::IMAGE_FENCE)?;
        let session = Session { number: self.session.load(Ordering::Relaxed), clean: true };
        let word = session.encode(&self.layout.store_id);
        self.memory.store_u64(sites::SESSION_STORE, SESSION_OFFSET, word)?;
        self.memory.flush(sites::SESSION_FLUSH, SESSION_OFFSET, 8)?;
        self.memory.fence(sites::SESSION_FENCE)
    }

    fn add_states(&self, writer: &mut Writer<'_>) -> Result<bool> {
        for (number, chunk) in self.chunks.iter() {
            let (entries, dead) = chunk.counts();
            let state = |tail, live| ChunkState { number, tail, entries, live };
            let tail = chunk.tail.load(Ordering::Relaxed);
            let (state, bits) = match chunk.usage() {
                Use::OpenLog => (state(tail | OPEN, entries - dead), None),
                Use::Log => (state(tail, entries - dead), None),
                Use::Large => (state(0, chunk.live.load(Ordering::Relaxed)), None),
                Use::Blocks => (state(0, chunk.live.load(Ordering::Relaxed)), chunk.bits.get()),
                Use::Free | Use::Tail | Use::Other => continue,
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

    fn add_entries(&self, writer: &mut Writer<'_>) -> Result<bool> {
        let mut cursor = Cursor::Start;
        while let Some((part, next)) = self.index.walk(&cursor) {
            cursor = next;
            match part {
                Part::Hashes(entries) => {
                    for (hash, word) in entries {
                        if !writer.room_for(ImageKind::Hashes, HASH_ENTRY_SIZE)? {
                            return Ok(false);
                        }
                        put_hash_entry(&mut writer.payload, hash, word.get());
                        writer.count += 1;
                    }
                }
                Part::Keys(entries) => {
                    for (key, word) in entries {
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
    pub(super) fn load_image(&self, image: &Image, options: &Options) -> Result<bool> {
        let done = AtomicUsize::new(0);
        let whole = AtomicBool::new(true);
        let work = || {
            let mut buffer = Vec::new();
            loop {
                let step = done.fetch_add(1, Ordering::Relaxed);
                let Some(chunk) = image.chunks.get(step) else { return Ok(()) };
                if self.load_part(*chunk, step, &mut buffer)?.is_none() {
                    whole.store(false, Ordering::Relaxed);
                    return Ok(());
                }
                options.progress.report(step as u64, image.chunks.len() as u64);
            }
        };
        self.in_parallel(image.chunks.len(), &work)?;
        Ok(whole.load(Ordering::Relaxed))
    }

    fn load_part(&self, chunk: u32, part: usize, buffer: &mut Vec<u8>) -> Result<Option<()>> {
        let offset = self.layout.start_of(chunk) + CHUNK_START;
        let mut head = [0; IMAGE_HEADER_SIZE];
        self.memory.read(offset, &mut head)?;
        let room = self.layout.room() - IMAGE_HEADER_SIZE as u64;
        let peeked = ImageHeader::peek(&head).ok().filter(|head| head.payload_bytes <= room);
        let Some(peeked) = peeked else { return Ok(None) };
        let length = IMAGE_HEADER_SIZE + usize::try_from(peeked.payload_bytes).unwrap_or(0);
        buffer.resize(length, 0);
        self.memory.read(offset, buffer)?;
        let sound = || sites::IMAGE_CHECKSUM.disabled();
        let found = ImageHeader::decode(buffer, &self.layout.store_id, sound).ok();
        let Some((header, payload)) = found else { return Ok(None) };
        let session = self.session.load(Ordering::Relaxed);
        if usize::try_from(header.part).unwrap_or(usize::MAX) != part || header.session != session {
            return Ok(None);
        }
        if part == 0 {
            self.versions.raise(header.next_version);
            self.tombstones.store(header.tombstones, Ordering::Relaxed);
        }
        Ok(match header.kind {
            ImageKind::Chunks => self.load_states(payload, header.count),
            ImageKind::Hashes => self.load_hashes(payload, header.count),
            ImageKind::Keys => self.load_keys(payload, header.count),
        })
    }

    fn load_states(&self, payload: &[u8], count: u32) -> Option<()> {
        let mut rest = payload;
        for _ in 0..count {
            let state = ChunkState::decode(rest).ok()?;
            rest = rest.get(CHUNK_STATE_SIZE..)?;
            let chunk = self.chunks.get(state.number)?;
            match chunk.usage() {
                Use::Log => {
                    let tail = state.tail & !OPEN;
                    let dead = state.entries.checked_sub(state.live)?;
                    chunk.set_counts(state.entries, dead, tail);
                    if state.tail & OPEN != 0 {
                        self.resume(state.number, u64::from(tail));
                    }
                }
                Use::Large => chunk.live.store(state.live, Ordering::Relaxed),
                Use::Blocks => {
                    self.bits(chunk);
                    for word in chunk.bits.get().into_iter().flatten() {
                        word.store(take_bits(&mut rest).ok()?, Ordering::Relaxed);
                    }
                    chunk.live.store(state.live, Ordering::Relaxed);
                }
                _ => return None,
            }
        }
        Some(())
    }

    /// Lets the log of a chunk's core go on there.
    fn resume(&self, number: u32, tail: u64) {
        let Some(chunk) = self.chunks.get(number) else { return };
        let owner = usize::try_from(chunk.owner.load(Ordering::Relaxed)).unwrap_or(0);
        let Some(log) = self.logs.get(owner) else { return };
        let mut log = log.0.lock();
        if log.open.is_none() {
            log.open = Some((number, tail));
            chunk.set_usage(Use::OpenLog);
        }
    }

    fn load_hashes(&self, payload: &[u8], count: u32) -> Option<()> {
        let mut rest = payload;
        let mut entries = Vec::with_capacity(payload.len() / HASH_ENTRY_SIZE);
        for _ in 0..count {
            let (hash, word) = take_hash_entry(&mut rest).ok()?;
            entries.push((hash, Word::new(word)?));
        }
        self.index.load_hashes(&entries);
        Some(())
    }

    fn load_keys(&self, payload: &[u8], count: u32) -> Option<()> {
        let mut rest = payload;
        let mut entries = Vec::new();
        for _ in 0..count {
            let (key, word) = take_key_entry(&mut rest).ok()?;
            entries.push((key, Word::new(word)?));
        }
        self.index.load_keys(&entries);
        Some(())
    }
}
