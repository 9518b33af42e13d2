//! Opening: making a store, or finding what is there (FlatStore §3.5).
//!
//! After a crash the logs say what the index has (`replay`), after a clean stop an image does (`checkpoint`); an image of an
//! open store says it of what stood in the logs before (`periodic`), so that only the rest of them is read.
//!
//! # Failure
//! Nothing is written before everything was read; then the new session is made durable, which takes the mark of the
//! clean stop away in the same word, and chunks of records that nobody points at are freed. A crash here changes nothing.
//! A process that was killed leaves what it stored where others read it, durable or not: what counts of that is written back with
//! the new session, before anybody hears of it.

use super::checkpoint::Image;
use super::chunks::Use;
use super::layout::Layout;
use super::periodic::Tails;
use super::replay::{Learned, LogEnd};
use super::{Flat, sites};
use crate::engine::threads::on_threads;
use crate::options::Options;
use esker_base::ids::StoreId;
use esker_base::rng::Rng;
use esker_base::{Error, ErrorKind, Result};
use esker_format::Flaw;
use esker_format::flat::{
    CHUNK_HEADER_SIZE, CHUNK_START, CLEAR_OFFSETS, CLEAR_SIZE, ChunkHeader, ChunkKind, Clear,
    IndexKind, LINE, MAKING, RESTORING, SESSION_OFFSET, SUPERBLOCK_OFFSETS, SUPERBLOCK_SIZE,
    Session, Superblock,
};
use esker_media::Pmem;
use std::sync::atomic::Ordering;

/// Magics of memory without a store, and of one that is being restored.
const STORELESS: [[u8; 8]; 3] = [[0; 8], MAKING, RESTORING];
/// Bytes of the root chunk that are written when a store is made: no fewer than those of a chunk's headers.
const ROOT_SIZE: usize = 1024;
/// Bits of an epoch below the session's number.
pub(super) const EPOCH_BITS: u32 = 32;
/// Sessions of which the headers may not be durable: those that were killed one after another while they began.
const SESSIONS_KILLED: u64 = 8;

/// What the root chunk and the chunk headers say.
pub(super) struct Root {
    pub(super) superblock: Superblock,
    pub(super) session: Session,
    /// The medium has lost its line.
    session_lost: bool,
    pub(super) clear: Clear,
    /// Slots of what was cleared that do not say so.
    stale_clears: Vec<u64>,
    pub(super) headers: Vec<ChunkHeader>,
    /// Copies of headers that do not say what counts: offset, and what counts.
    stale: Vec<(u64, ChunkHeader)>,
    /// Chunks without a header: only a repair goes on with such.
    pub(super) headless: Vec<u32>,
}

/// What the chunk headers say: see [`Root`].
#[derive(Default)]
struct Headers {
    headers: Vec<ChunkHeader>,
    stale: Vec<(u64, ChunkHeader)>,
    headless: Vec<u32>,
}

pub(super) fn corrupted(memory: &dyn Pmem, words: String, offset: u64, length: u64) -> Error {
    Error::corrupted("open store", words).device(memory.name()).at(offset, length)
}

/// Chunks that are looked at for a header of a store without superblocks: when a store is made each gets one.
const CHUNKS_LOOKED_AT: u32 = 1024;

/// The first place of a root or chunk that something stands at, if there is any in memory that never held a store.
fn find_remains(memory: &dyn Pmem, chunk_size: Option<u64>) -> Result<Option<u64>> {
    let Ok((chunk_size, count)) = Layout::plan(memory.size_bytes(), chunk_size) else {
        return Ok(None);
    };
    for number in 0..count.min(CHUNKS_LOOKED_AT) {
        let start = u64::from(number) * chunk_size;
        let mut bytes = [0; ROOT_SIZE];
        memory.read(start, &mut bytes)?;
        if bytes.iter().any(|byte| *byte != 0) {
            return Ok(Some(start));
        }
    }
    Ok(None)
}

/// Whether the memory holds something, though no superblock: a store that lost both, or anything else; nothing that was being
/// made or restored.
pub(super) fn remains(memory: &dyn Pmem, chunk_size: Option<u64>) -> Result<Option<u64>> {
    for offset in SUPERBLOCK_OFFSETS {
        let magic = memory.load_u64(offset)?;
        if magic != 0 && is_storeless(magic) {
            return Ok(None);
        }
    }
    find_remains(memory, chunk_size)
}

/// Whether this magic says that there is no store: nobody made one, or has made or restored it whole.
pub(super) fn is_storeless(magic: u64) -> bool {
    STORELESS.iter().any(|other| u64::from_le_bytes(*other) == magic)
}

/// Reads the superblock; `None` on blank memory.
fn read_superblock(memory: &dyn Pmem) -> Result<Option<Superblock>> {
    let (mut flaw, mut restoring) = (None, false);
    for offset in SUPERBLOCK_OFFSETS {
        let mut bytes = [0; SUPERBLOCK_SIZE];
        match memory.read(offset, &mut bytes) {
            Err(error) if error.kind() == ErrorKind::Corrupted => {
                flaw = flaw.or(Some(Flaw::Checksum));
                continue;
            }
            read => read?,
        }
        match Superblock::decode(&bytes) {
            Ok(found) => return Ok(Some(found)),
            // The magic is stored last, in one piece.
            Err(_) if bytes.first_chunk::<8>().is_some_and(|magic| STORELESS.contains(magic)) => {
                restoring |= bytes.starts_with(&RESTORING);
            }
            Err(found) => flaw = flaw.or(Some(found)),
        }
    }
    let error = match flaw {
        None if restoring => {
            Error::invalid("open store", "a restore of this store did not end: restore again")
        }
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
    // PERSIST: first nothing is there any more, and what is found from now on was being made; then everything but the
    //          superblock; then the superblock, whose magic comes last, in one piece. A crash before that leaves no store.
    for offset in SUPERBLOCK_OFFSETS {
        memory.store_u64(sites::FORMAT_STORE, offset, u64::from_le_bytes(MAKING))?;
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
            next_version: 0,
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
        // Written back and durable with the session that begins now, before which nobody hears of the store.
    }
    Ok(superblock)
}

/// A line of the root that begins with these bytes, and has nothing else: one that the medium has lost is so until all of it is written.
pub(super) fn whole_line(bytes: &[u8]) -> [u8; LINE] {
    let mut line = [0; LINE];
    line.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    line
}

/// The newer whole copy of a chunk's header, and the number of the other one if that says something else; `None` if
/// neither is whole.
pub(super) fn read_header(
    memory: &dyn Pmem,
    layout: &Layout,
    number: u32,
) -> Result<Option<(ChunkHeader, Option<u64>)>> {
    let copy = |at: u64| {
        let mut bytes = [0; CHUNK_HEADER_SIZE];
        match memory.read(layout.start_of(number) + at, &mut bytes) {
            // The medium has lost this copy; the other one is on a line of its own.
            Err(error) if error.kind() == ErrorKind::Corrupted => return Ok(None),
            read => read?,
        }
        let sound = || sites::CHUNK_CHECKSUM.disabled();
        Ok::<_, Error>(ChunkHeader::decode(&bytes, &layout.store_id, number, sound).ok())
    };
    // Both say the same, but for a crash between them: then the first is the newer one, or it is torn.
    Ok(match (copy(0)?, copy(CHUNK_HEADER_SIZE as u64)?) {
        (Some(first), Some(second)) if first == second => Some((first, None)),
        (Some(first), Some(second)) if second.epoch > first.epoch => Some((second, Some(0))),
        (Some(first), _) => Some((first, Some(1))),
        (None, Some(second)) => Some((second, Some(0))),
        (None, None) => None,
    })
}

/// The latest session that a header tells of.
fn newest_session(headers: &[ChunkHeader]) -> u64 {
    headers.iter().map(|header| header.epoch >> EPOCH_BITS).max().unwrap_or(0)
}

impl Root {
    /// Reads the root chunk and all headers; makes a store where there is none.
    pub(super) fn open(
        memory: &dyn Pmem,
        options: &Options,
        index: Option<IndexKind>,
        rng: &mut Rng,
        repairs: bool,
    ) -> Result<Root> {
        let found = match read_superblock(memory) {
            Ok(found) if !options.format => found,
            Err(error) if !options.format => return Err(error),
            _ => None,
        };
        let superblock = match found {
            Some(found) => found,
            None if !options.format
                && let Some(offset) = remains(memory, options.testing.segment_size_bytes)? =>
            {
                let words = "no superblock is here, but something else: restore a backup over it, or remove it for a new store";
                return Err(corrupted(memory, words.into(), offset, ROOT_SIZE as u64));
            }
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
            let words = format!(
                "the store has {} bytes, the memory fewer: a file that was cut short is to be as long again before it is repaired",
                superblock.size_bytes
            );
            return Err(corrupted(memory, words, 0, 256));
        }
        let size = u64::from(superblock.chunk_count).saturating_mul(superblock.chunk_size_bytes);
        Layout::check_size(size).map_err(|error| error.device(memory.name()))?;
        let layout = Layout::of(&superblock);
        let Headers { headers, stale, headless } = Root::read_headers(memory, &layout, repairs)?;
        let newest = newest_session(&headers);
        // A damaged word costs the image: the headers know the latest session that wrote.
        let word = match memory.load_u64(SESSION_OFFSET) {
            Err(error) if error.kind() == ErrorKind::Corrupted => None,
            word => Some(word?),
        };
        let session = word.and_then(|word| Session::decode(word, &layout.store_id).ok());
        let session = session.unwrap_or(Session { number: newest, clean: false });
        let session_lost = word.is_none();
        let (clear, stale_clears) = Root::read_clear(memory, &layout, repairs)?;
        Ok(Root {
            superblock,
            session,
            session_lost,
            clear,
            stale_clears,
            headers,
            stale,
            headless,
        })
    }

    /// What was cleared, and where that does not stand. A crash tears one slot at most, so that two tell of damage: what
    /// would come back is not known, and only a repair goes on with it.
    fn read_clear(memory: &dyn Pmem, layout: &Layout, repairs: bool) -> Result<(Clear, Vec<u64>)> {
        let mut found = Vec::new();
        for offset in CLEAR_OFFSETS {
            let mut bytes = [0; CLEAR_SIZE];
            let read = memory.read(offset, &mut bytes);
            match read {
                Err(error) if error.kind() == ErrorKind::Corrupted => {}
                read => read?,
            }
            found.extend(Clear::decode(&bytes, &layout.store_id).ok().map(|slot| (offset, slot)));
        }
        let newest = found.iter().map(|(_, slot)| *slot).max_by_key(|slot| slot.generation);
        let clear = match newest {
            Some(clear) => clear,
            None if repairs => {
                tracing::warn!("what was cleared is not known: some of it may be back");
                Clear::default()
            }
            None => {
                let [offset, _] = CLEAR_OFFSETS;
                let words = "neither slot of what was cleared is whole".to_owned();
                return Err(corrupted(memory, words, offset, CLEAR_SIZE as u64));
            }
        };
        let stale = |offset: &u64| !found.contains(&(*offset, clear));
        Ok((clear, CLEAR_OFFSETS.into_iter().filter(stale).collect()))
    }

    fn read_headers(memory: &dyn Pmem, layout: &Layout, repairs: bool) -> Result<Headers> {
        let Headers { mut headers, mut stale, mut headless } = Headers::default();
        let mut number = 1;
        while number < layout.chunk_count {
            let found = read_header(memory, layout, number)?;
            if found.is_none() && repairs {
                headless.push(number);
                number += 1;
                continue;
            }
            let Some((header, other)) = found else {
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
        Ok(Headers { headers, stale, headless })
    }
}

impl Flat {
    /// Makes the state in DRAM from what is on media, and begins a session.
    /// False if there is an image that is damaged: then what this made is of no use, and the image not to be asked
    /// for again.
    pub(super) fn recover(&self, root: &Root, options: &Options, images: bool) -> Result<bool> {
        self.session.store(root.session.number, Ordering::Relaxed);
        for header in &root.headers {
            self.versions.raise(header.next_version);
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
        for chunk in root.headless.iter().filter_map(|number| self.chunks.get(*number)) {
            chunk.set_usage(Use::Bad);
        }
        let image = match root.session.clean && images {
            true => Image::find(&*self.memory, &self.layout, root)?,
            false => None,
        };
        let learned = Learned::new(&self.layout);
        match image {
            Some(image) if self.load_image(&image, &learned, options)? => {}
            Some(_) => return Ok(false),
            None => {
                let checkpoint = if images { self.find_checkpoint(root)? } else { None };
                let tails = match &checkpoint {
                    Some(found) if !self.load_checkpoint(found, &learned, options)? => {
                        return Ok(false);
                    }
                    Some(found) => &found.tails,
                    None => &Tails::default(),
                };
                self.scan_logs(root, tails, &learned, options)?;
                self.keep_checkpoint(checkpoint);
            }
        }
        let ends = learned.take_ends();
        self.write_back(root, &ends)?;
        self.begin_session(root)?;
        self.seal_ends(&ends)?;
        self.mend_superblocks()?;
        self.mend_headers(root)?;
        self.free_unused(root)?;
        Ok(true)
    }

    /// Runs the same work on as many threads as there are cores; the first error counts.
    pub(super) fn in_parallel(
        &self,
        parts: usize,
        work: &(dyn Fn() -> Result<()> + Sync),
    ) -> Result<()> {
        on_threads("open store", self.threads.min(parts), |_| work()).map(drop)
    }

    /// Writes back what counts and may not be durable: durable with the session that begins, before anything is built on it.
    fn write_back(&self, root: &Root, ends: &[LogEnd]) -> Result<()> {
        let flush = |offset, length| self.memory.flush(sites::RECOVER_FLUSH, offset, length);
        // PERSIST: a batch at the end of a log, and copies that the next change relies on while it tears the others.
        for offset in SUPERBLOCK_OFFSETS {
            match self.memory.flush(sites::SUPERBLOCK_FLUSH, offset, 8) {
                // The other one was read.
                Err(error) if error.kind() == ErrorKind::Corrupted => {}
                flushed => flushed?,
            }
        }
        for offset in CLEAR_OFFSETS.iter().filter(|offset| !root.stale_clears.contains(offset)) {
            flush(*offset, CLEAR_SIZE as u64)?;
        }
        let oldest = root.session.number.saturating_sub(SESSIONS_KILLED);
        for header in root.headers.iter().filter(|header| header.epoch >> EPOCH_BITS >= oldest) {
            flush(self.layout.start_of(header.number), 2 * CHUNK_HEADER_SIZE as u64)?;
        }
        ends.iter().try_for_each(|LogEnd { last, .. }| {
            flush(last.start, last.end.saturating_sub(last.start))
        })
    }

    /// Ends the logs of earlier sessions, to which nobody adds: their last batches are durable now, and damage of one is not to
    /// pass for one that a crash tore.
    fn seal_ends(&self, ends: &[LogEnd]) -> Result<()> {
        for LogEnd { chunk: number, last } in ends {
            let Some(chunk) = self.chunks.get(*number) else { continue };
            let tail = last.end.saturating_sub(self.layout.start_of(*number));
            match self.store_seal(*number, chunk, tail) {
                // It ends at memory that is lost.
                Err(error) if error.kind() == ErrorKind::Corrupted => {}
                sealed => sealed?,
            }
        }
        // PERSIST: behind what it ends. A crash before leaves it to the next open.
        if ends.is_empty() { Ok(()) } else { self.memory.fence(sites::MEND_FENCE) }
    }

    /// Takes the mark of a clean stop away, durably, and begins a session.
    fn begin_session(&self, root: &Root) -> Result<()> {
        // Epochs of a session that gave all of its own are of the next ones.
        let number = root.session.number.max(newest_session(&root.headers)) + 1;
        let word = Session { number, clean: false }.encode(&self.layout.store_id);
        // PERSIST: before anything new is written: an image does not count any more, and no epoch of this session
        //          was used before.
        if root.session_lost {
            self.memory.store(sites::SESSION_STORE, SESSION_OFFSET, &whole_line(&[]))?;
        }
        self.memory.store_u64(sites::SESSION_STORE, SESSION_OFFSET, word)?;
        self.memory.flush(sites::SESSION_FLUSH, SESSION_OFFSET, 8)?;
        self.memory.fence(sites::SESSION_FENCE)?;
        self.session.store(number, Ordering::Relaxed);
        self.chunks.begin_session(number);
        Ok(())
    }

    /// Makes both superblocks whole: with one of them the next fault would cost the store.
    fn mend_superblocks(&self) -> Result<()> {
        let whole = self.superblock.encode();
        let (magic, rest) = whole.split_first_chunk::<8>().unwrap_or((&[0; 8], &[]));
        for offset in SUPERBLOCK_OFFSETS {
            let mut bytes = [0; SUPERBLOCK_SIZE];
            match self.memory.read(offset, &mut bytes) {
                Ok(()) if bytes == whole => continue,
                // Lost memory: nothing more can be done.
                Err(error) if error.kind() == ErrorKind::Corrupted => {
                    tracing::warn!(offset, %error, "a superblock stands on memory that is lost");
                    continue;
                }
                read => read?,
            }
            tracing::warn!(offset, "a superblock is written anew");
            // PERSIST: the other one counts meanwhile; the magic comes last, in one piece.
            self.memory.store(sites::SUPERBLOCK_STORE, offset + 8, rest)?;
            self.memory.flush(sites::MEND_FLUSH, offset, SUPERBLOCK_SIZE as u64)?;
            self.memory.fence(sites::MEND_FENCE)?;
            let magic = u64::from_le_bytes(*magic);
            self.memory.store_u64(sites::SUPERBLOCK_STORE, offset, magic)?;
            self.memory.flush(sites::MEND_FLUSH, offset, 8)?;
            self.memory.fence(sites::MEND_FENCE)?;
        }
        Ok(())
    }

    /// Makes both copies of each header whole, and both slots of what was cleared: the next change may tear the first.
    fn mend_headers(&self, root: &Root) -> Result<()> {
        for offset in &root.stale_clears {
            let bytes = whole_line(&root.clear.encode(&self.layout.store_id));
            // PERSIST: the other slot stays as it is.
            self.memory.store(sites::CLEAR_STORE, *offset, &bytes)?;
            self.memory.flush(sites::MEND_FLUSH, *offset, bytes.len() as u64)?;
        }
        for (offset, header) in &root.stale {
            let bytes = header.encode(&self.layout.store_id);
            // PERSIST: the other copy stays as it is.
            self.memory.store(sites::CHUNK_STORE, *offset, &bytes)?;
            self.memory.flush(sites::MEND_FLUSH, *offset, bytes.len() as u64)?;
        }
        let is_whole = root.stale.is_empty() && root.stale_clears.is_empty();
        if is_whole { Ok(()) } else { self.memory.fence(sites::MEND_FENCE) }
    }

    /// Frees what nothing that counts is in.
    fn free_unused(&self, root: &Root) -> Result<()> {
        for header in &root.headers {
            let Some(chunk) = self.chunks.get(header.number) else { continue };
            let used = chunk.live.load(Ordering::Relaxed) > 0;
            match header.kind {
                ChunkKind::Image if self.is_of_checkpoint(header.number) => {}
                // A later open is not to believe one: what a repair makes of damaged logs is older than what it says.
                ChunkKind::Image if self.is_in_repair() => {
                    self.chunks.release(&*self.memory, header.number, self.versions.next())?;
                }
                ChunkKind::Free | ChunkKind::Image => self.chunks.add_free(header.number),
                // Their headers do not matter until they are written anew.
                ChunkKind::Blocks if !used => self.chunks.add_free(header.number),
                ChunkKind::Blocks => self.list_found(header.number),
                ChunkKind::Large if !used => {
                    self.chunks.release(&*self.memory, header.number, self.versions.next())?;
                }
                ChunkKind::Log if chunk.is_dead() && chunk.usage() == Use::Log => {
                    self.clean_chunk(&mut self.cleaner_of_log(header.number), header.number)?;
                }
                ChunkKind::Large | ChunkKind::Log => {}
            }
        }
        Ok(())
    }
}
