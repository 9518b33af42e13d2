//! What a key has, in memory, in as few bytes as it takes.
//!
//! This is no format of media: what it says is read by the process that wrote it.

use esker_format::flex_db::{Content, Extra};
use esker_index::prefetch;

/// What a key has, in as few bytes as it takes: one that says what it is, what is not usual, the value. None: it has nothing.
#[derive(Clone, Debug, Default)]
pub(super) struct Kept(Box<[u8]>);

/// First bytes: a value; one that has attributes, too; one that stands by itself.
const PLAIN: u8 = 0;
const WITH_EXTRA: u8 = 1;
const LARGE: u8 = 2;
/// Bytes of attributes, and of number and length.
const EXTRA_SIZE: usize = 13;
const LARGE_SIZE: usize = 16;

fn extra_to_bytes(extra: &Extra) -> [u8; EXTRA_SIZE] {
    let mut bytes = [0; EXTRA_SIZE];
    let Extra { flags, state, expires_at } = *extra;
    let all = flags.to_le_bytes().into_iter().chain([state]).chain(expires_at.to_le_bytes());
    bytes.iter_mut().zip(all).for_each(|(to, from)| *to = from);
    bytes
}

fn extra_of_bytes(bytes: [u8; EXTRA_SIZE]) -> Extra {
    let [a, b, c, d, state, expires @ ..] = bytes;
    Extra {
        flags: u32::from_le_bytes([a, b, c, d]),
        state,
        expires_at: u64::from_le_bytes(expires),
    }
}

impl Kept {
    /// What stands before the value.
    fn head(content: &Content<'_>) -> ([u8; 1 + EXTRA_SIZE + LARGE_SIZE], usize) {
        let mut head = [0; 1 + EXTRA_SIZE + LARGE_SIZE];
        let (first, extra, large) = match content {
            Content::Delete => return (head, 0),
            Content::Put(extra, _) if *extra == Extra::default() => return (head, 1),
            Content::Put(extra, _) => (WITH_EXTRA, extra, None),
            Content::Large(extra, number, length) => (LARGE, extra, Some((number, length))),
        };
        let mut size = 0;
        let mut push = |bytes: &[u8]| {
            let to = head.get_mut(size..size + bytes.len());
            to.into_iter().for_each(|to| to.copy_from_slice(bytes));
            size += bytes.len();
        };
        push(&[first]);
        push(&extra_to_bytes(extra));
        if let Some((number, length)) = large {
            push(&number.to_le_bytes());
            push(&length.to_le_bytes());
        }
        (head, size)
    }

    /// The same, in memory of its own.
    pub(super) fn new(content: &Content<'_>) -> Self {
        let (head, size) = Kept::head(content);
        let head = head.get(..size).unwrap_or_default();
        Kept([head, value_of(content)].concat().into_boxed_slice())
    }

    /// Has something else from now on; in the same memory, if it is as long.
    pub(super) fn set(&mut self, content: &Content<'_>) {
        let (head, size) = Kept::head(content);
        let value = value_of(content);
        match self.0.split_at_mut_checked(size) {
            Some((to, rest)) if size > 0 && rest.len() == value.len() => {
                to.copy_from_slice(head.get(..size).unwrap_or_default());
                rest.copy_from_slice(value);
            }
            _ => *self = Kept::new(content),
        }
    }

    /// What was kept.
    pub(super) fn content(&self) -> Content<'_> {
        match self.0.split_first() {
            None => Content::Delete,
            Some((&PLAIN, value)) => Content::Put(Extra::default(), value),
            Some((first, rest)) => {
                let (extra, rest) = rest.split_first_chunk().unwrap_or((&[0; EXTRA_SIZE], &[]));
                let extra = extra_of_bytes(*extra);
                if *first == WITH_EXTRA {
                    return Content::Put(extra, rest);
                }
                let (number, rest) = rest.split_first_chunk().unwrap_or((&[0; 8], &[]));
                let length = rest.first_chunk().unwrap_or(&[0; 8]);
                Content::Large(extra, u64::from_le_bytes(*number), u64::from_le_bytes(*length))
            }
        }
    }

    /// Starts to fetch it.
    #[inline]
    pub(super) fn prefetch(&self) {
        prefetch::value(&*self.0);
    }

    /// Bytes of it.
    pub(super) fn size_bytes(&self) -> u64 {
        self.0.len() as u64
    }
}

fn value_of<'a>(content: &Content<'a>) -> &'a [u8] {
    match *content {
        Content::Put(_, value) => value,
        Content::Delete | Content::Large(..) => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_what_was_given_and_takes_the_same_memory_again() {
        let extra = Extra { flags: 7, state: 3, expires_at: u64::MAX - 1 };
        let contents = [
            Content::Put(Extra::default(), b""),
            Content::Put(Extra::default(), b"value"),
            Content::Put(extra, b""),
            Content::Put(extra, b"other"),
            Content::Delete,
            Content::Large(Extra::default(), 1, 2),
            Content::Large(extra, u64::MAX, 1 << 40),
        ];
        for first in &contents {
            let mut kept = Kept::new(first);
            assert_eq!(kept.content(), *first);
            for second in &contents {
                kept.set(second);
                assert_eq!(kept.content(), *second);
                kept.set(first);
                assert_eq!(kept.content(), *first);
            }
        }
        let mut kept = Kept::new(&contents[1]);
        let place = kept.0.as_ptr();
        kept.set(&Content::Put(Extra::default(), b"eulav"));
        assert_eq!(kept.0.as_ptr(), place);
    }
}
