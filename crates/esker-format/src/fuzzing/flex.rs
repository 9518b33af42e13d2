//! What FlexSpace puts in its files: header, nodes, map, groups of the log, blocks.

use super::{STORE_ID, choose, word};
use crate::flex::{
    Branch, GROUP_HEADER_SIZE, Group, Header, Map, Node, Packed, Record, SegmentState, SpaceShape,
    StoredAt, block_is_sound, seal_block,
};

const POSITION: u64 = 8192;
const SLOT: u64 = 40;
const GENERATION: u64 = 9;

/// No checksum counts that does not match.
fn unsound() -> bool {
    false
}

/// Runs one input.
pub fn run(input: &[u8]) {
    let Some((decoder, bytes)) = input.split_first() else { return };
    match decoder % 6 {
        0 => header(bytes),
        1 => group(bytes),
        2 => map(bytes),
        3 => node(bytes, 0),
        4 => node(bytes, 2),
        _ => block(bytes),
    }
}

fn header(bytes: &[u8]) {
    let Ok(header) = Header::decode(bytes, unsound) else { return };
    assert!(Header::is_sealed(bytes));
    assert_eq!(Header::decode(&header.encode(), unsound), Ok(header));
    let shape = header.shape;
    assert!(shape.segment_payload() < shape.segment_size_bytes);
    assert_eq!(shape.blocks() * shape.block_payload(), shape.segment_payload());
}

fn group(bytes: &[u8]) {
    let peeked = Group::peek(bytes, POSITION);
    let decoded = Group::decode(bytes, &STORE_ID.0, POSITION, unsound);
    let Ok((group, _, records)) = decoded else { return };
    assert_eq!(peeked, Ok(group));
    assert!(GROUP_HEADER_SIZE + records.len() <= bytes.len());
    let mut again = vec![0; group.total_bytes as usize];
    let mut packed = Packed::default();
    packed.extend(records.iter().copied());
    let sealed = group.encode(&mut again, &STORE_ID.0, &packed);
    let decoded = Group::decode(&again, &STORE_ID.0, POSITION, unsound);
    assert_eq!(decoded, Ok((group, sealed, records)));
}

fn map(bytes: &[u8]) {
    let Some((generation, size, checksum)) = Map::peek(bytes) else { return };
    let id = &STORE_ID.0;
    let Ok(map) = Map::decode(bytes, id, generation, checksum, unsound) else { return };
    assert_eq!(size, bytes.len() as u64);
    let (again, checksum) = map.encode(id, generation);
    assert_eq!(Map::decode(&again, id, generation, checksum, unsound), Ok(map));
}

fn node(bytes: &[u8], level: u16) {
    let at = StoredAt { slot: SLOT, checksum: word(bytes, 4).unwrap_or(0) };
    let Ok(node) = Node::decode(bytes, &STORE_ID.0, at, level, unsound) else { return };
    let mut again = vec![0; bytes.len()];
    let checksum = node.encode(&mut again, &STORE_ID.0, SLOT, GENERATION);
    let at = StoredAt { checksum, ..at };
    assert_eq!(Node::decode(&again, &STORE_ID.0, at, level, unsound), Ok(node));
}

fn block(bytes: &[u8]) {
    let _ = block_is_sound(bytes, 7, 3);
    let mut sealed = bytes.to_vec();
    seal_block(&mut sealed, 7, 3);
    assert_eq!(block_is_sound(&sealed, 7, 3), bytes.len() >= 4);
}

/// Inputs to begin with.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let id = &STORE_ID.0;
    let at = |slot| StoredAt { slot, checksum: 0x1234_5678 };
    let header = Header {
        space_id: *id,
        generation: GENERATION,
        shape: SpaceShape {
            segment_size_bytes: 65536,
            block_size_bytes: 4096,
            node_size_bytes: 1024,
            leaf_capacity: 60,
            children_max: 31,
            extent_size_bytes_max: 2048,
            log_block_size_bytes: 512,
        },
        root: at(16),
        root_shift: -5,
        root_height: 2,
        size_bytes: 1 << 20,
        extent_count: 300,
        map: at(30),
        map_size_bytes: 72,
    };
    let records = [
        Record::Insert { offset: 5, length: 100, address: 4096 },
        Record::Map { offset: 5, length: 50, address: 8192 },
        Record::Collapse { offset: 0, length: 5 },
        Record::Take { segment: 2, salt: 77 },
    ];
    let group = Group {
        generation: GENERATION,
        sequence: 3,
        position: POSITION,
        total_bytes: 0,
        record_count: 0,
        previous_checksum: 0x1111_2222,
    };
    let mut packed = Packed::default();
    packed.extend(records);
    let mut of_log = vec![0; packed.group_size(512)];
    group.encode(&mut of_log, id, &packed);
    let map = Map {
        segments: vec![SegmentState { salt: 77, valid_bytes: 4000 }; 2],
        slots: vec![0xFF, 0x01],
    };
    let branch = |pivot| Branch { pivot, shift: 1 << 20, child: at(17) };
    let mut nodes = Vec::new();
    for node in [
        Node::Leaf(vec![(0, 100, 4096), (100, 1 << 20, crate::flex::HOLE)]),
        Node::Inner(2, vec![branch(0), branch(5000)]),
    ] {
        let mut slot = vec![0; 512];
        node.encode(&mut slot, id, SLOT, GENERATION);
        nodes.push(slot);
    }
    let mut sealed = [7; 64];
    seal_block(&mut sealed, 7, 3);
    vec![
        choose(0, header.encode()),
        choose(1, of_log),
        choose(2, map.encode(id, GENERATION).0),
        choose(3, &nodes[0]),
        choose(4, &nodes[1]),
        choose(5, sealed),
    ]
}
