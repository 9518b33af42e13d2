//! Runs, batches and roots come back as they were, and damage is noticed.

use super::backup::{
    BackupEntry, BackupForm, FlexBackup, RawBackup, RawBackupEntry, is_backup_file,
};
use super::index::RawIndex;
use super::large::RawLarge;
use super::root::RawRoot;
use super::wal::RawBatch;
use super::*;
use crate::tests::table;
use crate::{Flaw, NUMBER_END};
use esker_base::checksum::crc32c;
use esker_base::rng::Rng;

fn never() -> bool {
    false
}

/// Run with `REWRITE=1` to bring the page up to date after a change of the format.
#[test]
fn the_normative_page_has_the_tables_of_the_code() {
    let root = table!(RawRoot: magic "ESKFLEXD", format_version "u32", checksum "u32",
        store_id "16 bytes", committed_generation "u64", last_version "u64", unfinished "u32",
        reserved "zeros", capacity_bytes "u64");
    let backup = table!(RawBackup: magic "ESKBACKF", format_version "u32", checksum "u32",
        store_id "16 bytes", number "u64", last_version "u64", created_unix_seconds "u64",
        entry_count "u64", capacity_bytes "u64", reserved "zeros");
    let entry = table!(RawBackupEntry: form "u32", checksum "u32", number "u64", id "u64",
        length_bytes "u64", hash "u64", reserved "zeros");
    let large = table!(RawLarge: checksum "u32", kind "3", reserved "zeros", number "u64",
        length_bytes "u64", value_checksum "u32", key_size_bytes "u32");
    let index = table!(RawIndex: magic "ESKFLEXI", format_version "u32", checksum "u32",
        store_id "16 bytes", generation "u64", interval_count "u64", body_bytes "u64",
        map_checksum "u32", reserved "zeros");
    let batch = table!(RawBatch: magic "ESKW", checksum "u32", generation "u64", sequence "u64",
        position "u64", first_version "u64", total_bytes "u32", body_bytes "u32",
        change_count "u32", previous_checksum "u32", durable_sequence "u64");
    crate::tests::assert_has(
        "flex-db.md",
        &[
            ("table root", root),
            ("table large", large),
            ("table batch", batch),
            ("table index", index),
            ("table backup", backup),
            ("table backup entry", entry),
        ],
    );
}

/// From any number that is read somebody counts on.
#[test]
fn numbers_without_end_are_refused() {
    let root = |[committed_generation, last_version]: [u64; 2]| {
        let root = Root { committed_generation, last_version, ..Root::default() };
        Root::decode(&root.encode(), never).map(drop)
    };
    let batch = |[generation, first_version]: [u64; 2]| {
        let mut writer = WalWriter::default();
        writer.push(&Change::DeleteRange(b"a", None));
        let batch = Batch { generation, first_version, ..Batch::default() };
        let (bytes, _) = writer.finish(batch, &[1; 16], 512).unwrap();
        Batch::decode(bytes, &[1; 16], 0, never).map(drop)
    };
    let most = [NUMBER_END - 1; 2];
    assert_eq!([root(most), batch(most)], [Ok(()); 2]);
    for past in [NUMBER_END, u64::MAX] {
        let results = [root([past, 1]), root([1, past]), batch([past, 1]), batch([1, past])];
        assert!(results.iter().all(|it| matches!(it, Err(Flaw::Field(_)))), "{results:?}");
    }
}

#[test]
fn a_saved_index_comes_back_and_no_bit_of_it_can_change() {
    let mut rng = Rng::from_seed(7);
    let tails = [&[][..], &[1, 0, 2, 7, 9], &[0, 9, 1, 4, 0, 9, 0]];
    let expiries = [&[][..], &[(0, 7)], &[(5, 1 << 40), (1 << 60, 9), (u64::MAX, 0)]];
    let mut entries: Vec<(Vec<u8>, IndexEntry<'_>)> = Vec::new();
    for number in 0..40_u64 {
        let anchor = if number == 0 { Vec::new() } else { format!("key/{number:03}").into_bytes() };
        let pairs = rng.chance(3, 4).then(|| rng.below(300));
        let [size, appended, runs] = [1 << 20, 20, 9].map(|most| rng.below(most));
        let (tail, expiries) = (tails[rng.index(3)], expiries[rng.index(3)]);
        entries.push((anchor, IndexEntry { size, pairs, appended, runs, tail, expiries }));
    }
    let mut writer = IndexWriter::default();
    entries.iter().for_each(|(anchor, entry)| writer.push(anchor, entry));
    let of =
        IndexHead { store_id: [3; 16], generation: 9, map_checksum: 5, ..IndexHead::default() };
    let (head, body) = writer.finish(&of);
    let found = IndexHead::peek(&head).unwrap();
    let (interval_count, body_bytes) = (40, body.len() as u64);
    assert_eq!(found, IndexHead { interval_count, body_bytes, ..of });
    assert_eq!(IndexHead::check(&head, &body), Ok(()));
    let mut read = Vec::new();
    found
        .entries(&body, |anchor, entry| {
            let tail = tails.into_iter().find(|tail| *tail == entry.tail).unwrap();
            let same = |known: &&[(u64, u64)]| **known == *entry.expiries;
            let expiries = expiries.into_iter().find(same).unwrap();
            read.push((anchor.to_vec(), IndexEntry { tail, expiries, ..entry }));
        })
        .unwrap();
    assert_eq!(read, entries);
    for bit in (0..head.len() * 8).filter(|bit| !(96..128).contains(bit)) {
        let mut head = head;
        head[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(IndexHead::check(&head, &body), Err(Flaw::Checksum), "bit {bit} of the head");
    }
    for bit in 0..body.len() * 8 {
        let mut body = body.clone();
        body[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(IndexHead::check(&head, &body), Err(Flaw::Checksum), "bit {bit}");
        let _ = found.entries(&body, |_, _| ());
    }
    assert!(found.entries(&body[..body.len() - 1], |_, _| ()).is_err());
}

#[test]
fn an_anchor_of_a_saved_index_is_no_longer_than_a_key() {
    let longest = vec![b'k'; KEY_SIZE_MAX_BYTES];
    let longer = [&longest[..], b"k"].concat();
    for (last, expected) in [(&longest, Ok(())), (&longer, Err(Flaw::Field("anchor")))] {
        let mut writer = IndexWriter::default();
        for anchor in [&longest, last] {
            writer.push(anchor, &IndexEntry::default());
        }
        let (head, body) = writer.finish(&IndexHead::default());
        let head = IndexHead::peek(&head).unwrap();
        assert_eq!(head.entries(&body, |_, _| ()), expected);
    }
}

#[test]
fn numbers_come_back_in_the_size_that_is_said() {
    for value in (0..64).flat_map(|bit| [(1_u64 << bit) - 1, 1 << bit, u64::MAX >> bit]) {
        let mut bytes = Vec::new();
        varint::put(&mut bytes, value);
        assert_eq!(bytes.len(), varint::size(value), "{value}");
        for behind in [&[9][..], &[0; 12], &[0x80; 12], &[0xFF; 12], &[7, 0xFF, 0, 0x81]] {
            let all = [&bytes, behind].concat();
            let mut rest = &all[..];
            assert_eq!((varint::take(&mut rest), rest), (Some(value), behind));
        }
        bytes.pop();
        assert_eq!(varint::take(&mut &bytes[..]), None, "cut short");
    }
    assert_eq!(varint::take(&mut &[0xFF; 11][..]), None, "more than 64 bits");
}

/// The pairs of a run, with keys in one part.
fn pairs_in(run: &Run<'_>) -> Vec<(Vec<u8>, u64, Vec<u8>)> {
    let pairs = run.pairs().map(|pair| {
        let Content::Put(_, value) = pair.content else { unreachable!("{pair:?}") };
        (pair.key.to_vec(), pair.version, value.to_vec())
    });
    pairs.collect()
}

#[test]
fn a_run_comes_back_and_every_flipped_bit_is_noticed() {
    let extra = Extra { flags: 7, state: 3, expires_at: 99 };
    // With a stem, and without one.
    for keys in [[b"key/a", b"key/b", b"key/b", b"key/c"], [b"aaaaa", b"baaaa", b"baaaa", b"caaaa"]]
    {
        let [a, b, c, d] = keys.map(Key::from);
        let pairs = [
            Pair { key: a, version: 12, content: Content::Put(Extra::default(), b"") },
            Pair { key: b, version: 900, content: Content::Delete },
            Pair { key: c, version: 10, content: Content::Put(extra, &[5; 300]) },
            Pair { key: d, version: 11, content: Content::Large(extra, 77, 1 << 32) },
        ];
        let stem = if keys[0].starts_with(b"key") { 4 } else { 0 };
        let anchor = keys[0];
        let mut writer = RunWriter::new(10);
        pairs.iter().for_each(|pair| writer.push(pair));
        let mut bytes = Vec::new();
        writer.finish(Some(&anchor[..]), &mut bytes);
        let first = bytes.len();
        writer.finish(None, &mut bytes);
        let mut rest = &bytes[..];
        for kind in [RunKind::Base, RunKind::Appended] {
            let before = rest;
            let run = Run::take(&mut rest, never).unwrap();
            assert_eq!((run.kind, run.count, run.common.stem), (kind, 4, &anchor[..stem]));
            assert_eq!(run.anchor, if kind == RunKind::Base { &anchor[..] } else { b"" });
            assert_eq!(run.pairs().collect::<Vec<_>>(), pairs);
            let at = before.len() - rest.len() - run.from_stem();
            assert_eq!(before[at..at + stem], anchor[..stem], "where the stem stands");
        }
        assert!(rest.is_empty());
        assert_eq!(Run::peek_anchor(&bytes[..40]), Ok(Some(&anchor[..])));
        assert_eq!(Run::peek_anchor(&bytes[..12]), Ok(None), "not all of it");
        assert!(Run::peek_anchor(&bytes[first..]).is_err(), "it has none");
        for bit in 0..bytes.len() * 8 {
            let (mut damaged, place) = (bytes.clone(), if bit < first * 8 { 0 } else { first });
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Run::take(&mut &damaged[place..], never).is_err(), "bit {bit}");
        }
    }
}

#[test]
fn a_pair_that_names_a_value_longer_than_any_is_none() {
    for (length, count) in [(VALUE_SIZE_MAX_BYTES, 1), (VALUE_SIZE_MAX_BYTES + 1, 0), (u64::MAX, 0)]
    {
        let content = Content::Large(Extra::default(), 7, length);
        let mut writer = RunWriter::new(1);
        writer.push(&Pair { key: Key::from(b"key"), version: 1, content });
        let mut bytes = Vec::new();
        writer.finish(None, &mut bytes);
        let run = Run::take(&mut &bytes[..], never).unwrap();
        assert_eq!(run.pairs().count(), count, "{length}");
    }
}

#[test]
fn runs_of_any_keys_come_back_and_what_keys_share_stands_there_once() {
    let mut rng = Rng::from_seed(31);
    let mut saved = 0;
    for round in 0..2000 {
        let shared = vec![b'x'; rng.index(200)];
        let mut keys: Vec<Vec<u8>> = (0..1 + rng.index(20))
            .map(|_| {
                [&shared[..], &vec![b'a'; rng.index(3)], &[[b'a', b'b', b'c', b'd'][rng.index(4)]]]
                    .concat()
            })
            .collect();
        keys.sort();
        keys.dedup();
        let mut anchor = keys[0].clone();
        anchor.truncate(rng.index(anchor.len() + 1));
        let anchor = (round % 2 == 0).then_some(&anchor[..]);
        let value = vec![7; rng.index(30)];
        // As they come out of another run: parted anywhere.
        let pairs: Vec<Pair<'_>> = keys
            .iter()
            .map(|key| {
                let (stem, rest) = key.split_at(rng.index(key.len() + 1));
                let content = Content::Put(Extra::default(), &value);
                Pair { key: Key::new(stem, rest), version: 5 + rng.below(9), content }
            })
            .collect();
        let mut bytes = vec![1, 2, 3];
        run::write(anchor, 5, pairs.iter().copied(), &mut bytes);
        let (before, mut rest) = bytes.split_at(3);
        assert_eq!(before, [1, 2, 3]);
        let run = Run::take(&mut rest, never).unwrap();
        assert!(rest.is_empty() && (run.anchor == anchor.unwrap_or_default()));
        let expected: Vec<_> =
            pairs.iter().map(|pair| (pair.key.to_vec(), pair.version, value.clone())).collect();
        assert_eq!(pairs_in(&run), expected, "round {round}");
        let stem = run.common.stem;
        assert!(keys.iter().all(|key| key.starts_with(stem)));
        let whole = expected.iter().map(|(key, ..)| key.len() + value.len()).sum::<usize>();
        saved += (whole + anchor.map_or(0, <[u8]>::len)).saturating_sub(bytes.len());
        if anchor.is_none() && keys.len() > 1 {
            assert!(stem.len() >= shared.len(), "round {round}");
            assert!(bytes.len() < 64 + shared.len() + keys.len() * (value.len() + 12));
        }
    }
    assert!(saved > 500_000, "{saved}");
}

#[test]
fn keys_are_compared_by_their_bytes_wherever_they_are_parted() {
    let mut rng = Rng::from_seed(32);
    let draw = |rng: &mut Rng| -> Vec<u8> {
        (0..rng.index(6)).map(|_| u8::try_from(rng.below(2)).unwrap()).collect()
    };
    let mut buffer = Vec::new();
    for _ in 0..20_000 {
        let (a, b) = (draw(&mut rng), draw(&mut rng));
        let (at_a, at_b) = (rng.index(a.len() + 1), rng.index(b.len() + 1));
        let key = Key::new(&a[..at_a], &a[at_a..]);
        let other = Key::new(&b[..at_b], &b[at_b..]);
        assert_eq!(key.cmp(&other), a.cmp(&b), "{key:?} {other:?}");
        assert_eq!(key.partial_cmp(&b[..]), Some(a.cmp(&b)), "{key:?} {b:?}");
        assert_eq!((key == other, key == b[..]), (a == b, a == b), "{key:?} {other:?}");
        let shared = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
        assert_eq!(key.shared(other), shared, "{key:?} {other:?}");
        let count = rng.index(a.len() + 1);
        assert_eq!((key.behind(count).to_vec(), key.len()), (a[count..].to_vec(), a.len()));
        assert_eq!(key.bytes(&mut buffer), &a[..]);
    }
}

#[test]
fn a_head_of_a_large_value_comes_back_and_every_flipped_bit_is_noticed() {
    let head = |number, length_bytes| LargeHead {
        number,
        length_bytes,
        value_checksum: 99,
        key: b"k".into(),
    };
    for wrong in [head(NUMBER_END, 7), head(7, VALUE_SIZE_MAX_BYTES + 1)] {
        assert!(matches!(LargeHead::decode(&wrong.encode()), Err(Flaw::Field(_))), "{wrong:?}");
    }
    let head = head(7, VALUE_SIZE_MAX_BYTES);
    let bytes = head.encode();
    assert!(LargeHead::is_here(&bytes) && LargeHead::size(&bytes) == Ok(bytes.len()));
    assert_eq!(LargeHead::decode(&bytes), Ok(head));
    for bit in 0..bytes.len() * 8 {
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(LargeHead::decode(&damaged).is_err(), "bit {bit}");
    }
    assert_eq!(LargeHead::decode(&bytes[..20]), Err(Flaw::TooShort));
    let mut run = Vec::new();
    RunWriter::new(0).finish(Some(b""), &mut run);
    assert!(!LargeHead::is_here(&run));
}

#[test]
fn a_manifest_comes_back_and_every_flipped_bit_is_noticed() {
    let entry = |form, id| BackupEntry {
        form,
        checksum: 7,
        number: 3,
        id,
        length_bytes: 1 << 33,
        hash: u64::MAX,
    };
    let entries = vec![entry(BackupForm::Part, 0), entry(BackupForm::Large, 1 << 60)];
    let manifest = FlexBackup {
        store_id: [8; 16],
        number: 3,
        last_version: 99,
        created_unix_seconds: 5,
        capacity_bytes: 1 << 30,
        entries,
    };
    let bytes = manifest.encode();
    assert_eq!(FlexBackup::decode(&bytes).as_ref(), Ok(&manifest));
    for bit in 0..bytes.len() * 8 {
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(FlexBackup::decode(&damaged).is_err(), "bit {bit}");
    }
    let names: Vec<_> = manifest.entries.iter().map(BackupEntry::file_name).collect();
    assert!(names.iter().all(|name| is_backup_file(name)) && names[0] != names[1]);
    assert!(
        !["MANIFEST", "part-1-2", "other-0000000000000000-00000001"]
            .iter()
            .any(|n| is_backup_file(n))
    );
}

#[test]
fn a_batch_counts_at_its_place_in_its_log_only_and_no_torn_one_does() {
    let id = [3; 16];
    let mut writer = WalWriter::default();
    let changes = [
        Change::Set(b"key", Content::Put(Extra::default(), &[1; 700])),
        Change::Set(b"gone", Content::Delete),
        Change::DeleteRange(b"a", Some(b"b")),
        Change::DeleteRange(b"", None),
    ];
    changes.iter().for_each(|change| writer.push(change));
    let batch = Batch {
        generation: 4,
        sequence: 2,
        position: 1024,
        first_version: 50,
        previous_checksum: 8,
        ..Batch::default()
    };
    let (bytes, checksum) = writer.finish(batch, &id, 512).unwrap();
    assert_eq!(bytes.len(), 1024);
    let (found, same) = Batch::decode(bytes, &id, 1024, never).unwrap();
    assert_eq!(
        (same, found.generation, found.sequence, found.previous_checksum),
        (checksum, 4, 2, 8)
    );
    let mut at = 0;
    found
        .changes(bytes, |version, change| {
            assert_eq!((version, change), (50 + at as u64, changes[at]));
            at += 1;
            Ok::<_, Flaw>(())
        })
        .unwrap();
    assert_eq!(at, 4);
    assert_eq!(Batch::decode(bytes, &id, 512, never), Err(Flaw::Foreign));
    assert_eq!(Batch::decode(bytes, &[4; 16], 1024, never), Err(Flaw::Checksum));
    let mut rng = Rng::from_seed(1);
    for _ in 0..2000 {
        let mut damaged = bytes.to_vec();
        let byte = rng.index(damaged.len());
        damaged[byte] ^= 1 << rng.below(8);
        assert!(Batch::decode(&damaged, &id, 1024, never).is_err(), "byte {byte}");
    }
}

#[test]
fn a_root_comes_back_and_others_are_refused() {
    let root = Root {
        store_id: [9; 16],
        committed_generation: 5,
        last_version: 1 << 40,
        unfinished: Unfinished::Repair,
        capacity_bytes: 3 << 33,
    };
    let bytes = root.encode();
    assert_eq!(Root::decode(&bytes, never), Ok(root));
    for byte in 0..ROOT_SIZE {
        let mut damaged = bytes;
        damaged[byte] ^= 4;
        assert!(Root::decode(&damaged, never).is_err(), "byte {byte}");
    }
    let mut newer = bytes;
    newer[8] = 9;
    assert_eq!(Root::decode(&newer, never), Err(Flaw::Version(9)));
    // What another build did to it and did not end, nobody knows.
    let mut unknown = bytes;
    unknown[48] = 7;
    unknown[12..16].fill(0);
    let checksum = crc32c(&unknown);
    unknown[12..16].copy_from_slice(&checksum.to_le_bytes());
    assert_eq!(Root::decode(&unknown, never), Err(Flaw::Field("unfinished")));
}
