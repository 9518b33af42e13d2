//! The structures against their documentation, their limits, and damage.

use super::*;
use crate::tests::table;
use crate::{Flaw, NUMBER_END};
use esker_base::ids::{SegmentEpoch, SegmentId, Sequence, StoreId, Version};
use esker_base::rng::Rng;
use std::fmt::Write as _;

const PLACE: Place = Place { salt: 0x1122_3344_5566_7788, offset: 1_048_576 };

fn example() -> Vec<u8> {
    let meta = RecordMeta { version: Version(1), flags: 7, ..RecordMeta::new(RecordKind::Put) };
    let mut batch = vec![0; 512];
    let end = BATCH_HEADER_SIZE + meta.size_bytes(VersionForm::Distance, 1, 1);
    encode_record(&mut batch[BATCH_HEADER_SIZE..end], &meta, VersionForm::Distance, b"k", b"v");
    let place = Place { offset: PLACE.offset + BATCH_HEADER_SIZE as u64, ..PLACE };
    seal_record(&mut batch[BATCH_HEADER_SIZE..end], Some(0), place);
    let header = BatchHeader {
        kind: BatchKind::Records,
        total_bytes: 512,
        payload_bytes: u32::try_from(end - BATCH_HEADER_SIZE).unwrap(),
        record_count: 1,
        first_sequence: Sequence(1),
        durable_sequence: Sequence(1),
        session: PLACE.salt,
    };
    encode_batch(&mut batch, &header, PLACE);
    batch
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::from("```text\n");
    for (row, chunk) in bytes.chunks(16).enumerate() {
        let digits: Vec<String> = chunk.iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(text, "{:04x}  {}", row * 16, digits.join(" ")).unwrap();
    }
    text + "```\n"
}

/// Run with `REWRITE=1` to bring the page up to date after a change of the format.
#[test]
fn the_normative_page_has_the_tables_and_the_example_of_the_code() {
    let parts = [
        (
            "table superblock",
            table!(superblock::Raw: magic "ESKDEPOT", format_version "u32",
            checksum "u32", store_id "16 bytes", hash_key "16 bytes", hash_mask "u64",
            device_size_bytes "u64", data_offset "u64", segment_size_bytes "u64",
            segment_count "u32", block_size_bytes "u32", generation "u64",
            created_unix_seconds "u64", mode "u32", grain_size_bytes "u32", reserved "zeros"),
        ),
        (
            "table segment header",
            table!(segment::Raw: magic "ESKS", checksum "u32",
            store_id "16 bytes", segment_id "u32", stream "u32", epoch "u64", salt "u64",
            first_sequence "u64", clear_version "u64", next_version "u64", session_epoch "u64", reserved "zeros"),
        ),
        (
            "table batch header",
            table!(batch::Raw: magic "ESKB", checksum "u32",
            total_bytes "u32", payload_bytes "u32", record_count "u32", kind "u32",
            first_sequence "u64", durable_sequence "u64", session "u64"),
        ),
        (
            "table record header",
            table!(record::Raw: checksum "u32", version_low "3 bytes", kind "u8"),
        ),
        ("example", hex(&example()[..112])),
    ];
    crate::tests::assert_has("depot.md", &parts);
}

#[test]
fn a_batch_and_its_record_come_back() {
    let bytes = example();
    let batch = Batch::decode(&bytes, 512, PLACE, true).unwrap();
    assert_eq!((batch.header.record_count, batch.header.first_sequence), (1, Sequence(1)));
    let place = Place { offset: PLACE.offset + BATCH_HEADER_SIZE as u64, ..PLACE };
    let record = Record::decode(batch.payload, Version(1), Some(place)).unwrap();
    assert_eq!((record.key, record.value, record.meta.flags), (&b"k"[..], &b"v"[..], 7));
    assert_eq!(record.size_bytes, batch.payload.len());
}

#[test]
fn every_flipped_bit_of_a_batch_is_noticed() {
    let bytes = example();
    for bit in 0..bytes.len() * 8 {
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(Batch::decode(&damaged, 512, PLACE, true).is_err(), "bit {bit}");
    }
}

#[test]
fn a_barrier_with_a_flipped_bit_is_known_as_one_and_other_batches_are_not() {
    let place = Place { salt: 7, offset: 512 };
    let header = BatchHeader {
        kind: BatchKind::Barrier,
        total_bytes: 512,
        payload_bytes: 0,
        record_count: 0,
        first_sequence: Sequence(9),
        durable_sequence: Sequence(9),
        session: 5,
    };
    let mut barrier = vec![0; 512];
    encode_batch(&mut barrier, &header, place);
    for bit in 0..8 * 512 {
        let mut damaged = barrier.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(BatchHeader::was_barrier(&damaged, 512, 5), "bit {bit}");
    }
    assert!(!BatchHeader::was_barrier(&example(), 512, 5));
    assert!(!BatchHeader::was_barrier(&[0; 512], 512, 5) && !BatchHeader::was_barrier(&[], 512, 5));
}

#[test]
fn every_flipped_bit_of_superblock_and_segment_header_is_noticed() {
    let id = StoreId([3; 16]);
    let header = SegmentHeader {
        segment_id: SegmentId(5),
        stream: Stream::Fresh,
        epoch: SegmentEpoch(9),
        salt: 77,
        first_sequence: Sequence(100),
        next_version: Version(100),
        session_epoch: SegmentEpoch(4),
        clear_version: Version(0),
    };
    let bytes = header.encode(id);
    assert_eq!(SegmentHeader::decode(&bytes, id, SegmentId(5)), Ok(header));
    for bit in 0..bytes.len() * 8 {
        let mut damaged = bytes;
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(SegmentHeader::decode(&damaged, id, SegmentId(5)).is_err(), "bit {bit}");
    }
    let bytes = superblock().encode();
    assert_eq!(Superblock::decode(&bytes), Ok(superblock()));
    for bit in 0..bytes.len() * 8 {
        let mut damaged = bytes;
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(Superblock::decode(&damaged).is_err(), "bit {bit}");
    }
}

/// With a checksum that fits: whoever counts on from there must not come to an end.
#[test]
fn numbers_without_end_are_refused() {
    let id = StoreId([3; 16]);
    let header = |of: [u64; 5]| SegmentHeader {
        segment_id: SegmentId(5),
        stream: Stream::Fresh,
        epoch: SegmentEpoch(of[0]),
        salt: u64::MAX,
        first_sequence: Sequence(of[1]),
        next_version: Version(of[2]),
        session_epoch: SegmentEpoch(of[3]),
        clear_version: Version(of[4]),
    };
    let end = |of: [u64; 4]| CheckpointEnd {
        next_version: Version(of[0]),
        clear_version: Version(of[1]),
        moved: [Sequence(of[2]), Sequence(of[3])],
        ..CheckpointEnd::default()
    };
    let batch = |of: [u64; 2]| {
        let header = BatchHeader {
            kind: BatchKind::Barrier,
            total_bytes: 512,
            payload_bytes: 0,
            record_count: 0,
            first_sequence: Sequence(of[0]),
            durable_sequence: Sequence(of[1]),
            session: u64::MAX,
        };
        let mut bytes = vec![0; 512];
        encode_batch(&mut bytes, &header, PLACE);
        Batch::decode(&bytes, 512, PLACE, true).map(|batch| batch.header)
    };
    let read = |header: SegmentHeader| SegmentHeader::decode(&header.encode(id), id, SegmentId(5));
    let most = NUMBER_END - 1;
    assert_eq!(read(header([most; 5])), Ok(header([most; 5])));
    assert_eq!(CheckpointEnd::decode(&end([most; 4]).encode()), Ok(end([most; 4])));
    assert!(batch([most; 2]).is_ok());
    for past in [NUMBER_END, u64::MAX] {
        let one = |place: usize, other: usize| if place == other { past } else { 7 };
        for place in 0..5 {
            let header = header(std::array::from_fn(|other| one(place, other)));
            assert!(matches!(read(header), Err(Flaw::Field(_))), "{place}");
        }
        for place in 0..4 {
            let end = end(std::array::from_fn(|other| one(place, other)));
            let read = CheckpointEnd::decode(&end.encode());
            assert!(matches!(read, Err(Flaw::Field(_))), "{place}");
        }
        for place in 0..2 {
            let read = batch(std::array::from_fn(|other| one(place, other)));
            assert!(matches!(read, Err(Flaw::Field(_))), "{place}");
        }
    }
}

fn superblock() -> Superblock {
    Superblock {
        store_id: StoreId([1; 16]),
        hash_key: [2; 16],
        hash_mask: u64::MAX,
        device_size_bytes: 1 << 20,
        data_offset: 8192,
        segment_size_bytes: 65_536,
        segment_count: 15,
        block_size_bytes: 512,
        generation: 1,
        created_unix_seconds: 0,
        cache: false,
        in_doubt: false,
        grain_size_bytes: 1,
    }
}

#[test]
fn structures_of_other_places_stores_and_times_are_foreign() {
    let bytes = example();
    for place in [Place { salt: 1, ..PLACE }, Place { offset: PLACE.offset + 512, ..PLACE }] {
        assert_eq!(Batch::decode(&bytes, 512, place, true).err(), Some(Flaw::Checksum));
    }
    let header = SegmentHeader {
        segment_id: SegmentId(5),
        stream: Stream::Fresh,
        epoch: SegmentEpoch(9),
        salt: 77,
        first_sequence: Sequence(1),
        next_version: Version(1),
        session_epoch: SegmentEpoch(1),
        clear_version: Version(0),
    };
    let bytes = header.encode(StoreId([3; 16]));
    for (store, segment) in [([4; 16], 5), ([3; 16], 6)] {
        let found = SegmentHeader::decode(&bytes, StoreId(store), SegmentId(segment));
        assert_eq!(found, Err(Flaw::Foreign));
    }
}

#[test]
fn a_newer_format_is_named() {
    let mut bytes = superblock().encode();
    let newer = FORMAT_VERSION + 1;
    bytes[8..12].copy_from_slice(&newer.to_le_bytes());
    bytes[12..16].fill(0);
    let crc = esker_base::checksum::crc32c(&bytes);
    bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    assert_eq!(Superblock::decode(&bytes), Err(Flaw::Version(newer)));
}

#[test]
fn geometry_that_does_not_fit_is_refused() {
    let good = superblock();
    for (field, bad) in [
        ("block_size_bytes", Superblock { block_size_bytes: 513, ..good }),
        ("block_size_bytes", Superblock { block_size_bytes: 0, ..good }),
        ("segment_size_bytes", Superblock { segment_size_bytes: 1024, ..good }),
        ("grain_size_bytes", Superblock { grain_size_bytes: 0, ..good }),
        ("grain_size_bytes", Superblock { grain_size_bytes: 3, ..good }),
        ("grain_size_bytes", Superblock { grain_size_bytes: 16, ..good }),
        ("data_offset", Superblock { data_offset: 4096, ..good }),
        ("segment_count", Superblock { segment_count: 16, ..good }),
        ("segment_count", Superblock { segment_count: u32::MAX, ..good }),
        ("segment_count", Superblock { segment_count: 0, ..good }),
    ] {
        assert_eq!(Superblock::decode(&bad.encode()), Err(Flaw::Field(field)));
    }
}

#[test]
fn records_of_all_sizes_come_back_and_cut_ones_do_not() {
    let mut rng = Rng::from_seed(5);
    for (key_size, value_size) in [(1, 0), (1, 1), (250, 4096), (65_536, 3), (7, 65_537)] {
        let (mut key, mut value) = (vec![0; key_size], vec![0; value_size]);
        rng.fill(&mut key);
        rng.fill(&mut value);
        for (expires_at, flags, form) in [
            (None, 0, VersionForm::Distance),
            (Some(u64::MAX), u32::MAX, VersionForm::Distance),
            (Some(1), 0, VersionForm::Whole),
            (None, 1, VersionForm::Whole),
        ] {
            let meta = RecordMeta {
                kind: RecordKind::Put,
                version: Version(u64::MAX - 7),
                flags,
                expires_at,
                state: 15,
                collides: true,
                replaces: key_size % 2 == 0,
            };
            let mut bytes = vec![0xEE; meta.size_bytes(form, key_size, value_size)];
            encode_record(&mut bytes, &meta, form, &key, &value);
            let distance = (form == VersionForm::Distance).then_some(5);
            seal_record(&mut bytes, distance, PLACE);
            let base = Version(u64::MAX - 12);
            let record = Record::decode(&bytes, base, Some(PLACE)).unwrap();
            assert_eq!((record.meta, record.key, record.value), (meta, &key[..], &value[..]));
            assert!(record.body_start <= RECORD_HEADER_SIZE_MAX);
            let value_start = record.body_start + key_size;
            assert_eq!(&bytes[value_start..value_start + value_size], value);
            let cut = Record::decode(&bytes[..bytes.len() - 1], base, Some(PLACE));
            assert_eq!(cut, Err(Flaw::TooShort));
        }
    }
}

#[test]
fn a_common_record_has_a_header_of_ten_bytes() {
    let meta = RecordMeta { version: Version(9), ..RecordMeta::new(RecordKind::Put) };
    assert_eq!(meta.size_bytes(VersionForm::Distance, 13, 100), 123);
}

fn noted(rng: &mut Rng, kind: RecordKind, version: u64, offset: u64) -> SummaryRecord {
    SummaryRecord {
        hash: rng.next_u64() >> (64 - HASH_BITS),
        version: Version(version),
        offset,
        size_bytes: 1 + rng.next_u64() % [8, 100, 5000][rng.index(3)],
        kind,
        collides: rng.chance(1, 2),
        replaces: rng.chance(1, 3),
        piece: match kind {
            RecordKind::Large | RecordKind::Extent => LargeRef {
                id: rng.next_u64(),
                number: u32::try_from(rng.next_u64() >> 32).unwrap(),
            },
            _ => LargeRef::default(),
        },
    }
}

#[test]
fn summaries_come_back_and_hostile_ones_are_refused() {
    let mut rng = Rng::from_seed(8);
    for (form, grain) in [(VersionForm::Distance, 1), (VersionForm::Whole, 8)] {
        let geometry = SummaryGeometry { block: 512, segment: 1 << 20, grain };
        let (mut bytes, mut expected) = (Vec::new(), Vec::new());
        let mut first = 50;
        for batch in 0..20_u32 {
            let mut offset = u64::from(1 + batch * 90) * 512 + BATCH_HEADER_SIZE as u64;
            let mut records: Vec<SummaryRecord> = Vec::new();
            for place in 0..7 {
                let kinds =
                    [RecordKind::Put, RecordKind::Delete, RecordKind::Large, RecordKind::Extent];
                let version = match form {
                    VersionForm::Distance => first + place,
                    VersionForm::Whole => rng.next_u64(),
                };
                let kind = kinds[rng.index(4)];
                let mut record = noted(&mut rng, kind, version, offset);
                if batch % 2 == 0
                    && let Some(SummaryRecord {
                        kind, collides, replaces, size_bytes, piece, ..
                    }) = records.first().copied()
                {
                    record =
                        SummaryRecord { kind, collides, replaces, size_bytes, piece, ..record };
                }
                offset = (offset + record.size_bytes).next_multiple_of(grain);
                records.push(record);
            }
            let mut size = SummarySize::new(form);
            records.iter().for_each(|record| size.add(record.shape(), record.version));
            assert_eq!(size.common().is_some(), batch % 2 == 0);
            let begun = bytes.len() as u64;
            push_batch(&mut bytes, 1 + batch * 90, 7, Sequence(first), size.common());
            let mut before = Version(0);
            for record in &records {
                push_record(&mut bytes, form, size.common(), record, before);
                before = record.version;
            }
            assert_eq!(bytes.len() as u64 - begun, size.bytes());
            expected.append(&mut records);
            first += 7;
        }
        let mut found = Vec::new();
        let batches = read_summary(&bytes, form, geometry, |record| found.push(record));
        assert_eq!(batches, Ok(20));
        assert_eq!(found, expected);
        assert!(read_summary(&bytes[..bytes.len() - 1], form, geometry, |_| ()).is_err());
        let short = SummaryGeometry { segment: 1 << 16, ..geometry };
        assert!(read_summary(&bytes, form, short, |_| ()).is_err(), "past the segment");
    }
}

#[test]
fn records_of_one_size_take_six_bytes_of_a_summary() {
    let mut rng = Rng::from_seed(9);
    let record = noted(&mut rng, RecordKind::Put, 1, 0);
    let shape = Shape { size_bytes: 125, collides: false, replaces: false, ..record.shape() };
    let mut size = SummarySize::new(VersionForm::Distance);
    (0..64).for_each(|_| size.add(shape, record.version));
    assert_eq!(size.bytes(), 16 + 2 + 64 * 6);
    size.add(Shape { size_bytes: 126, ..shape }, record.version);
    assert_eq!(size.bytes(), 16 + 65 * (6 + 2));
}

#[test]
fn a_copy_takes_two_to_four_bytes_more() {
    let meta =
        |version| RecordMeta { version: Version(version), ..RecordMeta::new(RecordKind::Put) };
    let more = |version| {
        let size = |form| meta(version).size_bytes(form, 4, 50);
        size(VersionForm::Whole) - size(VersionForm::Distance)
    };
    assert_eq!([1, 1 << 31, 1 << 38, u64::MAX].map(more), [1, 2, 3, 6]);
    let mut rng = Rng::from_seed(10);
    let shape = noted(&mut rng, RecordKind::Put, 1, 0).shape();
    let mut size = SummarySize::new(VersionForm::Whole);
    // One of two is gone.
    (0..1000).for_each(|n| size.add(shape, Version((1 << 40) + 2 * n)));
    assert!(size.bytes() <= 16 + 3 + 1000 * (6 + 1) + 5, "{}", size.bytes());
}

#[test]
fn an_extent_in_two_places_comes_back_and_every_flipped_bit_is_noticed() {
    let key = ExtentKey { id: 5, number: 6, hash: 7 };
    let value = [9; 21];
    let meta = RecordMeta { version: Version(3), ..RecordMeta::new(RecordKind::Extent) };
    let name = key.encode((VersionForm::Whole, meta.version), 512, value.len());
    let mut bytes = vec![0; meta.size_bytes(VersionForm::Whole, name.len(), value.len())];
    encode_record(&mut bytes, &meta, VersionForm::Whole, &name, &value);
    seal_record(&mut bytes, None, PLACE);
    let at = 512 - BATCH_HEADER_SIZE;
    assert_eq!(bytes[at..at + 21], value);
    let (head, tail) = bytes.split_at(at);
    assert_eq!(decode_extent(head, tail, Some(PLACE)), Ok((key, 21)));
    assert_eq!(decode_extent(head, &tail[..20], Some(PLACE)), Err(Flaw::TooShort));
    assert!(decode_extent(&bytes[..at + 1], &tail[1..], Some(PLACE)).is_err());
    for bit in 0..bytes.len() * 8 {
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        let (head, tail) = damaged.split_at(at);
        assert!(decode_extent(head, tail, Some(PLACE)).is_err(), "bit {bit}");
    }
}

#[test]
fn random_bytes_never_panic_a_decoder() {
    let mut rng = Rng::from_seed(6);
    let mut accepted = 0;
    for _ in 0..200_000 {
        let mut bytes = vec![0; rng.index(200)];
        rng.fill(&mut bytes);
        // The start of a real structure brings the decoder further.
        if bytes.len() >= 8 && rng.chance(1, 2) {
            bytes[..4].copy_from_slice([*b"ESKB", *b"ESKS"][rng.index(2)].as_slice());
        }
        accepted += usize::from(Batch::decode(&bytes, 512, PLACE, true).is_ok());
        accepted += usize::from(Record::decode(&bytes, Version(0), Some(PLACE)).is_ok());
        let form = [VersionForm::Distance, VersionForm::Whole][rng.index(2)];
        let geometry = SummaryGeometry { block: 512, segment: 1 << 20, grain: 1 };
        let read = read_summary(&bytes, form, geometry, |_| ());
        accepted += usize::from(!bytes.is_empty() && read.is_ok());
        accepted += usize::from(decode_extent(&bytes, &[0; 64], Some(PLACE)).is_ok());
        let _ = (LargeValue::decode(&bytes), ExtentKey::decode(&bytes));
        let _ = (CheckpointEnd::decode(&bytes), CheckpointExtents::take(&mut &bytes[..]));
        accepted += usize::from(Superblock::decode(&bytes).is_ok());
        accepted +=
            usize::from(SegmentHeader::decode(&bytes, StoreId([0; 16]), SegmentId(0)).is_ok());
        let _ = (Record::decode(&bytes, Version(0), None), Record::peek_size(&bytes));
    }
    assert_eq!(accepted, 0);
}
