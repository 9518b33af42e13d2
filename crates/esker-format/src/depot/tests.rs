//! The structures against their documentation, their limits, and damage.

use super::*;
use crate::Flaw;
use esker_base::ids::{SegmentEpoch, SegmentId, StoreId, Version};
use esker_base::rng::Rng;
use std::fmt::Write as _;
use std::mem::offset_of;

const PLACE: Place = Place { salt: 0x1122_3344_5566_7788, offset: 1_048_576 };

macro_rules! table {
    ($raw:ty: $($field:ident $kind:literal),* $(,)?) => {{
        let mut rows: Vec<(&str, usize, &str)> =
            vec![$((stringify!($field), offset_of!($raw, $field), $kind)),*];
        rows.push(("", size_of::<$raw>(), ""));
        let mut text = String::from("| offset | bytes | type | field |\n|---:|---:|---|---|\n");
        for pair in rows.windows(2) {
            let ((name, offset, kind), (_, end, _)) = (pair[0], pair[1]);
            writeln!(text, "| {offset} | {} | {kind} | `{name}` |", end - offset).unwrap();
        }
        writeln!(text, "\n{} bytes.", size_of::<$raw>()).unwrap();
        text
    }};
}

fn example() -> Vec<u8> {
    let meta = RecordMeta {
        kind: RecordKind::Put,
        version: Version(1),
        flags: 7,
        expires_at: None,
        state: 0,
        collides: false,
    };
    let mut batch = vec![0; 512];
    let end = BATCH_HEADER_SIZE + meta.size_bytes(1, 1);
    encode_record(&mut batch[BATCH_HEADER_SIZE..end], &meta, b"k", b"v");
    let place = Place { offset: PLACE.offset + BATCH_HEADER_SIZE as u64, ..PLACE };
    seal_record(&mut batch[BATCH_HEADER_SIZE..end], place);
    let header = BatchHeader {
        kind: BatchKind::Records,
        total_bytes: 512,
        payload_bytes: u32::try_from(end - BATCH_HEADER_SIZE).unwrap(),
        record_count: 1,
        first_version: Version(1),
        durable_version: Version(1),
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
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/format/depot.md");
    let page = std::fs::read_to_string(path).unwrap();
    let parts = [
        (
            "table superblock",
            table!(superblock::Raw: magic "ESKDEPOT", format_version "u32",
            checksum "u32", store_id "16 bytes", hash_key "16 bytes", hash_mask "u64",
            device_size_bytes "u64", data_offset "u64", segment_size_bytes "u64",
            segment_count "u32", block_size_bytes "u32", generation "u64",
            created_unix_seconds "u64", reserved "zeros"),
        ),
        (
            "table segment header",
            table!(segment::Raw: magic "ESKS", checksum "u32",
            store_id "16 bytes", segment_id "u32", stream "u32", epoch "u64", salt "u64",
            first_version "u64", clear_version "u64", reserved "zeros"),
        ),
        (
            "table batch header",
            table!(batch::Raw: magic "ESKB", checksum "u32",
            total_bytes "u32", payload_bytes "u32", record_count "u32", kind "u32",
            first_version "u64", durable_version "u64", session "u64", reserved "zeros"),
        ),
        (
            "table record header",
            table!(record::Raw: checksum "u32", key_size_less_one "u16",
            kind "u8", marks "u8", value_size "u32", flags "u32", version "u64"),
        ),
        ("example", hex(&example()[..112])),
    ];
    let mut expected = page.clone();
    for (name, text) in parts {
        let start = format!("<!-- {name} -->\n");
        let (before, rest) = expected.split_once(&start).expect(name);
        let (_, after) = rest.split_once("<!-- end -->").expect(name);
        expected = format!("{before}{start}{text}<!-- end -->{after}");
    }
    if std::env::var_os("REWRITE").is_some() {
        std::fs::write(path, &expected).unwrap();
    }
    assert!(page == expected, "docs/format/depot.md is stale: run this test with REWRITE=1");
}

#[test]
fn a_batch_and_its_record_come_back() {
    let bytes = example();
    let batch = Batch::decode(&bytes, 512, PLACE, true).unwrap();
    assert_eq!((batch.header.record_count, batch.header.first_version), (1, Version(1)));
    let place = Place { offset: PLACE.offset + BATCH_HEADER_SIZE as u64, ..PLACE };
    let record = Record::decode(batch.payload, Some(place)).unwrap();
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
fn every_flipped_bit_of_superblock_and_segment_header_is_noticed() {
    let id = StoreId([3; 16]);
    let header = SegmentHeader {
        segment_id: SegmentId(5),
        stream: 0,
        epoch: SegmentEpoch(9),
        salt: 77,
        first_version: Version(100),
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
        stream: 0,
        epoch: SegmentEpoch(9),
        salt: 77,
        first_version: Version(1),
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
    bytes[8] = 2;
    bytes[12..16].fill(0);
    let crc = esker_base::checksum::crc32c(&bytes);
    bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    assert_eq!(Superblock::decode(&bytes), Err(Flaw::Version(2)));
}

#[test]
fn geometry_that_does_not_fit_is_refused() {
    let good = superblock();
    for (field, bad) in [
        ("block_size_bytes", Superblock { block_size_bytes: 513, ..good }),
        ("block_size_bytes", Superblock { block_size_bytes: 0, ..good }),
        ("segment_size_bytes", Superblock { segment_size_bytes: 1024, ..good }),
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
        for expires_at in [None, Some(u64::MAX)] {
            let meta = RecordMeta {
                kind: RecordKind::Put,
                version: Version(u64::MAX),
                flags: u32::MAX,
                expires_at,
                state: 15,
                collides: true,
            };
            let mut bytes = vec![0xEE; meta.size_bytes(key_size, value_size)];
            encode_record(&mut bytes, &meta, &key, &value);
            seal_record(&mut bytes, PLACE);
            let record = Record::decode(&bytes, Some(PLACE)).unwrap();
            assert_eq!((record.meta, record.key, record.value), (meta, &key[..], &value[..]));
            let value_start = record.body_start() + key_size;
            assert_eq!(&bytes[value_start..value_start + value_size], value);
            assert_eq!(Record::decode(&bytes[..bytes.len() - 1], Some(PLACE)), Err(Flaw::TooShort));
        }
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
        accepted += usize::from(Record::decode(&bytes, Some(PLACE)).is_ok());
        accepted += usize::from(Superblock::decode(&bytes).is_ok());
        accepted +=
            usize::from(SegmentHeader::decode(&bytes, StoreId([0; 16]), SegmentId(0)).is_ok());
        let _ = (Record::decode(&bytes, None), Record::peek_size(&bytes));
    }
    assert_eq!(accepted, 0);
}
