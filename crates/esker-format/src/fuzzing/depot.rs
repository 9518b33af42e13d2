//! What `depot` puts on a device: superblock, segment headers, batches with what is in them, and headers of striped devices.

use super::{STORE_ID, choose};
use crate::depot::{
    BATCH_HEADER_SIZE, Batch, BatchHeader, BatchKind, CheckpointEnd, CheckpointExtents,
    CheckpointSegment, ExtentKey, LargeRef, LargeValue, Place, Record, RecordKind, RecordMeta,
    SegmentHeader, Shape, Stream, SummaryGeometry, SummaryRecord, Superblock, VersionForm,
    decode_evicted, decode_extent, decode_trailer, encode_batch, encode_evicted, encode_record,
    encode_trailer, part_size, push_batch, push_part, push_record, read_summary, seal_record,
    take_part,
};
use crate::stripe::{MemberHeader, StripeLayout, StripeState};
use esker_base::ids::{SegmentEpoch, SegmentId, Sequence, Version};

const SEGMENT: SegmentId = SegmentId(3);
const PLACE: Place = Place { salt: 0x1122_3344_5566_7788, offset: 65536 };
const BLOCK: u32 = 512;
const GRAIN: usize = 8;
const BASE: Version = Version(1000);
const GEOMETRY: SummaryGeometry =
    SummaryGeometry { block: BLOCK as u64, segment: 64 << 10, grain: GRAIN as u64 };

/// Runs one input.
pub fn run(input: &[u8]) {
    let Some((decoder, bytes)) = input.split_first() else { return };
    match decoder % 12 {
        0 => {
            let Ok(superblock) = Superblock::decode(bytes) else { return };
            assert_eq!(Superblock::decode(&superblock.encode()), Ok(superblock));
        }
        1 => {
            let _ = SegmentHeader::is_one(bytes);
            let Ok(header) = SegmentHeader::decode(bytes, STORE_ID, SEGMENT) else { return };
            let again = header.encode(STORE_ID);
            assert_eq!(SegmentHeader::decode(&again, STORE_ID, SEGMENT), Ok(header));
        }
        2 => batch(bytes),
        3 => records(bytes, Some(PLACE)),
        4 => records(bytes, None),
        5 => summary(bytes, VersionForm::Distance),
        6 => summary(bytes, VersionForm::Whole),
        7 => checkpoint_end(bytes),
        8 => checkpoint_extents(bytes),
        9 => parts(bytes),
        10 => large(bytes),
        _ => member(bytes),
    }
}

fn batch(bytes: &[u8]) {
    let peeked = BatchHeader::peek(bytes, BLOCK);
    let _ = BatchHeader::was_barrier(bytes, BLOCK, 5);
    let Ok(batch) = Batch::decode(bytes, BLOCK, PLACE, true) else { return };
    assert_eq!(peeked, Ok(batch.header));
    let mut again = bytes[..batch.header.total_bytes as usize].to_vec();
    encode_batch(&mut again, &batch.header, PLACE);
    let decoded = Batch::decode(&again, BLOCK, PLACE, true).expect("what was encoded");
    assert_eq!((decoded.header, decoded.payload), (batch.header, batch.payload));
    match batch.header.kind {
        BatchKind::Records => records(batch.payload, None),
        BatchKind::Barrier => {}
        BatchKind::Summary => {
            summary(batch.payload, VersionForm::Distance);
            summary(batch.payload, VersionForm::Whole);
        }
        BatchKind::Trailer => {
            let trailer = decode_trailer(batch.payload).map(encode_trailer);
            assert_eq!(trailer.as_ref().map(|bytes| &bytes[..]), batch.payload.get(..8));
        }
        BatchKind::Checkpoint => parts(batch.payload),
        BatchKind::CheckpointExtents => checkpoint_extents(batch.payload),
        BatchKind::CheckpointEnd => checkpoint_end(batch.payload),
    }
}

/// One record behind the other, each at a grain.
fn records(bytes: &[u8], place: Option<Place>) {
    let mut at = 0;
    while let Some(rest) = bytes.get(at..) {
        let place = place.map(|place| Place { offset: place.offset + at as u64, ..place });
        let size = Record::peek_size(rest);
        let Ok(record) = Record::decode(rest, BASE, place) else { return };
        assert_eq!(size, Ok(record.size_bytes));
        record_again(&record, rest);
        at += record.size_bytes.next_multiple_of(GRAIN);
    }
}

fn record_again(record: &Record<'_>, bytes: &[u8]) {
    let form = Record::peek_form(bytes).expect("it was read");
    let (meta, key, value) = (record.meta, record.key, record.value);
    let mut again = vec![0; meta.size_bytes(form, key.len(), value.len())];
    encode_record(&mut again, &meta, form, key, value);
    let distance = match form {
        VersionForm::Distance => u32::try_from(meta.version.0 - BASE.0).ok(),
        VersionForm::Whole => None,
    };
    seal_record(&mut again, distance, PLACE);
    let decoded = Record::decode(&again, BASE, Some(PLACE)).expect("what was encoded");
    assert_eq!((decoded.meta, decoded.key, decoded.value), (meta, key, value));
    let _ = LargeRef::of(meta.kind, key, value);
    match meta.kind {
        RecordKind::Extent => {
            // A device gives the value by itself.
            let (head, tail) = again.split_at(decoded.body_start + key.len());
            let extent = decode_extent(head, tail, Some(PLACE));
            assert_eq!(extent.ok(), ExtentKey::decode(key).ok().map(|key| (key, value.len())));
        }
        RecordKind::Evict => {
            let hash = decode_evicted(key).map(encode_evicted);
            assert_eq!(hash.as_ref().map(|bytes| &bytes[..]), key.get(..8));
        }
        _ => {}
    }
}

fn summary(bytes: &[u8], form: VersionForm) {
    let mut count = 0;
    let read = read_summary(bytes, form, GEOMETRY, |record| {
        assert!(record.offset.is_multiple_of(GEOMETRY.grain) && record.size_bytes > 0);
        assert!(record.offset + record.size_bytes <= GEOMETRY.segment, "inside the segment");
        count += 1;
    });
    assert!(count <= bytes.len() / 6, "each record takes room");
    assert!(read.is_err() || read.is_ok_and(|batches| batches <= bytes.len() as u64 / 16));
}

fn checkpoint_end(bytes: &[u8]) {
    let Ok(end) = CheckpointEnd::decode(bytes) else { return };
    assert_eq!(end.encode(), bytes);
}

fn checkpoint_extents(bytes: &[u8]) {
    let (mut rest, mut again) = (bytes, Vec::new());
    while let Ok(Some(value)) = CheckpointExtents::take(&mut rest) {
        let before = again.len();
        value.push(&mut again);
        assert_eq!(again.len() - before, CheckpointExtents::size_bytes(value.links.len()));
        assert_eq!(again, bytes[..again.len()]);
    }
}

fn parts(bytes: &[u8]) {
    let (mut rest, mut again) = (bytes, Vec::new());
    while let Ok(Some(part)) = take_part(&mut rest) {
        let before = again.len();
        push_part(&mut again, part);
        assert_eq!(again.len() - before, part_size(part));
        assert_eq!(again, bytes[..again.len()]);
    }
}

fn large(bytes: &[u8]) {
    if let Ok(large) = LargeValue::decode(bytes) {
        assert_eq!(large.encode(), bytes[..large.encode().len()]);
        let count = large.count();
        assert_eq!(large.length_of(count), 0, "behind the last extent");
        assert_eq!(count == 0, large.size_bytes == 0);
        assert!(count == 0 || large.length_of(count - 1) > 0);
    }
    if let Ok(key) = ExtentKey::decode(bytes) {
        for form in [VersionForm::Distance, VersionForm::Whole] {
            let aligned = key.encode((form, Version(key.id)), BLOCK as usize, bytes.len());
            assert_eq!(ExtentKey::decode(&aligned), Ok(key));
        }
    }
}

fn member(bytes: &[u8]) {
    let Ok(header) = MemberHeader::decode(bytes) else { return };
    assert_eq!(MemberHeader::decode(&header.encode()), Ok(header));
    let layout = header.layout;
    let (size, each) = (layout.size_bytes(), layout.member_size_bytes());
    let (size, each) = (size.expect("checked"), each.expect("checked"));
    for offset in [0, layout.lead_size_bytes, size / 2, size - 1, header.generation % size] {
        let (member, at, length) = layout.place(offset.min(size - 1));
        assert!(member < layout.member_count as usize);
        assert!(length > 0 && at.checked_add(length).is_some_and(|end| end <= each));
    }
}

pub(super) fn superblock() -> Superblock {
    Superblock {
        store_id: STORE_ID,
        hash_key: [7; 16],
        hash_mask: u64::MAX,
        device_size_bytes: 1 << 20,
        data_offset: 8192,
        segment_size_bytes: 64 << 10,
        segment_count: 15,
        block_size_bytes: BLOCK,
        generation: 1,
        created_unix_seconds: 1_767_225_600,
        cache: true,
        in_doubt: false,
        grain_size_bytes: 8,
    }
}

/// Records of all kinds, one behind the other.
fn example_records(form: VersionForm) -> Vec<u8> {
    let large = LargeValue { id: 7, size_bytes: 2500, extent_size_bytes: 1000 };
    let extent = ExtentKey { id: 7, number: 2, hash: 99 };
    let extent = extent.encode((form, Version(1005)), BLOCK as usize, 3);
    let all: [(RecordKind, &[u8], &[u8]); 6] = [
        (RecordKind::Put, b"key", b"value"),
        (RecordKind::Delete, b"k", b""),
        (RecordKind::Clear, b"", b""),
        (RecordKind::Large, b"large", &large.encode()),
        (RecordKind::Extent, &extent, b"abc"),
        (RecordKind::Evict, &encode_evicted(12345), b""),
    ];
    let mut bytes = Vec::new();
    for (number, (kind, key, value)) in (1..).zip(all) {
        let meta = RecordMeta {
            version: Version(BASE.0 + u64::from(number)),
            flags: number - 1,
            expires_at: (number == 1).then_some(1_767_225_600),
            state: u8::from(number == 1),
            collides: number == 2,
            replaces: number == 4,
            ..RecordMeta::new(kind)
        };
        let offset = bytes.len();
        let size = meta.size_bytes(form, key.len(), value.len());
        let mut record = vec![0; size];
        encode_record(&mut record, &meta, form, key, value);
        let place = Place { offset: PLACE.offset + offset as u64, ..PLACE };
        seal_record(&mut record, (form == VersionForm::Distance).then_some(number), place);
        bytes.extend(record);
        bytes.resize(bytes.len().next_multiple_of(GRAIN), 0);
    }
    bytes
}

fn example_summary(form: VersionForm) -> Vec<u8> {
    let mut bytes = Vec::new();
    let shape = Shape { kind: RecordKind::Put, collides: false, replaces: true, size_bytes: 100 };
    for (blocks, common) in [(1, Some(shape)), (40, None)] {
        push_batch(&mut bytes, blocks, 2, Sequence(50), common);
        let mut before = Version(0);
        for version in [Version(1010), Version(1005)] {
            let record = SummaryRecord {
                hash: 0x1234_5678_9ABC,
                version,
                offset: 0,
                size_bytes: 100,
                kind: if common.is_some() { RecordKind::Put } else { RecordKind::Extent },
                collides: false,
                replaces: true,
                piece: LargeRef { id: 7, number: 1 },
            };
            push_record(&mut bytes, form, common, &record, before);
            before = version;
        }
    }
    bytes
}

fn example_batch(kind: BatchKind, payload: &[u8], record_count: u32) -> Vec<u8> {
    let used = BATCH_HEADER_SIZE + payload.len();
    let mut bytes = vec![0; used.next_multiple_of(BLOCK as usize)];
    bytes[BATCH_HEADER_SIZE..used].copy_from_slice(payload);
    let size = |length: usize| u32::try_from(length).expect("a few blocks");
    let header = BatchHeader {
        kind,
        total_bytes: size(bytes.len()),
        payload_bytes: size(payload.len()),
        record_count,
        first_sequence: Sequence(1001),
        durable_sequence: Sequence(900),
        session: 5,
    };
    encode_batch(&mut bytes, &header, PLACE);
    bytes
}

fn example_end() -> Vec<u8> {
    let segment = CheckpointSegment {
        id: SEGMENT,
        epoch: SegmentEpoch(9),
        covered_bytes: 8192,
        written_bytes: 700,
        tombstones: 5,
        beyond_bytes: 90,
    };
    let end = CheckpointEnd {
        batches: 2,
        entries: 5,
        next_version: Version(77),
        clear_version: Version(6),
        moved: [Sequence(1), Sequence(2)],
        segments: vec![segment, segment],
    };
    end.encode()
}

fn example_extents() -> Vec<u8> {
    let mut bytes = Vec::new();
    CheckpointExtents { id: 5, head: 6, links: vec![7, 8] }.push(&mut bytes);
    CheckpointExtents::default().push(&mut bytes);
    bytes
}

fn example_parts() -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in [&b"one"[..], b"", b"three"] {
        push_part(&mut bytes, part);
    }
    bytes
}

/// Inputs to begin with.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let header = SegmentHeader {
        segment_id: SEGMENT,
        stream: Stream::Warm,
        epoch: SegmentEpoch(9),
        salt: PLACE.salt,
        first_sequence: Sequence(1000),
        next_version: BASE,
        session_epoch: SegmentEpoch(4),
        clear_version: Version(2),
    };
    let member = MemberHeader {
        set_id: [9; 16],
        member_index: 1,
        state: StripeState::Complete,
        generation: 3,
        layout: StripeLayout {
            member_count: 3,
            lead_offset: 8192,
            lead_size_bytes: 4096,
            unit_size_bytes: 65536,
            unit_count: 10,
        },
    };
    let large = LargeValue { id: 7, size_bytes: 2500, extent_size_bytes: 1000 };
    let (distance, whole) = (VersionForm::Distance, VersionForm::Whole);
    let trailer = encode_trailer(60_000);
    let mut seeds = vec![
        choose(0, superblock().encode()),
        choose(1, header.encode(STORE_ID)),
        choose(11, member.encode()),
        choose(10, large.encode()),
        choose(2, example_batch(BatchKind::Records, &example_records(distance), 6)),
        choose(2, example_batch(BatchKind::Barrier, b"", 0)),
        choose(2, example_batch(BatchKind::Trailer, &trailer, 0)),
    ];
    for (number, form) in [(5, distance), (6, whole)] {
        seeds.push(choose(3, example_records(form)));
        seeds.push(choose(4, example_records(form)));
        seeds.push(choose(number, example_summary(form)));
        seeds.push(choose(2, example_batch(BatchKind::Summary, &example_summary(form), 0)));
    }
    for (number, kind, payload) in [
        (7, BatchKind::CheckpointEnd, example_end()),
        (8, BatchKind::CheckpointExtents, example_extents()),
        (9, BatchKind::Checkpoint, example_parts()),
    ] {
        seeds.push(choose(2, example_batch(kind, &payload, 0)));
        seeds.push(choose(number, payload));
    }
    seeds
}
