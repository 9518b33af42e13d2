//! The manifest against its documentation, its limits, and damage.

use super::*;
use crate::tests::table;
use esker_base::ids::StoreId;
use esker_base::rng::Rng;

/// Run with `REWRITE=1` to bring the page up to date after a change of the format.
#[test]
fn the_normative_page_has_the_tables_of_the_code() {
    let parts = [
        (
            "table manifest header",
            table!(Raw: magic "ESKBACKU", format_version "u32", checksum "u32", number "u64",
                next_version "u64", clear_version "u64", created_unix_seconds "u64",
                entry_count "u32", engine "u32", reserved "zeros"),
        ),
        (
            "table manifest entry",
            table!(RawEntry: segment_id "u32", form "u32", epoch "u64", salt "u64",
                length_bytes "u64", number "u64", checksum "u32", reserved "zeros"),
        ),
    ];
    crate::tests::assert_has("backup.md", &parts);
}

fn manifest() -> Manifest {
    let superblock = Superblock {
        store_id: StoreId([1; 16]),
        hash_key: [2; 16],
        hash_mask: u64::MAX,
        device_size_bytes: 1 << 20,
        data_offset: 8192,
        segment_size_bytes: 65_536,
        segment_count: 15,
        block_size_bytes: 512,
        grain_size_bytes: 1,
        cache: false,
        in_doubt: false,
        generation: 1,
        created_unix_seconds: 0,
    };
    let entry = |id, form, length_bytes| ManifestEntry {
        id: SegmentId(id),
        epoch: SegmentEpoch(u64::from(id) + 7),
        salt: 99,
        form,
        length_bytes,
        number: 3,
        checksum: 0xABCD,
    };
    Manifest {
        number: 4,
        next_version: Version(1000),
        clear_version: Version(5),
        created_unix_seconds: 1_800_000_000,
        superblock,
        segments: vec![
            entry(2, SegmentForm::Whole, 65_536),
            entry(3, SegmentForm::Cut, 512),
            entry(14, SegmentForm::Cut, 65_536 - 1024),
        ],
    }
}

#[test]
fn a_manifest_comes_back_and_no_flipped_bit_or_cut_goes_unnoticed() {
    let bytes = manifest().encode();
    assert_eq!(bytes.len(), MANIFEST_HEADER_SIZE + 3 * MANIFEST_ENTRY_SIZE);
    assert_eq!(Manifest::decode(&bytes), Ok(manifest()));
    for bit in 0..bytes.len() * 8 {
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(Manifest::decode(&damaged).is_err(), "bit {bit}");
    }
    for length in 0..bytes.len() {
        assert!(Manifest::decode(&bytes[..length]).is_err(), "{length} bytes");
    }
    let longer = [&bytes[..], &[0; 64]].concat();
    assert_eq!(Manifest::decode(&longer), Err(Flaw::Checksum));
}

#[test]
fn entries_that_no_backup_writes_are_refused() {
    let good = manifest();
    let with = |change: &dyn Fn(&mut ManifestEntry)| {
        let mut manifest = good.clone();
        change(&mut manifest.segments[1]);
        Manifest::decode(&manifest.encode())
    };
    let length = Err(Flaw::Field("length_bytes"));
    assert_eq!(with(&|entry| entry.length_bytes = 0), length);
    assert_eq!(with(&|entry| entry.length_bytes = 513), length);
    assert_eq!(with(&|entry| entry.length_bytes = 65_536 - 512), length);
    assert_eq!(with(&|entry| entry.form = SegmentForm::Whole), length);
    assert_eq!(with(&|entry| entry.id = SegmentId(2)), Err(Flaw::Field("segment_id")));
    let mut beyond = good.clone();
    beyond.segments[2].id = SegmentId(15);
    assert_eq!(Manifest::decode(&beyond.encode()), Err(Flaw::Field("segment_id")));
}

#[test]
fn numbers_that_nobody_could_count_on_from_are_refused() {
    let with = |change: &dyn Fn(&mut Manifest)| {
        let mut manifest = manifest();
        change(&mut manifest);
        Manifest::decode(&manifest.encode())
    };
    let end = crate::NUMBER_END;
    assert!(with(&|manifest| manifest.number = end - 1).is_ok());
    assert_eq!(with(&|manifest| manifest.number = end), Err(Flaw::Field("number")));
    let next = with(&|manifest| manifest.next_version = Version(end));
    assert_eq!(next, Err(Flaw::Field("next_version")));
    let clear = with(&|manifest| manifest.clear_version = Version(u64::MAX));
    assert_eq!(clear, Err(Flaw::Field("clear_version")));
    let epoch = with(&|manifest| manifest.segments[0].epoch = SegmentEpoch(end));
    assert_eq!(epoch, Err(Flaw::Field("epoch")));
    let number = with(&|manifest| manifest.segments[0].number = end);
    assert_eq!(number, Err(Flaw::Field("number")));
}

/// A restore would have written a store without it before it noticed.
#[test]
fn no_chunk_stands_in_the_place_of_what_a_flat_is() {
    let superblock = flat::Superblock {
        store_id: StoreId([1; 16]),
        hash_key: [2; 16],
        hash_mask: u64::MAX,
        size_bytes: 1 << 20,
        chunk_size_bytes: 65_536,
        chunk_count: 16,
        index: flat::IndexKind::Cceh,
        created_unix_seconds: 0,
    };
    let manifest = |id| FlatManifest {
        number: 1,
        next_version: Version(2),
        clear_version: Version(0),
        created_unix_seconds: 0,
        superblock,
        segments: vec![ManifestEntry {
            id: SegmentId(id),
            epoch: SegmentEpoch(1 << 32),
            salt: 9,
            form: SegmentForm::Whole,
            length_bytes: 65_536,
            number: 1,
            checksum: 0,
        }],
    };
    assert!(FlatManifest::decode(&manifest(1).encode()).is_ok());
    let refused = FlatManifest::decode(&manifest(0).encode());
    assert_eq!(refused, Err(Flaw::Field("segment_id")));
}

#[test]
fn only_names_that_a_backup_gives_are_its_own() {
    for entry in &manifest().segments {
        assert!(is_backup_name(&entry.file_name()), "{}", entry.file_name());
    }
    let large = ManifestEntry { number: u64::MAX, ..manifest().segments[0] };
    assert!(is_backup_name(&large.file_name()) && is_backup_name("MANIFEST.new"));
    for other in ["segment-of-mine", "segment-1-2-3", "segment-00000001-0000000000000001", "x"] {
        assert!(!is_backup_name(other), "{other}");
    }
}

#[test]
fn a_newer_manifest_is_named() {
    let mut bytes = manifest().encode();
    bytes[8] = 2;
    assert_eq!(Manifest::decode(&bytes), Err(Flaw::Version(2)));
}

#[test]
fn a_restore_that_did_not_end_is_no_store() {
    let bytes = encode_restoring();
    assert!(is_restoring(&bytes));
    assert_eq!(Superblock::decode(&bytes), Err(Flaw::Magic));
    assert!(!is_restoring(&manifest().superblock.encode()) && !is_restoring(&[0; 512]));
}

#[test]
fn random_bytes_never_panic_the_decoder() {
    let mut rng = Rng::from_seed(6);
    for _ in 0..50_000 {
        let mut bytes = vec![0; rng.index(1000)];
        rng.fill(&mut bytes);
        if bytes.len() > 12 {
            bytes[..8].copy_from_slice(b"ESKBACKU");
            bytes[8..12].copy_from_slice(&[1, 0, 0, 0]);
        }
        assert!(Manifest::decode(&bytes).is_err());
    }
}
