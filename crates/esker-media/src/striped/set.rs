//! The members of a striped device: whether they are a set, in which order, and how one is made
//! (`docs/format/stripe.md`).
//!
//! # Invariants
//! - M1: a set is used only if every member is there, once, and all agree.
//! - M2: a member that was lost is never taken for one that was not made yet: the set is complete on
//!   a member only after every member durably had a header.
//!
//! # Failure
//! A crash while a set is made leaves one that holds nothing: the next open makes it anew, or ends
//! the making. Errors name the member.

use super::sites;
use crate::block::{BlockDevice, is_zero};
use crate::buffer::BufferPool;
use esker_base::units::MIB;
use esker_base::{Error, ErrorKind, Result};
use esker_format::Flaw;
use esker_format::stripe::{
    MEMBER_COPY_OFFSET, MEMBER_HEADER_SIZE, MEMBERS_MAX, MemberHeader, StripeLayout, StripeState,
};
use std::io::IoSlice;
use std::sync::Arc;

const OPERATION: &str = "open striped device";
/// Places of a blank member that are looked at.
const PLACES: u64 = 1024;
const HOLDS_SOMETHING: &str = "the device holds something that is no member of a striped store";

/// How to make a set where there is none.
#[derive(Clone, Copy, Debug)]
pub struct NewSet {
    /// Start of the address space that one member holds, in bytes; whole blocks.
    pub lead_size_bytes: u64,
    /// Bytes that lie side by side on one member; whole blocks.
    pub unit_size_bytes: u64,
    /// Identity, drawn at random.
    pub set_id: [u8; 16],
    /// Make it in place of whatever is there. Everything there is lost.
    pub replace: bool,
}

impl NewSet {
    /// Where the lead stands on a member with blocks of `block` bytes.
    fn lead_offset(&self, block: u64) -> u64 {
        if self.unit_size_bytes >= MIB { MIB } else { 8192_u64.max(2 * block) }
    }

    /// Bytes that each of `count` members needs so that they hold `size_bytes` together or more, on members
    /// with blocks of `block` bytes.
    #[must_use]
    pub fn member_size_bytes(&self, size_bytes: u64, count: u64, block: u64) -> u64 {
        let behind = size_bytes.saturating_sub(self.lead_size_bytes);
        let units = behind.div_ceil(self.unit_size_bytes.max(1)).div_ceil(count.max(1));
        let each = units.saturating_mul(self.unit_size_bytes);
        self.lead_offset(block).saturating_add(self.lead_size_bytes).saturating_add(each)
    }
}

type Members = Vec<Arc<dyn BlockDevice>>;

/// What stands where a member's header would.
enum Found {
    Blank,
    /// A header, and whether a copy of it has to be written again.
    Header(MemberHeader, bool),
}

fn refused(device: &dyn BlockDevice, words: impl Into<String>) -> Error {
    Error::invalid(OPERATION, words).device(device.name())
}

/// The members in their order, and what they agree on.
///
/// # Errors
/// As [`StripedDevice::open`](super::StripedDevice::open).
pub(super) fn assemble(members: Members, new: Option<&NewSet>) -> Result<(Members, StripeLayout)> {
    let count = u32::try_from(members.len()).unwrap_or(u32::MAX);
    if count == 0 || count > MEMBERS_MAX {
        let words = format!("{count} members: a striped device has 1 to {MEMBERS_MAX}");
        return Err(Error::invalid(OPERATION, words));
    }
    let pool = BufferPool::new(0);
    let mut found = Vec::with_capacity(members.len());
    for member in &members {
        let block = member.geometry().block_size_bytes;
        if u64::from(block) > MEMBER_COPY_OFFSET {
            let words = format!(
                "the device writes blocks of {block} bytes: a member has at most {MEMBER_COPY_OFFSET}"
            );
            return Err(Error::new(ErrorKind::Unsupported, OPERATION)
                .context(words)
                .device(member.name()));
        }
        found.push(match read_member(&**member, &pool) {
            // It will be overwritten, whatever it is.
            Err(error) if error.kind() != ErrorKind::Io && new.is_some_and(|new| new.replace) => {
                Found::Blank
            }
            found => found?,
        });
    }
    let header = |found: &Found| match found {
        Found::Header(header, _) => Some(*header),
        Found::Blank => None,
    };
    let headers: Vec<Option<MemberHeader>> = found.iter().map(header).collect();
    let complete =
        headers.iter().flatten().find(|header| header.state == StripeState::Complete).copied();
    let set = match (complete, new) {
        (Some(_), Some(new)) if new.replace => None,
        (Some(complete), _) => Some(complete),
        // Nothing was stored: the making ends here, or starts over.
        (None, _) => headers.first().copied().flatten().filter(|first| {
            headers.iter().all(|other| other.is_some_and(|other| is_same_set(first, &other)))
                && !new.is_some_and(|new| new.replace)
        }),
    };
    let Some(set) = set else {
        if !new.is_some_and(|new| new.replace) {
            let blank = members.iter().zip(&found);
            for (member, _) in blank.filter(|(_, found)| matches!(found, Found::Blank)) {
                check_blank(&**member, &pool)?;
            }
        }
        let Some(new) = new else {
            let words = "there is no striped store on these devices";
            return Err(Error::invalid(OPERATION, words));
        };
        let generation = headers.iter().flatten().map(|header| header.generation).max();
        for (member, found) in members.iter().zip(&found) {
            if matches!(found, Found::Blank) && !new.replace {
                let block = u64::from(member.geometry().block_size_bytes);
                if !is_zero(&**member, sites::MEMBER_READ, &pool, new.lead_offset(block))? {
                    return Err(refused(&**member, HOLDS_SOMETHING));
                }
            }
        }
        let layout = make(&members, new, generation.unwrap_or(0).saturating_add(1), &pool)?;
        return Ok((members, layout));
    };
    let ordered = order(members, &headers, &set)?;
    let unfinished = headers.iter().flatten().any(|header| header.state != StripeState::Complete);
    let repair = found.iter().any(|found| matches!(found, Found::Header(_, true)));
    if complete.is_none() {
        // Its making was cut off, perhaps before this.
        if let Some(first) = ordered.first() {
            clear_lead(&**first, &set.layout, &pool)?;
        }
    }
    if unfinished || repair {
        let header = MemberHeader { state: StripeState::Complete, ..set };
        write_members(&ordered, &header, &pool)?;
    }
    Ok((ordered, set.layout))
}

/// Refuses a member without headers that holds something: it lost them, for what is behind them is written later.
/// One place of each MiB is looked at, up to [`PLACES`]: the lead begins at one, and units do, but in tests.
fn check_blank(member: &dyn BlockDevice, pool: &BufferPool) -> Result<()> {
    let geometry = member.geometry();
    let block = u64::from(geometry.block_size_bytes);
    for offset in
        (1..PLACES).map(|place| place * MIB).take_while(|at| at + block <= geometry.size_bytes)
    {
        let mut buffer = pool.get(usize::try_from(block).unwrap_or(0));
        member.read_at(sites::MEMBER_READ, offset, &mut buffer)?;
        if buffer.iter().any(|byte| *byte != 0) {
            let words = "no header of a member is here, but something else: restore a backup over it, or remove it for a new store";
            return Err(Error::corrupted(OPERATION, words).device(member.name()).at(offset, block));
        }
    }
    Ok(())
}

fn is_same_set(one: &MemberHeader, other: &MemberHeader) -> bool {
    (one.set_id, one.generation, one.layout) == (other.set_id, other.generation, other.layout)
}

/// Puts the members of `set` in their order (M1).
fn order(
    members: Members,
    headers: &[Option<MemberHeader>],
    set: &MemberHeader,
) -> Result<Members> {
    if sites::MEMBER_IDENTITY.disabled() {
        return Ok(members);
    }
    let count = usize::try_from(set.layout.member_count).unwrap_or(usize::MAX);
    let mut places: Vec<Option<Arc<dyn BlockDevice>>> = vec![None; count];
    let mut blank = None;
    for (member, header) in members.iter().zip(headers) {
        let Some(header) = header else {
            blank = blank.or(Some(member));
            continue;
        };
        if !is_same_set(header, set) {
            return Err(refused(&**member, "this is a member of another striped store"));
        }
        let index = usize::try_from(header.member_index).unwrap_or(usize::MAX);
        match places.get_mut(index) {
            Some(place @ None) => *place = Some(Arc::clone(member)),
            Some(Some(other)) => {
                let words =
                    format!("both this and {} are member {index} of the store", other.name());
                return Err(refused(&**member, words));
            }
            None => return Err(refused(&**member, "its place is outside the store")),
        }
    }
    let missing: Vec<String> = places
        .iter()
        .zip(0..)
        .filter(|(place, _)| place.is_none())
        .map(|(_, index): (_, u32)| index.to_string())
        .collect();
    if !missing.is_empty() {
        let words = format!("of {count} members, these are missing: {}", missing.join(", "));
        return Err(match blank {
            Some(blank) => refused(&**blank, format!("nothing is on this device; {words}")),
            None => Error::invalid(OPERATION, words),
        });
    }
    if let Some(blank) = blank {
        return Err(refused(&**blank, "nothing is on this device, and all members are there"));
    }
    let ordered: Members = places.into_iter().flatten().collect();
    for member in &ordered {
        let geometry = member.geometry();
        let needed = set.layout.member_size_bytes().unwrap_or(u64::MAX);
        if geometry.size_bytes < needed {
            let words = format!("a member has {needed} bytes, this device has fewer");
            return Err(Error::corrupted(OPERATION, words).device(member.name()));
        }
        check_blocks(&**member, &set.layout)?;
    }
    Ok(ordered)
}

/// Whether the parts of a layout are whole blocks of a member.
fn check_blocks(member: &dyn BlockDevice, layout: &StripeLayout) -> Result<()> {
    let block = u64::from(member.geometry().block_size_bytes);
    let parts = [layout.lead_offset, layout.lead_size_bytes, layout.unit_size_bytes];
    if parts.iter().all(|part| part.is_multiple_of(block)) {
        return Ok(());
    }
    let words = format!("the device writes blocks of {block} bytes, the stripes do not");
    Err(Error::new(ErrorKind::Unsupported, OPERATION).context(words).device(member.name()))
}

/// Makes a set of `members`; returns what they agree on.
fn make(
    members: &[Arc<dyn BlockDevice>],
    new: &NewSet,
    generation: u64,
    pool: &BufferPool,
) -> Result<StripeLayout> {
    let block = members.iter().map(|member| member.geometry().block_size_bytes).max();
    let lead_offset = new.lead_offset(u64::from(block.unwrap_or(512)));
    let unit = new.unit_size_bytes.max(1);
    let taken = lead_offset.saturating_add(new.lead_size_bytes);
    let smallest = members.iter().min_by_key(|member| member.geometry().size_bytes);
    let size = smallest.map_or(0, |member| member.geometry().size_bytes);
    let layout = StripeLayout {
        member_count: u32::try_from(members.len()).unwrap_or(u32::MAX),
        lead_offset,
        lead_size_bytes: new.lead_size_bytes,
        unit_size_bytes: unit,
        unit_count: size.saturating_sub(taken) / unit,
    };
    if let Some(smallest) = smallest.filter(|_| layout.unit_count == 0) {
        let words =
            format!("{size} bytes are too few: a member has at least {} bytes", taken + unit);
        return Err(refused(&**smallest, words));
    }
    members.iter().try_for_each(|member| check_blocks(&**member, &layout))?;
    let state = StripeState::Forming;
    let header = MemberHeader { set_id: new.set_id, member_index: 0, state, generation, layout };
    // PERSIST: all members say that they are being made, before one says that it is complete (M2).
    write_members(members, &header, pool)?;
    if let Some(first) = members.first() {
        clear_lead(&**first, &layout, pool)?;
    }
    let state = StripeState::Complete;
    write_members(members, &MemberHeader { state, ..header }, pool)?;
    Ok(layout)
}

/// Zeros in place of the lead, on the first member: what an earlier store has there is not found on the new set.
fn clear_lead(first: &dyn BlockDevice, layout: &StripeLayout, pool: &BufferPool) -> Result<()> {
    let end = layout.lead_offset.saturating_add(layout.lead_size_bytes);
    let mut at = layout.lead_offset;
    while at < end {
        let zeros = pool.get_zeroed(usize::try_from((end - at).min(MIB)).unwrap_or(0));
        first.write_at(sites::MEMBER_WRITE, at, &[IoSlice::new(&zeros)])?;
        at += zeros.len() as u64;
    }
    // PERSIST: before a header says that the set is complete.
    first.flush(sites::MEMBER_FLUSH)
}

/// Writes the headers of all members, durably.
fn write_members(
    members: &[Arc<dyn BlockDevice>],
    header: &MemberHeader,
    pool: &BufferPool,
) -> Result<()> {
    for (member, member_index) in members.iter().zip(0..) {
        let bytes = MemberHeader { member_index, ..*header }.encode();
        let mut block = pool.get_zeroed(member.geometry().block_size_bytes as usize);
        if let Some(head) = block.get_mut(..MEMBER_HEADER_SIZE) {
            head.copy_from_slice(&bytes);
        }
        for offset in [0, MEMBER_COPY_OFFSET] {
            member.write_at(sites::MEMBER_WRITE, offset, &[IoSlice::new(&block)])?;
        }
    }
    // PERSIST: a crash before leaves either copy of each member old or new.
    members.iter().try_for_each(|member| member.flush(sites::MEMBER_FLUSH))
}

/// What the two copies of a member's header are.
#[derive(Default)]
struct Copies {
    /// The newer one of those that are valid, and how many say the same.
    newest: Option<(MemberHeader, u32)>,
    /// What is wrong with the first one that is neither valid nor blank.
    flaw: Option<Flaw>,
    /// Why the first one that cannot be read cannot.
    unread: Option<Error>,
}

fn read_copies(member: &dyn BlockDevice, pool: &BufferPool) -> Result<Copies> {
    let mut copies = Copies::default();
    for offset in [0, MEMBER_COPY_OFFSET] {
        let mut buffer = pool.get(member.geometry().block_size_bytes as usize);
        match member.read_at(sites::MEMBER_READ, offset, &mut buffer) {
            Ok(()) => {}
            // The other one may be whole.
            Err(error) if error.kind() == ErrorKind::Io => {
                copies.unread = copies.unread.or(Some(error));
                continue;
            }
            Err(error) => return Err(error),
        }
        match MemberHeader::decode(&buffer) {
            Ok(found) => match copies.newest {
                Some((other, _)) if other == found => copies.newest = Some((found, 2)),
                Some((other, _))
                    if (other.generation, other.state) >= (found.generation, found.state) => {}
                _ => copies.newest = Some((found, 1)),
            },
            Err(_) if buffer.iter().all(|byte| *byte == 0) => {}
            Err(found) => copies.flaw = copies.flaw.or(Some(found)),
        }
    }
    Ok(copies)
}

/// The header of a member: the newer valid copy. One that cannot be read is not blank.
fn read_member(member: &dyn BlockDevice, pool: &BufferPool) -> Result<Found> {
    let Copies { newest, flaw, unread } = read_copies(member, pool)?;
    if let Some((header, copies)) = newest {
        return Ok(Found::Header(header, copies < 2));
    }
    if let Some(error) = unread {
        return Err(error);
    }
    match flaw {
        None => Ok(Found::Blank),
        Some(Flaw::Version(version)) => Err(Error::new(ErrorKind::UnsupportedFormat, OPERATION)
            .context(format!("format version {version} is not known to this build"))
            .device(member.name())),
        Some(Flaw::Magic) => Err(refused(member, HOLDS_SOMETHING)),
        Some(flaw) => Err(Error::corrupted(OPERATION, flaw.to_string())
            .device(member.name())
            .at(0, MEMBER_HEADER_SIZE as u64)),
    }
}

/// Place and number of members, if `device` is a member of a striped device.
///
/// # Errors
/// `Io`.
pub(super) fn membership(device: &dyn BlockDevice) -> Result<Option<(u32, u32)>> {
    match read_copies(device, &BufferPool::new(0)) {
        Ok(Copies { newest: Some((header, _)), .. }) => {
            Ok(Some((header.member_index, header.layout.member_count)))
        }
        // What is no header at all says that the other one was none either.
        Ok(Copies { unread: Some(error), flaw, .. }) if flaw != Some(Flaw::Magic) => Err(error),
        Ok(_) | Err(_) => Ok(None),
    }
}
