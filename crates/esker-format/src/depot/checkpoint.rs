//! Checkpoints: the index as bytes, so that an open reads summaries only of what was written since.
//!
//! A checkpoint stands in segments of a stream of its own, whose headers have the number of its first segment's epoch as
//! `session_epoch`: batches of kind `Checkpoint`, each with parts of the index (a length of 4 bytes before each), then those of
//! kind `CheckpointExtents`, and one of kind `CheckpointEnd` with what is described here. What of it still stands shows when the
//! segments are compared with it.

use crate::{Flaw, bounded};
use esker_base::ids::{SegmentEpoch, SegmentId, Sequence, Version};

/// What a checkpoint says of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointSegment {
    /// Which.
    pub id: SegmentId,
    /// Its incarnation.
    pub epoch: SegmentEpoch,
    /// What of it is covered, from its start: all that counts there is in the index. Less than the segment's size for
    /// one that records were appended to.
    pub covered_bytes: u64,
    /// Bytes of all its records, as the segment table counts them.
    pub written_bytes: u64,
    /// Tombstones among these.
    pub tombstones: u32,
    /// Bytes of tombstones beyond what their links stand for.
    pub beyond_bytes: u64,
}

/// Where the extents of a large value are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckpointExtents {
    /// Id of the value.
    pub id: u64,
    /// The index's link to the record of its key; 0 if that was not written yet.
    pub head: u64,
    /// Links to its extents.
    pub links: Vec<u64>,
}

impl CheckpointExtents {
    /// Bytes of a value with so many extents.
    #[must_use]
    pub fn size_bytes(count: usize) -> usize {
        20 + 8 * count
    }

    /// Adds the value to the payload of a batch.
    pub fn push(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.id.to_le_bytes());
        out.extend_from_slice(&self.head.to_le_bytes());
        out.extend_from_slice(&u32::try_from(self.links.len()).unwrap_or(u32::MAX).to_le_bytes());
        self.links.iter().for_each(|link| out.extend_from_slice(&link.to_le_bytes()));
    }

    /// Takes the next value from a payload; `None` at its end.
    ///
    /// # Errors
    /// `TooShort`.
    pub fn take(rest: &mut &[u8]) -> Result<Option<Self>, Flaw> {
        if rest.is_empty() {
            return Ok(None);
        }
        let id = u64::from_le_bytes(take(rest)?);
        let head = u64::from_le_bytes(take(rest)?);
        let count = u32::from_le_bytes(take(rest)?);
        // As many as there are bytes for.
        let fit = rest.len() / 8;
        let mut links = Vec::with_capacity(fit.min(usize::try_from(count).unwrap_or(fit)));
        for _ in 0..count {
            links.push(u64::from_le_bytes(take(rest)?));
        }
        Ok(Some(CheckpointExtents { id, head, links }))
    }
}

/// The end of a checkpoint: what the index does not say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckpointEnd {
    /// Number of batches before this one.
    pub batches: u64,
    /// Number of entries in all parts.
    pub entries: u64,
    /// Version of the next record when the checkpoint began: it covers older ones only.
    pub next_version: Version,
    /// Records of lower versions were cleared.
    pub clear_version: Version,
    /// Where the streams of moved records went on: warm, cold.
    pub moved: [Sequence; 2],
    /// Segments that held records.
    pub segments: Vec<CheckpointSegment>,
}

const SEGMENT_SIZE: usize = 40;

impl CheckpointEnd {
    /// The payload of the batch.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(48 + SEGMENT_SIZE * self.segments.len());
        for number in [
            self.batches,
            self.entries,
            self.next_version.0,
            self.clear_version.0,
            self.moved[0].0,
            self.moved[1].0,
        ] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        for segment in &self.segments {
            out.extend_from_slice(&segment.id.0.to_le_bytes());
            out.extend_from_slice(&segment.tombstones.to_le_bytes());
            for number in [
                segment.epoch.0,
                segment.covered_bytes,
                segment.written_bytes,
                segment.beyond_bytes,
            ] {
                out.extend_from_slice(&number.to_le_bytes());
            }
        }
        out
    }

    /// Reads a payload.
    ///
    /// # Errors
    /// The first [`Flaw`] found.
    pub fn decode(mut rest: &[u8]) -> Result<Self, Flaw> {
        let mut field = || -> Result<u64, Flaw> { Ok(u64::from_le_bytes(take(&mut rest)?)) };
        let [batches, entries] = [field()?, field()?];
        let next = bounded("next_version", field()?)?;
        let clear = bounded("clear_version", field()?)?;
        let moved = [bounded("warm", field()?)?, bounded("cold", field()?)?].map(Sequence);
        let mut segments = Vec::with_capacity(rest.len() / SEGMENT_SIZE);
        while !rest.is_empty() {
            let id = SegmentId(u32::from_le_bytes(take(&mut rest)?));
            let tombstones = u32::from_le_bytes(take(&mut rest)?);
            let mut number = || -> Result<u64, Flaw> { Ok(u64::from_le_bytes(take(&mut rest)?)) };
            segments.push(CheckpointSegment {
                id,
                tombstones,
                epoch: SegmentEpoch(number()?),
                covered_bytes: number()?,
                written_bytes: number()?,
                beyond_bytes: number()?,
            });
        }
        Ok(CheckpointEnd {
            batches,
            entries,
            next_version: Version(next),
            clear_version: Version(clear),
            moved,
            segments,
        })
    }
}

/// Adds a part of the index to the payload of a batch.
pub fn push_part(out: &mut Vec<u8>, part: &[u8]) {
    out.extend_from_slice(&u32::try_from(part.len()).unwrap_or(u32::MAX).to_le_bytes());
    out.extend_from_slice(part);
}

/// Bytes that a part takes in a payload.
#[must_use]
pub fn part_size(part: &[u8]) -> usize {
    4 + part.len()
}

/// Takes the next part from a payload; `None` at its end.
///
/// # Errors
/// `TooShort`.
pub fn take_part<'a>(rest: &mut &'a [u8]) -> Result<Option<&'a [u8]>, Flaw> {
    if rest.is_empty() {
        return Ok(None);
    }
    let size = u32::from_le_bytes(take(rest)?);
    let size = usize::try_from(size).map_err(|_| Flaw::TooShort)?;
    let (part, tail) = rest.split_at_checked(size).ok_or(Flaw::TooShort)?;
    *rest = tail;
    Ok(Some(part))
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], Flaw> {
    let (head, tail) = rest.split_first_chunk::<N>().ok_or(Flaw::TooShort)?;
    *rest = tail;
    Ok(*head)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_comes_back_and_a_cut_one_does_not() {
        let segment = CheckpointSegment {
            id: SegmentId(3),
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
            segments: vec![segment, CheckpointSegment { id: SegmentId(7), ..segment }],
        };
        let bytes = end.encode();
        assert_eq!(CheckpointEnd::decode(&bytes), Ok(end.clone()));
        assert_eq!(CheckpointEnd::decode(&bytes[..bytes.len() - 1]), Err(Flaw::TooShort));
        let without = CheckpointEnd { segments: Vec::new(), ..end };
        assert_eq!(CheckpointEnd::decode(&without.encode()), Ok(without));
    }

    #[test]
    fn extents_come_back_and_cut_ones_do_not() {
        let one = CheckpointExtents { id: 5, head: 6, links: vec![7, 8] };
        let two = CheckpointExtents { id: 9, ..CheckpointExtents::default() };
        let mut payload = Vec::new();
        one.push(&mut payload);
        assert_eq!(payload.len(), CheckpointExtents::size_bytes(2));
        two.push(&mut payload);
        let mut rest = &payload[..];
        assert_eq!(CheckpointExtents::take(&mut rest), Ok(Some(one)));
        assert_eq!(CheckpointExtents::take(&mut &rest[..19]), Err(Flaw::TooShort));
        assert_eq!(CheckpointExtents::take(&mut rest), Ok(Some(two)));
        assert_eq!(CheckpointExtents::take(&mut rest), Ok(None));
    }

    #[test]
    fn parts_come_back_and_a_cut_one_does_not() {
        let mut payload = Vec::new();
        for part in [&b"one"[..], b"", b"three"] {
            let before = payload.len();
            push_part(&mut payload, part);
            assert_eq!(payload.len() - before, part_size(part));
        }
        let mut rest = &payload[..];
        assert_eq!(take_part(&mut rest), Ok(Some(&b"one"[..])));
        assert_eq!(take_part(&mut rest), Ok(Some(&b""[..])));
        assert_eq!(take_part(&mut &rest[..rest.len() - 1]), Err(Flaw::TooShort));
        assert_eq!(take_part(&mut rest), Ok(Some(&b"three"[..])));
        assert_eq!(take_part(&mut rest), Ok(None));
    }
}
