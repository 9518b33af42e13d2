//! Frames: a request, or the reply to one.
//!
//! The checksum stands first and covers all bytes behind it, so that a whole frame is summed in one
//! go. The payload size has to be believed before the checksum can be compared; a damaged one makes
//! the receiver wait for bytes that do not come, or finds a checksum that differs, and both end the
//! connection. It never makes it allocate: buffers grow by what arrived.

use super::Status;
use crate::Flaw;
use esker_base::checksum::{Crc32c, crc32c};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Size of a frame's header in bytes.
pub const FRAME_HEADER_SIZE: usize = 16;
/// Bytes of the checksum, which it does not cover.
const CHECKSUM_SIZE: usize = size_of::<u32>();

#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct Raw {
    pub(crate) checksum: U32,
    pub(crate) payload_size: U32,
    pub(crate) id: U32,
    pub(crate) opcode: u8,
    pub(crate) status: u8,
    pub(crate) reserved: U16,
}

const _: () = assert!(size_of::<Raw>() == FRAME_HEADER_SIZE);

/// What stands before a payload. Opcode and status are numbers here: whether they mean something is
/// the receiver's question, whose answer is not that the frame is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Bytes of the payload, as the sender says.
    pub payload_size: u32,
    /// Which request it is, or is answered. The client chooses it; no two requests in flight on one
    /// connection have the same.
    pub id: u32,
    /// What is asked for.
    pub opcode: u8,
    /// What became of it; 0 in requests.
    pub status: u8,
    checksum: u32,
}

impl FrameHeader {
    /// Reads the header at the start of `bytes` without its checksum: good for learning how many
    /// bytes to receive, not more.
    ///
    /// # Errors
    /// `TooShort` for less than a header; `Field` for reserved bytes that are not zero.
    pub fn peek(bytes: &[u8]) -> Result<FrameHeader, Flaw> {
        let (raw, _) = Raw::read_from_prefix(bytes).map_err(|_| Flaw::TooShort)?;
        if raw.reserved.get() != 0 {
            return Err(Flaw::Field("reserved"));
        }
        Ok(FrameHeader {
            payload_size: raw.payload_size.get(),
            id: raw.id.get(),
            opcode: raw.opcode,
            status: raw.status,
            checksum: raw.checksum.get(),
        })
    }

    /// Compares the checksum with header and payload.
    ///
    /// # Errors
    /// `TooShort` for a payload of another size; `Checksum`.
    pub fn verify(&self, payload: &[u8]) -> Result<(), Flaw> {
        if u32::try_from(payload.len()) != Ok(self.payload_size) {
            return Err(Flaw::TooShort);
        }
        let raw = self.raw();
        let found = checksum(raw.as_bytes(), &[payload]);
        if found == self.checksum { Ok(()) } else { Err(Flaw::Checksum) }
    }

    /// As [`FrameHeader::verify`], of a frame that lies in one piece, which is cheaper.
    ///
    /// # Errors
    /// As [`FrameHeader::verify`].
    pub fn verify_frame(&self, frame: &[u8]) -> Result<(), Flaw> {
        let payload_size = frame.len().checked_sub(FRAME_HEADER_SIZE).ok_or(Flaw::TooShort)?;
        if u32::try_from(payload_size) != Ok(self.payload_size) {
            return Err(Flaw::TooShort);
        }
        let found = crc32c(frame.get(CHECKSUM_SIZE..).unwrap_or_default());
        if found == self.checksum { Ok(()) } else { Err(Flaw::Checksum) }
    }

    fn raw(&self) -> Raw {
        Raw {
            checksum: self.checksum.into(),
            payload_size: self.payload_size.into(),
            id: self.id.into(),
            opcode: self.opcode,
            status: self.status,
            reserved: 0.into(),
        }
    }
}

/// Makes room for the header of a frame whose payload is appended next; returns its place for
/// [`end_frame`].
pub fn begin_frame(frames: &mut Vec<u8>) -> usize {
    let start = frames.len();
    frames.extend_from_slice(&[0; FRAME_HEADER_SIZE]);
    start
}

/// Writes the header of the frame that begins at `start` and ends where `frames` does.
///
/// # Errors
/// `Field` for a payload that is too large to say so; the frame is taken off again then.
pub fn end_frame(
    frames: &mut Vec<u8>,
    start: usize,
    id: u32,
    opcode: u8,
    status: Status,
) -> Result<(), Flaw> {
    let payload_size = frames.len().saturating_sub(start).saturating_sub(FRAME_HEADER_SIZE);
    let Ok(payload_size) = u32::try_from(payload_size) else {
        frames.truncate(start);
        return Err(Flaw::Field("payload_size"));
    };
    let status = status.number();
    let mut raw = FrameHeader { payload_size, id, opcode, status, checksum: 0 }.raw();
    let Some(frame) = frames.get_mut(start..) else { return Err(Flaw::TooShort) };
    raw.write_to_prefix(frame).map_err(|_| Flaw::TooShort)?;
    raw.checksum = crc32c(frame.get(CHECKSUM_SIZE..).unwrap_or_default()).into();
    raw.write_to_prefix(frame).map_err(|_| Flaw::TooShort)?;
    Ok(())
}

/// The header of a frame whose payload is several pieces that are sent from where they are. `None`
/// if the payload is too large to say so.
#[must_use]
pub fn frame_header(
    id: u32,
    opcode: u8,
    status: Status,
    pieces: &[&[u8]],
) -> Option<[u8; FRAME_HEADER_SIZE]> {
    let payload_size = pieces.iter().map(|piece| piece.len()).sum::<usize>();
    let payload_size = u32::try_from(payload_size).ok()?;
    let status = status.number();
    let mut raw = FrameHeader { payload_size, id, opcode, status, checksum: 0 }.raw();
    raw.checksum = checksum(raw.as_bytes(), pieces).into();
    Some(zerocopy::transmute!(raw))
}

fn checksum(header: &[u8], pieces: &[&[u8]]) -> u32 {
    let mut crc = Crc32c::new();
    crc.update(header.get(CHECKSUM_SIZE..).unwrap_or_default());
    pieces.iter().for_each(|piece| crc.update(piece));
    crc.finish()
}
