//! Runs: pairs in order, of which intervals are made (FlexSpace §5.1).
//!
//! An interval begins with a base run, which has the interval's anchor; what was written later was appended to it as further
//! runs. Of several pairs of one key the one with the highest version counts.

use super::{Extra, KEY_SIZE_MAX_BYTES, split, varint};
use crate::Flaw;
use esker_base::checksum::crc32c;

/// Which run of an interval it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunKind {
    /// The first one.
    Base,
    /// A later one.
    Appended,
}

/// What a pair says of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content<'a> {
    /// It has this value.
    Put(Extra, &'a [u8]),
    /// It has none.
    Delete,
    /// Its value stands by itself: number and length in bytes.
    Large(Extra, u64, u64),
}

/// A key, and what it has since a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Of the write.
    pub version: u64,
    /// What was written.
    pub content: Content<'a>,
}

const PUT: u64 = 0;
const PUT_EXTRA: u64 = 1;
const DELETE: u64 = 2;
const LARGE: u64 = 3;

/// Appends what `content` is after key length and before the key: see the format's page.
pub(super) fn put_content(
    bytes: &mut Vec<u8>,
    key: &[u8],
    content: &Content<'_>,
    version: Option<u64>,
) {
    let (kind, length) = match content {
        Content::Put(extra, value) if extra.is_plain() => (PUT, value.len()),
        Content::Put(_, value) => (PUT_EXTRA, value.len()),
        Content::Delete => (DELETE, 0),
        Content::Large(..) => (LARGE, 16),
    };
    varint::put(bytes, key.len() as u64);
    varint::put(bytes, (length as u64) << 2 | kind);
    if let Some(version) = version {
        varint::put(bytes, version);
    }
    if let Content::Put(extra, _) | Content::Large(extra, ..) = content
        && kind != PUT
    {
        extra.put(bytes);
    }
    bytes.extend_from_slice(key);
    match content {
        Content::Put(_, value) => bytes.extend_from_slice(value),
        Content::Delete => {}
        Content::Large(_, number, length) => {
            bytes.extend_from_slice(&number.to_le_bytes());
            bytes.extend_from_slice(&length.to_le_bytes());
        }
    }
}

/// The inverse of [`put_content`]: key, version (0 if there is none), content.
#[inline(always)]
pub(super) fn take_content<'a>(
    bytes: &mut &'a [u8],
    versioned: bool,
) -> Option<(&'a [u8], u64, Content<'a>)> {
    let key_length = varint::take(bytes)?;
    let tag = varint::take(bytes)?;
    let version = if versioned { varint::take(bytes)? } else { 0 };
    let (kind, length) = (tag & 3, tag >> 2);
    let extra = match kind {
        PUT_EXTRA | LARGE => Extra::take(bytes)?,
        _ => Extra::default(),
    };
    let key = split(bytes, key_length)?;
    let value = split(bytes, length)?;
    let content = match kind {
        PUT | PUT_EXTRA => Content::Put(extra, value),
        DELETE => Content::Delete,
        _ => {
            let (number, rest) = value.split_first_chunk::<8>()?;
            let (length, _) = rest.split_first_chunk::<8>()?;
            Content::Large(extra, u64::from_le_bytes(*number), u64::from_le_bytes(*length))
        }
    };
    Some((key, version, content))
}

/// Bytes of a run before its varints: checksum and kind.
const HEAD_SIZE: usize = 5;

/// Makes a run.
#[derive(Debug, Default)]
pub struct RunWriter {
    pairs: Vec<u8>,
    count: u64,
    first_version: u64,
}

impl RunWriter {
    /// A run of pairs whose versions are at least `first_version`.
    #[must_use]
    pub fn new(first_version: u64) -> Self {
        RunWriter { pairs: Vec::new(), count: 0, first_version }
    }

    /// Begins another run and keeps the memory.
    pub fn restart(&mut self, first_version: u64) {
        self.pairs.clear();
        self.count = 0;
        self.first_version = first_version;
    }

    /// Adds the pair that comes next in order of keys, of one key the newer one first.
    pub fn push(&mut self, pair: &Pair<'_>) {
        let delta = pair.version.saturating_sub(self.first_version);
        put_content(&mut self.pairs, pair.key, &pair.content, Some(delta));
        self.count += 1;
    }

    /// Pairs so far.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Bytes of the pairs so far.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        self.pairs.len()
    }

    /// The pairs so far, encoded, and the version that theirs are relative to.
    #[must_use]
    pub fn pairs(&self) -> (&[u8], u64) {
        (&self.pairs, self.first_version)
    }

    /// Appends the run to `to`: a base run if it gets an anchor.
    pub fn finish(&self, anchor: Option<&[u8]>, to: &mut Vec<u8>) {
        let start = to.len();
        to.extend_from_slice(&[0; 4]);
        to.push(if anchor.is_some() { 1 } else { 2 });
        let anchor_size =
            anchor.map_or(0, |anchor| varint::size(anchor.len() as u64) + anchor.len());
        let body = varint::size(self.count)
            + varint::size(self.first_version)
            + anchor_size
            + self.pairs.len();
        varint::put(to, body as u64);
        varint::put(to, self.count);
        varint::put(to, self.first_version);
        if let Some(anchor) = anchor {
            varint::put(to, anchor.len() as u64);
            to.extend_from_slice(anchor);
        }
        to.extend_from_slice(&self.pairs);
        let checksum = crc32c(to.get(start + 4..).unwrap_or_default());
        if let Some(place) = to.get_mut(start..start + 4) {
            place.copy_from_slice(&checksum.to_le_bytes());
        }
    }
}

/// A run that was read.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// Which one it is.
    pub kind: RunKind,
    /// Least key that its interval may hold; empty for appended runs.
    pub anchor: &'a [u8],
    /// Pairs in it.
    pub count: u64,
    first_version: u64,
    pairs: &'a [u8],
}

impl<'a> Run<'a> {
    /// Takes a run off the front. `sound`: as for [`super::Root::decode`].
    ///
    /// # Errors
    /// The first [`Flaw`] found.
    pub fn take(bytes: &mut &'a [u8], sound: impl Fn() -> bool) -> Result<Self, Flaw> {
        let whole = *bytes;
        let mut rest = whole.get(HEAD_SIZE..).ok_or(Flaw::TooShort)?;
        let body_size = varint::take(&mut rest).ok_or(Flaw::Field("body size"))?;
        let body = split(&mut rest, body_size).ok_or(Flaw::TooShort)?;
        let size = whole.len() - rest.len();
        let (checksum, checked) =
            whole.get(..size).and_then(|run| run.split_first_chunk::<4>()).ok_or(Flaw::TooShort)?;
        if crc32c(checked) != u32::from_le_bytes(*checksum) && !sound() {
            return Err(Flaw::Checksum);
        }
        let run = Run::head(checked.first().copied(), body)?;
        *bytes = rest;
        Ok(run)
    }

    /// Bytes of the run that begins here, as its head says: nothing is verified.
    ///
    /// # Errors
    /// `TooShort`, or `Field` for an impossible size.
    pub fn size(bytes: &[u8]) -> Result<usize, Flaw> {
        let mut rest = bytes.get(HEAD_SIZE..).ok_or(Flaw::TooShort)?;
        let body_size = varint::take(&mut rest).ok_or(Flaw::Field("body size"))?;
        let head = bytes.len() - rest.len();
        let size = usize::try_from(body_size).ok().and_then(|body| body.checked_add(head));
        size.ok_or(Flaw::Field("body size"))
    }

    /// Kind and anchor from the beginning of an interval, of which only `bytes` were read: nothing is verified.
    /// `None` if that is not enough.
    ///
    /// # Errors
    /// `Field` if no run begins here.
    pub fn peek_anchor(bytes: &'a [u8]) -> Result<Option<&'a [u8]>, Flaw> {
        let mut rest = bytes.get(HEAD_SIZE..).ok_or(Flaw::TooShort)?;
        if bytes.get(4) != Some(&1) {
            return Err(Flaw::Field("kind"));
        }
        let mut field = || varint::take(&mut rest).ok_or(Flaw::TooShort);
        let (_, _, _, length) = (field()?, field()?, field()?, field()?);
        if length > KEY_SIZE_MAX_BYTES as u64 {
            return Err(Flaw::Field("anchor"));
        }
        Ok(split(&mut rest, length))
    }

    fn head(kind: Option<u8>, body: &'a [u8]) -> Result<Self, Flaw> {
        let mut rest = body;
        let count = varint::take(&mut rest).ok_or(Flaw::Field("count"))?;
        let first_version = varint::take(&mut rest).ok_or(Flaw::Field("version"))?;
        let (kind, anchor) = match kind {
            Some(1) => {
                let length = varint::take(&mut rest).ok_or(Flaw::Field("anchor"))?;
                (RunKind::Base, split(&mut rest, length).ok_or(Flaw::Field("anchor"))?)
            }
            Some(2) => (RunKind::Appended, &[][..]),
            _ => return Err(Flaw::Field("kind")),
        };
        Ok(Run { kind, anchor, count, first_version, pairs: rest })
    }

    /// Version that the versions of its pairs are relative to.
    #[must_use]
    pub fn first_version(&self) -> u64 {
        self.first_version
    }

    /// Its pairs, encoded.
    #[must_use]
    pub fn pairs(&self) -> &'a [u8] {
        self.pairs
    }
}

/// Takes a pair of a run off the front of its encoded pairs; `None` if there is no whole one.
#[inline(always)]
pub fn take_pair<'a>(bytes: &mut &'a [u8], first_version: u64) -> Option<Pair<'a>> {
    let (key, delta, content) = take_content(bytes, true)?;
    Some(Pair { key, version: first_version.checked_add(delta)?, content })
}
