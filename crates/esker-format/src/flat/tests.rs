//! The structures of `flat` against their documentation, their limits, and damage.

use super::batch::{RawBatch, batch_size, seal_batch};
use super::chunk::RawChunk;
use super::entry::bind_entry;
use super::image::{RawChunkState, RawImage, RawLogTail};
use super::record::RawRecord;
use super::root::{RawClear, RawSuperblock};
use super::*;
use crate::tests::table;
use crate::{Flaw, NUMBER_END};
use esker_base::checksum::Stretches;
use esker_base::ids::StoreId;
use esker_base::rng::Rng;

const ID: StoreId = StoreId([7; 16]);

/// Run with `REWRITE=1` to bring the page up to date after a change of the format.
#[test]
fn the_normative_page_has_the_tables_of_the_code() {
    let superblock = table!(RawSuperblock: magic "ESKRFLAT", format_version "u32", checksum "u32",
        store_id "16 bytes", hash_key "16 bytes", hash_mask "u64", size_bytes "u64",
        chunk_size_bytes "u64", chunk_count "u32", index "u32", created_unix_seconds "u64",
        reserved "zeros");
    let clear = table!(RawClear: generation "u64", version "u64", checksum "u32", reserved "zeros");
    let chunk = table!(RawChunk: magic "ESKC", checksum "u32", epoch "u64", born "u64", kind "u16",
        owner "u16", number "u32", lines "u32", chunks "u32", next_version "u64", reserved "zeros");
    let batch = table!(RawBatch: checksum "u32", shape "u32", base_version "u64");
    let record = table!(RawRecord: checksum "u32", key_length "u32", value_length "u64");
    let image = table!(RawImage: magic "ESKI", checksum "u32", session "u64", part "u32",
        parts "u32", kind "u32", count "u32", payload_bytes "u64", next_version "u64",
        tombstones "u64", reserved "zeros");
    let state = table!(RawChunkState: number "u32", tail "u32", entries "u32", live "u32");
    let tail = table!(RawLogTail: number "u32", tail "u32", entries "u32", reserved "zeros",
        salt "u64");
    crate::tests::assert_has(
        "flat.md",
        &[
            ("table superblock", superblock),
            ("table clear", clear),
            ("table chunk", chunk),
            ("table batch", batch),
            ("table record", record),
            ("table image", image),
            ("table state", state),
            ("table tail", tail),
        ],
    );
}

/// From any number that is read somebody counts on.
#[test]
fn numbers_without_end_are_refused() {
    let clear = |[generation, version]: [u64; 2]| {
        Clear::decode(&Clear { generation, version }.encode(&ID), &ID).map(drop)
    };
    let chunk = |[born, next_version]: [u64; 2]| {
        let (kind, owner, number) = (ChunkKind::Log, 0, 3);
        let header =
            ChunkHeader { epoch: 1, born, kind, owner, number, lines: 0, chunks: 0, next_version };
        ChunkHeader::decode(&header.encode(&ID), &ID, 3, || false).map(drop)
    };
    let batch = |base_version| {
        let mut bytes = [0; LINE];
        let header = BatchHeader { kind: BatchKind::Entries, payload_bytes: 4, base_version };
        seal_batch(&mut bytes, &header, 5, 64);
        BatchHeader::decode(&mut bytes, 5, 64, || false).map(drop)
    };
    let stamp = |version| {
        let mut bytes = Vec::new();
        let key = EntryKey::Here(b"k");
        let entry = EncodeEntry { key, action: Action::Delete(None), attributes: None };
        entry.encode(Stamp::Whole(version), &mut bytes);
        bind_entry(&mut bytes, version, 0);
        Entry::decode(&bytes).map(drop)
    };
    let most = NUMBER_END - 1;
    let results = [clear([most; 2]), chunk([most; 2]), batch(most), stamp(most)];
    assert_eq!(results, [Ok(()); 4]);
    for past in [NUMBER_END, u64::MAX] {
        let results = [
            clear([past, 1]),
            clear([1, past]),
            chunk([past, 1]),
            chunk([1, past]),
            batch(past),
            stamp(past),
        ];
        assert!(results.iter().all(|it| matches!(it, Err(Flaw::Field(_)))), "{results:?}");
    }
}

fn entry(rng: &mut Rng, bytes: &mut Vec<u8>) {
    let mut key = vec![0; 1 + rng.index(INLINE_KEY_MAX)];
    if rng.chance(1, 3) {
        key.resize(8, 0);
    }
    rng.fill(&mut key);
    let mut value = vec![0; rng.index(INLINE_VALUE_MAX + 1)];
    rng.fill(&mut value);
    let line = rng.below(1 << 40);
    let long = rng.chance(1, 4);
    let action = match rng.below(3) {
        0 if !long => Action::Value(&value),
        1 => Action::Delete(long.then_some(line)),
        _ => Action::Pointer(line),
    };
    let key = if long { EntryKey::Record(rng.next_u64()) } else { EntryKey::Here(&key) };
    let attributes = rng.chance(1, 2).then(|| EntryAttributes {
        flags: 5,
        expires_at: rng.next_u64(),
        state: 9,
    });
    let stamp = match rng.below(3) {
        0 => Stamp::Place,
        1 => Stamp::Delta(77),
        _ => Stamp::Whole(rng.next_u64() >> 2),
    };
    let written = EncodeEntry { key, action, attributes };
    let start = bytes.len();
    written.encode(stamp, bytes);
    let (base, ordinal) = (rng.next_u64() >> 2, rng.below(64));
    bind_entry(&mut bytes[start..], base, ordinal);
    let found = Entry::decode(&bytes[start..]).unwrap();
    let version = stamp.version(base, ordinal);
    assert!(found.is_sound(version) && !found.is_sound(version + 1), "bound to its version");
    assert_eq!((found.key, found.action, found.attributes), (key, action, attributes));
    assert_eq!((found.stamp, found.size), (stamp, bytes.len() - start));
    assert!(found.size.is_multiple_of(2) && found.size <= entry::ENTRY_SIZE_MAX);
    let mut near = EntryBytes::default();
    written.encode(stamp, &mut near);
    bind_entry(near.written(), base, ordinal);
    assert_eq!(near.as_slice(), &bytes[start..]);
    for cut in 0..found.size {
        assert_eq!(Entry::decode(&bytes[start..start + cut]), Err(Flaw::TooShort));
    }
}

#[test]
fn entries_come_back_and_short_ones_say_so() {
    let mut rng = Rng::from_seed(1);
    for _ in 0..2000 {
        entry(&mut rng, &mut vec![0; 2]);
    }
}

#[test]
fn a_pointer_entry_of_a_key_of_8_bytes_has_16_bytes() {
    let mut bytes = Vec::new();
    let (key, action) = (EntryKey::Here(b"12345678"), Action::Pointer(99));
    EncodeEntry { key, action, attributes: None }.encode(Stamp::Place, &mut bytes);
    assert_eq!(bytes.len(), 16);
}

fn kind(action: Action<'_>) -> u8 {
    match action {
        Action::Value(_) => 0,
        Action::Pointer(_) => 1,
        Action::Delete(None) => 2,
        Action::Delete(Some(_)) => 3,
    }
}

/// All entries that differ in one byte, and are one of their kind still, are found out: short checks miss none.
#[test]
fn every_damaged_byte_of_an_entry_is_noticed() {
    let longest = [7; INLINE_VALUE_MAX];
    let some = Some(EntryAttributes { flags: 1, expires_at: 2, state: 3 });
    let forms = [
        (EntryKey::Here(b"12345678"), Action::Value(&longest), some),
        (EntryKey::Here(&longest[1..]), Action::Value(b"value"), some),
        (EntryKey::Here(&longest[1..]), Action::Pointer(1 << 33), some),
        (EntryKey::Here(b"12345678"), Action::Pointer(5), None),
        (EntryKey::Record(1 << 40), Action::Delete(Some(9)), None),
    ];
    for (key, action, attributes) in forms {
        let mut bytes = Vec::new();
        EncodeEntry { key, action, attributes }.encode(Stamp::Delta(5), &mut bytes);
        bind_entry(&mut bytes, 70, 0);
        for (at, change) in (0..bytes.len()).flat_map(|at| (1..=255).map(move |it| (at, it))) {
            let mut damaged = bytes.clone();
            damaged[at] ^= change;
            if let Ok(found) = Entry::decode(&damaged)
                && kind(found.action) == kind(action)
            {
                let version = found.stamp.version(70, 0);
                assert!(!found.is_sound(version), "byte {at} by {change} of {action:?}");
            }
        }
        let found = Entry::decode(&bytes).unwrap();
        for (byte, change) in (0..8).flat_map(|byte| (1..=255).map(move |it| (byte, it))) {
            assert!(!found.is_sound(75 ^ change << (8 * byte)), "byte {byte} of the version");
        }
    }
}

#[test]
fn every_flipped_bit_of_a_batch_is_noticed_and_it_counts_at_its_place_only() {
    let mut batch = vec![0; batch_size(100)];
    Rng::from_seed(2).fill(&mut batch[16..116]);
    let header = BatchHeader { kind: BatchKind::Entries, payload_bytes: 100, base_version: 9 };
    seal_batch(&mut batch, &header, 5, 640);
    let no = || false;
    let (found, payload) = BatchHeader::decode(&mut batch, 5, 640, no).unwrap();
    assert_eq!((found, payload.len()), (header, 100));
    assert_eq!(BatchHeader::decode(&mut batch, 6, 640, no), Err(Flaw::Checksum), "another time");
    assert_eq!(BatchHeader::decode(&mut batch, 5, 704, no), Err(Flaw::Checksum), "another place");
    for bit in 0..batch.len() * 8 {
        batch[bit / 8] ^= 1 << (bit % 8);
        assert!(BatchHeader::decode(&mut batch, 5, 640, no).is_err(), "bit {bit}");
        batch[bit / 8] ^= 1 << (bit % 8);
    }
}

#[test]
fn every_flipped_bit_of_headers_and_words_is_noticed() {
    let superblock = Superblock {
        store_id: ID,
        hash_key: [1; 16],
        hash_mask: u64::MAX,
        size_bytes: 64 << 20,
        chunk_size_bytes: 4 << 20,
        chunk_count: 16,
        index: IndexKind::Masstree,
        created_unix_seconds: 3,
    };
    let chunk = ChunkHeader {
        epoch: 5 << 32,
        born: 7,
        kind: ChunkKind::Blocks,
        owner: 1,
        number: 3,
        lines: 5,
        chunks: 0,
        next_version: 9000,
    };
    let clear = Clear { generation: 4, version: 1000 };
    assert_eq!(Superblock::decode(&superblock.encode()), Ok(superblock));
    assert_eq!(ChunkHeader::decode(&chunk.encode(&ID), &ID, 3, || false), Ok(chunk));
    assert_eq!(Clear::decode(&clear.encode(&ID), &ID), Ok(clear));
    let flipped = |bytes: &[u8], sound: &dyn Fn(&[u8]) -> bool| {
        let mut bytes = bytes.to_vec();
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(!sound(&bytes), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    };
    flipped(&superblock.encode(), &|bytes| Superblock::decode(bytes).is_ok());
    flipped(&chunk.encode(&ID), &|bytes| ChunkHeader::decode(bytes, &ID, 3, || false).is_ok());
    flipped(&clear.encode(&ID), &|bytes| Clear::decode(bytes, &ID).is_ok());
    let session = Session { number: 77, clean: true };
    let word = session.encode(&ID);
    assert_eq!(Session::decode(word, &ID), Ok(session));
    (0..64).for_each(|bit| assert!(Session::decode(word ^ 1 << bit, &ID).is_err(), "bit {bit}"));
    assert!(Session::decode(word, &StoreId([8; 16])).is_err(), "another store");
}

#[test]
fn a_record_is_sound_at_its_place_only() {
    let head = Record::encode(b"key", true, b"value", &ID, 6400);
    let record = Record::peek(&head).unwrap();
    assert_eq!((record.key_length, record.value_length), (3, 5));
    assert!(record.is_sound(b"", b"keyvalue", &ID, 6400));
    assert!(!record.is_sound(b"", b"keyvalue", &ID, 6464));
    assert!(!record.is_sound(b"", b"keyvaluE", &ID, 6400));
    let record = Record::peek(&Record::encode(b"key", false, b"value", &ID, 6400)).unwrap();
    assert_eq!((record.key_length, record.value_length), (0, 5));
    assert!(record.is_sound(b"key", b"value", &ID, 6400));
    assert!(!record.is_sound(b"kez", b"value", &ID, 6400), "of another key");
}

#[test]
fn bytes_that_nobody_wrote_give_errors_and_no_panics() {
    let mut rng = Rng::from_seed(3);
    let mut whole = 0;
    for _ in 0..20_000 {
        let mut bytes = vec![0; rng.index(300)];
        rng.fill(&mut bytes);
        let _ = Entry::decode(&bytes);
        let _ = Record::peek(&bytes);
        let _ = ImageHeader::decode(&bytes, &ID, || false);
        let _ = ChunkState::decode(&bytes);
        whole += usize::from(BatchHeader::decode(&mut bytes, 1, 64, || false).is_ok());
    }
    assert_eq!(whole, 0, "random bytes pass for a batch");
}

#[test]
fn a_batch_is_the_same_by_the_checksums_of_its_lines() {
    let mut rng = Rng::from_seed(5);
    let mut bytes = vec![0; 12 * LINE];
    let payload_bytes = 100;
    rng.fill(&mut bytes[3 * LINE + 16..3 * LINE + 116]);
    let header = BatchHeader { kind: BatchKind::Entries, payload_bytes, base_version: 9 };
    let place = 3 * LINE..3 * LINE + batch_size(payload_bytes);
    seal_batch(&mut bytes[place.clone()], &header, 5, 640);
    let no = || false;
    let decode = |bytes: &[u8], salt, offset| {
        let lines = Stretches::of(bytes, LINE).unwrap();
        BatchHeader::decode_known((&bytes[3 * LINE..], 3), &lines, salt, offset, no)
            .map(|(header, payload)| (header, payload.to_vec()))
    };
    let payload = bytes[3 * LINE + 16..3 * LINE + 116].to_vec();
    assert_eq!(decode(&bytes, 5, 640), Ok((header, payload)));
    assert_eq!(decode(&bytes, 6, 640), Err(Flaw::Checksum), "another time");
    assert_eq!(decode(&bytes, 5, 704), Err(Flaw::Checksum), "another place");
    for bit in place.start * 8..place.end * 8 {
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(decode(&bytes, 5, 640).is_err(), "bit {bit}");
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
}
