//! What `flat` puts in memory: root, chunk headers, batches with their entries, records, images.

use super::{STORE_ID, choose};
use crate::flat::batch::seal_batch;
use crate::flat::entry::{bind_entry, stamp_entry};
use crate::flat::image::{
    put_bits, put_hash_entry, put_key_entry, take_bits, take_hash_entry, take_key_entry,
};
use crate::flat::record::record_size;
use crate::flat::{
    Action, BATCH_HEADER_SIZE, BatchHeader, BatchKind, ChunkHeader, ChunkKind, ChunkState, Clear,
    EncodeEntry, Entry, EntryAttributes, EntryBytes, EntryKey, EntrySink, ImageHeader, ImageKind,
    IndexKind, LogTail, Record, Session, Stamp, Superblock, batch,
};

const NUMBER: u32 = 3;
const SALT: u64 = 0x1122_3344_5566_7788;
const OFFSET: u64 = 4096;
const KEY: &[u8] = b"the key of the entry";

/// No checksum counts that does not match.
fn unsound() -> bool {
    false
}

/// Runs one input.
pub fn run(input: &[u8]) {
    let Some((decoder, bytes)) = input.split_first() else { return };
    match decoder % 8 {
        0 => {
            let Ok(superblock) = Superblock::decode(bytes) else { return };
            assert_eq!(Superblock::decode(&superblock.encode()), Ok(superblock));
        }
        1 => session(bytes),
        2 => {
            let Ok(header) = ChunkHeader::decode(bytes, &STORE_ID, NUMBER, unsound) else { return };
            let again = header.encode(&STORE_ID);
            assert_eq!(ChunkHeader::decode(&again, &STORE_ID, NUMBER, unsound), Ok(header));
            let _ = header.salt(&STORE_ID);
        }
        3 => entry_batch(bytes),
        4 => entries(bytes, 1000),
        5 => record(bytes),
        6 => image(bytes),
        _ => states(bytes),
    }
}

fn session(bytes: &[u8]) {
    if let Some(word) = bytes.first_chunk() {
        let word = u64::from_le_bytes(*word);
        if let Ok(session) = Session::decode(word, &STORE_ID) {
            assert_eq!(session.encode(&STORE_ID), word);
        }
    }
    let Ok(clear) = Clear::decode(bytes, &STORE_ID) else { return };
    assert_eq!(Clear::decode(&clear.encode(&STORE_ID), &STORE_ID), Ok(clear));
}

fn entry_batch(bytes: &[u8]) {
    let peeked = BatchHeader::peek(bytes);
    let mut copy = bytes.to_vec();
    let Ok((header, payload)) = BatchHeader::decode(&mut copy, SALT, OFFSET, unsound) else {
        return;
    };
    assert_eq!(peeked, Ok(header));
    entries(payload, header.base_version);
    let payload = payload.to_vec();
    assert_eq!(copy, bytes, "decoding leaves the bytes as they were");
    copy.truncate(batch::batch_size(payload.len()));
    seal_batch(&mut copy, &header, SALT, OFFSET);
    let decoded = BatchHeader::decode(&mut copy, SALT, OFFSET, unsound);
    assert_eq!(decoded, Ok((header, &payload[..])));
}

/// One entry behind the other.
fn entries(mut rest: &[u8], base_version: u64) {
    let mut ordinal = 0;
    while let Ok(entry) = Entry::decode(rest) {
        let version = entry.stamp.version(base_version, ordinal);
        let _ = entry.is_sound(version);
        assert!(entry.size > 0 && entry.size <= rest.len());
        entry_again(&entry, base_version, ordinal);
        rest = &rest[entry.size..];
        ordinal += 1;
    }
}

fn entry_again(entry: &Entry<'_>, base_version: u64, ordinal: u64) {
    let (mut bytes, mut again) = (Vec::new(), EntryBytes::default());
    entry.moved().encode(entry.stamp, &mut bytes);
    entry.moved().encode(entry.stamp, &mut again);
    assert_eq!(bytes, again.as_slice(), "whatever it is written to");
    bind_entry(&mut bytes, base_version, ordinal);
    let decoded = Entry::decode(&bytes).expect("what was encoded");
    let parts = |entry: &Entry<'_>| (entry.attributes, entry.stamp);
    assert_eq!(
        (decoded.key, decoded.action, parts(&decoded)),
        (entry.key, entry.action, parts(entry))
    );
    assert!(decoded.is_sound(entry.stamp.version(base_version, ordinal)));
    assert!(decoded.size == bytes.len() && bytes.len().is_multiple_of(2));
    if let Stamp::Whole(version) = entry.stamp {
        // With another version it is still an entry.
        stamp_entry(again.written(), version / 2);
        let stamped = Entry::decode(again.as_slice()).map(|entry| entry.stamp);
        assert_eq!(stamped, Ok(Stamp::Whole(version / 2)));
    }
}

fn record(bytes: &[u8]) {
    let Ok(record) = Record::peek(bytes) else { return };
    let size = record_size(record.key_length, record.value_length);
    let content = usize::try_from(size).ok().and_then(|size| bytes.get(16..size));
    let Some(content) = content else { return };
    if !record.is_sound(KEY, content, &STORE_ID, OFFSET) {
        return;
    }
    let key_here = record.key_length > 0;
    let (key, value) = content.split_at(record.key_length);
    let key = if key_here { key } else { KEY };
    let again = Record::encode(key, key_here, value, &STORE_ID, OFFSET);
    assert_eq!(again, bytes[..again.len()]);
}

fn image(bytes: &[u8]) {
    let peeked = ImageHeader::peek(bytes);
    let Ok((header, payload)) = ImageHeader::decode(bytes, &STORE_ID, unsound) else { return };
    assert_eq!(peeked, Ok(header));
    let again = [&header.encode(payload, &STORE_ID)[..], payload].concat();
    assert_eq!(ImageHeader::decode(&again, &STORE_ID, unsound), Ok((header, payload)));
    let (mut rest, mut again) = (payload, Vec::new());
    match header.kind {
        ImageKind::Chunks | ImageKind::Tails => states(payload),
        ImageKind::Hashes => {
            while let Ok((hash, word)) = take_hash_entry(&mut rest) {
                put_hash_entry(&mut again, hash, word);
            }
        }
        ImageKind::Keys => {
            while let Ok((key, word)) = take_key_entry(&mut rest) {
                put_key_entry(&mut again, key, word);
            }
        }
    }
    assert_eq!(again, payload[..again.len()]);
}

fn states(bytes: &[u8]) {
    if let Ok(state) = ChunkState::decode(bytes) {
        let again = state.encode();
        assert_eq!(again, bytes[..again.len()]);
    }
    if let Ok(tail) = LogTail::decode(bytes) {
        assert_eq!(LogTail::decode(&tail.encode()), Ok(tail));
    }
    let (mut rest, mut again) = (bytes, Vec::new());
    while let Ok(bits) = take_bits(&mut rest) {
        put_bits(&mut again, bits);
    }
    assert_eq!([&again[..], rest].concat(), bytes);
}

pub(super) fn superblock() -> Superblock {
    Superblock {
        store_id: STORE_ID,
        hash_key: [7; 16],
        hash_mask: u64::MAX,
        size_bytes: 1 << 20,
        chunk_size_bytes: 4096,
        chunk_count: 100,
        index: IndexKind::Masstree,
        created_unix_seconds: 1_767_225_600,
    }
}

/// Entries of all kinds, one behind the other.
fn example_entries() -> Vec<u8> {
    let long = [b'v'; 256];
    let attributes = EntryAttributes { flags: 7, expires_at: u64::MAX, state: 3 };
    let all = [
        (EntryKey::Here(b"key"), Action::Value(b"value"), None, Stamp::Place),
        (EntryKey::Here(b"8 bytes!"), Action::Pointer(77), None, Stamp::Delta(5)),
        (EntryKey::Here(b"k"), Action::Value(&long), Some(attributes), Stamp::Whole(1 << 40)),
        (EntryKey::Record(0x1234_5678), Action::Pointer(1 << 39), Some(attributes), Stamp::Place),
        (EntryKey::Here(b"gone"), Action::Delete(None), None, Stamp::Place),
        (EntryKey::Record(99), Action::Delete(Some(8)), None, Stamp::Whole(9)),
    ];
    let mut bytes = Vec::new();
    for (ordinal, (key, action, attributes, stamp)) in (0..).zip(all) {
        let start = bytes.len();
        EncodeEntry { key, action, attributes }.encode(stamp, &mut bytes);
        bind_entry(&mut bytes[start..], 1000, ordinal);
    }
    bytes
}

fn example_batch(kind: BatchKind, entries: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; batch::batch_size(entries.len())];
    bytes[BATCH_HEADER_SIZE..][..entries.len()].copy_from_slice(entries);
    let header = BatchHeader { kind, payload_bytes: entries.len(), base_version: 1000 };
    seal_batch(&mut bytes, &header, SALT, OFFSET);
    bytes
}

fn example_image(kind: ImageKind, payload: &[u8]) -> Vec<u8> {
    let header = ImageHeader {
        session: 4,
        part: 0,
        parts: 2,
        kind,
        count: 1,
        payload_bytes: payload.len() as u64,
        next_version: 1000,
        tombstones: 2,
    };
    [&header.encode(payload, &STORE_ID)[..], payload].concat()
}

/// Inputs to begin with.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let header = ChunkHeader {
        epoch: 9,
        born: 5,
        kind: ChunkKind::Log,
        owner: 1,
        number: NUMBER,
        lines: 4,
        chunks: 0,
        next_version: 1000,
    };
    let session = Session { number: 5, clean: true };
    let clear = Clear { generation: 2, version: 100 };
    let record = |key_here| {
        let key: &[u8] = if key_here { b"another key" } else { KEY };
        let head = Record::encode(key, key_here, b"value", &STORE_ID, OFFSET);
        [&head[..], if key_here { key } else { b"" }, b"value"].concat()
    };
    let state = ChunkState { number: 3, tail: 640, entries: 9, live: 5 };
    let tail = LogTail { number: 3, tail: 640, entries: 9, salt: SALT };
    let (mut hashes, mut keys) = (Vec::new(), Vec::new());
    put_hash_entry(&mut hashes, 12345, 67);
    put_key_entry(&mut keys, b"key", 67);
    vec![
        choose(0, superblock().encode()),
        choose(1, session.encode(&STORE_ID).to_le_bytes()),
        choose(1, clear.encode(&STORE_ID)),
        choose(2, header.encode(&STORE_ID)),
        choose(3, example_batch(BatchKind::Entries, &example_entries())),
        choose(3, example_batch(BatchKind::Seal, b"")),
        choose(4, example_entries()),
        choose(5, record(true)),
        choose(5, record(false)),
        choose(6, example_image(ImageKind::Chunks, &state.encode())),
        choose(6, example_image(ImageKind::Tails, &tail.encode())),
        choose(6, example_image(ImageKind::Hashes, &hashes)),
        choose(6, example_image(ImageKind::Keys, &keys)),
    ]
}
