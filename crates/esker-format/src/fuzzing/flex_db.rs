//! What `flex` puts in its space and its logs: root, runs, heads of large values, log batches, the saved index, numbers.

use super::{STORE_ID, choose};
use crate::flex_db::run::write;
use crate::flex_db::{
    Batch, Change, Content, Extra, INDEX_HEAD_SIZE, IndexEntry, IndexHead, IndexWriter,
    KEY_SIZE_MAX_BYTES, Key, LargeHead, Pair, Root, Run, RunKind, RunWriter, Unfinished, WalWriter,
    varint,
};
use crate::{Flaw, NUMBER_END};

const POSITION: u64 = 4096;
const BLOCK: usize = 512;

/// No checksum counts that does not match.
fn unsound() -> bool {
    false
}

/// Runs one input.
pub fn run(input: &[u8]) {
    let Some((decoder, bytes)) = input.split_first() else { return };
    match decoder % 6 {
        0 => {
            let Ok(root) = Root::decode(bytes, unsound) else { return };
            assert_eq!(Root::decode(&root.encode(), unsound), Ok(root));
        }
        1 => runs(bytes),
        2 => log_batch(bytes),
        3 => index(bytes),
        4 => large(bytes),
        _ => number(bytes),
    }
}

/// One run behind the other.
fn runs(bytes: &[u8]) {
    let mut rest = bytes;
    loop {
        let whole = rest;
        let (size, peeked) = (Run::size(whole), Run::peek(whole));
        let anchor = Run::peek_anchor(whole);
        let Ok(run) = Run::take(&mut rest, unsound) else { return };
        let taken = whole.len() - rest.len();
        assert_eq!(size, Ok(taken));
        let peeked = peeked.expect("a head is there");
        assert_eq!((peeked.kind, peeked.anchor, peeked.count), (run.kind, run.anchor, run.count));
        if run.kind == RunKind::Base && run.anchor.len() <= KEY_SIZE_MAX_BYTES {
            assert_eq!(anchor, Ok(Some(run.anchor)));
        }
        assert!(run.from_stem() <= taken);
        run_again(&run);
    }
}

/// Writers have their pairs in order.
fn run_again(run: &Run<'_>) {
    let keys: Vec<Vec<u8>> = run.pairs().map(|pair| pair.key.to_vec()).collect();
    let first = run.common.first_version;
    if !keys.is_sorted() || run.pairs().any(|pair| pair.version < first) {
        return;
    }
    let anchor = (run.kind == RunKind::Base).then_some(run.anchor);
    let mut again = Vec::new();
    write(anchor, first, run.pairs(), &mut again);
    let mut writer = RunWriter::new(first);
    run.pairs().for_each(|pair| writer.push(&pair));
    let mut collected = Vec::new();
    writer.finish(anchor, &mut collected);
    assert_eq!(again, collected, "wherever the pairs come from");
    let decoded = Run::take(&mut &again[..], unsound).expect("what was encoded");
    assert_eq!((decoded.kind, decoded.anchor), (run.kind, run.anchor));
    let pairs = |run: &Run<'_>| -> Vec<(Vec<u8>, u64, String)> {
        let content = |pair: &Pair<'_>| format!("{:?}", pair.content);
        run.pairs().map(|pair| (pair.key.to_vec(), pair.version, content(&pair))).collect()
    };
    assert_eq!(pairs(&decoded), pairs(run));
}

fn log_batch(bytes: &[u8]) {
    let peeked = Batch::peek(bytes, POSITION);
    let Ok((batch, _)) = Batch::decode(bytes, &STORE_ID.0, POSITION, unsound) else { return };
    assert_eq!(peeked, Ok(batch));
    let (mut writer, mut changes) = (WalWriter::empty(), 0);
    let read = batch.changes(bytes, |version, change| -> Result<(), Flaw> {
        assert_eq!(version, batch.first_version + changes);
        changes += 1;
        writer.push(&change);
        Ok(())
    });
    if read.is_err() {
        return;
    }
    let (again, _) = writer.finish(batch, &STORE_ID.0, BLOCK).expect("it was no larger");
    let (decoded, _) =
        Batch::decode(again, &STORE_ID.0, POSITION, unsound).expect("what was encoded");
    assert_eq!((decoded.change_count, decoded.generation), (batch.change_count, batch.generation));
    assert_eq!(all_changes(&decoded, again), all_changes(&batch, bytes));
}

fn all_changes(batch: &Batch, bytes: &[u8]) -> Vec<(u64, String)> {
    let mut all = Vec::new();
    let read = batch.changes(bytes, |version, change| -> Result<(), Flaw> {
        all.push((version, format!("{change:?}")));
        Ok(())
    });
    assert_eq!(read, Ok(()));
    all
}

fn index(bytes: &[u8]) {
    let Ok(head) = IndexHead::peek(bytes) else { return };
    let body = bytes.get(INDEX_HEAD_SIZE..).unwrap_or_default();
    if IndexHead::check(bytes, body).is_err() {
        return;
    }
    let (mut writer, mut count) = (IndexWriter::default(), 0);
    let mut all = Vec::new();
    let read = head.entries(body, |anchor, entry| {
        assert!(anchor.len() <= KEY_SIZE_MAX_BYTES, "an anchor is a key");
        count += 1;
        writer.push(anchor, &entry);
        all.push((anchor.to_vec(), format!("{entry:?}")));
    });
    if read.is_err() {
        return;
    }
    assert_eq!(count, head.interval_count);
    let (again, body) = writer.finish(&head);
    let decoded = IndexHead::peek(&again).expect("what was encoded");
    assert_eq!(IndexHead::check(&again, &body), Ok(()));
    let mut entries = Vec::new();
    let read = decoded.entries(&body, |anchor, entry| {
        entries.push((anchor.to_vec(), format!("{entry:?}")));
    });
    assert_eq!((read, entries), (Ok(()), all));
}

fn large(bytes: &[u8]) {
    let size = LargeHead::size(bytes);
    let Ok(head) = LargeHead::decode(bytes) else { return };
    assert!(LargeHead::is_here(bytes));
    let again = head.encode();
    assert_eq!(size, Ok(again.len()));
    assert_eq!(LargeHead::decode(&again).as_ref(), Ok(&head));
}

/// The way of many digits at once, and that of one after the other, give the same.
fn number(bytes: &[u8]) {
    let mut rest = bytes;
    let taken = varint::take(&mut rest);
    let mut slowly = bytes.iter().enumerate().take(varint::SIZE_MAX);
    let mut value = 0_u128;
    let length = slowly.find_map(|(place, byte)| {
        value |= u128::from(byte & 0x7F) << (7 * place);
        (byte & 0x80 == 0).then_some(place + 1)
    });
    let expected = length.and_then(|_| u64::try_from(value).ok());
    assert_eq!(taken, expected);
    let Some(value) = taken else { return };
    assert_eq!(Some(bytes.len() - rest.len()), length);
    let mut again = Vec::new();
    varint::put(&mut again, value);
    assert_eq!(again.len(), varint::size(value));
    assert_eq!(varint::take(&mut &again[..]), Some(value));
}

fn example_run(anchor: Option<&[u8]>) -> Vec<u8> {
    let extra = Extra { flags: 7, state: 3, expires_at: 1_767_225_600 };
    let mut writer = RunWriter::new(1000);
    for (number, (key, content)) in (0..).zip([
        (&b"key 1"[..], Content::Put(Extra::default(), b"value")),
        (b"key 2", Content::Put(extra, b"another value")),
        (b"key 2", Content::Delete),
        (b"key 3", Content::Large(extra, 17, 1 << 21)),
    ]) {
        writer.push(&Pair { key: Key::from(key), version: 1009 - number, content });
    }
    let mut bytes = Vec::new();
    writer.finish(anchor, &mut bytes);
    bytes
}

fn example_batch() -> Vec<u8> {
    let mut writer = WalWriter::empty();
    for change in [
        Change::Set(b"key", Content::Put(Extra::default(), b"value")),
        Change::Set(b"key", Content::Delete),
        Change::DeleteRange(b"a", Some(b"b")),
        Change::DeleteRange(b"c", None),
    ] {
        writer.push(&change);
    }
    let batch = Batch {
        generation: 3,
        sequence: 5,
        position: POSITION,
        first_version: 1000,
        previous_checksum: 0x1234_5678,
        durable_sequence: 4,
        ..Batch::default()
    };
    writer.finish(batch, &STORE_ID.0, BLOCK).expect("a small one").0.to_vec()
}

fn example_index() -> Vec<u8> {
    let mut writer = IndexWriter::default();
    let entry = IndexEntry {
        size: 4096,
        pairs: Some(16),
        appended: 3,
        runs: 2,
        tail: &[0, 64, 3, 1, 2, 3],
        expiries: &[(1_767_225_600, 100), (1_767_225_700, 50)],
    };
    writer.push(b"", &IndexEntry { pairs: None, tail: &[], expiries: &[], ..entry });
    writer.push(b"key 100", &entry);
    writer.push(b"key 200", &entry);
    let head = IndexHead {
        store_id: STORE_ID.0,
        generation: 9,
        map_checksum: 0x1234_5678,
        ..IndexHead::default()
    };
    let (head, body) = writer.finish(&head);
    [&head[..], &body].concat()
}

/// Inputs to begin with.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let root = Root {
        store_id: STORE_ID.0,
        committed_generation: 5,
        last_version: NUMBER_END - 1,
        unfinished: Unfinished::Repair,
        capacity_bytes: 1 << 30,
    };
    let large = LargeHead {
        number: 17,
        length_bytes: 1 << 21,
        value_checksum: 0x1234_5678,
        key: b"key".to_vec(),
    };
    let interval = [example_run(Some(b"key")), example_run(None)].concat();
    vec![
        choose(0, root.encode()),
        choose(1, interval),
        choose(1, example_run(Some(b""))),
        choose(2, example_batch()),
        choose(3, example_index()),
        choose(4, large.encode()),
        choose(5, [0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x01]),
        choose(5, [0x80, 0x01, 9, 9, 9, 9, 9, 9]),
    ]
}
