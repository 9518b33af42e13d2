//! Opening: making a store, or finding what is there (FlatStore §3.5).
//!
//! After a crash all logs are read, chunk by chunk, in any order and by several threads: of two entries of a key the
//! one with the newer version counts. Then the index says what counts in each chunk, and which records are in use.
//! After a clean stop an image says all that (`checkpoint`); an image of an open store says it of what stood in the logs
//! before (`periodic`), so that only the rest of them is read.
//!
//! # Failure
//! Nothing is written before everything was read; then the new session is made durable, which takes the mark of the
//! clean stop away in the same word, and chunks of records that nobody points at are freed. A crash here changes nothing.

use super::checkpoint::Image;
use super::chunks::{Since, Use};
use super::index::Part;
use super::layout::{Layout, Place};
use super::periodic::Tails;
use super::{Flat, sites};
use crate::options::Options;
use esker_base::ids::StoreId;
use esker_base::rng::Rng;
use esker_base::{Error, ErrorKind, Result};
use esker_format::Flaw;
use esker_format::flat::batch::batch_size;
use esker_format::flat::{
    BatchHeader, BatchKind, CHUNK_HEADER_SIZE, CHUNK_START, CLEAR_OFFSETS, CLEAR_SIZE, ChunkHeader,
    ChunkKind, Clear, Entry, IndexKind, LINE, SESSION_OFFSET, SUPERBLOCK_OFFSETS, SUPERBLOCK_SIZE,
    Session, Stamp, Superblock,
};
use esker_index::Word;
use esker_media::Pmem;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Locks of keys while several threads recover.
const LOCKS: usize = 1024;
/// Longest batch that is looked for behind a torn one, in bytes.
const SEARCH_BYTES: usize = 8 << 10;
/// Bits of an epoch below the session's number.
const EPOCH_BITS: u32 = 32;

/// What the root chunk and the chunk headers say.
pub(super) struct Root {
    pub(super) superblock: Superblock,
    pub(super) session: Session,
    pub(super) clear: Clear,
    pub(super) headers: Vec<ChunkHeader>,
    /// Copies of headers that do not say what counts: offset, and what counts.
    stale: Vec<(u64, ChunkHeader)>,
}

fn corrupted(memory: &dyn Pmem, words: String, offset: u64, length: u64) -> Error {
    Error::corrupted("open store", words).device(memory.name()).at(offset, length)
}

/// Reads the superblock; `None` on blank memory.
fn read_superblock(memory: &dyn Pmem) -> Result<Option<Superblock>> {
    let mut flaw = None;
    for offset in SUPERBLOCK_OFFSETS {
        let mut bytes = [0; SUPERBLOCK_SIZE];
        memory.read(offset, &mut bytes)?;
        match Superblock::decode(&bytes) {
            Ok(found) => return Ok(Some(found)),
            // The magic is stored last, in one piece.
            Err(_) if bytes.first_chunk::<8>() == Some(&[0; 8]) => {}
            Err(found) => flaw = flaw.or(Some(found)),
        }
    }
    let error = match flaw {
        None => return Ok(None),
        Some(Flaw::Version(version)) => Error::new(ErrorKind::UnsupportedFormat, "open store")
            .context(format!("format version {version} is not known to this build")),
        Some(Flaw::Magic) => {
            Error::invalid("open store", "the memory holds something that is no store of flat")
        }
        Some(flaw) => Error::corrupted("open store", flaw.to_string()).at(0, 256),
    };
    Err(error.device(memory.name()))
}

/// Makes a new store.
fn format(
    memory: &dyn Pmem,
    options: &Options,
    index: IndexKind,
    rng: &mut Rng,
) -> Result<Superblock> {
    let size_bytes = memory.size_bytes();
    let (chunk_size_bytes, chunk_count) =
        Layout::plan(size_bytes, options.testing.segment_size_bytes)?;
    let mut identity = [[0; 16]; 2];
    identity.iter_mut().for_each(|bytes| rng.fill(bytes));
    let [store_id, hash_key] = identity;
    let superblock = Superblock {
        store_id: StoreId(store_id),
        hash_key,
        hash_mask: options.testing.hash_mask,
        size_bytes,
        chunk_size_bytes,
        chunk_count,
        index,
        created_unix_seconds: options.clock.unix_seconds(),
    };
    // PERSIST: first nothing is there any more; then everything but the superblock; then the superblock, whose
    //          magic comes last, in one piece. A crash before that leaves blank memory.
    for offset in SUPERBLOCK_OFFSETS {
        memory.store_u64(sites::FORMAT_STORE, offset, 0)?;
        memory.flush(sites::FORMAT_FLUSH, offset, 8)?;
    }
    memory.fence(sites::FORMAT_FENCE)?;
    let layout = Layout::of(&superblock);
    for number in 1..chunk_count {
        let header = ChunkHeader {
            epoch: 0,
            born: 0,
            kind: ChunkKind::Free,
            owner: 0,
            number,
            lines: 0,
            chunks: 0,
        };
        let bytes = header.encode(&layout.store_id);
        let start = layout.start_of(number);
        memory.store(sites::FORMAT_STORE, start, &bytes)?;
        memory.store(sites::FORMAT_STORE, start + CHUNK_HEADER_SIZE as u64, &bytes)?;
        memory.flush(sites::FORMAT_FLUSH, start, CHUNK_START)?;
    }
    let clear = Clear::default().encode(&layout.store_id);
    for offset in CLEAR_OFFSETS {
        memory.store(sites::FORMAT_STORE, offset, &clear)?;
        memory.flush(sites::FORMAT_FLUSH, offset, CLEAR_SIZE as u64)?;
    }
    let session = Session { number: 1, clean: false }.encode(&layout.store_id);
    memory.store_u64(sites::FORMAT_STORE, SESSION_OFFSET, session)?;
    let bytes = superblock.encode();
    let (magic, rest) = bytes.split_first_chunk::<8>().unwrap_or((&[0; 8], &[]));
    for offset in SUPERBLOCK_OFFSETS {
        memory.store(sites::FORMAT_STORE, offset + 8, rest)?;
        memory.flush(sites::FORMAT_FLUSH, offset, bytes.len() as u64)?;
    }
    memory.flush(sites::FORMAT_FLUSH, SESSION_OFFSET, 8)?;
    memory.fence(sites::FORMAT_FENCE)?;
    for offset in SUPERBLOCK_OFFSETS {
        memory.store_u64(sites::FORMAT_STORE, offset, u64::from_le_bytes(*magic))?;
        // Durable with the fence of the session that begins now, before which nobody hears of the store.
        memory.flush(sites::SUPERBLOCK_FLUSH, offset, 8)?;
    }
    Ok(superblock)
}

/// The newer whole copy of a chunk's header, and the number of the other one if that says something else; `None` if
/// neither is whole.
pub(super) fn read_header(
    memory: &dyn Pmem,
    layout: &Layout,
    number: u32,
) -> Result<Option<(ChunkHeader, Option<u64>)>> {
    let mut bytes = [0; 2 * CHUNK_HEADER_SIZE];
    memory.read(layout.start_of(number), &mut bytes)?;
    let sound = || sites::CHUNK_CHECKSUM.disabled();
    let decode = |bytes: &[u8]| ChunkHeader::decode(bytes, &layout.store_id, number, sound).ok();
    let (first, second) = bytes.split_at(CHUNK_HEADER_SIZE);
    // Both say the same, but for a crash between them: then the first is the newer one, or it is torn.
    Ok(match (decode(first), decode(second)) {
        (Some(first), Some(second)) if first == second => Some((first, None)),
        (Some(first), Some(second)) if second.epoch > first.epoch => Some((second, Some(0))),
        (Some(first), _) => Some((first, Some(1))),
        (None, Some(second)) => Some((second, Some(0))),
        (None, None) => None,
    })
}

impl Root {
    /// Reads the root chunk and all headers; makes a store where there is none.
    pub(super) fn open(
        memory: &dyn Pmem,
        options: &Options,
        index: Option<IndexKind>,
        rng: &mut Rng,
    ) -> Result<Root> {
        let found = match read_superblock(memory) {
            Ok(found) if !options.format => found,
            Err(error) if !options.format => return Err(error),
            _ => None,
        };
        let superblock = match found {
            Some(found) => found,
            None if !options.create && !options.format => {
                return Err(Error::invalid("open store", "there is no store here"));
            }
            None => format(memory, options, index.unwrap_or(IndexKind::Cceh), rng)?,
        };
        if let Some(index) = index
            && index != superblock.index
        {
            let words = "the store was made with the other index of flat";
            return Err(Error::invalid("open store", words).device(memory.name()));
        }
        if superblock.size_bytes > memory.size_bytes() {
            let words = format!("the store has {} bytes, the memory fewer", superblock.size_bytes);
            return Err(corrupted(memory, words, 0, 256));
        }
        let size = u64::from(superblock.chunk_count).saturating_mul(superblock.chunk_size_bytes);
        Layout::check_size(size).map_err(|error| error.device(memory.name()))?;
        let layout = Layout::of(&superblock);
        let (headers, stale) = Root::read_headers(memory, &layout)?;
        let newest = headers.iter().map(|header| header.epoch >> EPOCH_BITS).max().unwrap_or(0);
        let word = memory.load_u64(SESSION_OFFSET)?;
        // A damaged word costs the image: the headers know the latest session that wrote.
        let session = Session::decode(word, &layout.store_id)
            .unwrap_or(Session { number: newest, clean: false });
        let mut clear = Clear::default();
        for offset in CLEAR_OFFSETS {
            let mut bytes = [0; CLEAR_SIZE];
            memory.read(offset, &mut bytes)?;
            if let Ok(slot) = Clear::decode(&bytes, &layout.store_id)
                && slot.generation > clear.generation
            {
                clear = slot;
            }
        }
        Ok(Root { superblock, session, clear, headers, stale })
    }

    #[expect(clippy::type_complexity, reason = "headers, and copies that are stale")]
    fn read_headers(
        memory: &dyn Pmem,
        layout: &Layout,
    ) -> Result<(Vec<ChunkHeader>, Vec<(u64, ChunkHeader)>)> {
        let (mut headers, mut stale) = (Vec::new(), Vec::new());
        let mut number = 1;
        while number < layout.chunk_count {
            let Some((header, other)) = read_header(memory, layout, number)? else {
                let words = format!("neither header of chunk {number} is whole");
                return Err(corrupted(memory, words, layout.start_of(number), CHUNK_START));
            };
            // Behind the first chunk of a large record there are no headers.
            let chunks = if header.kind == ChunkKind::Large { header.chunks.max(1) } else { 1 };
            if chunks > layout.chunk_count - number {
                let words = "a record goes on behind the end".to_owned();
                return Err(corrupted(memory, words, layout.start_of(number), CHUNK_START));
            }
            headers.push(header);
            stale.extend(
                other.map(|copy| {
                    (layout.start_of(number) + copy * CHUNK_HEADER_SIZE as u64, header)
                }),
            );
            number += chunks;
        }
        Ok((headers, stale))
    }
}

/// What recovery learns, by several threads.
struct Scan<'a> {
    flat: &'a Flat,
    tails: &'a Tails,
    clear: u64,
    locks: Box<[Mutex<()>]>,
    /// The highest version that was found.
    newest: AtomicU64,
}

impl Scan<'_> {
    /// Reads a chunk of a log.
    fn chunk(&self, number: u32, buffer: &mut Vec<u8>) -> Result<()> {
        let flat = self.flat;
        let Some(chunk) = flat.chunks.get(number) else { return Ok(()) };
        let (start, salt) = (flat.layout.start_of(number), chunk.salt());
        buffer.resize(usize::try_from(flat.layout.chunk_size).unwrap_or(0), 0);
        let (mut at, mut entries) = self.tails.of(number);
        flat.memory.read(start + at as u64, buffer.get_mut(at..).unwrap_or_default())?;
        let mut sealed = false;
        while at < buffer.len() {
            let batch = buffer.get_mut(at..).unwrap_or_default();
            let offset = start + at as u64;
            let sound = || sites::BATCH_CHECKSUM.disabled();
            let Ok((header, payload)) = BatchHeader::decode(batch, salt, offset, sound) else {
                break;
            };
            if header.kind == BatchKind::Seal {
                sealed = true;
                break;
            }
            entries += self.batch(&header, payload, offset)?;
            at += batch_size(header.payload_bytes);
        }
        if !sealed && self.goes_on(buffer, at, salt, start) && !sites::COMMITTED_POINT.disabled() {
            let words = "a batch is damaged, and whole ones follow it".to_owned();
            return Err(corrupted(&*flat.memory, words, start + at as u64, LINE as u64));
        }
        chunk.set_counts(entries, 0, u32::try_from(at).unwrap_or(u32::MAX));
        Ok(())
    }

    /// Whether a whole batch stands behind one that is not: only the last one can be torn (L1).
    fn goes_on(&self, buffer: &mut [u8], from: usize, salt: u64, start: u64) -> bool {
        (from + LINE..buffer.len()).step_by(LINE).any(|at| {
            let batch = buffer.get_mut(at..).unwrap_or_default();
            let short = BatchHeader::peek(batch)
                .is_ok_and(|header| batch_size(header.payload_bytes) <= SEARCH_BYTES);
            short && BatchHeader::decode(batch, salt, start + at as u64, || false).is_ok()
        })
    }

    fn batch(&self, header: &BatchHeader, payload: &[u8], offset: u64) -> Result<u32> {
        let mut rest = payload;
        let mut ordinal = 0;
        let mut newest = 0;
        while !rest.is_empty() {
            let entry = Entry::decode(rest)
                .map_err(|flaw| corrupted(&*self.flat.memory, flaw.to_string(), offset, 64))?;
            let place = self.flat.place_in(header, offset, rest.len(), ordinal, &entry);
            let version = version_in(header, ordinal, entry.stamp);
            newest = newest.max(version);
            ordinal += 1;
            rest = rest.get(entry.size..).unwrap_or(&[]);
            if version < self.clear && !sites::RECOVER_CLEAR.disabled() {
                continue;
            }
            self.entry(&entry, place, version)?;
        }
        self.newest.fetch_max(newest, Ordering::Relaxed);
        Ok(u32::try_from(ordinal).unwrap_or(u32::MAX))
    }

    fn entry(&self, entry: &Entry<'_>, place: Place, version: u64) -> Result<()> {
        let flat = self.flat;
        let Some(key) = flat.key_of_entry(entry)? else { return Ok(()) };
        let key = &key[..];
        let (hash, word) = (flat.hasher.hash(key), place.word());
        let _lock =
            self.locks.get(usize::try_from(hash >> 7).unwrap_or(0) % LOCKS).map(Mutex::lock);
        match flat.find(hash, key)? {
            None => flat.index.insert(hash, key, word),
            Some(held) => {
                let other = flat.known(held, Since::HELD)?.map_or(0, |known| known.version.0);
                if other < version || sites::RECOVER_NEWEST.disabled() {
                    flat.index.replace(hash, key, held, word);
                }
            }
        }
        Ok(())
    }
}

/// The version of an entry of a batch.
pub(super) fn version_in(header: &BatchHeader, ordinal: usize, stamp: Stamp) -> u64 {
    match stamp {
        Stamp::Place => header.base_version.wrapping_add(ordinal as u64),
        Stamp::Delta(delta) => header.base_version.wrapping_add(u64::from(delta)),
        Stamp::Whole(version) => version,
    }
}

impl Flat {
    /// Makes the state in DRAM from what is on media, and begins a session.
    /// False if there is an image that is damaged: then what this made is of no use, and the image not to be asked
    /// for again.
    pub(super) fn recover(&self, root: &Root, options: &Options, images: bool) -> Result<bool> {
        self.session.store(root.session.number, Ordering::Relaxed);
        for header in &root.headers {
            if let Some(chunk) = self.chunks.get(header.number) {
                chunk.adopt(header, &self.layout);
            }
            if header.kind == ChunkKind::Large {
                for number in header.number + 1..header.number + header.chunks.max(1) {
                    if let Some(chunk) = self.chunks.get(number) {
                        chunk.set_usage(Use::Tail);
                    }
                }
            }
        }
        let image = match root.session.clean && images {
            true => Image::find(&*self.memory, &self.layout, root)?,
            false => None,
        };
        match image {
            Some(image) if self.load_image(&image, options)? => {}
            Some(_) => return Ok(false),
            None => {
                let checkpoint = if images { self.find_checkpoint(root)? } else { None };
                let tails = match &checkpoint {
                    Some(checkpoint) if !self.load_checkpoint(checkpoint, options)? => {
                        return Ok(false);
                    }
                    Some(checkpoint) => &checkpoint.tails,
                    None => &Tails::default(),
                };
                self.scan_logs(root, tails, options)?;
                self.keep_checkpoint(checkpoint);
            }
        }
        self.begin_session(root)?;
        self.mend_headers(root)?;
        self.free_unused(root)?;
        Ok(true)
    }

    /// Reads the logs, or what stands behind the tails that a checkpoint covers.
    fn scan_logs(&self, root: &Root, tails: &Tails, options: &Options) -> Result<()> {
        let logs: Vec<u32> = root
            .headers
            .iter()
            .filter(|header| header.kind == ChunkKind::Log)
            .map(|header| header.number)
            .collect();
        let scan = Scan {
            flat: self,
            tails,
            clear: root.clear.version,
            locks: (0..LOCKS).map(|_| Mutex::default()).collect(),
            newest: AtomicU64::new(root.clear.version.max(tails.newest)),
        };
        let done = AtomicUsize::new(0);
        let work = || {
            let mut buffer = Vec::new();
            loop {
                let step = done.fetch_add(1, Ordering::Relaxed);
                let Some(number) = logs.get(step) else { return Ok(()) };
                scan.chunk(*number, &mut buffer)?;
                options.progress.report(step as u64, logs.len() as u64);
            }
        };
        self.in_parallel(logs.len(), &work)?;
        let logs = root.headers.iter().filter(|header| header.kind == ChunkKind::Log);
        let born = logs.map(|header| header.born).max().unwrap_or(0);
        let newest = scan.newest.load(Ordering::Relaxed);
        self.sequence.store((newest + 1).max(born), Ordering::Relaxed);
        self.count_found()
    }

    /// Runs the same work on as many threads as there are cores; the first error counts.
    pub(super) fn in_parallel(
        &self,
        parts: usize,
        work: &(dyn Fn() -> Result<()> + Sync),
    ) -> Result<()> {
        let threads = self.threads.min(parts);
        if threads < 2 {
            return work();
        }
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            let ends = workers.into_iter().map(|worker| {
                worker.join().unwrap_or_else(|_| {
                    Err(Error::new(ErrorKind::Panicked, "open store").context("recovery"))
                })
            });
            // All are waited for, also after an error.
            ends.collect::<Vec<_>>().into_iter().collect()
        })
    }

    /// Counts what the index has: live entries of each chunk, and records in use.
    fn count_found(&self) -> Result<()> {
        let mut live = vec![0_u32; usize::try_from(self.layout.chunk_count).unwrap_or(0)];
        let mut tombstones = 0;
        let mut cursor = super::index::Cursor::Start;
        let mut count = |word: Word| -> Result<()> {
            let place = Place::of(word);
            let number = self.layout.chunk_of(place.offset);
            if let Some(live) = live.get_mut(usize::try_from(number).unwrap_or(usize::MAX)) {
                *live += 1;
            }
            tombstones += u64::from(place.kind.is_tombstone());
            if let Some(Some(line)) = self.record_of(word, Since::HELD)?
                && !self.mark(line)
            {
                let words = "an entry points at what is no record of its own".to_owned();
                return Err(corrupted(&*self.memory, words, place.offset, LINE as u64));
            }
            Ok(())
        };
        while let Some((part, next)) = self.index.walk(&cursor) {
            cursor = next;
            match part {
                Part::Hashes(entries) => entries.iter().try_for_each(|(_, word)| count(*word))?,
                Part::Keys(entries) => entries.iter().try_for_each(|(_, word)| count(*word))?,
            }
        }
        self.tombstones.store(tombstones, Ordering::Relaxed);
        for ((_, chunk), live) in self.chunks.iter().zip(live.iter().skip(1)) {
            if chunk.is_log() {
                let entries = chunk.counts().0;
                let tail = chunk.tail.load(Ordering::Relaxed);
                chunk.set_counts(entries, entries.saturating_sub(*live), tail);
            }
        }
        Ok(())
    }

    /// Takes the mark of a clean stop away, durably, and begins a session.
    fn begin_session(&self, root: &Root) -> Result<()> {
        let number = root.session.number + 1;
        let word = Session { number, clean: false }.encode(&self.layout.store_id);
        // PERSIST: before anything new is written: an image does not count any more, and no epoch of this session
        //          was used before.
        self.memory.store_u64(sites::SESSION_STORE, SESSION_OFFSET, word)?;
        self.memory.flush(sites::SESSION_FLUSH, SESSION_OFFSET, 8)?;
        self.memory.fence(sites::SESSION_FENCE)?;
        self.session.store(number, Ordering::Relaxed);
        self.chunks.begin_session(number);
        Ok(())
    }

    /// Makes both copies of each header whole: the next change of a header may tear the first.
    fn mend_headers(&self, root: &Root) -> Result<()> {
        for (offset, header) in &root.stale {
            let bytes = header.encode(&self.layout.store_id);
            // PERSIST: the other copy stays as it is.
            self.memory.store(sites::CHUNK_STORE, *offset, &bytes)?;
            self.memory.flush(sites::MEND_FLUSH, *offset, bytes.len() as u64)?;
        }
        if root.stale.is_empty() { Ok(()) } else { self.memory.fence(sites::MEND_FENCE) }
    }

    /// Frees what nothing that counts is in.
    fn free_unused(&self, root: &Root) -> Result<()> {
        for header in &root.headers {
            let Some(chunk) = self.chunks.get(header.number) else { continue };
            let used = chunk.live.load(Ordering::Relaxed) > 0;
            match header.kind {
                ChunkKind::Image if self.is_of_checkpoint(header.number) => {}
                ChunkKind::Free | ChunkKind::Image => self.chunks.add_free(header.number),
                // Their headers do not matter until they are written anew.
                ChunkKind::Blocks if !used => self.chunks.add_free(header.number),
                ChunkKind::Blocks => self.list_found(header.number),
                ChunkKind::Large if !used => self.chunks.release(&*self.memory, header.number)?,
                ChunkKind::Log if chunk.is_dead() && chunk.usage() == Use::Log => {
                    self.chunks.release(&*self.memory, header.number)?;
                }
                ChunkKind::Large | ChunkKind::Log => {}
            }
        }
        Ok(())
    }
}
