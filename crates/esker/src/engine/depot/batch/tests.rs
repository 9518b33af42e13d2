//! Batches that are cut: where, and that nothing is lost.

use super::*;
use esker_format::depot::LargeValue;

const LAYOUT: Layout = Layout::of_blocks(512, 8);

/// A batch of records with values of these sizes; those of kind `Large` name a value.
fn batch(values: &[usize]) -> Batch {
    let mut batch =
        Batch::new(&BufferPool::default(), &LAYOUT, Sequence(70), VersionForm::Distance);
    for (number, size) in values.iter().enumerate() {
        let large = LargeValue { id: number as u64, size_bytes: 9, extent_size_bytes: 4 };
        let (kind, value) = match size {
            0 => (RecordKind::Large, large.encode().to_vec()),
            size => (RecordKind::Put, vec![7; *size]),
        };
        let version = Version(70 + number as u64);
        let expires_at = (*size == 0).then_some(500 + number as u64);
        let meta = RecordMeta { version, expires_at, ..RecordMeta::new(kind) };
        let key = [b'k', u8::try_from(number).unwrap()];
        batch.push(&BufferPool::default(), number as u64, &meta, &key, &value);
    }
    batch
}

fn contents(batch: &Batch) -> Vec<(Vec<u8>, Vec<u8>, LargeRef)> {
    let mut expiring = batch.expiring().map(|(entry, at)| (entry.unwrap().start(), at));
    let of = |entry: &Entry| {
        assert_eq!(entry.start() % 8, 0);
        let record = batch.record(entry, Sequence(0)).unwrap();
        let noted = record.meta.expires_at.and_then(|_| expiring.next());
        assert_eq!(noted, record.meta.expires_at.map(|at| (entry.start(), at)));
        (record.key.to_vec(), record.value.to_vec(), batch.piece(entry))
    };
    let contents = batch.entries.iter().map(of).collect();
    assert_eq!(expiring.next(), None);
    contents
}

#[test]
fn the_parts_of_a_batch_have_its_records() {
    let values = [100, 0, 33, 0, 500, 1, 0, 64];
    let whole = batch(&values);
    let all = contents(&whole);
    for from in 1..values.len() {
        let needs = whole.needs_of_parts(from);
        let mut first = batch(&values);
        let second = first.split_off(&BufferPool::default(), &LAYOUT, from);
        assert_eq!([contents(&first), contents(&second)].concat(), all);
        assert_eq!((first.end(), second.first), (Sequence(70 + from as u64), first.end()));
        assert_eq!(second.end(), whole.end());
        for (part, need) in [&first, &second].into_iter().zip(needs) {
            let again = part.need([]);
            assert_eq!((again.used, again.summary), (need.used, need.summary));
        }
        let alone = batch(&values[..from]);
        assert_eq!((first.used, first.summary.bytes()), (alone.used, alone.summary.bytes()));
    }
}

#[test]
fn records_are_found_where_they_start_and_nowhere_else() {
    let uneven: Vec<_> =
        (1..200).map(|n: usize| if n.is_multiple_of(50) { 4000 } else { n % 9 + 1 }).collect();
    for values in
        [&[][..], &[100], &[8; 200], &[2000, 1, 1, 1, 1, 1], &[1, 1, 1, 1, 1, 2000], &uneven]
    {
        let batch = batch(values);
        let starts: Vec<_> = batch.entries.iter().map(|entry| entry.start).collect();
        for start in 0..batch.used + 100 {
            let found = batch.entry_at(start as u64).map(|entry| entry.start);
            assert_eq!(found, starts.contains(&start).then_some(start));
        }
        assert!(batch.entry_at(u64::MAX).is_none());
    }
}

#[test]
fn a_batch_is_cut_before_the_record_that_begins_a_block_with_little_in_it() {
    // 48 bytes of header, and 16 records of 64: two blocks are 15 and a piece.
    let even = batch(&[52; 16]);
    assert_eq!(even.used, 48 + 16 * 64);
    let all: Vec<usize> = (0..16).collect();
    assert_eq!(even.cut(512, 8, &all), Some(15), "the last one is in a third block");
    assert_eq!(even.cut(512, 17, &all), None, "too few may go");
    assert_eq!(even.cut(512, 8, &[0, 14]), Some(14), "two that belong together");
    assert_eq!(even.cut(512, 8, &[0]), None, "all belong together");
    assert_eq!(even.cut(4096, 2, &all), None, "there is no whole block");
    assert_eq!(batch(&[52; 15]).cut(512, 8, &all[..15]), None, "it ends near a block's end");
    let all: Vec<usize> = (0..22).collect();
    assert_eq!(batch(&[52; 22]).cut(512, 8, &all), None, "too many had to go");
    assert_eq!(batch(&[400, 100]).cut(512, 1, &[0, 1]), Some(1));
    assert_eq!(batch(&[600]).cut(512, 1, &[0]), None, "the first record stays");
}
