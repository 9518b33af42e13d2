//! Replies of one connection that are not sent yet, as one vectored write.
//!
//! Short text is collected in one buffer; a value of some size stays in the buffer that the store
//! read it into and is sent from there. Shares of the memory budget live as long as the values.
//!
//! # Invariants
//! - O1: bytes leave in the order in which they were pushed.
//! - O2: after an error of the connection nothing more is sent on it.

use crate::budget::Share;
use esker::Value;
use std::io::{IoSlice, Write};

/// Most pieces of one write: what the kernel takes (`IOV_MAX`).
const PIECES_MAX: usize = 1024;
/// Decimal digits of the largest number.
const DIGITS_MAX: usize = 20;
/// Room for text that is kept between batches.
const TEXT_BYTES_KEPT: usize = 4 << 10;
/// Room for pieces that is kept between batches: about as many bytes.
const PIECES_KEPT: usize = 32;

enum Piece {
    /// Up to here in the text.
    Text(usize),
    /// So many bytes of the value.
    Value(Value, usize, #[expect(dead_code, reason = "held for its memory")] Option<Share>),
}

/// Replies to be sent.
#[derive(Default)]
pub struct Output {
    text: Vec<u8>,
    pieces: Vec<Piece>,
    value_bytes: usize,
    /// Memory that was taken for values in the text, and their length.
    copied: Option<Share>,
    copied_bytes: usize,
    /// Memory that was taken for text that was sent.
    sent: Option<Share>,
}

impl Output {
    /// Whether there is nothing to send.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Bytes to send.
    #[must_use]
    pub fn len(&self) -> usize {
        self.text.len().saturating_add(self.value_bytes)
    }

    /// Bytes to send for which no memory was taken.
    #[must_use]
    pub fn uncharged_bytes(&self) -> usize {
        self.text.len().saturating_sub(self.copied_bytes)
    }

    /// Memory that was taken for text that is sent by now.
    pub fn take_sent(&mut self) -> Option<Share> {
        self.sent.take()
    }

    /// Appends a copy of a value; `share` can be taken back once it is sent.
    pub fn push_copy(&mut self, value: &[u8], share: Option<Share>) {
        if let Some(share) = share {
            self.copied_bytes = self.copied_bytes.saturating_add(value.len());
            match &mut self.copied {
                Some(copied) => copied.absorb(share),
                none => *none = Some(share),
            }
        }
        self.push(value);
    }

    /// Appends text.
    pub fn push(&mut self, text: &[u8]) {
        if text.is_empty() {
            return;
        }
        self.text.extend_from_slice(text);
        self.text_grew();
    }

    /// Appends a number in decimal digits: cheaper than formatting it.
    pub fn push_number(&mut self, number: u64) {
        let mut digits = [0; DIGITS_MAX];
        let mut start = digits.len();
        let mut rest = number;
        for (place, digit) in digits.iter_mut().enumerate().rev() {
            *digit = b'0' + u8::try_from(rest % 10).unwrap_or(0);
            rest /= 10;
            start = place;
            if rest == 0 {
                break;
            }
        }
        self.push(digits.get(start..).unwrap_or_default());
    }

    /// Appends text by formatting it.
    pub fn push_fmt(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing to a vector cannot fail.
        let _ = self.text.write_fmt(text);
        self.text_grew();
    }

    /// Appends the first `length` bytes of a value without copying them; `share` is given back once
    /// they are sent.
    pub fn push_value(&mut self, value: Value, length: usize, share: Option<Share>) {
        let length = length.min(value.len());
        self.value_bytes = self.value_bytes.saturating_add(length);
        self.pieces.push(Piece::Value(value, length, share));
    }

    fn text_grew(&mut self) {
        let end = self.text.len();
        match self.pieces.last_mut() {
            Some(Piece::Text(last)) => *last = end,
            _ => self.pieces.push(Piece::Text(end)),
        }
    }

    /// Sends everything through `write`, which may take any part of what it is offered, and
    /// forgets it. Returns the bytes sent.
    pub fn send(
        &mut self,
        mut write: impl FnMut(&[IoSlice<'_>]) -> std::io::Result<usize>,
    ) -> std::io::Result<usize> {
        let total = self.len();
        if let [Piece::Text(_)] = self.pieces[..] {
            // Most batches: no list of pieces is made.
            let mut rest = self.text.as_slice();
            while !rest.is_empty() {
                match write(&[IoSlice::new(rest)])? {
                    0 => return Err(std::io::ErrorKind::WriteZero.into()),
                    sent => rest = rest.get(sent..).unwrap_or_default(),
                }
            }
            self.all_sent();
            return Ok(total);
        }
        let mut slices = Vec::with_capacity(self.pieces.len());
        let mut start = 0;
        for piece in &self.pieces {
            slices.push(match piece {
                Piece::Text(end) => {
                    let text = self.text.get(start..*end).unwrap_or_default();
                    start = *end;
                    IoSlice::new(text)
                }
                Piece::Value(value, length, _) => {
                    IoSlice::new(value.get(..*length).unwrap_or_default())
                }
            });
        }
        let mut rest = slices.as_mut_slice();
        IoSlice::advance_slices(&mut rest, 0);
        while !rest.is_empty() {
            let offered = rest.len().min(PIECES_MAX);
            match write(rest.get(..offered).unwrap_or_default())? {
                0 => return Err(std::io::ErrorKind::WriteZero.into()),
                sent => IoSlice::advance_slices(&mut rest, sent),
            }
        }
        self.all_sent();
        Ok(total)
    }

    /// Forgets everything, sent or not, and gives back the memory that was taken for it.
    pub fn clear(&mut self) {
        self.pieces.clear();
        self.pieces.shrink_to(PIECES_KEPT);
        self.text.clear();
        self.text.shrink_to(TEXT_BYTES_KEPT);
        self.value_bytes = 0;
        self.copied = None;
        self.copied_bytes = 0;
        self.sent = None;
    }

    /// Forgets what was sent, but keeps what was taken for its text for [`Output::take_sent`].
    fn all_sent(&mut self) {
        let sent = self.copied.take();
        self.clear();
        self.sent = sent;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Budget;
    use esker::{Options, Store};

    fn value(bytes: &[u8]) -> Value {
        values(bytes, 1).pop().expect("one")
    }

    fn values(bytes: &[u8], count: usize) -> Vec<Value> {
        let folder = tempfile::tempdir().expect("scratch folder");
        let store = Store::open(&Options { size_bytes: 64 << 20, ..Options::new(folder.path()) })
            .expect("open");
        store.put(b"k", bytes).expect("put");
        (0..count).map(|_| store.get(b"k").expect("get").expect("just put")).collect()
    }

    #[test]
    fn pieces_leave_in_order_however_little_is_taken_at_a_time() {
        for step in [1, 2, 3, 1000] {
            let mut output = Output::default();
            output.push(b"a");
            output.push_fmt(format_args!("{}", 12));
            output.push_value(value(b"value and more"), 5, None);
            output.push_value(value(b""), 0, None);
            output.push(b"\r\n");
            let mut seen = Vec::new();
            let sent = output
                .send(|slices| {
                    let all: Vec<u8> =
                        slices.iter().flat_map(|slice| slice.iter().copied()).collect();
                    let taken = step.min(all.len());
                    seen.extend_from_slice(&all[..taken]);
                    Ok(taken)
                })
                .expect("never fails");
            assert_eq!((seen.as_slice(), sent), (b"a12value\r\n".as_slice(), 10));
            assert!(output.is_empty());
        }
    }

    #[test]
    fn text_alone_is_sent_whole_however_little_is_taken_at_a_time() {
        let mut output = Output::default();
        let numbers = [0, 7, 10, 99, 100, 1_234_567_890, u64::MAX];
        let mut expected = String::new();
        for number in numbers {
            output.push_number(number);
            output.push(b" ");
            expected.push_str(&format!("{number} "));
        }
        let mut seen = Vec::new();
        let sent = output.send(|slices| {
            let taken = slices[0].len().min(3);
            seen.extend_from_slice(&slices[0][..taken]);
            Ok(taken)
        });
        assert_eq!(sent.expect("never fails"), expected.len());
        assert_eq!(String::from_utf8(seen).expect("digits"), expected);
        assert!(output.is_empty());
    }

    #[test]
    fn a_connection_that_takes_nothing_is_an_error() {
        let mut output = Output::default();
        output.push(b"a");
        let error = output.send(|_| Ok(0)).expect_err("nothing was taken");
        assert_eq!(error.kind(), std::io::ErrorKind::WriteZero);
    }

    #[test]
    fn memory_of_replies_that_were_sent_can_be_taken_back_and_that_of_others_is_given_back() {
        let budget = Budget::new(100);
        let replies = || {
            let mut output = Output::default();
            output.push_copy(b"copied", budget.try_take(12));
            output.push_value(value(b"value"), 5, budget.try_take(5));
            assert_eq!(budget.free_bytes(), 83);
            output
        };
        let mut sent = replies();
        let all = |slices: &[IoSlice<'_>]| Ok(slices.iter().map(|slice| slice.len()).sum());
        assert_eq!(sent.send(all).expect("never fails"), 11);
        assert_eq!(budget.free_bytes(), 88);
        assert_eq!(sent.take_sent().map(|share| share.bytes()), Some(12));
        let mut unsent = replies();
        unsent.send(|_| Err(std::io::ErrorKind::BrokenPipe.into())).expect_err("a failure");
        // As a native connection does that has failed.
        unsent.clear();
        assert_eq!(budget.free_bytes(), 100);
    }

    #[test]
    fn little_room_is_kept_of_many_replies() {
        let mut output = Output::default();
        for value in values(b"value", 2000) {
            output.push_fmt(format_args!("{:100}", "text"));
            output.push_value(value, 5, None);
        }
        let all = |slices: &[IoSlice<'_>]| Ok(slices.iter().map(|slice| slice.len()).sum());
        assert_eq!(output.send(all).expect("never fails"), 2000 * 105);
        let kept = (output.text.capacity(), output.pieces.capacity());
        assert!(kept.0 <= TEXT_BYTES_KEPT && kept.1 <= PIECES_KEPT, "{kept:?}");
    }
}
