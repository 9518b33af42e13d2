//! Buffers that a thread has for its next read, too.
//!
//! # Concurrency
//! Each thread has its own. A task may go on at another thread, which has the buffer then.

use std::cell::Cell;
use std::thread::LocalKey;

/// Buffers that a thread keeps of each kind.
const COUNT: usize = 4;
/// Most bytes of one that is kept.
const SIZE_MAX_BYTES: usize = 256 << 10;

/// What a thread keeps of one kind.
pub(super) type Spares<T> = Cell<Vec<Vec<T>>>;

thread_local! {
    /// Bytes of intervals.
    pub(super) static BYTES: Spares<u8> = const { Cell::new(Vec::new()) };
}

/// A buffer, with what somebody left in it.
pub(super) fn take<T>(spares: &'static LocalKey<Spares<T>>) -> Vec<T> {
    let taken = spares.try_with(|spares| {
        let mut all = spares.take();
        let one = all.pop();
        spares.set(all);
        one
    });
    // A thread that ends has none any more.
    taken.ok().flatten().unwrap_or_default()
}

/// Gives a buffer back.
pub(super) fn give<T>(spares: &'static LocalKey<Spares<T>>, one: Vec<T>) {
    if one.capacity() == 0 || one.capacity() * size_of::<T>() > SIZE_MAX_BYTES {
        return;
    }
    let _ = spares.try_with(|spares| {
        let mut all = spares.take();
        if all.len() < COUNT {
            all.push(one);
        }
        spares.set(all);
    });
}

/// Bytes to read into, until they are dropped.
pub(super) struct Spare(pub(super) Vec<u8>);

impl Spare {
    pub(super) fn take() -> Self {
        Spare(take(&BYTES))
    }
}

impl Drop for Spare {
    fn drop(&mut self) {
        give(&BYTES, std::mem::take(&mut self.0));
    }
}
