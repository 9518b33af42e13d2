//! A lock that may be held over a suspension.
//!
//! Tasks that wait for the turn are suspended and served in order. The value sits
//! in an ordinary lock, which is free whenever the turn is; it is what makes the guard safe
//! without unsafe code here.

use crate::sync::{Turn, TurnGuard};
use parking_lot::Mutex as Lock;
use std::ops::{Deref, DerefMut};

/// Exclusive access to a value, for tasks of any cores and for threads. May be held over I/O and
/// other waits. Served in the order of asking; not poisoned by a panic.
#[derive(Debug)]
pub struct Mutex<T> {
    turn: Turn,
    value: Lock<T>,
}

/// Access to the value of a [`Mutex`] until it is dropped. `!Send`: it stays with its task.
#[derive(Debug)]
pub struct MutexGuard<'a, T> {
    // Dropped in this order: the value is free before the next one gets the turn.
    value: parking_lot::MutexGuard<'a, T>,
    _turn: TurnGuard<'a>,
}

impl<T> Mutex<T> {
    /// A free lock around `value`.
    #[must_use]
    pub fn new(value: T) -> Self {
        Mutex { turn: Turn::new(), value: Lock::new(value) }
    }

    /// Waits for the lock. Not ended by a shutdown.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let turn = self.turn.take();
        MutexGuard { value: self.value.lock(), _turn: turn }
    }

    /// The lock if it is free and nobody waits.
    #[must_use]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let turn = self.turn.try_take()?;
        Some(MutexGuard { value: self.value.lock(), _turn: turn })
    }

    /// The value, of a lock that nobody else has.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    /// The value.
    #[must_use]
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<T: Default> Default for Mutex<T> {
    fn default() -> Self {
        Mutex::new(T::default())
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}
