//! The table of chunks: what each is used for, what of it counts, and which are free.
//!
//! # Invariants
//! - K1: a chunk's header is durable before anything in the chunk is, and a freed chunk's before its space
//!   is used anew. (So the headers are the journal of FlatStore §3.4: a chunk in the making is found by its own.)
//! - K2: a chunk's generation changes before it can be used anew, and before that the number of chunks that were taken. Who looks a
//!   word up, notes the generation, finds that no chunk had been taken since before the lookup, and after reading finds the generation
//!   as it was, has read what the word is about ([`Since`]): a generation that is new already shows that a chunk was taken.
//! - K3: an epoch is used once: it begins with the number of the session.
//! - K4: a header tells a version above all that were given out before: entries may go, and no version comes again.
//! - K5: the last free chunks are kept for the cleaners, one for each and some more, those before for deletes.
//!
//! # Concurrency
//! Counters are atomic; one short lock guards the free ones.

mod counts;
#[cfg(all(test, feature = "shuttle"))]
mod interleave;

use super::layout::Layout;
use super::sites;
use crate::engine::expiries::Expiries;
use esker_base::Result;
use esker_base::sync::atomic as explored;
use esker_format::flat::{CHUNK_HEADER_SIZE, ChunkHeader, ChunkKind};
use esker_media::Pmem;
use parking_lot::Mutex;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

/// Bits of an epoch that count within a session.
const EPOCH_BITS: u32 = 32;
/// Free chunks that only cleaners take, besides one for each of them.
const KEPT_FOR_CLEANERS: usize = 2;
/// The same for cleaners and deletes.
const KEPT_FOR_DELETES: usize = 4;
/// The same for all but checkpoints.
const KEPT_FOR_WRITERS: usize = 7;

#[cfg(test)]
thread_local! {
    /// How often this thread went through all chunks.
    pub(super) static WALKS: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// For whom a chunk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum For {
    Puts,
    Deletes,
    Cleaner,
    /// A checkpoint, which writers can do without.
    Checkpoint,
}

/// A moment before a word was looked up: if no chunk was taken from then until an entry is about to be read, the
/// word's chunk was not used anew between the lookup and the read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Since(Option<u64>);

impl Since {
    /// The chunk cannot go: the caller has the locks of all cleaners, or nobody else is there yet.
    pub(super) const HELD: Since = Since(None);
}

/// What a chunk is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Use {
    Free = 0,
    /// A log that is appended to.
    OpenLog = 1,
    /// A log that is not.
    Log = 2,
    Blocks = 3,
    Large = 4,
    /// Behind a `Large`.
    Tail = 5,
    /// The root, and what the image of a clean stop takes until it is loaded.
    Other = 6,
    /// Free, but its memory is bad ([`probe`](super::probe)).
    Bad = 7,
}

impl Use {
    fn found(kind: ChunkKind) -> Use {
        match kind {
            ChunkKind::Free => Use::Free,
            ChunkKind::Log => Use::Log,
            ChunkKind::Blocks => Use::Blocks,
            ChunkKind::Large => Use::Large,
            ChunkKind::Image => Use::Other,
        }
    }

    /// A log is open from the start: one that is not, and has nothing that counts, is the cleaner's to free.
    fn begun(kind: ChunkKind) -> Use {
        if kind == ChunkKind::Log { Use::OpenLog } else { Use::found(kind) }
    }
}

/// Where the next line of memory begins.
#[derive(Debug)]
#[repr(align(64))]
struct NextLine;

/// A chunk. What everybody reads, what its owner changes with each append, and what others change stand on lines of their own.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Chunk {
    /// K2.
    generation: explored::AtomicU64,
    /// Logs: see the format.
    born: AtomicU64,
    salt: AtomicU64,
    usage: AtomicU32,
    /// Logs: where those end whose entries were cleared.
    cleared: AtomicU32,
    /// Blocks: lines of each. Large: chunks.
    pub(super) lines: AtomicU32,
    pub(super) owner: AtomicU32,
    /// Blocks in use, a bit each.
    pub(super) bits: OnceLock<Box<[AtomicU64]>>,

    _of_owner: NextLine,
    /// Logs: entries that were appended.
    pub(super) entries: AtomicU32,
    /// Logs: those of them that the index followed, after which what they replaced was counted as dead.
    published: AtomicU32,
    /// Logs: bytes that are written.
    pub(super) tail: AtomicU32,
    /// Logs: those of them that are entries; 0 as long as nobody knows.
    payload: AtomicU32,
    /// Logs: entries that were appended as tombstones, as long as it is not unread.
    tombstones: AtomicU32,
    /// Logs: entries by when they expire.
    expiries: Mutex<Expiries>,

    _of_others: NextLine,
    /// Logs: those that do not count any more.
    dead: AtomicU32,
    /// Blocks and large records in use.
    pub(super) live: AtomicU32,
    /// Blocks: it is among its owner's chunks with room.
    pub(super) listed: AtomicBool,
    /// Logs: recovery found it, and nobody knows what its entries take, and when they expire.
    unread: AtomicBool,
}

impl Chunk {
    fn new() -> Chunk {
        Chunk {
            generation: explored::AtomicU64::new(0),
            born: AtomicU64::new(0),
            salt: AtomicU64::new(0),
            usage: AtomicU32::new(Use::Free as u32),
            cleared: AtomicU32::new(0),
            lines: AtomicU32::new(0),
            owner: AtomicU32::new(0),
            bits: OnceLock::new(),
            _of_owner: NextLine,
            entries: AtomicU32::new(0),
            published: AtomicU32::new(0),
            tail: AtomicU32::new(0),
            payload: AtomicU32::new(0),
            tombstones: AtomicU32::new(0),
            expiries: Mutex::default(),
            _of_others: NextLine,
            dead: AtomicU32::new(0),
            live: AtomicU32::new(0),
            listed: AtomicBool::new(false),
            unread: AtomicBool::new(false),
        }
    }

    pub(super) fn usage(&self) -> Use {
        match self.usage.load(Ordering::Acquire) {
            0 => Use::Free,
            1 => Use::OpenLog,
            2 => Use::Log,
            3 => Use::Blocks,
            4 => Use::Large,
            5 => Use::Tail,
            7 => Use::Bad,
            _ => Use::Other,
        }
    }

    pub(super) fn set_usage(&self, usage: Use) {
        self.usage.store(usage as u32, Ordering::Release);
    }

    pub(super) fn is_log(&self) -> bool {
        matches!(self.usage(), Use::OpenLog | Use::Log)
    }

    #[inline]
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// What its batches' checksums are mixed with.
    pub(super) fn salt(&self) -> u64 {
        self.salt.load(Ordering::Relaxed)
    }

    pub(super) fn born(&self) -> u64 {
        self.born.load(Ordering::Relaxed)
    }

    /// Takes over what a header says that was found: nothing is appended to a log.
    pub(super) fn adopt(&self, header: &ChunkHeader, layout: &Layout) {
        self.adopt_as(header, layout, Use::found(header.kind));
    }

    fn adopt_as(&self, header: &ChunkHeader, layout: &Layout, usage: Use) {
        self.born.store(header.born, Ordering::Relaxed);
        self.salt.store(header.salt(&layout.store_id), Ordering::Relaxed);
        self.owner.store(u32::from(header.owner), Ordering::Relaxed);
        let count = if header.kind == ChunkKind::Large { header.chunks } else { header.lines };
        self.lines.store(count, Ordering::Relaxed);
        self.set_counts(0, 0, 0);
        self.cleared.store(0, Ordering::Relaxed);
        self.learn(0, 0, Expiries::default());
        self.live.store(0, Ordering::Relaxed);
        self.set_usage(usage);
    }
}

/// The free chunks, a flag each, and how many.
#[derive(Debug)]
struct Free {
    flags: Vec<bool>,
    count: usize,
    /// Where the next search begins, so that all space is worn alike.
    next: usize,
    /// A row of chunks that are kept back as they come free.
    row: Option<Row>,
}

/// Chunks in a row that somebody wants.
#[derive(Debug)]
struct Row {
    first: usize,
    /// Which of them are free.
    flags: Vec<bool>,
}

/// All chunks of a store.
#[derive(Debug)]
pub(super) struct Chunks {
    layout: Layout,
    chunks: Box<[Chunk]>,
    free: Mutex<Free>,
    free_count: AtomicU32,
    epoch: AtomicU64,
    /// How often chunks were taken.
    taken: explored::AtomicU64,
    /// Chunks that came free.
    released: AtomicU64,
    /// So many chunks behind the root are not unread.
    unread_from: AtomicUsize,
    /// Who changes that.
    looking: Mutex<()>,
    /// Chunks whose memory is bad.
    bad: AtomicU32,
    cleaners: usize,
}

impl Chunks {
    pub(super) fn new(layout: &Layout, cleaners: usize) -> Chunks {
        let count = usize::try_from(layout.chunk_count).unwrap_or(0);
        let chunks: Box<[Chunk]> = (0..count).map(|_| Chunk::new()).collect();
        let free = Free { flags: vec![false; count], count: 0, next: 0, row: None };
        let chunks = Chunks {
            layout: *layout,
            chunks,
            free: Mutex::new(free),
            free_count: AtomicU32::new(0),
            epoch: AtomicU64::new(0),
            taken: explored::AtomicU64::new(0),
            released: AtomicU64::new(0),
            unread_from: AtomicUsize::new(0),
            looking: Mutex::default(),
            bad: AtomicU32::new(0),
            cleaners,
        };
        if let Some(root) = chunks.get(0) {
            root.set_usage(Use::Other);
        }
        chunks
    }

    /// Free chunks that are left alone by whoever takes one for this (K5).
    pub(super) fn kept(&self, whom: For) -> usize {
        match whom {
            For::Puts => KEPT_FOR_DELETES + self.cleaners,
            For::Deletes => KEPT_FOR_CLEANERS + self.cleaners,
            For::Cleaner => 0,
            For::Checkpoint => KEPT_FOR_WRITERS + self.cleaners,
        }
    }

    #[inline]
    pub(super) fn get(&self, number: u32) -> Option<&Chunk> {
        self.chunks.get(usize::try_from(number).ok()?)
    }

    /// All but the root, with their numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Chunk)> {
        #[cfg(test)]
        WALKS.set(WALKS.get() + 1);
        (0..).zip(&*self.chunks).skip(1)
    }

    /// The first of these logs of which nobody knows what its entries take. There are such after an open, and those that go on behind it come to them once they
    /// are full.
    pub(super) fn first_unread(&self, is_of: impl Fn(u32) -> bool) -> Option<(u32, &Chunk)> {
        if self.unread_from.load(Ordering::Relaxed) >= self.chunks.len() {
            return None;
        }
        // Who fills one meanwhile says so behind this.
        let _looking = self.looking.lock();
        let from = self.unread_from.load(Ordering::Relaxed);
        // One that is written to is read once it is full: what its writers note meanwhile would be lost.
        let is_one = |chunk: &Chunk| chunk.is_unread() && chunk.usage() == Use::Log;
        let mut unread = self.iter().skip(from).filter(|(_, chunk)| is_one(chunk)).peekable();
        let first = unread.peek().map(|(number, _)| usize::try_from(*number).unwrap_or(0));
        // `iter` begins behind the root.
        let from = first.map_or(self.chunks.len(), |first| first.saturating_sub(1));
        self.unread_from.store(from, Ordering::Relaxed);
        unread.find(|(number, _)| is_of(*number))
    }

    /// A log is full: if nobody knows what its entries take, somebody may find out.
    pub(super) fn note_full(&self, number: u32) {
        if self.get(number).is_some_and(Chunk::is_unread) {
            // `iter` begins behind the root.
            let place = usize::try_from(number).unwrap_or(0).saturating_sub(1);
            let _looking = self.looking.lock();
            self.unread_from.fetch_min(place, Ordering::Relaxed);
        }
    }

    /// This moment: to be asked for before a word is looked up.
    #[inline]
    pub(super) fn now(&self) -> Since {
        Since(Some(self.taken.load(Ordering::Acquire)))
    }

    /// Whether no chunk was taken since.
    #[inline]
    pub(super) fn none_taken(&self, since: Since) -> bool {
        since.0.is_none_or(|taken| taken == self.taken.load(Ordering::Acquire))
    }

    /// Begins a session: epochs follow from its number.
    pub(super) fn begin_session(&self, session: u64) {
        self.epoch.store(session << EPOCH_BITS, Ordering::Relaxed);
    }

    /// Chunks that were taken since the store was opened.
    pub(super) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// A number that grows before a chunk is seen to be free.
    pub(super) fn released(&self) -> u64 {
        self.released.load(Ordering::SeqCst)
    }

    /// Lets nobody have a chunk that was taken: its memory is bad.
    pub(super) fn set_bad(&self, chunk: &Chunk) {
        chunk.set_usage(Use::Bad);
        self.bad.fetch_add(1, Ordering::Relaxed);
    }

    /// Chunks that are unused because their memory is bad.
    pub(super) fn bad_count(&self) -> u32 {
        self.bad.load(Ordering::Relaxed)
    }

    pub(super) fn next_epoch(&self) -> u64 {
        self.epoch.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn free_count(&self) -> usize {
        usize::try_from(self.free_count.load(Ordering::Relaxed)).unwrap_or(0)
    }

    /// Puts a chunk among the free ones; its header says so, or does not matter.
    pub(super) fn add_free(&self, number: u32) {
        if let Some(chunk) = self.get(number) {
            chunk.set_usage(Use::Free);
        }
        self.put_free(&mut self.free.lock(), usize::try_from(number).unwrap_or(usize::MAX));
    }

    fn put_free(&self, free: &mut Free, place: usize) {
        if let Some(row) = &mut free.row
            && let Some(flag) =
                place.checked_sub(row.first).and_then(|place| row.flags.get_mut(place))
        {
            *flag = true;
        } else if let Some(flag) = free.flags.get_mut(place)
            && !*flag
        {
            *flag = true;
            free.count += 1;
            self.note_free(free);
        }
    }

    fn note_free(&self, free: &Free) {
        self.free_count.store(u32::try_from(free.count).unwrap_or(0), Ordering::Relaxed);
    }

    /// Keeps the free chunks of a row back, and those that come free there from now on, until it is taken.
    pub(super) fn keep_back(&self, first: u32, count: usize) {
        let first = usize::try_from(first).unwrap_or(usize::MAX);
        let mut free = self.free.lock();
        let Some(flags) = free.flags.get_mut(first..first.saturating_add(count)) else { return };
        let kept = flags.to_vec();
        flags.fill(false);
        free.count -= kept.iter().filter(|flag| **flag).count();
        free.row = Some(Row { first, flags: kept });
        self.note_free(&free);
    }

    /// Takes the row that was kept back, if all its chunks are free; else they are free for all again.
    pub(super) fn take_kept_back(&self) -> Option<u32> {
        let mut free = self.free.lock();
        let row = free.row.take()?;
        if row.flags.iter().all(|flag| *flag) {
            return self.begin_taken(row.first, row.flags.len());
        }
        let kept = (row.first..).zip(row.flags).filter(|(_, flag)| *flag);
        kept.for_each(|(place, _)| self.put_free(&mut free, place));
        None
    }

    /// Takes `count` free chunks in a row; `None` if there are none that `whom` may have.
    pub(super) fn take(&self, count: usize, whom: For) -> Option<u32> {
        let mut free = self.free.lock();
        if free.count < count + self.kept(whom) {
            return None;
        }
        let length = free.flags.len();
        let mut run = 0;
        let mut found = None;
        // Around once, from where the last search ended; runs do not go around.
        for step in 0..length + count {
            let place = (free.next + step) % length;
            run = if place == 0 { 0 } else { run };
            run = if free.flags.get(place).copied().unwrap_or(false) { run + 1 } else { 0 };
            if run == count {
                found = Some(place + 1 - count);
                break;
            }
        }
        let first = found?;
        free.flags.get_mut(first..first + count)?.fill(false);
        free.count -= count;
        free.next = (first + count) % length;
        self.note_free(&free);
        self.begin_taken(first, count)
    }

    /// Nobody finds what stood in chunks that are taken from now on (K2).
    fn begin_taken(&self, first: usize, count: usize) -> Option<u32> {
        let first = u32::try_from(first).ok()?;
        // K2: first, so that who sees one of the generations sees this.
        self.taken.fetch_add(1, Ordering::AcqRel);
        for (number, _) in (first..).zip(0..count) {
            if let Some(chunk) = self.get(number) {
                chunk.generation.fetch_add(1, Ordering::AcqRel);
            }
        }
        // Before whatever is written there.
        fence(Ordering::Release);
        Some(first)
    }

    /// Writes a header, durably (K1).
    pub(super) fn write_header(&self, memory: &dyn Pmem, header: &ChunkHeader) -> Result<()> {
        let bytes = header.encode(&self.layout.store_id);
        let start = self.layout.start_of(header.number);
        // PERSIST: the first copy before the second: a crash leaves one of them whole, and the newer whole
        //          one counts. Nothing in the chunk is written before.
        memory.store(sites::CHUNK_STORE, start, &bytes)?;
        memory.flush(sites::CHUNK_FLUSH, start, bytes.len() as u64)?;
        memory.fence(sites::CHUNK_FENCE)?;
        let copy = start + CHUNK_HEADER_SIZE as u64;
        memory.store(sites::CHUNK_STORE, copy, &bytes)?;
        memory.flush(sites::CHUNK_COPY_FLUSH, copy, bytes.len() as u64)?;
        memory.fence(sites::CHUNK_COPY_FENCE)
    }

    /// Gives chunks to a use, durably.
    pub(super) fn begin(&self, memory: &dyn Pmem, mut header: ChunkHeader) -> Result<()> {
        header.epoch = self.next_epoch();
        self.write_header(memory, &header)?;
        if let Some(chunk) = self.get(header.number) {
            chunk.adopt_as(&header, &self.layout, Use::begun(header.kind));
        }
        if header.kind == ChunkKind::Large {
            for number in header.number + 1..header.number.saturating_add(header.chunks) {
                if let Some(chunk) = self.get(number) {
                    chunk.set_usage(Use::Tail);
                }
            }
        }
        Ok(())
    }

    /// Takes the content of a chunk, or of a large record's chunks, away, durably, and frees them.
    pub(super) fn release(&self, memory: &dyn Pmem, number: u32, next_version: u64) -> Result<()> {
        let Some(chunk) = self.get(number) else { return Ok(()) };
        let count = match chunk.usage() {
            Use::Large => chunk.lines.load(Ordering::Relaxed).max(1),
            _ => 1,
        };
        // PERSIST: behind a large record's first chunk there are no headers: they are made first, so that its own
        //          says until then that there are none.
        for number in (number..number.saturating_add(count)).rev() {
            let header = ChunkHeader {
                epoch: self.next_epoch(),
                born: 0,
                kind: ChunkKind::Free,
                owner: 0,
                number,
                lines: 0,
                chunks: 0,
                next_version,
            };
            self.write_header(memory, &header)?;
        }
        self.released.fetch_add(1, Ordering::SeqCst);
        for number in number..number.saturating_add(count) {
            self.add_free(number);
        }
        Ok(())
    }
}
