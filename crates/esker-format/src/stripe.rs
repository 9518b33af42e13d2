//! What every member of a striped device says of itself (`docs/format/stripe.md`).
//!
//! ```text
//! member: | header at 0 | header copy at 4096 | .. | lead | unit | unit | ...
//! ```
//!
//! # Invariants
//! - S1: a set is `Complete` on a member only after all members were durably `Forming`; so where one
//!   member is complete, a member without a header was lost, and where none is, nothing was stored.

use crate::Flaw;
use crate::head::Head;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Size of a member's header in bytes: a sector.
pub const MEMBER_HEADER_SIZE: usize = 512;
/// Offset of the second copy on the member in bytes; the first stands at 0.
pub const MEMBER_COPY_OFFSET: u64 = 4096;
/// The format that this build writes. Others are refused by number.
pub const STRIPE_FORMAT_VERSION: u32 = 1;
/// Most members of a set.
pub const MEMBERS_MAX: u32 = 256;

const HEAD: Head = Head { magic: *b"ESKSTRIP", format_version: STRIPE_FORMAT_VERSION };

#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct Raw {
    pub(crate) magic: [u8; 8],
    pub(crate) format_version: U32,
    pub(crate) checksum: U32,
    pub(crate) set_id: [u8; 16],
    pub(crate) member_index: U32,
    pub(crate) member_count: U32,
    pub(crate) state: U32,
    pub(crate) reserved_word: U32,
    pub(crate) generation: U64,
    pub(crate) lead_offset: U64,
    pub(crate) lead_size_bytes: U64,
    pub(crate) unit_size_bytes: U64,
    pub(crate) unit_count: U64,
    pub(crate) reserved: [u8; 424],
}

const _: () = assert!(size_of::<Raw>() == MEMBER_HEADER_SIZE);

/// How far the making of a set is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum StripeState {
    /// The set is being made: nothing is stored in it yet.
    Forming = 1,
    /// Every member has a header.
    Complete = 2,
}

/// What all members of a set agree on: how an address becomes a member and a place there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripeLayout {
    /// Number of members.
    pub member_count: u32,
    /// Where the lead stands on each member, in bytes.
    pub lead_offset: u64,
    /// Size of the lead, the start of the address space, in bytes; the first member holds it.
    pub lead_size_bytes: u64,
    /// Bytes that lie side by side on one member.
    pub unit_size_bytes: u64,
    /// Units on each member.
    pub unit_count: u64,
}

impl StripeLayout {
    /// Size of the striped device in bytes, or `None` if that is no number.
    #[must_use]
    pub fn size_bytes(&self) -> Option<u64> {
        let units = self.unit_count.checked_mul(u64::from(self.member_count))?;
        units.checked_mul(self.unit_size_bytes)?.checked_add(self.lead_size_bytes)
    }

    /// Bytes that each member must have, or `None` if that is no number.
    #[must_use]
    pub fn member_size_bytes(&self) -> Option<u64> {
        let lead = self.lead_offset.checked_add(self.lead_size_bytes)?;
        self.unit_count.checked_mul(self.unit_size_bytes)?.checked_add(lead)
    }

    /// Where `offset` lies: member, offset there, and how many bytes follow side by side; all in
    /// bytes.
    #[must_use]
    pub fn place(&self, offset: u64) -> (usize, u64, u64) {
        let Some(behind) = offset.checked_sub(self.lead_size_bytes) else {
            return (0, self.lead_offset + offset, self.lead_size_bytes - offset);
        };
        let (unit, inside) = (behind / self.unit_size_bytes, behind % self.unit_size_bytes);
        let count = u64::from(self.member_count);
        let start = self.lead_offset + self.lead_size_bytes;
        let at = start + unit / count * self.unit_size_bytes + inside;
        (usize::try_from(unit % count).unwrap_or(0), at, self.unit_size_bytes - inside)
    }
}

/// Header of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberHeader {
    /// Identity of the set, drawn when it is made.
    pub set_id: [u8; 16],
    /// Place of the member in the set, from 0.
    pub member_index: u32,
    /// How far the making of the set is.
    pub state: StripeState,
    /// Counts the sets that were made of this member: the higher copy is the newer one.
    pub generation: u64,
    /// What all members agree on.
    pub layout: StripeLayout,
}

impl MemberHeader {
    /// The bytes on media.
    #[must_use]
    pub fn encode(&self) -> [u8; MEMBER_HEADER_SIZE] {
        let StripeLayout {
            member_count,
            lead_offset,
            lead_size_bytes,
            unit_size_bytes,
            unit_count,
        } = self.layout;
        let raw = Raw {
            set_id: self.set_id,
            member_index: self.member_index.into(),
            member_count: member_count.into(),
            state: (self.state as u32).into(),
            generation: self.generation.into(),
            lead_offset: lead_offset.into(),
            lead_size_bytes: lead_size_bytes.into(),
            unit_size_bytes: unit_size_bytes.into(),
            unit_count: unit_count.into(),
            ..Raw::new_zeroed()
        };
        HEAD.sealed(raw.as_bytes())
    }

    /// Reads and checks a header.
    ///
    /// # Errors
    /// The first [`Flaw`] found; a newer version is named before its checksum is looked at.
    pub fn decode(bytes: &[u8]) -> Result<Self, Flaw> {
        let (bytes, _) = bytes.split_at_checked(MEMBER_HEADER_SIZE).ok_or(Flaw::TooShort)?;
        HEAD.check(bytes)?;
        let raw = Raw::read_from_bytes(bytes).map_err(|_| Flaw::TooShort)?;
        let state = match raw.state.get() {
            1 => StripeState::Forming,
            2 => StripeState::Complete,
            _ => return Err(Flaw::Field("state")),
        };
        let header = MemberHeader {
            set_id: raw.set_id,
            member_index: raw.member_index.get(),
            state,
            generation: raw.generation.get(),
            layout: StripeLayout {
                member_count: raw.member_count.get(),
                lead_offset: raw.lead_offset.get(),
                lead_size_bytes: raw.lead_size_bytes.get(),
                unit_size_bytes: raw.unit_size_bytes.get(),
                unit_count: raw.unit_count.get(),
            },
        };
        header.check()?;
        Ok(header)
    }

    /// Whether the geometry makes sense: no field is used before this passed.
    fn check(&self) -> Result<(), Flaw> {
        const SECTOR: u64 = MEMBER_HEADER_SIZE as u64;
        let layout = &self.layout;
        if layout.member_count == 0 || layout.member_count > MEMBERS_MAX {
            return Err(Flaw::Field("member_count"));
        }
        if self.member_index >= layout.member_count {
            return Err(Flaw::Field("member_index"));
        }
        if layout.lead_offset < MEMBER_COPY_OFFSET + SECTOR
            || !layout.lead_offset.is_multiple_of(SECTOR)
        {
            return Err(Flaw::Field("lead_offset"));
        }
        if !layout.lead_size_bytes.is_multiple_of(SECTOR) {
            return Err(Flaw::Field("lead_size_bytes"));
        }
        if layout.unit_size_bytes == 0 || !layout.unit_size_bytes.is_multiple_of(SECTOR) {
            return Err(Flaw::Field("unit_size_bytes"));
        }
        let sizes = (layout.size_bytes(), layout.member_size_bytes());
        if layout.unit_count == 0 || sizes.0.is_none() || sizes.1.is_none() {
            return Err(Flaw::Field("unit_count"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
