//! The header of a member against its documentation, its limits, and damage.

use super::*;
use crate::tests::table;
use esker_base::rng::Rng;
use std::collections::BTreeSet;

/// Run with `REWRITE=1` to bring the page up to date after a change of the format.
#[test]
fn the_normative_page_has_the_table_of_the_code() {
    let header = table!(Raw: magic "ESKSTRIP", format_version "u32", checksum "u32",
        set_id "16 bytes", member_index "u32", member_count "u32", state "u32",
        reserved_word "zeros", generation "u64", lead_offset "u64", lead_size_bytes "u64",
        unit_size_bytes "u64", unit_count "u64", reserved "zeros");
    crate::tests::assert_has("stripe.md", &[("table member header", header)]);
}

fn header() -> MemberHeader {
    MemberHeader {
        set_id: [7; 16],
        member_index: 2,
        state: StripeState::Complete,
        generation: 3,
        layout: StripeLayout {
            member_count: 3,
            lead_offset: 8192,
            lead_size_bytes: 4096,
            unit_size_bytes: 2048,
            unit_count: 10,
        },
    }
}

#[test]
fn a_header_comes_back_and_no_flipped_bit_goes_unnoticed() {
    let bytes = header().encode();
    assert_eq!(MemberHeader::decode(&bytes), Ok(header()));
    for bit in 0..bytes.len() * 8 {
        let mut damaged = bytes;
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(MemberHeader::decode(&damaged).is_err(), "bit {bit}");
    }
    assert_eq!(MemberHeader::decode(&bytes[..511]), Err(Flaw::TooShort));
    assert_eq!(MemberHeader::decode(&[0; 512]), Err(Flaw::Magic));
}

#[test]
fn geometry_that_does_not_fit_is_refused() {
    let with = |change: &dyn Fn(&mut MemberHeader)| {
        let mut header = header();
        change(&mut header);
        MemberHeader::decode(&header.encode()).err()
    };
    assert_eq!(with(&|header| header.layout.member_count = 0), Some(Flaw::Field("member_count")));
    assert_eq!(with(&|header| header.layout.member_count = 257), Some(Flaw::Field("member_count")));
    assert_eq!(with(&|header| header.member_index = 3), Some(Flaw::Field("member_index")));
    assert_eq!(with(&|header| header.layout.lead_offset = 4096), Some(Flaw::Field("lead_offset")));
    assert_eq!(
        with(&|header| header.layout.lead_size_bytes = 1),
        Some(Flaw::Field("lead_size_bytes"))
    );
    assert_eq!(
        with(&|header| header.layout.unit_size_bytes = 0),
        Some(Flaw::Field("unit_size_bytes"))
    );
    for count in [0, u64::MAX, u64::MAX / 2048] {
        assert_eq!(
            with(&|header| header.layout.unit_count = count),
            Some(Flaw::Field("unit_count"))
        );
    }
}

#[test]
fn a_newer_format_is_named() {
    let mut bytes = header().encode();
    bytes[8] = 9;
    assert_eq!(MemberHeader::decode(&bytes), Err(Flaw::Version(9)));
}

#[test]
fn every_address_has_one_place_and_units_take_turns() {
    let layout = header().layout;
    let size = layout.size_bytes().unwrap();
    assert_eq!((size, layout.member_size_bytes()), (4096 + 30 * 2048, Some(12288 + 10 * 2048)));
    let mut places = BTreeSet::new();
    for offset in (0..size).step_by(512) {
        let (member, at, rest) = layout.place(offset);
        assert!(member < 3 && rest >= 512 && at + rest <= layout.member_size_bytes().unwrap());
        assert!(places.insert((member, at)), "offset {offset} has a place of its own");
        if rest > 512 {
            assert_eq!(layout.place(offset + 512), (member, at + 512, rest - 512));
        } else if offset + 512 < size && offset >= 4096 {
            assert_eq!(layout.place(offset + 512).0, (member + 1) % 3);
        }
    }
    assert_eq!(layout.place(0), (0, 8192, 4096));
    assert_eq!(layout.place(4096), (0, 12288, 2048));
    assert_eq!(layout.place(4096 + 2048 * 4 + 5), (1, 12288 + 2048 + 5, 2043));
}

#[test]
fn random_bytes_never_panic_the_decoder() {
    let mut rng = Rng::from_seed(6);
    for _ in 0..50_000 {
        let mut bytes = vec![0; rng.index(600)];
        rng.fill(&mut bytes);
        if bytes.len() > 12 {
            bytes[..8].copy_from_slice(b"ESKSTRIP");
            bytes[8..12].copy_from_slice(&[1, 0, 0, 0]);
        }
        assert!(MemberHeader::decode(&bytes).is_err());
    }
}
