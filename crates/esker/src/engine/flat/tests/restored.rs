//! Stores that are restored over themselves, and images of which the medium has lost something, or that somebody made up.

use super::super::recover::read_header;
use super::super::restore::restore;
use super::*;
use crate::engine::backup::Backup;
use crate::options::Progress;
use crate::value::Condition;
use esker_base::SiteKind;
use esker_format::flat::image::{CHUNK_STATE_SIZE, LOG_TAIL_SIZE};
use esker_format::flat::{
    CHUNK_START, ChunkState, IMAGE_HEADER_SIZE, ImageHeader, LogTail, SESSION_OFFSET,
};
use esker_media::sim::{Initial, SimArchive};

const KINDS: [EngineKind; 2] = [EngineKind::FlatCceh, EngineKind::FlatMasstree];
const DAMAGE: Site = Site::new("test.damage", SiteKind::Write);
const LARGE_CHUNK: u64 = 64 << 10;

fn opened(memory: &Arc<SimPm>, engine: EngineKind) -> Arc<Flat> {
    let mut options = options(engine);
    options.testing.cores = Some(1);
    options.testing.segment_size_bytes = Some(LARGE_CHUNK);
    options.testing.background = false;
    Flat::open(Arc::clone(memory) as Arc<dyn Pmem>, &options).unwrap()
}

fn blank() -> Arc<SimPm> {
    Arc::new(SimPm::new(SimPmOptions::new(16 * LARGE_CHUNK, 1)))
}

fn crash(store: Arc<Flat>) {
    store.state.store(super::super::CLOSED, Ordering::Release);
    drop(store);
}

fn put_small(store: &Flat, key: &[u8]) {
    store.put_value(key, b"v", Attributes::default(), Condition::Always).unwrap();
}

fn has(store: &Flat, key: &[u8]) -> bool {
    store.get_value(key, &mut |_| Ok(())).unwrap().is_some()
}

/// What a crashed store with one key is in, and its backup.
fn backed_up(engine: EngineKind) -> (Arc<SimPm>, SimArchive) {
    let (memory, archive) = (blank(), SimArchive::new());
    let store = opened(&memory, engine);
    put_small(&store, b"a0");
    store.backup_store(&archive, &Progress::default()).unwrap();
    crash(store);
    (memory, archive)
}

/// What was written after the backup stands in chunks that it does not name, and those are used anew.
#[test]
fn what_was_written_after_a_backup_is_gone_however_often_it_is_restored() {
    for (engine, damaged) in KINDS.into_iter().flat_map(|it| [(it, false), (it, true)]) {
        let (memory, archive) = backed_up(engine);
        let restore = || {
            if damaged {
                memory.store(DAMAGE, SESSION_OFFSET, &[0xA5; 8]).unwrap();
            }
            let backup = Backup::open(&archive).unwrap();
            restore(&backup, &*memory, true, &Progress::default()).unwrap();
        };
        restore();
        let store = opened(&memory, engine);
        for number in b'1'..=b'9' {
            put_small(&store, &[b'x', number]);
            if number == b'5' {
                store.delete_key(b"a0", Condition::Present).unwrap();
            }
        }
        crash(store);
        restore();
        let store = opened(&memory, engine);
        put_small(&store, b"d0");
        crash(store);
        let store = opened(&memory, engine);
        for number in b'1'..=b'9' {
            assert!(!has(&store, &[b'x', number]), "{engine}, {damaged}: {number} is back");
        }
        assert!(has(&store, b"a0") && has(&store, b"d0"), "{engine}, {damaged}");
        crash(store);
    }
}

/// Then the headers are all that knows how many sessions there were.
#[test]
fn what_was_written_after_a_backup_stays_gone_if_the_session_is_lost_behind_a_restore() {
    for engine in KINDS {
        let (memory, archive) = backed_up(engine);
        let store = opened(&memory, engine);
        (b'1'..=b'9').for_each(|number| put_small(&store, &[b'x', number]));
        crash(store);
        let backup = Backup::open(&archive).unwrap();
        restore(&backup, &*memory, true, &Progress::default()).unwrap();
        memory.poison(SESSION_OFFSET, 8);
        let store = opened(&memory, engine);
        (b'1'..=b'2').for_each(|number| put_small(&store, &[b'd', number]));
        crash(store);
        let store = opened(&memory, engine);
        for number in b'1'..=b'9' {
            assert!(!has(&store, &[b'x', number]), "{engine}: {number} is back");
        }
        assert!(has(&store, b"a0") && has(&store, b"d1") && has(&store, b"d2"), "{engine}");
        crash(store);
    }
}

/// Both stores have the same identity, and fill the same chunk in as many sessions.
#[test]
fn a_backup_of_a_restored_store_has_no_file_of_the_one_that_went_on() {
    for engine in KINDS {
        let (first, other) = (SimArchive::new(), SimArchive::new());
        let backup = |store: &Flat, archive: &SimArchive| {
            store.backup_store(archive, &Progress::default()).unwrap();
        };
        let fill = |store: &Flat, name: u8| {
            for number in 0..1500_u16 {
                let [high, low] = number.to_be_bytes();
                put_small(store, &[name, high, low]);
            }
        };
        let memory = blank();
        let store = opened(&memory, engine);
        put_small(&store, b"a");
        backup(&store, &first);
        for _ in 0..4 {
            crash(opened(&memory, engine));
            let store = opened(&memory, engine);
            fill(&store, b'x');
            backup(&store, &other);
            crash(store);
        }
        crash(store);
        let restored = |archive: &SimArchive| {
            let memory = blank();
            let backup = Backup::open(archive).unwrap();
            restore(&backup, &*memory, false, &Progress::default()).unwrap();
            memory
        };
        let memory = restored(&first);
        for _ in 0..8 {
            let store = opened(&memory, engine);
            fill(&store, b'y');
            backup(&store, &other);
            let last = opened(&restored(&other), engine);
            assert!(has(&last, b"a"), "{engine}");
            assert!(has(&last, b"y\0\0") && has(&last, b"y\x05\xdb"), "{engine}");
            assert!(!has(&last, b"x\0\0"), "{engine}");
            crash(last);
            crash(store);
        }
    }
}

/// It fills the same chunks again, with the same epochs.
#[test]
fn a_store_whose_medium_was_put_back_takes_no_file_of_what_came_after_that() {
    for engine in KINDS {
        let memory = blank();
        let store = opened(&memory, engine);
        put_small(&store, b"a");
        crash(store);
        let image = memory.image();
        let archive = SimArchive::new();
        for value in [1_u8, 2] {
            let initial = Initial::Recycled(image.clone());
            let options = SimPmOptions::new(16 * LARGE_CHUNK, 1).initial(initial);
            let store = opened(&Arc::new(SimPm::new(options)), engine);
            // Chunks of its own, and a log that fills up.
            let put = |key: &[u8], value: &[u8]| {
                store.put_value(key, value, Attributes::default(), Condition::Always).unwrap();
            };
            put(b"large", &[value; 100_000]);
            (0..1500_u16).for_each(|number| put(&number.to_be_bytes(), &[value; 30]));
            for again in [false, true] {
                let report = store.backup_store(&archive, &Progress::default()).unwrap();
                assert!(
                    report.segments_reused > 0 || !again,
                    "what is the same is not copied again"
                );
            }
            crash(store);
            let restored = blank();
            let backup = Backup::open(&archive).unwrap();
            restore(&backup, &*restored, false, &Progress::default()).unwrap();
            let store = opened(&restored, engine);
            let get = |key: &[u8]| store.get_value(key, &mut |_| Ok(())).unwrap().unwrap().to_vec();
            assert_eq!(get(b"large"), [value; 100_000], "{engine}");
            assert!(
                (0..1500_u16).all(|number| get(&number.to_be_bytes()) == [value; 30]),
                "{engine}"
            );
            crash(store);
        }
    }
}

/// The error of a store that lost both says that this is what helps.
#[test]
fn a_backup_is_restored_over_superblocks_that_cannot_be_read() {
    for lost in [&[0][..], &[0, 1]] {
        let memory = blank();
        let archive = SimArchive::new();
        let store = opened(&memory, EngineKind::FlatCceh);
        put_small(&store, b"a");
        store.backup_store(&archive, &Progress::default()).unwrap();
        crash(store);
        for index in lost {
            memory.poison(esker_format::flat::SUPERBLOCK_OFFSETS[*index], 64);
        }
        let backup = Backup::open(&archive).unwrap();
        let refused = restore(&backup, &*memory, false, &Progress::default()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
        restore(&backup, &*memory, true, &Progress::default()).unwrap();
        let store = opened(&memory, EngineKind::FlatCceh);
        assert!(has(&store, b"a"));
        crash(store);
    }
}

/// One after the other, whatever is left of one.
#[test]
fn a_superblock_that_is_damaged_is_whole_again_once_the_store_was_open() {
    for engine in KINDS {
        let memory = blank();
        crash(opened(&memory, engine));
        for (offset, at) in [(0, 0), (1, 0), (0, 40), (1, 90), (0, 3), (1, 255)] {
            let offset = esker_format::flat::SUPERBLOCK_OFFSETS[offset];
            memory.store(DAMAGE, offset + at, &[0xA5]).unwrap();
            crash(opened(&memory, engine));
            let [first, second] = esker_format::flat::SUPERBLOCK_OFFSETS.map(|offset| {
                let mut bytes = [0; 256];
                memory.read(offset, &mut bytes).unwrap();
                bytes
            });
            assert_eq!(first, second, "{engine}");
        }
    }
}

/// Chunks of the image that is in `memory`, in the order of its parts.
fn image_of(store: &Flat, memory: &SimPm) -> Vec<u64> {
    let mut found = Vec::new();
    for number in 1..store.layout.chunk_count {
        let (header, _) = read_header(memory, &store.layout, number).unwrap().unwrap();
        if header.kind == ChunkKind::Image {
            found.push((header.chunks, store.layout.start_of(number)));
        }
    }
    found.sort_unstable();
    found.into_iter().map(|(_, start)| start).collect()
}

/// Ends a store with keys: with an image of a clean stop, or with a checkpoint and a crash.
fn with_image(engine: EngineKind, is_clean: bool) -> (Arc<SimPm>, Vec<u64>) {
    let memory = blank();
    let store = opened(&memory, engine);
    // A record, so that there are blocks, before the log.
    put(&store, &[b'k'; 300]);
    (0..1000_u32).for_each(|number| put_small(&store, &number.to_be_bytes()));
    if is_clean {
        store.close_store().unwrap();
    } else {
        assert!(store.write_checkpoint().unwrap());
        put_small(&store, b"behind it");
    }
    let image = image_of(&store, &memory);
    crash(store);
    (memory, image)
}

fn check(memory: &Arc<SimPm>, engine: EngineKind, is_clean: bool) {
    let store = opened(memory, engine);
    assert!((0..1000_u32).all(|number| has(&store, &number.to_be_bytes())), "{engine}");
    assert!(has(&store, &[b'k'; 300]) && has(&store, b"behind it") != is_clean, "{engine}");
    crash(store);
}

#[test]
fn an_image_of_which_the_medium_lost_something_is_not_used() {
    for (engine, is_clean) in KINDS.into_iter().flat_map(|it| [(it, false), (it, true)]) {
        for is_first in [true, false] {
            let (memory, image) = with_image(engine, is_clean);
            // A header, or entries of the last part.
            match is_first {
                true => memory.poison(image[0] + CHUNK_START, 64),
                false => memory.poison(image[image.len() - 1] + 4096, 64),
            }
            check(&memory, engine, is_clean);
        }
    }
}

/// Recovery with the logs after one with an image that is damaged takes no more memory than the first: the store of that one is gone.
#[test]
fn what_was_made_of_a_damaged_image_is_gone_before_the_logs_are_read() {
    for engine in KINDS {
        let (memory, image) = with_image(engine, true);
        memory.poison(image[image.len() - 1] + 4096, 64);
        let shared: Arc<dyn Pmem> = memory;
        let (weak, most) = (Arc::downgrade(&shared), Arc::new(AtomicU32::new(0)));
        let seen = Arc::clone(&most);
        let mut options = options(engine);
        options.testing.segment_size_bytes = Some(LARGE_CHUNK);
        options.testing.background = false;
        options.progress = Progress::new(move |_, _| {
            let holders = u32::try_from(weak.strong_count()).unwrap();
            seen.fetch_max(holders, Ordering::SeqCst);
        });
        let store = Flat::open(Arc::clone(&shared), &options).unwrap();
        assert_eq!(store.chunks.iter().filter(|(_, chunk)| chunk.is_log()).count(), 1);
        // The open itself has one more.
        let holders = u32::try_from(Arc::strong_count(&shared)).unwrap() + 1;
        assert_eq!(most.load(Ordering::SeqCst), holders, "{engine}");
        crash(store);
    }
}

/// Changes the payload of an image's part, with the right checksum.
fn forge(
    memory: &SimPm,
    store_id: &esker_base::ids::StoreId,
    part: u64,
    change: impl Fn(&mut [u8]),
) {
    let start = part + CHUNK_START;
    let mut head = [0; IMAGE_HEADER_SIZE];
    memory.read(start, &mut head).unwrap();
    let header = ImageHeader::peek(&head).unwrap();
    let mut payload = vec![0; usize::try_from(header.payload_bytes).unwrap()];
    memory.read(start + IMAGE_HEADER_SIZE as u64, &mut payload).unwrap();
    change(&mut payload);
    memory.store(DAMAGE, start, &header.encode(&payload, store_id)).unwrap();
    memory.store(DAMAGE, start + IMAGE_HEADER_SIZE as u64, &payload).unwrap();
}

#[test]
fn an_image_that_somebody_made_up_does_no_harm() {
    let tails: [fn(&mut LogTail); 3] =
        [|tail| tail.entries = u32::MAX, |tail| tail.tail = 64, |tail| tail.tail += 1];
    let states: [fn(&mut ChunkState); 3] =
        [|state| state.live += 1, |state| state.live = 0, |state| state.tail = 1 << 31];
    for (engine, change) in KINDS.into_iter().flat_map(|it| (0..3).map(move |at| (it, at))) {
        for is_clean in [false, true] {
            let (memory, image) = with_image(engine, is_clean);
            let store_id = {
                let mut bytes = [0; esker_format::flat::SUPERBLOCK_SIZE];
                memory.read(0, &mut bytes).unwrap();
                esker_format::flat::Superblock::decode(&bytes).unwrap().store_id
            };
            forge(&memory, &store_id, image[0], |payload| {
                if is_clean {
                    // That of the blocks, or of the log behind them.
                    let blocks = ChunkState::decode(payload).unwrap();
                    let bits = LARGE_CHUNK.saturating_sub(CHUNK_START) / 64;
                    let words = usize::try_from(bits.div_ceil(64)).unwrap();
                    let at = if change == 2 { CHUNK_STATE_SIZE + 8 * words } else { 0 };
                    assert_eq!((blocks.tail, blocks.live), (0, 1));
                    let mut state = ChunkState::decode(&payload[at..]).unwrap();
                    states[change](&mut state);
                    payload[at..at + CHUNK_STATE_SIZE].copy_from_slice(&state.encode());
                } else {
                    let mut tail = LogTail::decode(payload).unwrap();
                    tails[change](&mut tail);
                    payload[..LOG_TAIL_SIZE].copy_from_slice(&tail.encode());
                }
            });
            check(&memory, engine, is_clean);
        }
    }
}
