//! Places in a buffer, and the words of a line as such places.

/// A place in a buffer: survives that the buffer is moved or shared, unlike a slice of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    start: usize,
    end: usize,
}

impl Span {
    /// From `start` up to, not including, `end`.
    #[must_use]
    pub fn new(start: usize, end: usize) -> Self {
        Span { start, end: end.max(start) }
    }

    /// The bytes at this place; empty if `buffer` does not reach so far.
    #[must_use]
    pub fn of(self, buffer: &[u8]) -> &[u8] {
        buffer.get(self.start..self.end).unwrap_or_default()
    }

    /// The same place seen from `base` bytes earlier.
    #[must_use]
    pub fn shifted(self, base: usize) -> Self {
        Span { start: self.start.saturating_add(base), end: self.end.saturating_add(base) }
    }

    /// First byte.
    #[must_use]
    pub fn start(self) -> usize {
        self.start
    }

    /// One past the last byte.
    #[must_use]
    pub fn end(self) -> usize {
        self.end
    }

    /// Bytes at this place.
    #[must_use]
    pub fn len(self) -> usize {
        self.end.saturating_sub(self.start)
    }

    /// Whether no byte is there.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }
}

/// The words of a line: runs of bytes other than a space.
#[derive(Clone, Debug)]
pub struct Tokens<'b> {
    buffer: &'b [u8],
    rest: Span,
}

impl<'b> Tokens<'b> {
    /// The words of the place `line` in `buffer`.
    #[must_use]
    pub fn new(buffer: &'b [u8], line: Span) -> Self {
        Tokens { buffer, rest: line }
    }

    /// What has not been looked at yet.
    #[must_use]
    pub fn rest(&self) -> Span {
        self.rest
    }
}

impl Iterator for Tokens<'_> {
    type Item = Span;

    fn next(&mut self) -> Option<Span> {
        let bytes = self.rest.of(self.buffer);
        let skip = bytes.iter().position(|byte| *byte != b' ')?;
        let word = bytes.get(skip..)?;
        let length = word.iter().position(|byte| *byte == b' ').unwrap_or(word.len());
        let start = self.rest.start.saturating_add(skip);
        let token = Span::new(start, start.saturating_add(length));
        self.rest = Span::new(token.end, self.rest.end);
        Some(token)
    }
}
