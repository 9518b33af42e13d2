//! Runs: pairs in order, of which intervals are made (FlexSpace §5.1).
//!
//! An interval begins with a base run, which has the interval's anchor; what was written later was appended to it as further
//! runs. Of several pairs of one key the one with the highest version counts.
//!
//! What all keys of a run begin with, its *stem*, stands in it once; that of a base run is the beginning of its anchor.

use super::{Extra, KEY_SIZE_MAX_BYTES, Key, VALUE_SIZE_MAX_BYTES, split, varint};
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
    pub key: Key<'a>,
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
    key: Key<'_>,
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
    bytes.extend_from_slice(key.stem());
    bytes.extend_from_slice(key.rest());
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
            let length = u64::from_le_bytes(*length);
            // No value is so long, and sums of lengths have no end to fear.
            if length > VALUE_SIZE_MAX_BYTES {
                return None;
            }
            Content::Large(extra, u64::from_le_bytes(*number), length)
        }
    };
    Some((key, version, content))
}

/// Bytes of a run before its varints: checksum and kind.
const HEAD_SIZE: usize = 5;

/// Fewest bytes of a pair of a run: its three varints.
const PAIR_SIZE_MIN: u64 = 3;

/// Kinds of runs on media; 3 is the head of a large value.
const BASE: u8 = 1;
const APPENDED: u8 = 2;
const BASE_WITH_STEM: u8 = 4;
const APPENDED_WITH_STEM: u8 = 5;

/// Bytes of the stem of a run with these pairs: what the keys begin with, and the anchor.
fn stem_size<'p>(anchor: Option<&[u8]>, pairs: impl Iterator<Item = Pair<'p>> + Clone) -> usize {
    let Some(first) = pairs.clone().next() else { return 0 };
    // In order: what the first and the last one share all do.
    let Some((index, last)) = pairs.enumerate().last() else { return 0 };
    let shared = first.key.shared(last.key);
    match anchor {
        Some(anchor) => first.key.shared(Key::from(anchor)).min(shared),
        // It has to be written itself.
        None if index == 0 => 0,
        None => shared,
    }
}

/// Appends a run of pairs, in order of keys, of one key the newer one first, to `to`: a base run if it gets an anchor.
/// `first_version` is none above theirs.
pub fn write<'p>(
    anchor: Option<&[u8]>,
    first_version: u64,
    pairs: impl Iterator<Item = Pair<'p>> + Clone,
    to: &mut Vec<u8>,
) {
    let stem = stem_size(anchor, pairs.clone());
    let start = to.len();
    let (mut count, mut first) = (0, Key::default());
    for pair in pairs {
        if count == 0 {
            first = pair.key;
        }
        debug_assert!(pair.key.shared(first) >= stem, "in order");
        let delta = pair.version.saturating_sub(first_version);
        put_content(to, pair.key.behind(stem), &pair.content, Some(delta));
        count += 1;
    }
    let mut body = Vec::with_capacity(64);
    varint::put(&mut body, count);
    varint::put(&mut body, first_version);
    if let Some(anchor) = anchor {
        if stem > 0 {
            varint::put(&mut body, stem as u64);
        }
        varint::put(&mut body, anchor.len() as u64);
        body.extend_from_slice(anchor);
    } else if stem > 0 {
        varint::put(&mut body, stem as u64);
        body.extend(first.stem().iter().chain(first.rest()).take(stem));
    }
    let kind = match (anchor.is_some(), stem > 0) {
        (true, false) => BASE,
        (false, false) => APPENDED,
        (true, true) => BASE_WITH_STEM,
        (false, true) => APPENDED_WITH_STEM,
    };
    let pairs_end = to.len();
    let mut head = Vec::with_capacity(16 + body.len());
    head.extend([0, 0, 0, 0, kind]);
    varint::put(&mut head, (body.len() + pairs_end - start) as u64);
    head.append(&mut body);
    // In front of the pairs, as a whole.
    to.resize(pairs_end + head.len(), 0);
    to.copy_within(start..pairs_end, start + head.len());
    if let Some(place) = to.get_mut(start..start + head.len()) {
        place.copy_from_slice(&head);
    }
    let checksum = crc32c(to.get(start + 4..).unwrap_or_default());
    if let Some(place) = to.get_mut(start..start + 4) {
        place.copy_from_slice(&checksum.to_le_bytes());
    }
}

/// Pairs, encoded, one behind the other.
#[derive(Clone, Copy, Debug)]
pub struct Pairs<'a> {
    bytes: &'a [u8],
    common: Common<'a>,
}

impl<'a> Pairs<'a> {
    /// Those that are left, encoded.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

impl<'a> Iterator for Pairs<'a> {
    type Item = Pair<'a>;

    /// The next pair; none if there is no whole one.
    #[inline(always)]
    fn next(&mut self) -> Option<Pair<'a>> {
        take_pair(&mut self.bytes, self.common)
    }
}

/// Collects pairs, each with its whole key.
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

    /// Bytes of the pairs so far, with whole keys.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        self.pairs.len()
    }

    /// The pairs so far.
    #[must_use]
    pub fn pairs(&self) -> Pairs<'_> {
        Pairs {
            bytes: &self.pairs,
            common: Common { stem: &[], first_version: self.first_version },
        }
    }

    /// Appends the run to `to`: a base run if it gets an anchor.
    pub fn finish(&self, anchor: Option<&[u8]>, to: &mut Vec<u8>) {
        // The least of its own takes fewest bytes for all others.
        let least = self.pairs().map(|pair| pair.version).min();
        write(anchor, least.unwrap_or(self.first_version), self.pairs(), to);
    }
}

/// What the pairs of a run have in common.
#[derive(Clone, Copy, Debug, Default)]
pub struct Common<'a> {
    /// What their keys begin with, and do not have themselves.
    pub stem: &'a [u8],
    /// Version that theirs are relative to.
    pub first_version: u64,
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
    /// What they have in common. The stem stands right before the pairs, or begins an anchor that does.
    pub common: Common<'a>,
    pairs: &'a [u8],
    /// Bytes from where the stem begins to the end of the run.
    from_stem: usize,
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
        if !sound() && crc32c(checked) != u32::from_le_bytes(*checksum) {
            return Err(Flaw::Checksum);
        }
        let run = Run::head(checked.first().copied(), body, body_size)?;
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

    /// The run that begins here, of which not all may have been read: nothing is verified, and its pairs end where there is no whole one
    /// any more. `None` if its head is not there as a whole, or none.
    #[must_use]
    pub fn peek(bytes: &'a [u8]) -> Option<Self> {
        let mut rest = bytes.get(HEAD_SIZE..)?;
        let body_size = varint::take(&mut rest)?;
        let here = usize::try_from(body_size).ok()?.min(rest.len());
        Run::head(bytes.get(4).copied(), rest.get(..here)?, body_size).ok()
    }

    /// Kind and anchor from the beginning of an interval, of which only `bytes` were read: nothing is verified.
    /// `None` if that is not enough.
    ///
    /// # Errors
    /// `Field` if no run begins here.
    pub fn peek_anchor(bytes: &'a [u8]) -> Result<Option<&'a [u8]>, Flaw> {
        let mut rest = bytes.get(HEAD_SIZE..).ok_or(Flaw::TooShort)?;
        let has_stem = match bytes.get(4) {
            Some(&BASE) => false,
            Some(&BASE_WITH_STEM) => true,
            _ => return Err(Flaw::Field("kind")),
        };
        let mut field = || varint::take(&mut rest).ok_or(Flaw::TooShort);
        let (_, _, _) = (field()?, field()?, field()?);
        if has_stem {
            field()?;
        }
        let length = field()?;
        if length > KEY_SIZE_MAX_BYTES as u64 {
            return Err(Flaw::Field("anchor"));
        }
        Ok(split(&mut rest, length))
    }

    /// `body` may be the beginning only of so many bytes.
    fn head(kind: Option<u8>, body: &'a [u8], body_size: u64) -> Result<Self, Flaw> {
        let mut rest = body;
        let count = varint::take(&mut rest).ok_or(Flaw::Field("count"))?;
        let first_version = varint::take(&mut rest).ok_or(Flaw::Field("version"))?;
        let mut field = |name| varint::take(&mut rest).ok_or(Flaw::Field(name));
        let (kind, stem, length) = match kind {
            Some(BASE) => (RunKind::Base, 0, field("anchor")?),
            Some(BASE_WITH_STEM) => (RunKind::Base, field("stem")?, field("anchor")?),
            Some(APPENDED) => (RunKind::Appended, 0, 0),
            Some(APPENDED_WITH_STEM) => {
                let stem = field("stem")?;
                (RunKind::Appended, stem, stem)
            }
            _ => return Err(Flaw::Field("kind")),
        };
        let from_stem = rest.len();
        let begins = split(&mut rest, length).ok_or(Flaw::Field("anchor"))?;
        let stem = usize::try_from(stem).ok().and_then(|stem| begins.get(..stem));
        let common = Common { stem: stem.ok_or(Flaw::Field("stem"))?, first_version };
        let anchor = if kind == RunKind::Base { begins } else { &[] };
        // Each takes some bytes, and sums of counts have no end to fear.
        let room = body_size.saturating_sub((body.len() - rest.len()) as u64);
        if count > room / PAIR_SIZE_MIN {
            return Err(Flaw::Field("count"));
        }
        Ok(Run { kind, anchor, count, common, pairs: rest, from_stem })
    }

    /// Bytes from where the stem begins to the end of the run.
    #[must_use]
    pub fn from_stem(&self) -> usize {
        self.from_stem
    }

    /// Its pairs.
    #[inline]
    #[must_use]
    pub fn pairs(&self) -> Pairs<'a> {
        Pairs { bytes: self.pairs, common: self.common }
    }
}

/// Takes a pair of a run off the front of its encoded pairs; `None` if there is no whole one.
#[inline(always)]
pub fn take_pair<'a>(bytes: &mut &'a [u8], common: Common<'a>) -> Option<Pair<'a>> {
    let (rest, delta, content) = take_content(bytes, true)?;
    let key = Key::new(common.stem, rest);
    Some(Pair { key, version: common.first_version.checked_add(delta)?, content })
}
