//! Keys of pairs: in two parts, as what all keys of a run begin with stands there once.

use std::cmp::Ordering;

/// A key: its *stem*, which it shares with the other keys of its run, and the rest. Where the one ends and the other begins
/// makes no difference to what it is equal to, or comes before.
#[derive(Clone, Copy, Debug, Default)]
pub struct Key<'a> {
    stem: &'a [u8],
    rest: &'a [u8],
}

/// Bytes that two slices begin with alike.
fn alike(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

impl<'a> Key<'a> {
    /// The key that begins with `stem`, and goes on with `rest`.
    #[inline(always)]
    #[must_use]
    pub fn new(stem: &'a [u8], rest: &'a [u8]) -> Self {
        Key { stem, rest }
    }

    /// What it shares with others of its run.
    #[must_use]
    pub fn stem(&self) -> &'a [u8] {
        self.stem
    }

    /// What stands in its pair.
    #[inline(always)]
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Its length in bytes.
    #[inline]
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "nobody asks")]
    pub fn len(&self) -> usize {
        self.stem.len() + self.rest.len()
    }

    /// Its bytes; where they do not stand side by side, brought together in `buffer`.
    #[inline]
    #[must_use]
    pub fn bytes<'b>(&self, buffer: &'b mut Vec<u8>) -> &'b [u8]
    where
        'a: 'b,
    {
        if self.stem.is_empty() {
            return self.rest;
        }
        self.copy_to(buffer);
        buffer
    }

    /// Makes `buffer` this key.
    #[inline]
    pub fn copy_to(&self, buffer: &mut Vec<u8>) {
        buffer.clear();
        buffer.extend_from_slice(self.stem);
        buffer.extend_from_slice(self.rest);
    }

    /// Its bytes, in memory of their own.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        [self.stem, self.rest].concat()
    }

    /// What is left of it behind its first `count` bytes.
    #[must_use]
    pub fn behind(&self, count: usize) -> Key<'a> {
        let of_rest = count.saturating_sub(self.stem.len());
        Key {
            stem: self.stem.get(count..).unwrap_or_default(),
            rest: self.rest.get(of_rest..).unwrap_or_default(),
        }
    }

    /// Bytes that it and another one begin with alike.
    #[must_use]
    pub fn shared(&self, other: Key<'_>) -> usize {
        let (mut a, mut b, mut count) = (*self, other, 0);
        loop {
            let (left, right) = (a.front(), b.front());
            let same = alike(left, right);
            count += same;
            if same == 0 || same < left.len().min(right.len()) {
                return count;
            }
            (a, b) = (a.behind(same), b.behind(same));
        }
    }

    /// How it and a key that is given by its bytes are ordered.
    #[inline]
    #[must_use]
    pub fn cmp_bytes(&self, other: &[u8]) -> Ordering {
        if self.stem.is_empty() {
            return self.rest.cmp(other);
        }
        let head = other.get(..self.stem.len()).unwrap_or(other);
        let rest = || self.rest.cmp(other.get(self.stem.len()..).unwrap_or_default());
        self.stem.cmp(head).then_with(rest)
    }

    /// Whether both have the same stem. A stem that is empty, or that of the same run, is compared with nothing: to compare no bytes where there is
    /// no memory takes a processor that masks its loads 80 ns.
    #[inline(always)]
    fn has_stem_of(&self, other: &Key<'_>) -> bool {
        self.stem.len() == other.stem.len()
            && (self.stem.is_empty()
                || std::ptr::eq(self.stem, other.stem)
                || self.stem == other.stem)
    }

    /// The first of its parts that has something.
    fn front(&self) -> &'a [u8] {
        if self.stem.is_empty() { self.rest } else { self.stem }
    }

    /// As `cmp`, if the stems are not the same.
    #[inline(never)]
    fn cmp_apart(&self, other: &Key<'_>) -> Ordering {
        let (mut a, mut b) = (*self, *other);
        loop {
            let (left, right) = (a.front(), b.front());
            let count = left.len().min(right.len());
            if count == 0 {
                return left.len().cmp(&right.len());
            }
            let (left, right) = (left.get(..count), right.get(..count));
            if left != right {
                return left.cmp(&right);
            }
            (a, b) = (a.behind(count), b.behind(count));
        }
    }
}

impl<'a> From<&'a [u8]> for Key<'a> {
    #[inline(always)]
    fn from(bytes: &'a [u8]) -> Self {
        Key { stem: &[], rest: bytes }
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Key<'a> {
    fn from(bytes: &'a [u8; N]) -> Self {
        Key::from(&bytes[..])
    }
}

impl<'a> From<&'a Vec<u8>> for Key<'a> {
    fn from(bytes: &'a Vec<u8>) -> Self {
        Key::from(&bytes[..])
    }
}

impl Ord for Key<'_> {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        // Two of one run mostly.
        if self.has_stem_of(other) {
            return self.rest.cmp(other.rest);
        }
        self.cmp_apart(other)
    }
}

impl PartialOrd for Key<'_> {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Key<'_> {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Key<'_> {}

impl PartialEq<[u8]> for Key<'_> {
    #[inline]
    fn eq(&self, other: &[u8]) -> bool {
        // Keys of neighbours differ at their ends.
        let parts = other.split_at_checked(self.stem.len());
        parts.is_some_and(|(head, tail)| {
            tail == self.rest && (self.stem.is_empty() || head == self.stem)
        })
    }
}

impl PartialOrd<[u8]> for Key<'_> {
    #[inline]
    fn partial_cmp(&self, other: &[u8]) -> Option<Ordering> {
        Some(self.cmp_bytes(other))
    }
}
