//! The structures of FlexSpace against their documentation, their limits, and damage.

use super::header::Raw;
use super::log::RawGroup;
use super::map::{RawMap, RawSegment};
use super::node::{RawBranch, RawExtent, RawNode};
use super::*;
use crate::Flaw;
use crate::tests::table;
use esker_base::rng::Rng;

const ID: [u8; 16] = [9; 16];

/// Run with `REWRITE=1` to bring the page up to date after a change of the format.
#[test]
fn the_normative_page_has_the_tables_of_the_code() {
    let header = table!(Raw: magic "ESKFLEXT", format_version "u32", checksum "u32",
        space_id "16 bytes", generation "u64", segment_size_bytes "u64", block_size_bytes "u32",
        node_size_bytes "u32", leaf_capacity "u32", children_max "u32",
        extent_size_bytes_max "u32", log_block_size_bytes "u32", root_slot "u64",
        root_shift "i64", root_checksum "u32", root_height "u32", size_bytes "u64",
        extent_count "u64", map_slot "u64", map_size_bytes "u64", map_checksum "u32",
        reserved "zeros");
    let node = table!(RawNode: magic "ESKN", checksum "u32", level "u16", count "u16",
        reserved "zeros", slot "u64", generation "u64");
    let extent = table!(RawExtent: partial_offset "48 bits", length_low "u16", address "48 bits",
        length_high "u16");
    let branch = table!(RawBranch: pivot "i64", shift "i64", slot "u64", checksum "u32",
        reserved "zeros");
    let map = table!(RawMap: magic "ESKM", checksum "u32", generation "u64",
        segment_count "u64", slot_count "u64");
    let segment = table!(RawSegment: salt "u64", valid_bytes "u32", reserved "zeros");
    let group = table!(RawGroup: magic "ESKG", checksum "u32", generation "u64", sequence "u64",
        position "u64", total_bytes "u32", record_count "u32", previous_checksum "u32",
        reserved "zeros");
    crate::tests::assert_has(
        "flex-space.md",
        &[
            ("table header", header),
            ("table node", node),
            ("table extent", extent),
            ("table branch", branch),
            ("table map", map),
            ("table segment", segment),
            ("table group", group),
        ],
    );
}

fn no() -> bool {
    false
}

fn header() -> Header {
    Header {
        space_id: ID,
        generation: 5,
        shape: SpaceShape {
            segment_size_bytes: 4 << 20,
            block_size_bytes: 4096,
            node_size_bytes: 1024,
            leaf_capacity: 60,
            children_max: 31,
            extent_size_bytes_max: 128 << 10,
            log_block_size_bytes: 512,
        },
        root: StoredAt { slot: 77, checksum: 5 },
        root_shift: -3,
        root_height: 2,
        size_bytes: 1000,
        extent_count: 9,
        map: StoredAt { slot: 90, checksum: 8 },
        map_size_bytes: 64,
    }
}

/// Every single flipped bit is noticed.
fn assert_no_flip_passes(bytes: &[u8], sound: impl Fn(&[u8]) -> bool) {
    assert!(sound(bytes));
    for bit in 0..bytes.len() * 8 {
        let mut damaged = bytes.to_vec();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(!sound(&damaged), "bit {bit}");
    }
}

#[test]
fn headers_come_back_and_no_flipped_bit_goes_unnoticed() {
    let bytes = header().encode();
    assert_eq!(Header::decode(&bytes, no), Ok(header()));
    assert_no_flip_passes(&bytes, |bytes| Header::decode(bytes, no).is_ok());
    let mut newer = bytes;
    newer[8] = 9;
    assert_eq!(Header::decode(&newer, no), Err(Flaw::Version(9)));
    assert_eq!(Header::decode(&bytes[..511], no), Err(Flaw::TooShort));
}

#[test]
fn shapes_that_make_no_sense_are_refused() {
    let with = |change: &dyn Fn(&mut SpaceShape)| {
        let mut header = header();
        change(&mut header.shape);
        Header::decode(&header.encode(), no).err()
    };
    let field = |name| Some(Flaw::Field(name));
    assert_eq!(with(&|shape| shape.block_size_bytes = 256), field("block_size_bytes"));
    assert_eq!(with(&|shape| shape.block_size_bytes = 1 << 17), field("block_size_bytes"));
    assert_eq!(with(&|shape| shape.segment_size_bytes = 3 * 4096), field("segment_size_bytes"));
    assert_eq!(with(&|shape| shape.segment_size_bytes += 1), field("segment_size_bytes"));
    assert_eq!(with(&|shape| shape.node_size_bytes = 8192), field("node_size_bytes"));
    assert_eq!(with(&|shape| shape.leaf_capacity = 3), field("leaf_capacity"));
    assert_eq!(with(&|shape| shape.leaf_capacity = 61), field("leaf_capacity"));
    assert_eq!(with(&|shape| shape.children_max = 32), field("children_max"));
    assert_eq!(with(&|shape| shape.extent_size_bytes_max += 1), field("extent_size_bytes_max"));
    assert_eq!(with(&|shape| shape.log_block_size_bytes = 0), field("log_block_size_bytes"));
}

#[test]
fn nodes_come_back_at_their_place_only() {
    let leaf = Node::Leaf((0..60).map(|n| (n * 70_000, 70_000, HOLE - n)).collect());
    let child = |slot| Branch { pivot: -5, shift: 7, child: StoredAt { slot, checksum: 3 } };
    let inner = Node::Inner(2, (0..31).map(child).collect());
    for (node, level) in [(leaf, 0), (inner, 2)] {
        let mut slot = [0; 1024];
        let checksum = node.encode(&mut slot, &ID, 40, 6);
        let at = StoredAt { slot: 40, checksum };
        assert_eq!(Node::decode(&slot, &ID, at, level, no), Ok(node));
        assert_no_flip_passes(&slot, |bytes| Node::decode(bytes, &ID, at, level, no).is_ok());
        let elsewhere = StoredAt { slot: 41, checksum };
        assert_eq!(Node::decode(&slot, &ID, elsewhere, level, no), Err(Flaw::Foreign));
        let other = StoredAt { slot: 40, checksum: checksum ^ 1 };
        assert_eq!(Node::decode(&slot, &ID, other, level, no), Err(Flaw::Checksum));
        assert_eq!(Node::decode(&slot, &[8; 16], at, level, no), Err(Flaw::Checksum));
        assert_eq!(Node::decode(&slot, &ID, at, level + 1, no), Err(Flaw::Foreign));
    }
}

#[test]
fn maps_come_back() {
    let segment = |n| SegmentState { salt: u64::from(n) << 40, valid_bytes: n };
    let map = Map { segments: (0..50).map(segment).collect(), slots: vec![0xA5; 9] };
    let (bytes, checksum) = map.encode(&ID, 4);
    assert_eq!(Some(bytes.len() as u64), super::map::size_of_map(50, 72));
    assert_eq!(Map::decode(&bytes, &ID, 4, checksum, no), Ok(map));
    assert_no_flip_passes(&bytes, |bytes| Map::decode(bytes, &ID, 4, checksum, no).is_ok());
    assert_eq!(Map::decode(&bytes, &ID, 5, checksum, no), Err(Flaw::Foreign));
}

fn packed(records: &[Record]) -> Packed {
    let mut packed = Packed::default();
    packed.extend(records.iter().copied());
    packed
}

fn records() -> Vec<Record> {
    vec![
        Record::Insert { offset: 1 << 60, length: 1 << 40, address: HOLE },
        Record::Map { offset: 2, length: 3, address: 4 },
        Record::Collapse { offset: 5, length: 1 << 61 },
        Record::Take { segment: 7, salt: u64::MAX },
    ]
}

#[test]
fn groups_come_back_at_their_place_only() {
    let group = Group {
        generation: 3,
        sequence: 4,
        position: 1024,
        total_bytes: 0,
        record_count: 0,
        previous_checksum: 99,
    };
    let mut bytes = vec![0; packed(&records()).group_size(512)];
    let checksum = group.encode(&mut bytes, &ID, &packed(&records()));
    let (found, found_checksum, found_records) = Group::decode(&bytes, &ID, 1024, no).unwrap();
    assert_eq!(found, Group { total_bytes: 512, record_count: 4, ..group });
    assert_eq!((found_checksum, found_records), (checksum, records()));
    assert_no_flip_passes(&bytes, |bytes| Group::decode(bytes, &ID, 1024, no).is_ok());
    assert_eq!(Group::decode(&bytes, &ID, 512, no).err(), Some(Flaw::Foreign));
    assert_eq!(Group::decode(&bytes, &[1; 16], 1024, no).err(), Some(Flaw::Checksum));
    // Six bytes each, behind the first one's ten.
    let appended = |count| {
        let length = 300;
        let at = |n: u64| (n * 20_000, (1 << 40) | (n * length));
        let record = |n| Record::Insert { offset: at(n).0, length, address: at(n).1 };
        packed(&(1..=count).map(record).collect::<Vec<_>>()).group_size(512)
    };
    assert_eq!((appended(76), appended(77)), (512, 1024));
}

#[test]
fn records_go_on_from_each_other_and_come_back() {
    const MARK: u64 = 1 << 47;
    let mut rng = Rng::from_seed(9);
    let mut near = |to: u64| match rng.below(4) {
        0 => to,
        1 => to.saturating_add(rng.below(300)),
        2 => to.saturating_sub(rng.below(300)),
        _ => rng.next_u64() >> rng.below(64),
    };
    let (mut records, mut offset, mut address) = (Vec::new(), 0_u64, 0_u64);
    for n in 0..5000 {
        let length = near(100);
        offset = near(offset);
        address = near(address) & HOLE;
        records.push(match n % 7 {
            0 => Record::Collapse { offset, length },
            1 => Record::Take { segment: near(7), salt: near(1 << 60) },
            2 => Record::Map { offset, length, address },
            3 => Record::Insert { offset, length, address: HOLE },
            4 => Record::Insert { offset, length, address: address | MARK },
            _ => Record::Insert { offset, length, address },
        });
        offset = offset.saturating_add(length);
        address = (address & !MARK).saturating_add(length);
    }
    let all = packed(&records);
    let mut bytes = vec![0; all.group_size(512)];
    let group = Group {
        generation: 3,
        sequence: 4,
        position: 0,
        total_bytes: 0,
        record_count: 0,
        previous_checksum: 9,
    };
    group.encode(&mut bytes, &ID, &all);
    assert_eq!(Group::decode(&bytes, &ID, 0, no).unwrap().2, records);
    // An address that follows one at the end of all is none.
    let end = Record::Map { offset: 0, length: 5, address: (1 << 47) - 1 };
    let beyond = Record::Map { offset: 9, length: 5, address: (1 << 47) + 4 };
    let all = packed(&[end, beyond]);
    let mut bytes = vec![0; all.group_size(512)];
    group.encode(&mut bytes, &ID, &all);
    assert_eq!(Group::decode(&bytes, &ID, 0, no).unwrap().2, [end, beyond]);
}

#[test]
fn blocks_are_bound_to_place_and_salt() {
    let mut block = vec![7; 4096];
    seal_block(&mut block, 11, 22);
    assert_no_flip_passes(&block, |bytes| block_is_sound(bytes, 11, 22));
    assert!(!block_is_sound(&block, 12, 22) && !block_is_sound(&block, 11, 23));
    assert!(!block_is_sound(&[0; 3], 0, 0));
}

#[test]
fn random_bytes_never_panic_a_decoder() {
    let mut rng = Rng::from_seed(8);
    for _ in 0..20_000 {
        let mut bytes = vec![0; rng.index(2000)];
        rng.fill(&mut bytes);
        for magic in [&b"ESKFLEXT\x02\0\0\0"[..], b"ESKN", b"ESKM", b"ESKG"] {
            if bytes.len() >= magic.len() {
                bytes[..magic.len()].copy_from_slice(magic);
            }
            let yes = || true;
            let at = StoredAt { slot: rng.below(3), checksum: 0 };
            let _ = Header::decode(&bytes, yes);
            let _ = Node::decode(&bytes, &ID, at, 0, yes);
            let _ = Node::decode(&bytes, &ID, at, 1, yes);
            let _ = Map::decode(&bytes, &ID, 0, 0, yes);
            let _ = Group::decode(&bytes, &ID, 0, yes);
            assert!(Header::decode(&bytes, no).is_err());
        }
    }
}
